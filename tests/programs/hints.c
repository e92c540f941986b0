// Writes to a file of a mount, and says before where the bytes are from, as the preload library does.
//
//     hints copy SOURCE FROM LENGTH TARGET AT CLAIMED     the hint says that the bytes are from CLAIMED on
//     hints pass TARGET BYTES                             passes so many bytes 0xff as a hint
//     hints ask TARGET NUMBER                             another ioctl
//     hints token FILE                                    prints the token of a file, opened to be written
//     hints issue FILE                                    prints the token of a file in hexadecimal digits
//     hints guess TOKEN BYTES TARGET                      claims that the content of a file BYTES, which it writes to the
//                                                         beginning of TARGET, is the beginning of the file of a token;
//                                                         prints "written" and closes TARGET when stdin ends
//
// Prints what an ioctl or a look at a token fails with, and goes on.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "fail.h"

#define HINT(bytes) _IOC(_IOC_WRITE, 0xe6, 1, bytes)

struct hint {
    uint64_t offset;
    uint32_t length;
    uint16_t sources, origins;
    unsigned char token[16];
    uint32_t at, origin_length;
    uint64_t source_offset;
};

static int open_or_fail(const char *path, int flags) {
    int fd = open(path, flags, 0644);
    if (fd < 0) fail(path);
    return fd;
}

static void ask(int fd, unsigned long number, void *bytes) {
    if (ioctl(fd, number, bytes) != 0) puts(strerrorname_np(errno));
}

static void copy(char **words) {
    int source = open_or_fail(words[0], O_RDONLY), target = open_or_fail(words[3], O_RDWR | O_CREAT);
    off_t from = atoll(words[1]), at = atoll(words[4]);
    size_t length = atoll(words[2]);
    char *buffer = malloc(length);
    if (pread(source, buffer, length, from) != (ssize_t)length) fail("pread");
    struct hint hint = {
        .offset = at, .length = length, .sources = 1, .origins = 1,
        .origin_length = length, .source_offset = atoll(words[5]),
    };
    if (fgetxattr(source, "user.nvfold.token", hint.token, sizeof hint.token) != sizeof hint.token) {
        puts(strerrorname_np(errno));
    }
    ask(target, HINT(sizeof hint), &hint);
    if (pwrite(target, buffer, length, at) != (ssize_t)length) fail("pwrite");
}

static void issue(const char *path) {
    unsigned char token[16];
    if (fgetxattr(open_or_fail(path, O_RDONLY), "user.nvfold.token", token, sizeof token) != sizeof token) {
        fail("token");
    }
    for (size_t n = 0; n < sizeof token; n++) printf("%02x", token[n]);
    putchar('\n');
}

static void guess(const char *token, const char *bytes, const char *path) {
    static char buffer[1 << 16];
    int target = open_or_fail(path, O_RDWR | O_CREAT);
    ssize_t length = read(open_or_fail(bytes, O_RDONLY), buffer, sizeof buffer);
    if (length < 0) fail("read");
    struct hint hint = { .length = length, .sources = 1, .origins = 1, .origin_length = length };
    for (size_t n = 0; n < sizeof hint.token; n++) sscanf(token + 2 * n, "%2hhx", &hint.token[n]);
    ask(target, HINT(sizeof hint), &hint);
    if (pwrite(target, buffer, length, 0) != length) fail("pwrite");
    puts("written");
    fflush(stdout);
    while (getchar() != EOF) {}
}

int main(int argc, char **argv) {
    static char bytes[1 << 14];
    memset(bytes, 0xff, sizeof bytes);
    if (argc == 8 && !strcmp(argv[1], "copy")) {
        copy(argv + 2);
    } else if (argc == 4 && !strcmp(argv[1], "pass")) {
        ask(open_or_fail(argv[2], O_RDWR), HINT(atoi(argv[3])), bytes);
    } else if (argc == 4 && !strcmp(argv[1], "ask")) {
        ask(open_or_fail(argv[2], O_RDWR), strtoul(argv[3], NULL, 0), bytes);
    } else if (argc == 3 && !strcmp(argv[1], "token")) {
        int fd = open_or_fail(argv[2], O_WRONLY);
        puts(fgetxattr(fd, "user.nvfold.token", bytes, 16) == 16 ? "told" : strerrorname_np(errno));
    } else if (argc == 3 && !strcmp(argv[1], "issue")) {
        issue(argv[2]);
    } else if (argc == 5 && !strcmp(argv[1], "guess")) {
        guess(argv[2], argv[3], argv[4]);
    } else {
        return 2;
    }
    return 0;
}
