/* Descriptors: a program that closes 0 to 2, and files of ours that are closed by any way there is. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[200];

static const char *below(const char *prefix, const char *name) {
    snprintf(path, sizeof path, "%s/%s", prefix, name);
    return path;
}

static int is_open(int fd) {
    struct stat stat;
    return fstat(fd, &stat) == 0;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *prefix = arguments[1];
    /* The lowest number is the next one, whoever's file it is. */
    int first = open(below(prefix, "f"), O_CREAT | O_RDWR, 0644), host = open("/dev/null", O_RDWR);
    CHECK(host == first + 1);
    CHECK(write(first, "content", 7) == 7);
    CHECK(close(first) == 0 && !is_open(first));
    CHECK(open("/dev/null", O_RDWR) == first);
    CHECK(write(first, "to the host", 11) == 11);
    CHECK(close(first) == 0);
    CHECK(open(path, O_RDWR) == first);
    /* By dup2 over it, by close_range, by closefrom. */
    struct stat stat;
    CHECK(dup2(host, first) == first);
    CHECK(fstat(first, &stat) == 0 && S_ISCHR(stat.st_mode));
    int ours = open(path, O_RDWR), other = open(path, O_RDWR);
    CHECK(dup2(ours, first) == first);
    CHECK(fstat(first, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size == 7);
    CHECK(close_range(ours, other, 0) == 0 && !is_open(ours) && !is_open(other));
    CHECK(is_open(first));
    closefrom(3);
    CHECK(!is_open(first) && !is_open(host));
    CHECK(open(path, O_RDWR) == 3);
    for (int fd = 3; fd < 2000; fd++)
        close(fd);
    /* The library's own are none of the program's. */
    for (int fd = 900; fd < 1030; fd++)
        CHECK(!is_open(fd) || fcntl(fd, F_GETFD) == -1);
    CHECK(close(1020) == -1 || errno == 0);
    /* The limit counts. */
    struct rlimit limit = {20, 1024}, before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int last = -1, fd;
    while ((fd = open(path, O_RDONLY)) >= 0)
        last = fd;
    CHECK(errno == EMFILE && last == 19);
    closefrom(3);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    /* 0, 1 and 2. */
    close(0);
    CHECK(open(path, O_RDONLY) == 0);
    char text[8] = "";
    CHECK(read(0, text, 7) == 7 && strcmp(text, "content") == 0);
    int kept = dup(2);
    close(1), close(2);
    CHECK(open(below(prefix, "out"), O_CREAT | O_WRONLY | O_TRUNC, 0644) == 1);
    CHECK(open(below(prefix, "err"), O_CREAT | O_WRONLY | O_TRUNC, 0644) == 2);
    CHECK(write(1, "out", 3) == 3);
    CHECK(write(2, "err", 3) == 3);
    CHECK(dup2(kept, 2) == 2);
    CHECK(lstat(below(prefix, "err"), &stat) == 0 && stat.st_size == 3);
    CHECK(lstat(below(prefix, "out"), &stat) == 0 && stat.st_size == 3);
    return 0;
}
