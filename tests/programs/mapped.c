/* mapped FILE: what is mapped and what is read and written are the same bytes, in both directions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 65536

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    char bytes[BYTES];
    must(argc == 2, "usage: mapped FILE");
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(file >= 0, "open");
    memset(bytes, 'a', BYTES);
    must(pwrite(file, bytes, BYTES, 0) == BYTES, "write");
    char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(map != MAP_FAILED, "mmap");
    for (int round = 0; round < 100; round++) {
        int at = round * 601 % BYTES;
        must(map[at] == 'a', "what was written is in the map");
        map[at] = 'b';
        must(msync(map, BYTES, MS_SYNC) == 0, "msync");
        must(pread(file, bytes, BYTES, 0) == BYTES, "read");
        must(bytes[at] == 'b', "what was stored in the map is read");
        must(pwrite(file, "c", 1, at) == 1, "write");
        must(map[at] == 'c', "what was written while it is mapped is in the map");
    }
    must(munmap(map, BYTES) == 0 && close(file) == 0, "close");
    return 0;
}
