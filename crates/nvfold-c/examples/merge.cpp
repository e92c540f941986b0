// Two files merged into a third, from C++17: a record of the one, a record of the other, as a compaction does. The records are
// put together in memory with nvfold_memcpy, so the new file shares the bytes of the old ones.
#include <cstdio>
#include <icid.h>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string &what)
{
    throw std::runtime_error(what + ": " + nvfold_last_error());
}

class Device {
public:
    Device(const std::string &path, const std::string &options)
        : device(nvfold_device_open(path.c_str(), options.c_str()))
    {
        if (!device)
            fail("open the device");
    }
    ~Device() { nvfold_device_close(device); }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    struct ::nvfold_stats stats() const
    {
        struct ::nvfold_stats now;
        if (::nvfold_stats(device, &now, sizeof now) < 0)
            fail("stats");
        return now;
    }

    nvfold_device *const device;
};

class File {
public:
    File(const Device &device, const std::string &path)
        : fd(nvfold_open(device.device, path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644))
    {
        if (fd < 0)
            fail("open");
    }
    ~File() { nvfold_close(fd); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    void write(const std::vector<char> &bytes)
    {
        if (nvfold_write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
            fail("write");
    }

    std::vector<char> read()
    {
        std::vector<char> bytes(static_cast<std::size_t>(nvfold_lseek(fd, 0, SEEK_END)));
        if (nvfold_pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
            fail("read");
        return bytes;
    }

private:
    const int fd;
};

constexpr std::size_t record = 1024, records = 64;

std::vector<char> table(unsigned seed)
{
    std::vector<char> bytes(record * records);
    for (auto &byte : bytes) {
        seed = seed * 1103515245u + 12345u;
        byte = static_cast<char>(seed >> 16);
    }
    return bytes;
}

} // namespace

int main(int argc, char **argv)
try {
    const Device device(argc > 1 ? argv[1] : "mem:", argc > 2 ? argv[2] : "size=64M,policy=icid");
    File one(device, "/one"), other(device, "/other"), merged(device, "/merged");
    one.write(table(1));
    other.write(table(2));
    const auto before = device.stats();

    const auto left = one.read(), right = other.read();
    std::vector<char> out(2 * left.size());
    for (std::size_t at = 0; at < records; at++) {
        nvfold_memcpy(&out[2 * at * record], &left[at * record], record);
        nvfold_memcpy(&out[(2 * at + 1) * record], &right[at * record], record);
    }
    merged.write(out);

    const auto after = device.stats();
    std::printf("merged %zu bytes: %llu shared, stored bytes grew by %lld\n", out.size(),
                static_cast<unsigned long long>(after.shared_by_origin_bytes - before.shared_by_origin_bytes),
                static_cast<long long>(after.stored_bytes - before.stored_bytes));
    std::printf("the merged file is %s\n", merged.read() == out ? "right" : "wrong");
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
