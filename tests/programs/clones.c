// What a program may do around a clone that the command does not.
//
//   clones write FILE FILE            writes "round 0" to the end of both, without fsync, and again for each line of input
//   clones map FILE                   the same by stores to a shared mapping, without msync. These are programs of their
//                                     own because starting a command closes copies of what a program has open, and the
//                                     kernel writes files back then
//   clones scatter FILE COUNT         writes COUNT pages with a hole between each, without fsync; then waits for a line
//   clones ask PERMIT INO SRC DIR NAME
//                                     asks the server itself for a clone of SRC to DIR/NAME, and prints its errno.
//                                     PERMIT: made (O_TMPFILE in DIR), linked (the same, and linked and unlinked since),
//                                     unlinked (a file of DIR that has lost its name), DIR itself (directory), or SRC
//                                     (source). INO: 0, or the inode number to put into the token of SRC.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BYTES = 8192, AT = 5000, PAGE = 4096 };
static const unsigned ASK = 3u << 30 | BYTES << 16 | 0xe602;

static int check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(99);
    }
    return result;
}

// Says that something is done, and waits for a line; returns 0 at the end of input.
static int tell_and_wait(void) {
    char line[16];
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

static int map(char **words) {
    int file = check(open(words[0], O_RDWR), words[0]);
    char *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) check(-1, "mmap");
    for (int round = 0;; round++) {
        snprintf(mapped + AT, 32, "round %d\n", round);
        if (!tell_and_wait()) return 0;
    }
}

static int write_all(char **words) {
    int files[2];
    for (int at = 0; at < 2; at++) files[at] = check(open(words[at], O_WRONLY | O_CREAT, 0666), words[at]);
    for (int round = 0;; round++) {
        char line[BYTES];
        memset(line, '.', sizeof line);
        snprintf(line + AT, 32, "round %d\n", round);
        for (int at = 0; at < 2; at++) check(pwrite(files[at], line, strlen(line), round * 100000), "write");
        if (!tell_and_wait()) return 0;
    }
}

static int scatter(char **words) {
    int file = check(open(words[0], O_WRONLY | O_CREAT, 0666), words[0]);
    char page[PAGE];
    memset(page, '.', sizeof page);
    for (long number = 0, count = atol(words[1]); number < count; number++) {
        snprintf(page, sizeof page, "page %ld\n", number);
        check(pwrite(file, page, sizeof page, number * 2 * PAGE), "write");
    }
    while (tell_and_wait()) continue;
    return 0;
}

static int permit_of(const char *kind, const char *source, const char *dir) {
    if (!strcmp(kind, "directory")) return check(open(dir, O_RDONLY), dir);
    if (!strcmp(kind, "source")) return check(open(source, O_RDONLY), source);
    char path[4096], of[64];
    snprintf(path, sizeof path, "%s/permit", dir);
    if (!strcmp(kind, "unlinked")) {
        int file = check(open(path, O_RDWR | O_CREAT, 0600), path);
        check(unlink(path), path);
        return file;
    }
    int file = open(dir, O_RDWR | O_TMPFILE, 0600);
    if (file < 0) {
        printf("no permit: %s\n", strerrorname_np(errno));
        exit(0);
    }
    if (!strcmp(kind, "linked")) {
        snprintf(of, sizeof of, "/proc/self/fd/%d", file);
        check(linkat(AT_FDCWD, of, AT_FDCWD, path, AT_SYMLINK_FOLLOW), path);
        check(unlink(path), path);
    }
    return file;
}

static int ask(char **words) {
    unsigned char message[BYTES] = {1};
    const char *source = words[2], *name = words[4];
    if (getxattr(source, "user.nvfold.clone-source", message + 4, 16) != 16) {
        printf("no token: %s\n", strerrorname_np(errno));
        return 0;
    }
    uint64_t ino = strtoull(words[1], NULL, 10);
    if (ino) memcpy(message + 4, &ino, 8);
    uint32_t length = strlen(name);
    memcpy(message + 20, &length, 4);
    memcpy(message + 24, name, length);
    int result = ioctl(permit_of(words[0], source, words[3]), ASK, message);
    int32_t refused = 0;
    memcpy(&refused, message, 4);
    int error = result < 0 ? errno : refused;
    printf("%s\n", error ? strerrorname_np(error) : "cloned");
    return 0;
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "map")) return map(words + 2);
    if (count == 4 && !strcmp(words[1], "write")) return write_all(words + 2);
    if (count == 4 && !strcmp(words[1], "scatter")) return scatter(words + 2);
    if (count == 7 && !strcmp(words[1], "ask")) return ask(words + 2);
    fprintf(stderr, "usage: see the source\n");
    return 98;
}
