/* store FILE OFFSET LENGTH HOW: stores bytes to a shared mapping of a file that is long enough. HOW says what follows:
 * `sync` msync and munmap, `unmap` munmap, `touch` and `set` a time of now or of 2001 before the munmap. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    must(argc == 5, "usage: store FILE OFFSET LENGTH sync|unmap|touch|set");
    long offset = atol(argv[2]), length = atol(argv[3]);
    int file = open(argv[1], O_RDWR);
    must(file >= 0, "open");
    char *map = mmap(NULL, offset + length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(map != MAP_FAILED, "mmap");
    for (long at = offset; at < offset + length; at++)
        map[at] = (char)(map[at] + at % 251 + 1);
    struct timespec set[2] = {{1000000000, 123456789}, {1000000001, 987654321}};
    if (strcmp(argv[4], "sync") == 0)
        must(msync(map, offset + length, MS_SYNC) == 0, "msync");
    else if (strcmp(argv[4], "touch") == 0)
        must(futimens(file, NULL) == 0, "touch");
    else if (strcmp(argv[4], "set") == 0)
        must(futimens(file, set) == 0, "set times");
    must(munmap(map, offset + length) == 0 && fsync(file) == 0 && close(file) == 0, "close");
    return 0;
}
