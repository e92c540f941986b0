/* Shared mappings: stores, and what others see of them. Prints the same on the host as below the prefix. `mappings DIR` */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define RW (PROT_READ | PROT_WRITE)

static sigjmp_buf back;

static void fault(int number) {
    siglongjmp(back, number);
}

/* The signal that a load gets, or 0. */
static int signal_of(const volatile char *at) {
    int number = sigsetjmp(back, 1);
    if (number == 0)
        (void)*at;
    return number;
}

static char *map(int fd, size_t length, int prot, off_t at) {
    char *start = mmap(NULL, length, prot, MAP_SHARED, fd, at);
    CHECK(start != MAP_FAILED);
    return start;
}

/* What a read gives, and what a mapping has. */
static void tell(const char *what, int fd, off_t at) {
    char byte = '-';
    ssize_t read = pread(fd, &byte, 1, at);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    printf("%s: %zd %d, size %lld\n", what, read, byte, (long long)stat.st_size);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && chdir(arguments[1]) == 0);
    struct sigaction action = {.sa_handler = fault};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    char bytes[3 * PAGE];
    for (size_t at = 0; at < sizeof bytes; at++)
        bytes[at] = (char)(at % 251);
    int fd = open("f", O_CREAT | O_RDWR, 0644), reads = open("f", O_RDONLY), writes = open("f", O_WRONLY);
    CHECK(write(fd, bytes, 10000) == 10000);

    /* What a descriptor allows. */
    TELL(mmap(NULL, PAGE, RW, MAP_SHARED, reads, 0));
    TELL(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writes, 0));
    TELL(mmap(NULL, PAGE, RW, MAP_SHARED, writes, 0));
    TELL(mmap(NULL, PAGE, RW, MAP_SHARED, fd, 100));
    TELL(mmap(NULL, 0, RW, MAP_SHARED, fd, 0));
    TELL(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0) != MAP_FAILED);

    /* Two mappings, reads and writes see each other. */
    char *all = map(fd, 3 * PAGE, RW, 0), *second = map(fd, PAGE, RW, PAGE);
    CHECK(memcmp(all, bytes, 10000) == 0 && memcmp(second, bytes + PAGE, PAGE) == 0);
    all[5000] = 'x';
    TELL(second[5000 - PAGE]);
    tell("stored", reads, 5000);
    second[1] = 'y';
    TELL(all[PAGE + 1]);
    CHECK(pwrite(fd, "z", 1, PAGE + 2) == 1);
    TELL(all[PAGE + 2] == second[2] && second[2] == 'z');
    TELL(second[1]);
    char *seen = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, PAGE), *by_reader = map(reads, PAGE, PROT_READ, PAGE);
    TELL(seen[1] == 'y' && by_reader[1] == 'y');
    second[3] = 'w';
    TELL(by_reader[3]);
    TELL(mprotect(by_reader, PAGE, RW));

    /* The size changes. */
    TELL(all[9999]);
    TELL(all[10000] + all[12287]);
    TELL(ftruncate(fd, 5001));
    TELL(all[5000]);
    TELL(all[5001]);
    TELL(signal_of(all + 2 * PAGE));
    TELL(ftruncate(fd, 9000));
    TELL(signal_of(all + 2 * PAGE));
    TELL(all[5001] + all[2 * PAGE]);
    all[8999] = 'e';
    tell("extended", fd, 8999);
    TELL(truncate("f", 12000));
    TELL(all[8999]);
    CHECK(pwrite(fd, "beyond", 6, 13000) == 6);
    TELL(all[12287]);

    /* Other ways to change a file. */
    TELL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE));
    TELL(all[5000] + second[0] + all[PAGE + 3]);
    TELL(all[PAGE - 1]);
    loff_t from = 0, to = PAGE;
    all[0] = 'c';
    TELL(copy_file_range(fd, &from, fd, &to, PAGE, 0));
    TELL(second[0] == 'c' && second[1] == bytes[1]);
    int again = open("g", O_CREAT | O_RDWR, 0644);
    CHECK(write(again, bytes, PAGE) == PAGE);
    char *of_again = map(again, PAGE, RW, 0);
    of_again[7] = '7';
    close(again);
    of_again[8] = '8';
    again = open("g", O_RDWR);
    tell("after close", again, 7);
    tell("after close", again, 8);
    CHECK(close(open("g", O_RDWR | O_TRUNC)) == 0);
    TELL(signal_of(of_again));
    CHECK(pwrite(again, "anew", 4, 0) == 4);
    TELL(of_again[1]);
    TELL(of_again[7]);
    CHECK(unlink("g") == 0);
    of_again[2] = 'u';
    tell("without a name", again, 2);

    /* mprotect, msync, parts. */
    char *later = map(fd, PAGE, PROT_READ, 0);
    TELL(signal_of(later));
    TELL(mprotect(later, PAGE, RW));
    later[10] = 'p';
    TELL(all[10]);
    TELL(msync(later, PAGE, MS_SYNC));
    TELL(msync(later, PAGE, MS_ASYNC));
    TELL(msync(later, PAGE, MS_SYNC | MS_ASYNC));
    TELL(msync(later + 1, PAGE, MS_SYNC));
    TELL(munmap(later, PAGE));
    TELL(msync(later, PAGE, MS_SYNC));
    TELL(signal_of(later));
    all[PAGE + 20] = 'm';
    TELL(munmap(all + PAGE, PAGE));
    tell("unmapped", fd, PAGE + 20);
    all[20] = 'n';
    all[2 * PAGE + 20] = 'o';
    TELL(signal_of(all + PAGE));
    tell("left before", fd, 20);
    tell("left behind", fd, 2 * PAGE + 20);

    /* Something else in its place. */
    all[30] = 'q';
    CHECK(mmap(all, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all);
    TELL(all[30]);
    all[31] = 'r';
    tell("replaced", fd, 30);
    tell("not a store", fd, 31);
    CHECK(mmap(all, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, PAGE) == all);
    TELL(all[20]);
    all[21] = 's';
    TELL(second[21]);

    /* It grows and shrinks. */
    char *grows = map(again, PAGE, RW, 0);
    grows[0] = 'g';
    TELL(ftruncate(again, 3 * PAGE));
    CHECK(pwrite(again, "third", 5, 2 * PAGE) == 5);
    grows = mremap(grows, PAGE, 3 * PAGE, MREMAP_MAYMOVE);
    CHECK(grows != MAP_FAILED);
    TELL(grows[0]);
    TELL(grows[2 * PAGE]);
    grows[2 * PAGE + 1] = 'H';
    tell("moved", again, 2 * PAGE + 1);
    CHECK(mremap(grows, 3 * PAGE, PAGE, 0) == grows);
    TELL(signal_of(grows + PAGE));
    grows[1] = 'G';
    tell("shrunk", again, 1);

    /* A child has the same memory. */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        second[100] = 'k';
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    TELL(second[100]);
    tell("by a child", fd, PAGE + 100);

    /* The tail is the file's only as far as it reaches. Nothing is unmapped, and all is there afterwards. */
    TELL(ftruncate(fd, PAGE + 200));
    second[199] = 't';
    TELL(fsync(fd));
    second[50] = 'l';
    return 0;
}
