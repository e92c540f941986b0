/* A library that stands before or behind the one of nvfold, as such libraries are written: a call is passed on to another function of
   the same family, which the loader finds in whatever library is first; addresses are looked up in a constructor; the wrappers
   allocate, and use stdio. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*next_open)(const char *, int, ...);
static ssize_t (*next_read)(int, void *, size_t);
static ssize_t (*next_write)(int, const void *, size_t);
static int (*next_openat)(int, const char *, int, ...);
static int (*next_mkdirat)(int, const char *, mode_t);
static int (*next_faccessat)(int, const char *, int, int);
static int (*next_unlinkat)(int, const char *, int);
static int (*next_fstatat)(int, const char *, struct stat *, int);
static int (*next_renameat2)(int, const char *, int, const char *, unsigned);
static void *(*next_memcpy)(void *, const void *, size_t);

#define FIND(name) *(void **)&next_##name = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void start(void) {
    FIND(open), FIND(read), FIND(write), FIND(openat), FIND(mkdirat);
    FIND(faccessat), FIND(unlinkat), FIND(fstatat), FIND(renameat2), FIND(memcpy);
}

/* The mode of an open, which is not passed by all. */
static int mode_of(int flags, va_list arguments) {
    return flags & O_CREAT ? va_arg(arguments, int) : 0;
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int mode = mode_of(flags, arguments);
    va_end(arguments);
    return next_open(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int mode = mode_of(flags, arguments);
    va_end(arguments);
    return open(path, flags, mode);
}

int creat(const char *path, mode_t mode) {
    return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int openat(int dirfd, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int mode = mode_of(flags, arguments);
    va_end(arguments);
    return dirfd == AT_FDCWD ? open(path, flags, mode) : next_openat(dirfd, path, flags, mode);
}

int mkdirat(int dirfd, const char *path, mode_t mode) {
    return dirfd == AT_FDCWD ? mkdir(path, mode) : next_mkdirat(dirfd, path, mode);
}

int unlinkat(int dirfd, const char *path, int flags) {
    if (dirfd == AT_FDCWD)
        return flags & AT_REMOVEDIR ? rmdir(path) : unlink(path);
    return next_unlinkat(dirfd, path, flags);
}

int fstatat(int dirfd, const char *path, struct stat *status, int flags) {
    if (dirfd == AT_FDCWD && flags == AT_SYMLINK_NOFOLLOW)
        return lstat(path, status);
    return dirfd == AT_FDCWD && flags == 0 ? stat(path, status) : next_fstatat(dirfd, path, status, flags);
}

int faccessat(int dirfd, const char *path, int mode, int flags) {
    return dirfd == AT_FDCWD && flags == 0 ? access(path, mode) : next_faccessat(dirfd, path, mode, flags);
}

int renameat(int dirfd, const char *path, int new_dirfd, const char *new_path) {
    if (dirfd == AT_FDCWD && new_dirfd == AT_FDCWD)
        return rename(path, new_path);
    return next_renameat2(dirfd, path, new_dirfd, new_path, 0);
}

ssize_t read(int fd, void *buffer, size_t length) {
    void *volatile memory = malloc(length / 2 + 1);
    ssize_t answer = next_read(fd, buffer, length);
    free(memory);
    return answer;
}

ssize_t write(int fd, const void *buffer, size_t length) {
    static __thread int is_inside;
    if (!is_inside) {
        is_inside = 1;
        FILE *file = fopen("/dev/null", "w");
        fprintf(file, "%d %zu\n", fd, length);
        fputs("written\n", file);
        fclose(file);
        is_inside = 0;
    }
    return next_write(fd, buffer, length);
}

void *memmove(void *target, const void *source, size_t length) {
    return memcpy(target, source, length);
}

void *mempcpy(void *target, const void *source, size_t length) {
    return (char *)memcpy(target, source, length) + length;
}

/* Right for what overlaps too. */
void *memcpy(void *target, const void *source, size_t length) {
    volatile char *to = target;
    const volatile char *from = source;
    if ((size_t)(to - from) >= length)
        for (size_t at = 0; at < length; at++)
            to[at] = from[at];
    else
        for (size_t at = length; at-- > 0;)
            to[at] = from[at];
    return target;
}
