// Programs that copy from file to file through their memory, to be followed by `nvfold run --mount`.
//
//     followed records SOURCE TARGET EXPECTED     short records from anywhere, by write, pwrite and writev in turn
//     followed lines SOURCE TARGET EXPECTED       the same by stdio: fread or fgets, and fwrite or fputs
//     followed mapped SOURCE TARGET EXPECTED      from a mapping of the source
//     followed forks SOURCE TARGET EXPECTED       read by the parent, written by a child, and by a child of that
//     followed reuse SOURCE TARGET EXPECTED       numbers of descriptors that are closed and become other files
//     followed threads SOURCE TARGET EXPECTED     by 200 threads at once, each to its own part of the target
//     followed storm SOURCE TARGET EXPECTED       threads that copy while others fork, and a signal handler that copies
//
// EXPECTED, which is not on the mount, has the same bytes when it is done.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%d: %s is not so: %s\n", __LINE__, #what, strerror(errno));                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define BYTES (1 << 20)
#define THREADS 200
#define PART 5000

// Lengths that the compiler knows, or knows a bound of, it copies in place, where nobody sees it.
static void *(*volatile copy_bytes)(void *, const void *, size_t) = memcpy;

static char source[BYTES], copy[2 * BYTES];
static const char *source_path, *target_path, *expected_path;

// Of `rand`, which is the same each time.
static size_t below(size_t limit) { return (size_t)rand() % limit; }

static void read_source(void) {
    int fd = open(source_path, O_RDONLY);
    CHECK(fd >= 0);
    for (size_t at = 0; at < BYTES;) {
        ssize_t got = read(fd, source + at, 70001);
        CHECK(got > 0);
        at += got;
    }
    CHECK(close(fd) == 0);
}

static void expect(const char *bytes, size_t length) {
    int fd = open(expected_path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    CHECK(fd >= 0);
    for (size_t at = 0; at < length;) {
        ssize_t put = write(fd, bytes + at, length - at);
        CHECK(put > 0);
        at += put;
    }
    close(fd);
}

static int target(int flags) {
    int fd = open(target_path, O_CREAT | O_RDWR | O_TRUNC | flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

// Records of 100 to 300 bytes from anywhere, until there are about so many bytes.
static size_t take_records(const char *from, char *to, size_t about) {
    size_t length = 0;
    while (length < about) {
        size_t record = 100 + below(201);
        copy_bytes(to + length, from + below(BYTES - 300), record);
        length += record;
    }
    return length;
}

static void write_in_turn(int fd, const char *bytes, size_t length) {
    int round = 0;
    for (size_t at = 0; at < length; round++) {
        size_t part = 100 + below(9000);
        if (part > length - at) part = length - at;
        errno = 77;
        if (round % 3 == 0) {
            CHECK(lseek(fd, at, SEEK_SET) == (off_t)at && write(fd, bytes + at, part) == (ssize_t)part);
        } else if (round % 3 == 1) {
            CHECK(pwrite(fd, bytes + at, part, at) == (ssize_t)part);
        } else {
            struct iovec vector[2] = {{(char *)bytes + at, part / 2}, {(char *)bytes + at + part / 2, part - part / 2}};
            CHECK(lseek(fd, at, SEEK_SET) == (off_t)at && writev(fd, vector, 2) == (ssize_t)part);
        }
        CHECK(errno == 77);
        at += part;
    }
}

static void records(void) {
    read_source();
    size_t length = take_records(source, copy, BYTES);
    int fd = target(0);
    write_in_turn(fd, copy, length);
    close(fd);
    // And at the end of a file that is open to be appended to.
    fd = open(target_path, O_WRONLY | O_APPEND);
    CHECK(write(fd, source + 12345, 50000) == 50000 && close(fd) == 0);
    copy_bytes(copy + length, source + 12345, 50000);
    expect(copy, length + 50000);
}

static void lines(void) {
    FILE *from = fopen(source_path, "r"), *to = fopen(target_path, "w");
    CHECK(from && to);
    static char part[3000];
    size_t length = 0;
    for (int round = 0;; round++) {
        size_t got = round % 2 ? fread(part, 1, 100 + below(900), from) : 0;
        if (round % 2 == 0 && fgets(part, 1000, from)) got = strlen(part);
        if (got == 0) break;
        copy_bytes(copy + length, part, got);
        length += got;
        part[got] = 0;
        if (round % 3 == 0 && strlen(part) == got)
            CHECK(fputs(part, to) >= 0);
        else
            CHECK(fwrite(part, 1, got, to) == got);
    }
    CHECK(fclose(from) == 0 && fclose(to) == 0);
    expect(copy, length);
}

static void mapped(void) {
    int from = open(source_path, O_RDONLY), to = target(0);
    char *memory = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, from, 0);
    CHECK(memory != MAP_FAILED && close(from) == 0);
    size_t length = take_records(memory, copy, BYTES / 2);
    write_in_turn(to, copy, length);
    CHECK(pwrite(to, memory + 777, 300000, length) == 300000);
    copy_bytes(copy + length, memory + 777, 300000);
    CHECK(munmap(memory, BYTES) == 0);
    expect(copy, length + 300000);
}

static void must_succeed(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void forks(void) {
    read_source();
    size_t half = take_records(source, copy, BYTES / 2), all = half + take_records(source, copy + half, BYTES / 2);
    int fd = target(0);
    pid_t child = fork();
    if (child == 0) {
        for (size_t at = 0; at < half; at += 7000)
            CHECK(pwrite(fd, copy + at, half - at < 7000 ? half - at : 7000, at) > 0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (size_t at = half; at < all; at += 7000)
                CHECK(pwrite(fd, copy + at, all - at < 7000 ? all - at : 7000, at) > 0);
            _exit(0);
        }
        must_succeed(grandchild);
        _exit(0);
    }
    must_succeed(child);
    close(fd);
    expect(copy, all);
}

static void reuse(void) {
    char host[] = "/tmp/followed.XXXXXX", back[PART];
    int other = mkstemp(host);
    CHECK(other >= 0 && unlink(host) == 0);
    int to = target(0);
    for (int round = 0; round < 200; round++) {
        int from = open(source_path, O_RDONLY);
        off_t at = round * PART;
        CHECK(pread(from, copy + at, PART, at) == PART);
        CHECK(close(from) == 0);
        // The number is another file's now: one of the host, a pipe, the target.
        int reused = round % 2 ? dup(other) : fcntl(other, F_DUPFD, 0);
        CHECK(reused == from);
        errno = 77;
        CHECK(pwrite(reused, copy + at, PART, 0) == PART && pread(reused, back, PART, 0) == PART && errno == 77);
        CHECK(memcmp(back, copy + at, PART) == 0);
        int pipes[2];
        CHECK(pipe(pipes) == 0 && dup2(pipes[1], reused) == reused);
        CHECK(write(reused, copy + at, 4000) == 4000 && read(pipes[0], back, 4000) == 4000);
        CHECK(memcmp(back, copy + at, 4000) == 0);
        CHECK(dup2(to, reused) == reused && pwrite(reused, copy + at, PART, at) == PART);
        close_range(pipes[0] < pipes[1] ? pipes[0] : pipes[1], pipes[0] < pipes[1] ? pipes[1] : pipes[0], 0);
        CHECK(close(reused) == 0);
    }
    expect(copy, 200 * PART);
}

static void *one_thread(void *number) {
    size_t at = (size_t)number * PART;
    int from = open(source_path, O_RDONLY), to = open(target_path, O_WRONLY);
    CHECK(from >= 0 && to >= 0);
    char *memory = malloc(PART), *other = malloc(PART);
    CHECK(pread(from, memory, PART, at) == PART);
    for (size_t part = 0; part < PART; part += 250) copy_bytes(other + part, memory + part, 250);
    CHECK(pwrite(to, other, PART, at) == PART);
    close(from), close(to), free(memory), free(other);
    return NULL;
}

static void threads(void) {
    close(target(0));
    pthread_t all[THREADS];
    for (size_t n = 0; n < THREADS; n++) CHECK(pthread_create(&all[n], NULL, one_thread, (void *)n) == 0);
    for (size_t n = 0; n < THREADS; n++) CHECK(pthread_join(all[n], NULL) == 0);
    read_source();
    expect(source, THREADS * PART);
}

#define STORM_THREADS 8
#define STORM_CHILDREN 62
#define STORM_END ((STORM_THREADS + STORM_CHILDREN) * PART)

static int storm_from, storm_to;
static volatile int is_over;

static void copy_part(size_t part, char *memory, char *other) {
    CHECK(pread(storm_from, memory, PART, part * PART) == PART);
    for (size_t at = 0; at < PART; at += 250) copy_bytes(other + at, memory + at, 250);
    CHECK(pwrite(storm_to, other, PART, part * PART) == PART);
}

static void *storm_thread(void *part) {
    char *memory = malloc(PART), *other = malloc(PART);
    do copy_part((size_t)part, memory, other);
    while (!is_over);
    free(memory), free(other);
    return NULL;
}

static void storm_handler(int signal) {
    static char memory[300], other[300];
    int before = errno;
    (void)signal;
    CHECK(pread(storm_from, memory, 300, STORM_END) == 300);
    copy_bytes(other, memory, 300);
    CHECK(pwrite(storm_to, other, 300, STORM_END) == 300);
    errno = before;
}

static void storm(void) {
    storm_from = open(source_path, O_RDONLY), storm_to = target(0);
    struct sigaction action = {.sa_handler = storm_handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && raise(SIGALRM) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t all[STORM_THREADS];
    for (size_t n = 0; n < STORM_THREADS; n++) CHECK(pthread_create(&all[n], NULL, storm_thread, (void *)n) == 0);
    static char memory[PART], other[PART];
    for (size_t n = 0; n < STORM_CHILDREN; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            copy_part(STORM_THREADS + n, memory, other);
            _exit(0);
        }
        must_succeed(child);
    }
    is_over = 1;
    for (size_t n = 0; n < STORM_THREADS; n++) CHECK(pthread_join(all[n], NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    read_source();
    expect(source, STORM_END + 300);
}

int main(int argc, char **argv) {
    const struct { const char *name; void (*run)(void); } ways[] = {
        {"records", records}, {"lines", lines}, {"mapped", mapped},
        {"forks", forks},     {"reuse", reuse}, {"threads", threads}, {"storm", storm},
    };
    if (argc != 5) return 2;
    source_path = argv[2], target_path = argv[3], expected_path = argv[4];
    for (size_t n = 0; n < sizeof ways / sizeof *ways; n++) {
        if (!strcmp(argv[1], ways[n].name)) return ways[n].run(), 0;
    }
    return 2;
}
