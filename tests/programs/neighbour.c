// A user of a mount, and what he may do to the others.
//
//     neighbour UID DIR hold NAME             locks a directory in the kernel, until it is killed
//     neighbour UID DIR seek NAME             writes a byte to a file and looks for its first hole
//     neighbour UID DIR fill NAME             writes to a file that exists until there is no space
//     neighbour UID DIR flood KIND PROCESSES  sends requests of a kind from many processes, until it is killed
//     neighbour UID DIR work SEED ROUNDS      makes, writes, reads, compares and removes files; prints the longest wait
//     neighbour UID DIR verify SEED ROUNDS    compares what `work` has left
//     neighbour UID DIR bother SEED STEPS     random calls, hints and requests; prints how many, how many had
//                                         an effect, and how many hints were taken
//
// It goes to DIR as root, and is a user without any rights from then on.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include "fail.h"
#include "random.h"

#define COUNT(of) (sizeof(of) / sizeof *(of))
#define PICK(of) ((of)[below(COUNT(of))])
#define HINT(bytes) _IOC(_IOC_WRITE, 0xe6, 1, bytes)

enum { MIB = 1 << 20, HELD_BYTES = 1 << 16, FILES = 12, FILE_BYTES = 60000, HINT_MAX = (1 << 14) - 1 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Asks for memory whose pages never come. Only root may let the kernel wait for such pages.
static char *pages_that_never_come(void) {
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0) fail("userfaultfd");
    char *memory = mmap(NULL, HELD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    struct uffdio_register range = {
        .range = { (uintptr_t)memory, HELD_BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    if (ioctl(faults, UFFDIO_REGISTER, &range) != 0) fail("UFFDIO_REGISTER");
    return memory;
}

// Lists a directory into such memory: the kernel holds the lock of the directory meanwhile.
static void hold(const char *name, char *memory) {
    int dir = open(name, O_RDONLY | O_DIRECTORY);
    if (dir < 0) fail(name);
    syscall(SYS_getdents64, dir, memory, HELD_BYTES);
}

static void seek(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0) fail(name);
    if (pwrite(fd, "x", 1, 0) != 1) fail("pwrite");
    if (lseek(fd, 0, SEEK_HOLE) < 0) fail("lseek");
}

static void fill(const char *name) {
    static char bytes[MIB];
    int fd = open(name, O_WRONLY);
    if (fd < 0) fail(name);
    do {
        for (size_t at = 0; at < sizeof bytes; at += 8) memcpy(bytes + at, &(uint64_t){ next() }, 8);
    } while (write(fd, bytes, sizeof bytes) == sizeof bytes && fsync(fd) == 0);
    if (errno != ENOSPC) fail("write");
}

static void flood_by_one(const char *kind, int number) {
    static char bytes[MIB], value[65536];
    char name[32];
    sprintf(name, "flood %d", number);
    int fd = open(!strcmp(kind, "dedup") ? "big" : name, O_RDWR | O_CREAT, 0600);
    if (fd < 0) fail("open");
    for (long round = 0;; round++) {
        if (!strcmp(kind, "sync")) {
            if (pwrite(fd, bytes, 4096, 0) == 4096) fsync(fd);
        } else if (!strcmp(kind, "seek")) {
            if (pwrite(fd, bytes, 65536, round % 16 * 65536) == 65536) lseek(fd, 0, SEEK_HOLE);
        } else if (!strcmp(kind, "dedup")) {
            if (fgetxattr(fd, "user.nvfold.dedup-range.0.99999999999", value, sizeof value) < 0 && errno != EAGAIN) fail(kind);
        } else if (!strcmp(kind, "attributes")) {
            sprintf(name, "user.%ld", round % 200);
            fsetxattr(fd, name, bytes, below(65536), 0);
        } else {
            if (pread(fd, bytes, sizeof bytes, 0) < 0 || pwrite(fd, bytes, 100000, below(3 * MIB)) < 0) fail(kind);
        }
    }
}

static void flood(const char *kind, int processes) {
    if (!strcmp(kind, "dedup")) {
        int fd = open("big", O_RDWR | O_CREAT, 0600);
        static char bytes[MIB];
        for (int at = 0; at < 64; at++) {
            for (size_t word = 0; word < sizeof bytes; word += 8) memcpy(bytes + word, &(uint64_t){ next() }, 8);
            if (write(fd, bytes, sizeof bytes) != sizeof bytes) fail("write");
        }
    }
    for (int number = 0; number < processes; number++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            flood_by_one(kind, number);
        }
    }
    puts("floods");
    fflush(stdout);
    while (wait(NULL) > 0) {}
}

// Makes the content of a file of a round.
static void content(unsigned char *bytes, uint64_t seed, long round) {
    state = seed + round;
    for (size_t at = 0; at < FILE_BYTES; at++) {
        // Some blocks are like those of other rounds, so that there is something to share.
        if (at % 4096 == 0) state = below(2) ? seed + round + at : 1 + at;
        if (at % 8 == 0) next();
        bytes[at] = state >> at % 8 * 8;
    }
}

static void compare(uint64_t seed, long round) {
    static unsigned char expected[FILE_BYTES], found[FILE_BYTES + 1];
    char name[32];
    sprintf(name, "own %ld", round % FILES);
    int fd = open(name, O_RDONLY);
    if (fd < 0) fail(name);
    if (read(fd, found, sizeof found) != FILE_BYTES) fail("read");
    close(fd);
    content(expected, seed, round);
    if (memcmp(expected, found, FILE_BYTES) != 0) {
        printf("round %ld reads other bytes\n", round);
        exit(1);
    }
}

static void work(uint64_t seed, long rounds) {
    static unsigned char bytes[FILE_BYTES];
    double longest = 0;
    for (long round = 0; round < rounds; round++) {
        char name[32];
        sprintf(name, "own %ld", round % FILES);
        content(bytes, seed, round);
        double began = now();
        unlink(name);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0) fail(name);
        if (write(fd, bytes, FILE_BYTES) != FILE_BYTES) fail("write");
        lseek(fd, 0, SEEK_HOLE);
        if (round % 8 == 0) fsync(fd);
        close(fd);
        if (round >= 3) compare(seed, round - 3);
        double took = now() - began;
        if (took > longest) longest = took;
    }
    printf("%.0f\n", longest * 1000);
}

static void verify(uint64_t seed, long rounds) {
    for (long round = rounds - FILES; round < rounds; round++) compare(seed, round);
}

static uint64_t number(void) {
    static const uint64_t LIMITS[] = { 0, 1, 4095, 4096, 65536, 1 << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 4095, 1ull << 48 };
    return below(3) ? below(200000) : PICK(LIMITS);
}

// Makes the name of a request, sometimes a mutated one.
static void request(char *name) {
    static const char *const REQUESTS[] = {
        "dedup-range.%llu.%llu", "undedup-range.%llu.%llu", "compress-range.lz4.%llu.%llu", "compress-range.zstd:3.%llu.%llu",
        "compress-range.off.%llu.%llu", "extents.%llu", "drain", "reclaim", "sync", "stats", "usage", "token", "method", "mode",
        "paused", "dedup", "compress", "dedup-range.-%llu", "extents.%llu.%llu.", "compress-range.%llu",
    };
    char rest[200];
    sprintf(rest, PICK(REQUESTS), (unsigned long long)number(), (unsigned long long)number());
    sprintf(name, "user.nvfold.%s", rest);
    if (below(6) == 0) name[below(strlen(name))] = 1 + below(255);
}

// Sends a hint, well formed or not, about copies from files whose tokens this user got. Returns whether it was taken.
static int hint(int fd) {
    static unsigned char bytes[HINT_MAX];
    static unsigned char tokens[8][16];
    static const char *const SOURCES[] = { "mine 0", "mine 1", "../open/secret", "../victim/own 1" };
    int source = open(PICK(SOURCES), O_RDONLY);
    if (source >= 0) {
        fgetxattr(source, "user.nvfold.token", tokens[below(8)], 16);
        close(source);
    }
    int sources = 1 + below(4), origins = below(20);
    size_t length = 16 + 16 * (sources + origins);
    for (size_t at = 0; at < length; at++) bytes[at] = below(256);
    uint64_t offset = below(60000);
    uint32_t covered = 1 << 17;
    uint16_t counts[2] = { sources, origins };
    memcpy(bytes, &offset, 8);
    memcpy(bytes + 8, &covered, 4);
    memcpy(bytes + 12, counts, 4);
    for (int at = 0; at < sources; at++) memcpy(bytes + 16 + 16 * at, PICK(tokens), 16);
    for (int at = 0; at < origins; at++) {
        unsigned char *origin = bytes + 16 + 16 * (sources + at);
        uint32_t range[2] = { at * 6000 + below(1000), 1 + below(5000) };
        uint64_t from = below(60000) | (uint64_t)below(sources) << 48;
        memcpy(origin, range, 8);
        memcpy(origin + 8, &from, 8);
    }
    for (int mutations = below(3) ? 0 : below(8); mutations > 0; mutations--) bytes[below(length)] = below(256);
    if (below(8) == 0) length = below(HINT_MAX);
    return ioctl(fd, below(16) ? HINT(length) : next(), bytes) == 0;
}

static void bother(uint64_t seed, long steps) {
    static unsigned char bytes[1 << 17], value[65536];
    static const char *const POLICIES[] = { "off", "inline", "nv-dedup", "denova", "deext", "icid", "auto", "none", "" };
    long effects = 0, hints = 0;
    state = seed;
    for (long step = 0; step < steps; step++) {
        char name[300], attribute[300];
        sprintf(name, "mine %d", (int)below(4));
        if (below(12) == 0) strcpy(name, below(2) ? "../open/secret" : ".");
        int fd = open(name, below(4) ? O_RDWR | O_CREAT : O_RDONLY, 0644);
        if (fd < 0) continue;
        long result = -1;
        uint64_t at = below(200000), length = below(sizeof bytes);
        for (size_t word = 0; word < length; word += 512) bytes[word] = below(3);
        switch (below(12)) {
        case 0: case 1: request(attribute); result = fgetxattr(fd, attribute, value, below(4) ? sizeof value : below(100)); break;
        case 2: request(attribute); result = fsetxattr(fd, attribute, value, below(64), below(4)); break;
        case 3: request(attribute); result = fremovexattr(fd, attribute); break;
        case 4: result = fsetxattr(fd, "user.nvfold.dedup", (value[0] = 0, POLICIES[step % 9]), strlen(POLICIES[step % 9]), 0); break;
        case 5: case 6: hints += hint(fd); result = pwrite(fd, bytes, length, at); break;
        case 7: result = pwrite(fd, bytes, length, at); break;
        case 8: result = pread(fd, bytes, length, at); break;
        case 9: result = fallocate(fd, below(4), at, 1 + length); break;
        case 10: {
            int other = open(below(4) ? "mine 0" : "../open/secret", O_RDONLY);
            off64_t from = below(100000), to = at;
            result = copy_file_range(other, &from, fd, &to, length, 0);
            close(other);
            break;
        }
        case 11:
            switch (below(4)) {
            case 0: result = ftruncate(fd, at); break;
            case 1: result = unlink(name); break;
            case 2: result = lseek(fd, at, below(2) ? SEEK_HOLE : SEEK_DATA); break;
            default: sprintf(attribute, "user.%d", (int)below(300)); result = fsetxattr(fd, attribute, value, below(65536), 0);
            }
        }
        effects += result >= 0;
        close(fd);
    }
    printf("%ld %ld %ld\n", steps, effects, hints);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    uid_t uid = atoi(argv[1]);
    const char *what = argv[3];
    long last = argc > 5 ? atol(argv[5]) : 0;
    char *memory = !strcmp(what, "hold") ? pages_that_never_come() : NULL;
    if (chdir(argv[2]) != 0) fail(argv[2]);
    if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) fail("become a user");
    if (memory) hold(argv[4], memory);
    else if (!strcmp(what, "seek")) seek(argv[4]);
    else if (!strcmp(what, "fill")) fill(argv[4]);
    else if (!strcmp(what, "flood")) flood(argv[4], last);
    else if (!strcmp(what, "work")) work(strtoull(argv[4], NULL, 0), last);
    else if (!strcmp(what, "verify")) verify(strtoull(argv[4], NULL, 0), last);
    else if (!strcmp(what, "bother")) bother(strtoull(argv[4], NULL, 0), last);
    else return 2;
    return 0;
}
