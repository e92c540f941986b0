/* Tries every call that would change a snapshot, whose top is argv[1], on the mount argv[2], and prints what each gives.
 * The tree: file, deep/link (the same file), deep/er/small, symlink, empty. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>

static char paths[8][PATH_MAX];

static const char *in(int place, const char *top, const char *name) {
    snprintf(paths[place], PATH_MAX, "%s/%s", top, name);
    return paths[place];
}

static void tell(const char *call, long result) {
    const char *name = result >= 0 ? "0" : strerrorname_np(errno);
    printf("%s %s\n", call, name);
}

#define TRY(call) tell(#call, call)

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const char *top = argv[1];
    const char *file = in(0, top, "file"), *small = in(1, top, "deep/er/small"), *link_ = in(2, top, "symlink");
    const char *empty = in(3, top, "empty"), *new = in(4, top, "new"), *deep = in(5, top, "deep");
    const char *outside = in(6, argv[2], "outside"), *outside_new = in(7, argv[2], "outside-new");
    close(open(outside, O_CREAT | O_WRONLY, 0644));
    struct timespec times[2] = {{1, 0}, {2, 0}};

    TRY(open(file, O_WRONLY));
    TRY(open(file, O_RDWR));
    TRY(open(file, O_RDWR | O_DIRECT));
    TRY(open(file, O_WRONLY | O_APPEND));
    TRY(open(file, O_WRONLY | O_TRUNC));
    TRY(open(file, O_RDONLY | O_TRUNC));
    TRY(open(file, O_WRONLY | O_CREAT, 0644));
    TRY(open(small, O_RDWR));
    TRY(open(new, O_WRONLY | O_CREAT, 0644));
    TRY(open(new, O_RDWR | O_CREAT | O_EXCL, 0644));
    TRY(open(top, O_TMPFILE | O_RDWR, 0644));
    TRY(open(deep, O_TMPFILE | O_WRONLY, 0644));
    TRY(truncate(file, 0));
    TRY(truncate(file, 1 << 20));
    TRY(chmod(file, 0600));
    TRY(chmod(deep, 0700));
    TRY(chmod(top, 0700));
    TRY(chown(file, 1, 1));
    TRY(lchown(link_, 1, 1));
    TRY(chown(top, 1, 1));
    TRY(utimensat(AT_FDCWD, file, times, 0));
    TRY(utimensat(AT_FDCWD, file, NULL, 0));
    TRY(utimensat(AT_FDCWD, deep, times, 0));
    TRY(setxattr(file, "user.new", "v", 1, 0));
    TRY(setxattr(file, "user.kept", "v", 1, 0));
    TRY(setxattr(deep, "user.new", "v", 1, 0));
    TRY(removexattr(file, "user.kept"));
    TRY(rename(file, new));
    TRY(rename(file, outside_new));
    TRY(rename(outside, new));
    TRY(rename(outside, file));
    TRY(rename(deep, outside_new));
    TRY(renameat2(AT_FDCWD, outside, AT_FDCWD, file, RENAME_EXCHANGE));
    TRY(link(file, new));
    TRY(link(file, outside_new));
    TRY(link(outside, new));
    TRY(symlink("x", new));
    TRY(mkdir(new, 0755));
    TRY(mknod(new, S_IFIFO | 0644, 0));
    TRY(unlink(file));
    TRY(unlink(small));
    TRY(unlink(link_));
    TRY(rmdir(empty));

    int reads = open(file, O_RDONLY);
    TRY(fchmod(reads, 0600));
    TRY(fchown(reads, 1, 1));
    TRY(futimens(reads, times));
    TRY(fsetxattr(reads, "user.new", "v", 1, 0));
    close(reads);
    unlink(outside);
    return 0;
}
