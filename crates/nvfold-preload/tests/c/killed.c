/* Writes numbered blocks until it is killed, or checks what is there: `write DIR`, `check DIR`. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 10000

static void fill(char *block, int number) {
    for (int at = 0; at < BLOCK; at++)
        block[at] = (char)(number * 7 + at % 251);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    static char block[BLOCK], expected[BLOCK];
    char path[200];
    snprintf(path, sizeof path, "%s/log", arguments[2]);
    if (strcmp(arguments[1], "write") == 0) {
        int fd = open(path, O_CREAT | O_RDWR | O_APPEND, 0644);
        CHECK(fd >= 0);
        for (int number = (int)(lseek(fd, 0, SEEK_END) / BLOCK);; number++) {
            fill(block, number);
            CHECK(write(fd, block, BLOCK) == BLOCK);
            /* What was acknowledged. */
            printf("%d\n", number + 1);
            fflush(stdout);
        }
    }
    int fd = open(path, O_RDONLY), blocks = 0;
    CHECK(fd >= 0);
    for (ssize_t got; (got = read(fd, block, BLOCK)) != 0; blocks++) {
        CHECK(got == BLOCK);
        fill(expected, blocks);
        CHECK(memcmp(block, expected, BLOCK) == 0);
    }
    printf("%d\n", blocks);
    return 0;
}
