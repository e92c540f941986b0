// LevelDB as db_bench uses it: random keys of 16 bytes, values from a pool that compresses to half its size.
//
//   leveldb DIR PAIRS VALUE_BYTES COMPRESS(0|1) PHASES READS
//
// PHASES is a list as db_bench's --benchmarks, separated by commas:
//   fillrandom, overwrite   put PAIRS pairs with keys drawn from 0 .. PAIRS
//   compact                 compact all tables
// Then reads READS keys with checksums verified, and compares each byte. Prints each figure on a line, with name and
// number. Exits with 1 at the first error or wrong byte, and with 2 if the arguments are wrong.

#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/options.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr size_t kPoolBytes = 1 << 20;
constexpr size_t kPieceBytes = 100;
// Number of parts of a fill; the rate of each is printed.
constexpr uint64_t kWindows = 16;

uint64_t Next(uint64_t& state) {
  uint64_t mixed = state += 0x9E3779B97F4A7C15;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

// Makes pieces whose second half repeats the first, so that they compress to half their size, as in db_bench.
std::string MakePool() {
  uint64_t state = 301;
  std::string pool;
  while (pool.size() < kPoolBytes) {
    std::string half;
    while (half.size() < kPieceBytes / 2) half.push_back(static_cast<char>(' ' + Next(state) % 95));
    pool += half + half;
  }
  return pool;
}

// Takes consecutive values from the pool, and starts again at its end.
class Values {
 public:
  Values(size_t bytes) : pool_(MakePool()), bytes_(bytes) {}
  size_t Take() {
    if (position_ + bytes_ > pool_.size()) position_ = 0;
    size_t at = position_;
    position_ += bytes_;
    return at;
  }
  leveldb::Slice At(size_t at) const { return leveldb::Slice(pool_.data() + at, bytes_); }

 private:
  std::string pool_;
  size_t bytes_;
  size_t position_ = 0;
};

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

void Check(const leveldb::Status& status, const char* doing) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", doing, status.ToString().c_str());
  std::exit(1);
}

// Prints how many bytes LevelDB wrote, by kind, according to its log.
void TellWritten(const std::string& path) {
  unsigned long long flushed = 0, compacted = 0;
  for (const char* name : {"/LOG.old", "/LOG"}) {
    std::ifstream log(path + name);
    for (std::string line; std::getline(log, line);) {
      unsigned long long bytes;
      if (size_t at = line.find("Level-0 table #"); at != std::string::npos) {
        if (std::sscanf(line.c_str() + at, "Level-0 table #%*u: %llu bytes OK", &bytes) == 1) flushed += bytes;
      } else if (size_t at = line.find(" => "); at != std::string::npos) {
        if (std::sscanf(line.c_str() + at, " => %llu bytes", &bytes) == 1) compacted += bytes;
      }
    }
  }
  std::printf("flushed_bytes %llu\ncompacted_bytes %llu\n", flushed, compacted);
}

// The store, and the place in the pool of each key's value; -1 if the key was not put.
struct Store {
  leveldb::DB* db;
  Values values;
  std::vector<int64_t> stored;
  uint64_t state = 1000;
};

// Puts as many pairs as there are keys.
void Put(Store& store) {
  const uint64_t pairs = store.stored.size();
  const double wall = WallSeconds(), processor = ProcessorSeconds();
  const uint64_t window = pairs / kWindows + 1;
  double window_began = wall;
  char key[32];
  for (uint64_t put = 0; put < pairs; ++put) {
    const uint64_t number = Next(store.state) % pairs;
    store.stored[number] = store.values.Take();
    std::snprintf(key, sizeof key, "%016llu", static_cast<unsigned long long>(number));
    Check(store.db->Put(leveldb::WriteOptions(), key, store.values.At(store.stored[number])), "put");
    if ((put + 1) % window == 0 || put + 1 == pairs) {
      const double now = WallSeconds();
      std::printf("window_rate %.3f\n", (put % window + 1) / (now - window_began));
      window_began = now;
    }
  }
  std::printf("fill_seconds %.6f\nfill_processor_seconds %.6f\n", WallSeconds() - wall,
              ProcessorSeconds() - processor);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const std::string path = argv[1];
  const uint64_t pairs = std::strtoull(argv[2], nullptr, 10);
  const size_t value_bytes = std::strtoull(argv[3], nullptr, 10);
  const uint64_t reads = std::strtoull(argv[6], nullptr, 10);

  leveldb::Options options;
  options.create_if_missing = true;
  options.compression = argv[4][0] == '1' ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  options.paranoid_checks = true;
  leveldb::DB* db = nullptr;
  Check(leveldb::DB::Open(options, path, &db), "open");

  Store store{db, Values(value_bytes), std::vector<int64_t>(pairs, -1)};
  std::istringstream phases(argv[5]);
  for (std::string phase; std::getline(phases, phase, ',');) {
    if (phase == "fillrandom" || phase == "overwrite") {
      Put(store);
    } else if (phase == "compact") {
      const double wall = WallSeconds();
      db->CompactRange(nullptr, nullptr);
      std::printf("compact_seconds %.6f\n", WallSeconds() - wall);
    } else {
      std::fprintf(stderr, "there is no phase %s\n", phase.c_str());
      return 2;
    }
    std::fflush(stdout);
  }

  leveldb::ReadOptions verify;
  verify.verify_checksums = true;
  const double wall = WallSeconds();
  std::string found;
  char key[32];
  for (uint64_t read = 0; read < reads; ++read) {
    const uint64_t number = Next(store.state) % pairs;
    std::snprintf(key, sizeof key, "%016llu", static_cast<unsigned long long>(number));
    const leveldb::Status status = db->Get(verify, key, &found);
    const int64_t at = store.stored[number];
    if (at < 0 ? !status.IsNotFound() : !status.ok() || store.values.At(at) != found) {
      std::fprintf(stderr, "key %s: the value differs from the one put: %s\n", key, status.ToString().c_str());
      return 1;
    }
  }
  std::printf("read_seconds %.6f\n", WallSeconds() - wall);
  delete db;
  std::printf("processor_seconds %.6f\n", ProcessorSeconds());
  TellWritten(path);
}
