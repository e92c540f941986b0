// System calls with each kind of wrong input, and what they leave behind.
//
//     errnos DIR all|content
//
// Each call is printed as it stands in this file, with its result or its error. Two file systems print the same lines if
// they agree. The calls are those that xfstests, pjdfstest, LTP and the manual pages describe errors of. A group runs in a
// process and a directory of its own, first as root, then as an ordinary user. `content` runs those alone that change the
// content of files.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <asm/ioctls.h>
#include <unistd.h>
#include "fail.h"

#define COUNT(of) (sizeof(of) / sizeof *(of))

enum { USER = 1001, OTHER = 1002, KIB = 1024, MIB = 1024 * 1024, BLOCK = 4096 };

static const char *group;
static uid_t me;
// Addresses without memory. The compiler does not know them.
static void *volatile nowhere = (void *)BLOCK, *volatile no_address;

// Does a call, prints it and its result.
#define TRY(call) report(#call, (errno = 0, (long)(call)))
// Does a call that returns a descriptor, which is closed.
#define OPEN(call) report_open(#call, (errno = 0, (call)))

static void report_with(const char *call, long result, const char *effect) {
    printf("%s %u: %s -> ", group, me, call);
    if (result < 0) printf("%s%s\n", strerrorname_np(errno), effect);
    else printf("%ld%s\n", result, effect);
}

static void report(const char *call, long result) {
    report_with(call, result, "");
}

static void report_open(const char *call, int fd) {
    report(call, fd < 0 ? -1 : 0);
    if (fd >= 0) close(fd);
}

// Returns a sum of the content of a file, so that every byte counts.
static unsigned sum_of(const char *name) {
    unsigned char bytes[BLOCK];
    unsigned sum = 1;
    int fd = open(name, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return 0;
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;)
        for (ssize_t at = 0; at < got; at++) sum = sum * 31 + bytes[at];
    close(fd);
    return sum;
}

// Prints what is under a name.
static void look(const char *name) {
    struct stat found;
    if (lstat(name, &found) != 0) {
        printf("%s %u:   %s: %s\n", group, me, name, strerrorname_np(errno));
        return;
    }
    printf("%s %u:   %s: %o %u:%u", group, me, name, found.st_mode, found.st_uid, found.st_gid);
    if (!S_ISDIR(found.st_mode)) printf(" links %lu size %ld", (unsigned long)found.st_nlink, (long)found.st_size);
    if (S_ISREG(found.st_mode) && found.st_size < 4 * MIB) printf(" sum %08x", sum_of(name));
    if (S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)) printf(" device %lx", (unsigned long)found.st_rdev);
    printf("\n");
}

static int made(const char *name, size_t bytes, mode_t mode) {
    static char content[MIB];
    if (content[0] == 0) for (size_t at = 0; at < sizeof content; at++) content[at] = 1 + at % 251 + at / 4096;
    unlink(name);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, content, bytes) != (ssize_t)bytes || fchmod(fd, mode) != 0) fail(name);
    return fd;
}

static void make(const char *name, size_t bytes, mode_t mode) {
    close(made(name, bytes, mode));
}

static void make_dir(const char *name, mode_t mode) {
    if (mkdir(name, 0700) != 0 || chmod(name, mode) != 0) fail(name);
}

static void must(int result) {
    if (result != 0) fail("prepare");
}

static char *name_of(size_t length) {
    static char name[2 * PATH_MAX];
    memset(name, 'n', length);
    name[length] = 0;
    return name;
}

// A path of this length that leads to `file` by way of the directory itself.
static char *long_way(size_t length) {
    static char path[2 * PATH_MAX];
    size_t at = 0;
    while (at + 2 + 4 < length) path[at++] = '.', path[at++] = '/';
    if (at + 4 < length) path[at++] = '/';
    strcpy(path + at, "file");
    return path;
}

// ---- open

static void make_objects(void) {
    make("file", 10, 0644);
    make("unreadable", 10, 0);
    make("readonly", 10, 0444);
    make_dir("dir", 0755);
    make_dir("closed", 0);
    must(symlink("file", "link"));
    must(symlink("dir", "link_dir"));
    must(symlink("made_by_link", "dangling"));
    must(symlink("loop", "loop"));
    must(mkfifo("fifo", 0644));
}

static const struct { const char *name; int flags; } FLAGS[] = {
    { "O_RDONLY", O_RDONLY }, { "O_WRONLY", O_WRONLY }, { "O_RDWR", O_RDWR }, { "O_ACCMODE", O_ACCMODE },
    { "O_CREAT", O_RDONLY | O_CREAT }, { "O_RDWR|O_CREAT", O_RDWR | O_CREAT },
    { "O_CREAT|O_EXCL", O_RDONLY | O_CREAT | O_EXCL }, { "O_EXCL", O_RDONLY | O_EXCL },
    { "O_CREAT|O_TRUNC", O_WRONLY | O_CREAT | O_TRUNC }, { "O_RDONLY|O_TRUNC", O_RDONLY | O_TRUNC },
    { "O_WRONLY|O_TRUNC", O_WRONLY | O_TRUNC }, { "O_APPEND|O_TRUNC", O_WRONLY | O_APPEND | O_TRUNC },
    { "O_DIRECTORY", O_RDONLY | O_DIRECTORY }, { "O_WRONLY|O_DIRECTORY", O_WRONLY | O_DIRECTORY },
    { "O_CREAT|O_DIRECTORY", O_RDONLY | O_CREAT | O_DIRECTORY }, { "O_NOFOLLOW", O_RDONLY | O_NOFOLLOW },
    { "O_CREAT|O_NOFOLLOW", O_WRONLY | O_CREAT | O_NOFOLLOW }, { "O_PATH", O_PATH },
    { "O_PATH|O_NOFOLLOW", O_PATH | O_NOFOLLOW }, { "O_PATH|O_DIRECTORY", O_PATH | O_DIRECTORY },
    { "O_DIRECT", O_RDWR | O_DIRECT }, { "O_NOATIME", O_RDONLY | O_NOATIME }, { "O_SYNC", O_WRONLY | O_SYNC },
    { "O_DIRECTORY|O_NOFOLLOW", O_RDONLY | O_DIRECTORY | O_NOFOLLOW },
};

// Prints the result of an open, and whether it made or cut a file. Then all is as before.
static void report_effect(const char *call, int fd, int error) {
    static const char *const MADE[] = { "missing", "dir/new", "made_by_link", "closed/new" };
    const char *effect = "";
    struct stat file;
    for (size_t at = 0; at < COUNT(MADE); at++) if (unlink(MADE[at]) == 0) effect = " and made";
    must(stat("file", &file));
    if (file.st_size != 10) {
        make("file", 10, 0644);
        effect = " and cut";
    }
    errno = error;
    report_with(call, fd < 0 ? -1 : 0, effect);
    if (fd >= 0) close(fd);
}

static void open_all(void) {
    static const char *const PATHS[] = {
        "", ".", "missing", "missing/", "missing/below", "file", "file/", "file/.", "file/below", "dir", "dir/", "dir/new",
        "link", "link/", "link_dir", "link_dir/", "dangling", "dangling/", "loop", "loop/below", "fifo", "fifo/",
        "unreadable", "readonly", "closed", "closed/new",
    };
    for (size_t path = 0; path < COUNT(PATHS); path++) {
        for (size_t flags = 0; flags < COUNT(FLAGS); flags++) {
            char call[128];
            snprintf(call, sizeof call, "open(\"%s\", %s)", PATHS[path], FLAGS[flags].name);
            int fd = open(PATHS[path], FLAGS[flags].flags | O_NONBLOCK, 0640), error = errno;
            report_effect(call, fd, error);
        }
    }
}

static void open_names(void) {
    OPEN(open(name_of(255), O_CREAT | O_RDWR, 0600));
    OPEN(open(name_of(256), O_CREAT | O_RDWR, 0600));
    OPEN(open(name_of(4095), O_RDONLY));
    OPEN(open(name_of(4096), O_RDONLY));
    OPEN(open(long_way(4095), O_RDONLY));
    OPEN(open(long_way(4096), O_RDONLY));
    TRY(mkdir(name_of(256), 0700));
    TRY(mknod(name_of(256), S_IFREG | 0600, 0));
    TRY(symlink("x", name_of(256)));
    TRY(link("file", name_of(256)));
    TRY(rename("file", name_of(256)));
    TRY(rename(name_of(256), "file"));
    TRY(unlink(name_of(256)));
    TRY(rmdir(name_of(256)));
    TRY(unlink(name_of(255)));
    TRY(symlink(name_of(4094), "long_link"));
    TRY(readlink("long_link", (char[PATH_MAX]){ 0 }, PATH_MAX));
    TRY(symlink(name_of(4095), "longest_link"));
    TRY(readlink("longest_link", (char[PATH_MAX]){ 0 }, PATH_MAX));
    TRY(symlink(name_of(4096), "too_long"));
    TRY(symlink("", "empty_link"));
    TRY(symlink("x", ""));
    TRY(symlink("x", "file"));
    TRY(symlink("x", "dir/"));
    TRY(symlink("x", "new/"));
    TRY(symlink("x", "loop/x"));
    TRY(readlink("file", (char[9]){ 0 }, 9));
    TRY(readlink("dir", (char[9]){ 0 }, 9));
    TRY(readlink("link", (char[9]){ 0 }, 2));
    TRY(readlink("link", (char[9]){ 0 }, 0));
    TRY(readlink("link", nowhere, 9));
}

static int beneath(const char *path, uint64_t flags, uint64_t mode, uint64_t resolve, size_t size) {
    struct { struct open_how how; uint64_t more; } how = { { flags, mode, resolve }, size > sizeof how.how };
    return syscall(SYS_openat2, AT_FDCWD, path, &how, size);
}

static void open_at(void) {
    size_t whole = sizeof(struct open_how);
    OPEN(beneath("file", O_RDONLY, 0, 0, whole));
    OPEN(beneath("file", O_RDONLY, 0, 0, whole - 1));
    OPEN(beneath("file", O_RDONLY, 0, 0, whole + 8));
    OPEN(beneath("file", O_RDONLY, 0600, 0, whole));
    OPEN(beneath("new", O_CREAT | O_RDWR, 010600, 0, whole));
    OPEN(beneath("file", O_RDONLY | 1ULL << 40, 0, 0, whole));
    OPEN(beneath("file", O_RDONLY, 0, 1 << 20, whole));
    OPEN(beneath("file", O_PATH | O_RDWR, 0, 0, whole));
    OPEN(beneath("link", O_RDONLY, 0, RESOLVE_NO_SYMLINKS, whole));
    OPEN(beneath("link", O_PATH | O_NOFOLLOW, 0, RESOLVE_NO_SYMLINKS, whole));
    OPEN(beneath("link_dir/.", O_RDONLY, 0, RESOLVE_NO_SYMLINKS, whole));
    OPEN(beneath("..", O_RDONLY, 0, RESOLVE_BENEATH, whole));
    OPEN(beneath("dir/../file", O_RDONLY, 0, RESOLVE_BENEATH, whole));
    OPEN(beneath("dir/../../x", O_RDONLY, 0, RESOLVE_BENEATH, whole));
    OPEN(beneath("/", O_RDONLY, 0, RESOLVE_BENEATH, whole));
    OPEN(beneath("/file", O_RDONLY, 0, RESOLVE_IN_ROOT, whole));
    OPEN(beneath("../../file", O_RDONLY, 0, RESOLVE_IN_ROOT, whole));
    OPEN(beneath("/file", O_RDONLY, 0, RESOLVE_IN_ROOT | RESOLVE_BENEATH, whole));
    OPEN(beneath("/proc/self/root", O_RDONLY, 0, RESOLVE_NO_MAGICLINKS, whole));
    OPEN(beneath("/proc", O_RDONLY, 0, RESOLVE_NO_XDEV, whole));
    OPEN(beneath("file", O_RDONLY, 0, RESOLVE_NO_XDEV, whole));
    int dir = open("dir", O_PATH), file = open("file", O_RDONLY);
    OPEN(openat(dir, "new", O_CREAT | O_EXCL | O_RDWR, 0600));
    OPEN(openat(file, "new", O_RDONLY));
    OPEN(openat(99, "new", O_RDONLY));
    OPEN(openat(dir, "", O_RDONLY));
    TRY(fchmod(dir, 0700));
    TRY(fchdir(dir));
    TRY(fchdir(file));
    TRY(chdir("../file"));
    TRY(chdir("../missing"));
    TRY(chdir("../closed"));
    TRY(chdir("../loop"));
    TRY(chdir(".."));
    TRY(mkdirat(file, "x", 0700));
    TRY(unlinkat(dir, "new", AT_REMOVEDIR));
    TRY(unlinkat(dir, "new", 1));
    TRY(unlinkat(dir, "new", 0));
    TRY(faccessat(AT_FDCWD, "file", 8, 0));
    TRY(faccessat(AT_FDCWD, "unreadable", R_OK, 0));
    TRY(faccessat(AT_FDCWD, "file", X_OK, 0));
    TRY(faccessat(AT_FDCWD, "loop", F_OK, AT_SYMLINK_NOFOLLOW));
    TRY(faccessat(AT_FDCWD, "loop", F_OK, 0));
    TRY(faccessat(AT_FDCWD, "dangling", F_OK, 0));
    TRY(access(nowhere, F_OK));
}

static void temporary(void) {
    char path[64];
    OPEN(open(".", O_TMPFILE | O_RDONLY, 0600));
    OPEN(open("missing", O_TMPFILE | O_RDWR, 0600));
    OPEN(open("file", O_TMPFILE | O_RDWR, 0600));
    OPEN(open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600));
    OPEN(open(".", O_TMPFILE | O_RDWR, 0600));
    int fd = open(".", O_TMPFILE | O_RDWR, 0640);
    sprintf(path, "/proc/self/fd/%d", fd);
    TRY(write(fd, "text", 4));
    TRY(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW));
    TRY(linkat(fd, "", AT_FDCWD, "linked_empty", AT_EMPTY_PATH));
    look("linked");
    close(fd);
    fd = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0640);
    TRY(linkat(fd, "", AT_FDCWD, "linked_excl", AT_EMPTY_PATH));
}

// ---- reading and writing

static volatile sig_atomic_t signals;

static void count(int signal) {
    (void)signal;
    signals++;
}

static void read_and_write(void) {
    static char bytes[2 * BLOCK];
    int file = open("file", O_RDWR), ro = open("file", O_RDONLY), wo = open("file", O_WRONLY), path = open("file", O_PATH);
    int dir = open("dir", O_RDONLY), append = open("file", O_RDWR | O_APPEND), far = made("far", 0, 0600);
    struct iovec many[IOV_MAX + 1], bad = { nowhere, 5 }, one = { bytes, 5 }, twice[2] = { one, { bytes, SSIZE_MAX } };
    for (size_t at = 0; at < COUNT(many); at++) many[at] = one;
    TRY(read(dir, bytes, 10));
    TRY(pread(dir, bytes, 10, 0));
    TRY(write(dir, bytes, 10));
    TRY(read(wo, bytes, 10));
    TRY(write(ro, bytes, 10));
    TRY(write(ro, bytes, 0));
    TRY(read(path, bytes, 10));
    TRY(write(path, bytes, 10));
    TRY(read(99, bytes, 10));
    TRY(read(file, nowhere, 10));
    TRY(write(file, nowhere, 10));
    TRY(read(file, nowhere, 0));
    TRY(pread(file, bytes, 10, -1));
    TRY(pwrite(file, bytes, 10, -1));
    TRY(pread(file, bytes, 10, LLONG_MAX - 5));
    TRY(pread(file, bytes, 10, LLONG_MAX));
    TRY(pwrite(file, bytes, 10, LLONG_MAX));
    TRY(pwrite(far, bytes, 10, LLONG_MAX - 5));
    TRY(pwrite(far, bytes, 10, LLONG_MAX - 10));
    TRY(pwrite(file, bytes, 0, LLONG_MAX));
    TRY(pwrite(far, bytes, 10, 1LL << 50));
    TRY(pread(file, bytes, 10, 100));
    TRY(readv(file, many, IOV_MAX + 1));
    TRY(readv(file, many, 0));
    TRY(writev(file, &bad, 1));
    TRY(writev(file, twice, 2));
    TRY(pwritev2(file, &one, 1, 0, 1 << 30));
    TRY(pwritev2(file, &one, 1, 0, RWF_DSYNC));
    TRY(pwritev2(file, &one, 1, 0, RWF_APPEND));
    TRY(pwritev2(file, &one, 1, -1, 0));
    TRY(preadv2(file, &one, 1, 0, RWF_APPEND));
    TRY(pwrite(append, "end", 3, 0));
    TRY(lseek(append, 0, SEEK_CUR));
    TRY(write(append, "end", 3));
    TRY(lseek(append, 0, SEEK_CUR));
    look("file");
    TRY(fsync(dir));
    TRY(fdatasync(ro));
    TRY(fsync(path));
    TRY(fsync(99));
    TRY(syncfs(ro));
    TRY(syncfs(path));
    TRY(sync_file_range(file, 0, 10, 99));
    TRY(sync_file_range(file, -1, 10, 0));
    TRY(sync_file_range(file, 0, 10, SYNC_FILE_RANGE_WRITE));
    TRY(posix_fadvise(file, 0, 0, 99));
    TRY(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
    TRY(readahead(file, 0, 10));
    TRY(readahead(wo, 0, 10));
    TRY(readahead(dir, 0, 10));
}

static void pipes(void) {
    int file = open("file", O_RDWR), fifo = open("fifo", O_RDWR), ends[2];
    must(pipe(ends));
    must(write(ends[1], "0123456789", 10) != 10);
    TRY(lseek(fifo, 0, SEEK_SET));
    TRY(pread(fifo, (char[9]){ 0 }, 9, 0));
    TRY(ftruncate(fifo, 0));
    TRY(truncate("fifo", 0));
    TRY(fallocate(fifo, 0, 0, 10));
    TRY(fallocate(ends[1], 0, 0, 10));
    TRY(fsync(fifo));
    TRY(splice(ends[0], NULL, file, &(loff_t){ 2 }, 3, 0));
    TRY(splice(file, &(loff_t){ 0 }, ends[1], NULL, 4, 0));
    TRY(splice(file, NULL, file, NULL, 4, 0));
    TRY(sendfile(ends[1], file, &(off_t){ 1 }, 5));
    TRY(sendfile(file, ends[0], NULL, 5));
    TRY(sendfile(file, file, &(off_t){ 0 }, 5));
    TRY(sendfile(file, file, &(off_t){ -1 }, 5));
    TRY(copy_file_range(ends[0], NULL, file, NULL, 5, 0));
    look("file");
}

static void direct(void) {
    static char room[4 * BLOCK] __attribute__((aligned(BLOCK)));
    int fd = open("large", O_RDWR | O_DIRECT), dir = open("dir", O_RDONLY | O_DIRECT);
    TRY(dir < 0 ? -1 : 0);
    TRY(pread(fd, room, BLOCK, 0));
    TRY(pwrite(fd, room, BLOCK, BLOCK));
    TRY(pread(fd, room + 1, BLOCK, 0));
    TRY(pwrite(fd, room + 1, BLOCK, 0));
    TRY(pread(fd, room, 100, 0));
    TRY(pwrite(fd, room, 100, 0));
    TRY(pread(fd, room, BLOCK, 100));
    TRY(pwrite(fd, room, BLOCK, 100));
    TRY(pread(fd, room, BLOCK, 64 * MIB));
    TRY(pread(fd, room, 0, 0));
    TRY(pwrite(fd, nowhere, BLOCK, 0));
    TRY(pread(fd, nowhere, BLOCK, 0));
    look("large");
}

// A file may not grow beyond this; what would exceed it raises SIGXFSZ.
static void limited(void) {
    static char bytes[3 * BLOCK];
    int fd = open("file", O_RDWR), append = open("file", O_RDWR | O_APPEND), large = open("large", O_RDWR);
    signal(SIGXFSZ, count);
    struct rlimit limit = { BLOCK, RLIM_INFINITY };
    must(setrlimit(RLIMIT_FSIZE, &limit));
    TRY(pwrite(fd, bytes, 10, BLOCK - 10));
    TRY(pwrite(fd, bytes, 10, BLOCK - 5));
    TRY(signals);
    TRY(pwrite(fd, bytes, 10, BLOCK));
    TRY(signals);
    TRY(pwrite(fd, bytes, 0, BLOCK));
    TRY(write(append, bytes, 10));
    TRY(signals);
    TRY(ftruncate(fd, BLOCK));
    TRY(ftruncate(fd, BLOCK + 1));
    TRY(signals);
    TRY(truncate("file", BLOCK + 1));
    TRY(fallocate(fd, 0, 0, BLOCK + 1));
    TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, BLOCK + 1));
    TRY(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, BLOCK + 1));
    TRY(signals);
    TRY(ftruncate(large, 2 * BLOCK));
    TRY(ftruncate(large, 3 * BLOCK));
    TRY(pwrite(large, bytes, 10, BLOCK));
    TRY(copy_file_range(large, &(loff_t){ 0 }, fd, &(loff_t){ BLOCK }, 10, 0));
    TRY(copy_file_range(large, &(loff_t){ 0 }, fd, &(loff_t){ BLOCK - 5 }, 10, 0));
    TRY(sendfile(append, large, &(off_t){ 0 }, 10));
    TRY(signals);
    // What is printed may go to a file, too.
    limit.rlim_cur = RLIM_INFINITY;
    must(setrlimit(RLIMIT_FSIZE, &limit));
    look("file");
}

static void seek(void) {
    int fd = made("sparse", 10, 0600), dir = open("dir", O_RDONLY), path = open("file", O_PATH);
    static char block[BLOCK] = "data";
    must(pwrite(fd, block, BLOCK, 16 * BLOCK) != BLOCK || ftruncate(fd, 32 * BLOCK) != 0 || fsync(fd) != 0);
    TRY(lseek(fd, -1, SEEK_SET));
    TRY(lseek(fd, 5, SEEK_SET));
    TRY(lseek(fd, -6, SEEK_CUR));
    TRY(lseek(fd, LLONG_MAX, SEEK_CUR));
    TRY(lseek(fd, 1LL << 43, SEEK_SET));
    TRY(lseek(fd, LLONG_MAX, SEEK_SET));
    TRY(lseek(fd, LLONG_MAX, SEEK_END));
    TRY(lseek(fd, -33 * BLOCK, SEEK_END));
    TRY(lseek(fd, 0, 99));
    TRY(lseek(fd, 0, -1));
    TRY(lseek(path, 0, SEEK_SET));
    TRY(lseek(99, 0, SEEK_SET));
    TRY(lseek(fd, 0, SEEK_DATA));
    TRY(lseek(fd, 0, SEEK_HOLE));
    TRY(lseek(fd, BLOCK, SEEK_DATA));
    TRY(lseek(fd, 16 * BLOCK + 2, SEEK_DATA));
    TRY(lseek(fd, 16 * BLOCK, SEEK_HOLE));
    TRY(lseek(fd, 17 * BLOCK, SEEK_DATA));
    TRY(lseek(fd, 31 * BLOCK, SEEK_HOLE));
    TRY(lseek(fd, 32 * BLOCK, SEEK_HOLE));
    TRY(lseek(fd, 32 * BLOCK, SEEK_DATA));
    TRY(lseek(fd, 99 * BLOCK, SEEK_DATA));
    TRY(lseek(fd, -1, SEEK_DATA));
    TRY(lseek(fd, -1, SEEK_HOLE));
    TRY(lseek(dir, 0, SEEK_SET));
    TRY(lseek(dir, -1, SEEK_SET));
    TRY(lseek(dir, 0, SEEK_DATA));
    TRY(lseek(dir, 0, 99));
}

static void cut(void) {
    int fd = open("file", O_RDWR), ro = open("file", O_RDONLY), path = open("file", O_PATH), dir = open("dir", O_RDONLY);
    TRY(truncate("file", -1));
    TRY(ftruncate(fd, -1));
    TRY(truncate("file", LLONG_MAX));
    TRY(truncate("file", 10));
    TRY(ftruncate(fd, LLONG_MAX));
    TRY(ftruncate(fd, 1LL << 50));
    TRY(ftruncate(fd, 10));
    TRY(truncate("dir", 0));
    TRY(ftruncate(dir, 0));
    TRY(ftruncate(ro, 0));
    TRY(ftruncate(path, 0));
    TRY(ftruncate(99, 0));
    TRY(truncate("", 0));
    TRY(truncate("missing", 0));
    TRY(truncate("file/", 0));
    TRY(truncate("file/x", 0));
    TRY(truncate("loop", 0));
    TRY(truncate("dangling", 0));
    TRY(truncate("readonly", 0));
    TRY(truncate("unreadable", 0));
    TRY(truncate(nowhere, 0));
    TRY(truncate("file", 5));
    look("file");
    TRY(truncate("link", 15));
    look("file");
    TRY(ftruncate(fd, 15));
    TRY(ftruncate(fd, 3 * BLOCK + 1));
    look("file");
}

static void allocate(void) {
    int fd = open("large", O_RDWR), ro = open("file", O_RDONLY), path = open("file", O_PATH), dir = open("dir", O_RDONLY);
    enum { KEEP = FALLOC_FL_KEEP_SIZE, PUNCH = FALLOC_FL_PUNCH_HOLE, ZERO = FALLOC_FL_ZERO_RANGE,
           COLLAPSE = FALLOC_FL_COLLAPSE_RANGE, INSERT = FALLOC_FL_INSERT_RANGE, UNSHARE = FALLOC_FL_UNSHARE_RANGE };
    TRY(fallocate(fd, 0, -1, 10));
    TRY(fallocate(fd, 0, 0, 0));
    TRY(fallocate(fd, 0, 0, -1));
    TRY(fallocate(fd, 0, LLONG_MAX, 10));
    TRY(fallocate(fd, 0, 1, LLONG_MAX));
    TRY(fallocate(fd, 0, 0, 1LL << 50));
    TRY(fallocate(fd, 0, 0, 1LL << 40));
    close(fd);
    fd = made("large", 4 * BLOCK, 0600);
    TRY(fallocate(fd, 1 << 20, 0, 10));
    TRY(fallocate(fd, PUNCH, 0, BLOCK));
    TRY(fallocate(fd, PUNCH | KEEP | ZERO, 0, BLOCK));
    TRY(fallocate(fd, PUNCH | KEEP | COLLAPSE, 0, BLOCK));
    TRY(fallocate(fd, PUNCH | KEEP | INSERT, 0, BLOCK));
    TRY(fallocate(fd, COLLAPSE | KEEP, 0, BLOCK));
    TRY(fallocate(fd, INSERT | KEEP, 0, BLOCK));
    TRY(fallocate(fd, COLLAPSE, 1, BLOCK));
    TRY(fallocate(fd, COLLAPSE, 0, 99 * BLOCK));
    TRY(fallocate(fd, INSERT, 99 * BLOCK, BLOCK));
    TRY(fallocate(fd, COLLAPSE, 0, BLOCK));
    look("large");
    TRY(fallocate(fd, INSERT, 0, BLOCK));
    look("large");
    make("large", 4 * BLOCK, 0600);
    fd = open("large", O_RDWR);
    TRY(fallocate(fd, UNSHARE, 0, BLOCK));
    TRY(fallocate(fd, UNSHARE | KEEP, 0, BLOCK));
    TRY(fallocate(ro, 0, 0, 10));
    TRY(fallocate(path, 0, 0, 10));
    TRY(fallocate(dir, 0, 0, 10));
    TRY(fallocate(99, 0, 0, 10));
    TRY(fallocate(fd, PUNCH | KEEP, 1, 10));
    look("large");
    TRY(fallocate(fd, PUNCH | KEEP, 3 * BLOCK, 9 * BLOCK));
    TRY(fallocate(fd, PUNCH | KEEP, 99 * BLOCK, BLOCK));
    look("large");
    TRY(fallocate(fd, ZERO | KEEP, 2 * BLOCK - 5, 10));
    TRY(fallocate(fd, ZERO | KEEP, 4 * BLOCK - 5, 10));
    look("large");
    TRY(fallocate(fd, ZERO, 4 * BLOCK - 5, 10));
    look("large");
    TRY(fallocate(fd, KEEP, 0, 9 * BLOCK));
    look("large");
    TRY(fallocate(fd, 0, 0, 9 * BLOCK + 1));
    look("large");
    TRY(ftruncate(fd, 0));
    look("large");
}

static long copy(int from, loff_t at, int to, loff_t where, size_t bytes, unsigned flags) {
    return copy_file_range(from, &at, to, &where, bytes, flags);
}

static void copies(void) {
    int fd = open("large", O_RDWR), ro = open("large", O_RDONLY), wo = open("file", O_WRONLY), path = open("file", O_PATH);
    int dir = open("dir", O_RDONLY), append = open("file", O_RDWR | O_APPEND), to = open("file", O_RDWR);
    int null = open("/dev/null", O_RDWR);
    TRY(copy(fd, 0, to, 0, 10, 1));
    TRY(copy(wo, 0, fd, 0, 10, 0));
    TRY(copy(fd, 0, ro, 0, 10, 0));
    TRY(copy(path, 0, fd, 0, 10, 0));
    TRY(copy(fd, 0, path, 0, 10, 0));
    TRY(copy(dir, 0, to, 0, 10, 0));
    TRY(copy(fd, 0, dir, 0, 10, 0));
    TRY(copy(fd, 0, append, 0, 10, 0));
    TRY(copy(fd, 0, null, 0, 10, 0));
    TRY(copy(null, 0, to, 0, 10, 0));
    TRY(copy(99, 0, to, 0, 10, 0));
    TRY(copy(fd, -1, to, 0, 10, 0));
    TRY(copy(fd, 0, to, -1, 10, 0));
    TRY(copy(fd, LLONG_MAX, to, 0, 10, 0));
    TRY(copy(fd, 0, to, LLONG_MAX, 10, 0));
    TRY(copy(fd, 0, to, LLONG_MAX - 5, 10, 0));
    TRY(ftruncate(to, 10));
    TRY(copy(fd, 0, to, 0, 0, 0));
    TRY(copy(fd, 99 * BLOCK, to, 0, 10, 0));
    TRY(copy(fd, 4 * BLOCK, to, 0, 10, 0));
    TRY(copy(fd, 4 * BLOCK - 3, to, 5, 10, 0));
    look("file");
    TRY(copy(fd, 0, fd, 5, 10, 0));
    TRY(copy(fd, 0, ro, 5, 10, 0));
    TRY(copy(fd, 5, fd, 5, 10, 0));
    TRY(copy(fd, 0, fd, 10, 10, 0));
    TRY(copy(fd, 10, fd, 0, 10, 0));
    look("large");
    TRY(copy(fd, 4 * BLOCK - 5, fd, 4 * BLOCK, 10, 0));
    look("large");
    TRY(copy(fd, 0, to, 100, BLOCK, 0));
    look("file");
    TRY(copy(fd, 0, to, 0, SIZE_MAX, 0));
    look("file");
}

static long dedupe(int from, int to, uint64_t at, uint64_t bytes, uint16_t count) {
    struct { struct file_dedupe_range range; struct file_dedupe_range_info one; } how = {
        { .src_offset = at, .src_length = bytes, .dest_count = count }, { .dest_fd = to, .dest_offset = at },
    };
    long result = ioctl(from, FIDEDUPERANGE, &how);
    return result == 0 && count ? how.one.status : result;
}

static void clones(void) {
    int fd = open("large", O_RDWR), ro = open("large", O_RDONLY), to = open("file", O_RDWR), dir = open("dir", O_RDONLY);
    int fifo = open("fifo", O_RDWR), path = open("large", O_PATH);
    struct file_clone_range range = { .src_fd = fd, .src_offset = 1, .src_length = 10, .dest_offset = 0 };
    TRY(ioctl(to, FICLONE, fd));
    TRY(ioctl(ro, FICLONE, to));
    TRY(ioctl(to, FICLONE, dir));
    TRY(ioctl(dir, FICLONE, to));
    TRY(ioctl(to, FICLONE, fifo));
    TRY(ioctl(to, FICLONE, 99));
    TRY(ioctl(path, FICLONE, to));
    TRY(ioctl(to, FICLONERANGE, &range));
    TRY(ioctl(to, FICLONERANGE, NULL));
    TRY(ioctl(fd, FICLONERANGE, &range));
    TRY(dedupe(fd, to, 0, 10, 1));
    TRY(dedupe(fd, to, 0, 10, 0));
    TRY(dedupe(fd, fd, 0, 10, 1));
    TRY(dedupe(fd, dir, 0, 10, 1));
    TRY(dedupe(dir, fd, 0, 10, 1));
    TRY(dedupe(fd, 99, 0, 10, 1));
    look("file");
}

static void map(void) {
    int file = open("file", O_RDWR), ro = open("file", O_RDONLY), wo = open("file", O_WRONLY), path = open("file", O_PATH);
    int dir = open("dir", O_RDONLY), fifo = open("fifo", O_RDWR), append = open("file", O_RDWR | O_APPEND);
#define MAP(protection, flags, fd, at) (mmap(NULL, 10, protection, flags, fd, at) == MAP_FAILED ? -1 : 0)
    TRY(MAP(PROT_READ, MAP_SHARED, file, 0));
    TRY(MAP(PROT_READ, MAP_SHARED, wo, 0));
    TRY(MAP(PROT_READ, MAP_PRIVATE, wo, 0));
    TRY(MAP(PROT_WRITE, MAP_SHARED, ro, 0));
    TRY(MAP(PROT_WRITE, MAP_PRIVATE, ro, 0));
    TRY(MAP(PROT_WRITE, MAP_SHARED, append, 0));
    TRY(MAP(PROT_EXEC, MAP_SHARED, ro, 0));
    TRY(MAP(PROT_READ, MAP_SHARED, path, 0));
    TRY(MAP(PROT_READ, MAP_SHARED, dir, 0));
    TRY(MAP(PROT_READ, MAP_SHARED, fifo, 0));
    TRY(MAP(PROT_READ, MAP_SHARED, file, 1));
    TRY(MAP(PROT_READ, MAP_SHARED, file, 64 * MIB));
    TRY(MAP(PROT_READ, MAP_SHARED, file, -BLOCK));
    TRY(MAP(PROT_READ, 0, file, 0));
    TRY(MAP(PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, file, 0));
    TRY(MAP(PROT_READ, MAP_SHARED_VALIDATE, file, 0));
    char *mapped = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, ro, 0);
    TRY(mprotect(mapped, BLOCK, PROT_READ | PROT_WRITE));
    TRY(msync(mapped, BLOCK, MS_SYNC | MS_ASYNC));
    TRY(msync(mapped + 1, BLOCK, MS_SYNC));
    TRY(msync(mapped, BLOCK, MS_SYNC));
    TRY(munmap(mapped, BLOCK));
}

// ---- names

static void renames(void) {
    make_dir("full", 0755);
    make("full/file", 1, 0600);
    make_dir("dir/sub", 0755);
    make("other", 20, 0600);
#define MOVE(from, to, flags) syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags)
    TRY(rename("missing", "new"));
    TRY(rename("", "new"));
    TRY(rename("file", ""));
    TRY(rename("file", "file"));
    TRY(rename("file", "missing/new"));
    TRY(rename("file", "file/new"));
    TRY(rename("file/x", "new"));
    TRY(rename("file", "dir"));
    TRY(rename("dir", "file"));
    TRY(rename("dir", "full"));
    TRY(rename("dir", "dir/sub/new"));
    TRY(rename("dir", "dir/new"));
    TRY(rename("dir/sub", "dir"));
    TRY(rename("dir", "dir"));
    TRY(rename(".", "new"));
    TRY(rename("dir/.", "new"));
    TRY(rename("dir/..", "new"));
    TRY(rename("dir", "."));
    TRY(rename("dir", "dir/.."));
    TRY(rename("file", "full/."));
    TRY(rename("file/", "new"));
    TRY(rename("file", "new/"));
    TRY(rename("dir/", "moved/"));
    TRY(rename("moved", "dir"));
    TRY(rename("link", "new/"));
    TRY(rename("link_dir/", "new"));
    TRY(rename("loop/x", "new"));
    TRY(rename("file", "loop/x"));
    TRY(rename("loop", "loop2"));
    TRY(rename("loop2", "loop"));
    TRY(rename("fifo", "file2"));
    TRY(rename("file2", "fifo"));
    TRY(rename("file", "closed/new"));
    TRY(rename("closed/new", "file"));
    TRY(rename("file", "/proc/new"));
    TRY(rename(nowhere, "new"));
    TRY(MOVE("file", "other", RENAME_NOREPLACE));
    TRY(MOVE("file", "file", RENAME_NOREPLACE));
    TRY(MOVE("file", "new", RENAME_NOREPLACE));
    TRY(MOVE("new", "file", RENAME_NOREPLACE));
    TRY(MOVE("missing", "file", RENAME_NOREPLACE));
    TRY(MOVE("file", "missing", RENAME_EXCHANGE));
    TRY(MOVE("missing", "file", RENAME_EXCHANGE));
    TRY(MOVE("file", "dir", RENAME_EXCHANGE));
    look("file");
    TRY(MOVE("file", "dir", RENAME_EXCHANGE));
    TRY(MOVE("dir", "dir/sub", RENAME_EXCHANGE));
    TRY(MOVE("dir/sub", "dir", RENAME_EXCHANGE));
    TRY(MOVE("file", "other", RENAME_EXCHANGE));
    TRY(MOVE("dir", "full", RENAME_EXCHANGE));
    TRY(MOVE("full", "dir", RENAME_EXCHANGE));
    TRY(MOVE("file", "file", RENAME_EXCHANGE));
    TRY(MOVE(".", "file", RENAME_EXCHANGE));
    TRY(MOVE("file", "other", RENAME_NOREPLACE | RENAME_EXCHANGE));
    TRY(MOVE("file", "other", RENAME_WHITEOUT | RENAME_EXCHANGE));
    TRY(MOVE("file", "other", 8));
    TRY(MOVE("file", "white", RENAME_WHITEOUT));
    look("file");
    look("white");
    TRY(MOVE("other", "dir", RENAME_WHITEOUT | RENAME_NOREPLACE));
    TRY(MOVE("missing", "file", RENAME_WHITEOUT));
    TRY(MOVE("other", "white", RENAME_WHITEOUT));
    look("other");
    look("white");
    TRY(MOVE("dir", "dir/inside", RENAME_WHITEOUT));
    TRY(MOVE("dir", "white_dir", RENAME_WHITEOUT | RENAME_NOREPLACE));
    look("dir");
    TRY(mknod("made_white", S_IFCHR, 0));
    look("made_white");
}

static void links(void) {
    TRY(link("missing", "new"));
    TRY(link("file", "dir"));
    TRY(link("file", "link"));
    TRY(link("file", "dangling"));
    TRY(link("file", ""));
    TRY(link("", "new"));
    TRY(link("dir", "new"));
    TRY(link(".", "new"));
    TRY(link("file/", "new"));
    TRY(link("file", "new/"));
    TRY(link("file/x", "new"));
    TRY(link("file", "file/x"));
    TRY(link("file", "missing/x"));
    TRY(link("loop/x", "new"));
    TRY(link("file", "loop/x"));
    TRY(link("file", "closed/x"));
    TRY(link("file", "/proc/x"));
    TRY(link("link", "hard_link"));
    look("hard_link");
    TRY(link("fifo", "hard_fifo"));
    TRY(linkat(AT_FDCWD, "link", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW));
    look("followed");
    TRY(linkat(AT_FDCWD, "link_dir", AT_FDCWD, "new", AT_SYMLINK_FOLLOW));
    TRY(linkat(AT_FDCWD, "file", AT_FDCWD, "new", 1));
    int fd = made("gone", 4, 0600), path = open("file", O_PATH);
    TRY(linkat(fd, "", AT_FDCWD, "by_fd", AT_EMPTY_PATH));
    TRY(linkat(path, "", AT_FDCWD, "by_path", AT_EMPTY_PATH));
    TRY(unlink("gone"));
    TRY(unlink("by_fd"));
    TRY(linkat(fd, "", AT_FDCWD, "back", AT_EMPTY_PATH));
    TRY(linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "back", AT_SYMLINK_FOLLOW));
    TRY(fchmod(fd, 0640));
    TRY(pwrite(fd, "x", 1, 100));
    TRY(ftruncate(fd, 5));
    look("file");
}

static void removals(void) {
    make_dir("full", 0755);
    make("full/file", 1, 0600);
    make("open", 10, 0600);
    TRY(unlink("missing"));
    TRY(unlink(""));
    TRY(unlink("dir"));
    TRY(unlink("dir/"));
    TRY(unlink("."));
    TRY(unlink(".."));
    TRY(unlink("file/"));
    TRY(unlink("file/x"));
    TRY(unlink("link/"));
    TRY(unlink("link_dir/"));
    TRY(unlink("loop/x"));
    TRY(unlink("closed/x"));
    TRY(unlink("/"));
    TRY(unlink(nowhere));
    TRY(rmdir("missing"));
    TRY(rmdir(""));
    TRY(rmdir("file"));
    TRY(rmdir("link"));
    TRY(rmdir("link_dir"));
    TRY(rmdir("link_dir/"));
    TRY(rmdir("full"));
    TRY(rmdir("."));
    TRY(rmdir("dir/."));
    TRY(rmdir(".."));
    TRY(rmdir("dir/.."));
    TRY(rmdir("full/.."));
    TRY(rmdir("dir/"));
    TRY(mkdir("dir", 0755));
    int dir = open("dir", O_RDONLY);
    must(fchdir(dir));
    TRY(rmdir("../dir"));
    TRY(mkdir("new", 0700));
    OPEN(open("new", O_CREAT | O_RDWR, 0600));
    TRY(symlink("x", "new"));
    TRY(link("../file", "new"));
    TRY(rename("../file", "new"));
    TRY(chdir(".."));
    TRY(syscall(SYS_getdents64, dir, (char[BLOCK]){ 0 }, BLOCK));
    TRY(fchmod(dir, 0700));
    TRY(fsync(dir));
    TRY(syscall(SYS_getcwd, (char[9]){ 0 }, 1));
}

static void making(void) {
    umask(0);
    TRY(mkdir("dir", 0700));
    TRY(mkdir("file", 0700));
    TRY(mkdir("dangling", 0700));
    TRY(mkdir("link_dir", 0700));
    TRY(mkdir("missing/x", 0700));
    TRY(mkdir("file/x", 0700));
    TRY(mkdir("closed/x", 0700));
    TRY(mkdir("loop/x", 0700));
    TRY(mkdir("", 0700));
    TRY(mkdir(".", 0700));
    TRY(mkdir("/", 0700));
    TRY(mkdir("new/", 0700));
    TRY(mkdir("bits", 07777));
    look("bits");
    TRY(chmod("bits", 02777));
    TRY(mkdir("bits/below", 0700));
    look("bits/below");
    TRY(mknod("bits/file", S_IFREG | 07777, 0));
    look("bits/file");
    umask(027);
    TRY(mkdir("masked", 0777));
    look("masked");
    TRY(mknod("regular", S_IFREG | 0666, 0));
    look("regular");
    TRY(mknod("no_kind", 0666, 0));
    look("no_kind");
    TRY(mknod("pipe", S_IFIFO | 0666, 99));
    look("pipe");
    TRY(mknod("socket", S_IFSOCK | 0666, 0));
    look("socket");
    TRY(mknod("char", S_IFCHR | 0666, makedev(1, 3)));
    look("char");
    TRY(mknod("white", S_IFCHR | 0666, 0));
    look("white");
    TRY(mknod("block", S_IFBLK | 0666, makedev(4095, 1048575)));
    look("block");
    TRY(mknod("dir2", S_IFDIR | 0777, 0));
    TRY(mknod("link2", S_IFLNK | 0777, 0));
    TRY(mknod("odd", 0110000 | 0777, 0));
    TRY(mknod("file", S_IFREG | 0777, 0));
    TRY(mknod("new2/", S_IFREG | 0777, 0));
    OPEN(open("socket", O_RDONLY));
    OPEN(open("fifo", O_WRONLY | O_NONBLOCK));
    OPEN(open("block", O_RDONLY));
    unsigned char acl[] = { 2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255,
                            32, 0, 0, 0, 255, 255, 255, 255 };
    TRY(setxattr("dir", "system.posix_acl_default", acl, sizeof acl, 0));
    TRY(setxattr("file", "system.posix_acl_default", acl, sizeof acl, 0));
    umask(077);
    TRY(mkdir("dir/sub", 0777));
    look("dir/sub");
    OPEN(open("dir/file", O_CREAT | O_RDWR, 0666));
    look("dir/file");
    TRY(mknod("dir/pipe", S_IFIFO | 0666, 0));
    look("dir/pipe");
    TRY(symlink("x", "dir/link"));
    look("dir/link");
}

// ---- attributes

static void attributes(void) {
    static char value[XATTR_SIZE_MAX + 1], name[300] = "user.";
    memset(name + 5, 'a', 250);
    TRY(setxattr("file", "user.a", "value", 5, 0));
    TRY(setxattr("file", "user.a", "value", 5, XATTR_CREATE));
    TRY(setxattr("file", "user.b", "value", 5, XATTR_REPLACE));
    TRY(setxattr("file", "user.b", "value", 5, XATTR_CREATE | XATTR_REPLACE));
    TRY(setxattr("file", "user.b", "value", 5, 4));
    TRY(setxattr("file", "user.empty", NULL, 0, 0));
    TRY(setxattr("file", "user.b", no_address, 5, 0));
    TRY(setxattr("file", "user.b", nowhere, 5, 0));
    TRY(setxattr("file", "user.b", value, XATTR_SIZE_MAX + 1, 0));
    TRY(setxattr("file", "user.", "value", 5, 0));
    TRY(setxattr("file", "user", "value", 5, 0));
    TRY(setxattr("file", "", "value", 5, 0));
    TRY(setxattr("file", "nothing.a", "value", 5, 0));
    TRY(setxattr("file", "system.a", "value", 5, 0));
    TRY(setxattr("file", "trusted.a", "value", 5, 0));
    TRY(setxattr("file", "security.a", "value", 5, 0));
    TRY(setxattr("file", "security.capability", "value", 5, 0));
    TRY(setxattr("file", "system.posix_acl_access", "value", 5, 0));
    TRY(setxattr("file", "system.posix_acl_access", "\2\0\0\0", 4, 0));
    TRY(setxattr("file", "system.posix_acl_access", NULL, 0, 0));
    TRY(setxattr("file", name, "value", 5, 0));
    name[255] = 'a';
    TRY(setxattr("file", name, "value", 5, 0));
    TRY(getxattr("file", name, value, 5));
    TRY(setxattr("missing", "user.a", "value", 5, 0));
    TRY(setxattr("dangling", "user.a", "value", 5, 0));
    TRY(setxattr("loop", "user.a", "value", 5, 0));
    TRY(lsetxattr("link", "user.a", "value", 5, 0));
    TRY(lsetxattr("link", "trusted.a", "value", 5, 0));
    TRY(lsetxattr("link", "security.a", "value", 5, 0));
    TRY(setxattr("fifo", "user.a", "value", 5, 0));
    TRY(setxattr("dir", "user.a", "value", 5, 0));
    TRY(setxattr("readonly", "user.a", "value", 5, 0));
    TRY(setxattr("unreadable", "user.a", "value", 5, 0));
    TRY(getxattr("file", "user.a", value, 100));
    TRY(getxattr("file", "user.a", value, 4));
    TRY(getxattr("file", "user.a", NULL, 0));
    TRY(getxattr("file", "user.a", nowhere, 100));
    TRY(getxattr("file", "user.empty", value, 100));
    TRY(getxattr("file", "user.missing", value, 100));
    TRY(getxattr("file", "nothing.a", value, 100));
    TRY(getxattr("file", "trusted.missing", value, 100));
    TRY(getxattr("file", "system.posix_acl_access", value, 100));
    TRY(getxattr("file", "system.a", value, 100));
    TRY(getxattr("file", "", value, 100));
    TRY(getxattr("unreadable", "user.a", value, 100));
    TRY(lgetxattr("link", "user.a", value, 100));
    TRY(getxattr("fifo", "user.a", value, 100));
    TRY(listxattr("fifo", value, 100));
    TRY(listxattr("unreadable", value, 100) < 0);
    TRY(listxattr("file", value, 3));
    TRY(listxattr("missing", value, 3));
    TRY(removexattr("file", "user.missing"));
    TRY(removexattr("file", "user.a"));
    TRY(removexattr("file", "user.a"));
    TRY(removexattr("file", "nothing.a"));
    TRY(removexattr("file", "trusted.missing"));
    TRY(removexattr("file", "system.posix_acl_access"));
    TRY(removexattr("fifo", "user.a"));
    int path = open("file", O_PATH), ro = open("file", O_RDONLY);
    TRY(fsetxattr(path, "user.b", "value", 5, 0));
    TRY(fgetxattr(path, "user.b", value, 5));
    TRY(fsetxattr(ro, "user.b", "value", 5, 0));
    TRY(flistxattr(path, value, 5));
    TRY(fremovexattr(ro, "user.b"));
    TRY(fremovexattr(99, "user.b"));
}

// What belongs to others: made by root before an ordinary user comes.
static void make_others(void) {
    make_objects();
    make("of_root", 10, 0644);
    make("of_other", 10, 0666);
    make_dir("sticky", 0777);
    make("sticky/of_other", 10, 0666);
    make_dir("sticky/dir_of_other", 0777);
    make("hidden", 10, 0600);
    make_dir("of_other_dir", 0755);
    must(chown("of_other", OTHER, OTHER) || chown("sticky", OTHER, OTHER) || chmod("sticky", 01777));
    must(chown("sticky/of_other", OTHER, OTHER) || chown("sticky/dir_of_other", OTHER, OTHER));
    must(chown("of_other_dir", OTHER, OTHER));
}

static void owners(void) {
    TRY(chmod("of_root", 0600));
    TRY(chmod("of_other", 0600));
    TRY(chmod("missing", 0600));
    TRY(chmod("", 0600));
    TRY(chmod("file/", 0600));
    TRY(chmod("loop", 0600));
    TRY(chmod("dangling", 0600));
    TRY(chmod("file", 0177777));
    look("file");
    TRY(fchmodat(AT_FDCWD, "link", 0600, AT_SYMLINK_NOFOLLOW));
    TRY(syscall(452, AT_FDCWD, "link", 0600, AT_SYMLINK_NOFOLLOW));
    TRY(syscall(452, AT_FDCWD, "file", 0600, 1));
    TRY(fchmod(open("file", O_PATH), 0600));
    TRY(fchmod(99, 0600));
    TRY(chown("of_root", USER, -1));
    TRY(chown("of_root", -1, -1));
    TRY(chown("of_other", OTHER, -1));
    TRY(chown("file", 0, -1));
    TRY(chown("file", USER, -1));
    TRY(chown("file", -1, 0));
    TRY(chown("file", -1, 2000));
    TRY(chown("file", -1, USER));
    TRY(chown("missing", -1, -1));
    TRY(chown("dangling", -1, -1));
    TRY(lchown("dangling", -1, -1));
    TRY(lchown("dangling", -1, 2000));
    TRY(fchownat(AT_FDCWD, "", -1, -1, AT_EMPTY_PATH));
    TRY(fchownat(AT_FDCWD, "file", -1, -1, 1));
    TRY(chown("file/", -1, -1));
    TRY(fchown(open("file", O_PATH), -1, -1));
    TRY(fchown(open("file", O_RDONLY), -1, -1));
    look("file");
    look("dangling");
    TRY(chmod("dir", 02775));
    look("dir");
    TRY(unlink("sticky/of_other"));
    TRY(rmdir("sticky/dir_of_other"));
    TRY(rename("sticky/of_other", "sticky/new"));
    make("sticky/mine", 1, 0600);
    TRY(rename("sticky/mine", "sticky/of_other"));
    TRY(MOVE("sticky/mine", "sticky/of_other", RENAME_EXCHANGE));
    TRY(unlink("sticky/mine"));
    OPEN(open("sticky/of_other", O_CREAT | O_RDWR, 0600));
    TRY(link("of_root", "linked_root"));
    TRY(link("of_other", "linked_other"));
    TRY(link("hidden", "linked_hidden"));
    TRY(unlink("of_other_dir/missing"));
    TRY(mkdir("of_other_dir/x", 0700));
    TRY(rename("of_other_dir", "moved_dir"));
    look("of_root");
    look("of_other");
}

static void times(void) {
    struct { const char *name; struct timespec times[2]; } cases[] = {
        { "now", { { 0, UTIME_NOW }, { 0, UTIME_NOW } } }, { "omit", { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } } },
        { "now, omit", { { 0, UTIME_NOW }, { 0, UTIME_OMIT } } }, { "omit, set", { { 0, UTIME_OMIT }, { 5, 7 } } },
        { "set", { { 1, 999999999 }, { 2, 0 } } }, { "bad", { { 1, 1000000000 }, { 1, 0 } } },
        { "negative ns", { { 1, 0 }, { 1, -1 } } }, { "1900", { { -2208988800, 5 }, { -2208988800, 5 } } },
        { "before 1901", { { -2147483649, 0 }, { -2147483648, 0 } } }, { "2038", { { 2147483648, 1 }, { 2147483647, 1 } } },
        { "2446", { { 15032385535, 0 }, { 15032385536, 0 } } }, { "2300", { { 10413792000, 0 }, { 10413792000, 0 } } },
        { "1600", { { -11676096000, 0 }, { -11676096000, 0 } } }, { "far", { { 1LL << 40, 0 }, { 1LL << 40, 0 } } },
        { "farther", { { LLONG_MAX, 0 }, { LLONG_MIN, 0 } } },
    };
    static const char *const NAMES[] = { "file", "readonly", "of_root", "of_other", "dir", "missing" };
    for (size_t name = 0; name < COUNT(NAMES); name++) {
        for (size_t at = 0; at < COUNT(cases); at++) {
            char call[64];
            struct stat found;
            snprintf(call, sizeof call, "utimensat(\"%s\", %s)", NAMES[name], cases[at].name);
            long result = utimensat(AT_FDCWD, NAMES[name], cases[at].times, 0);
            report(call, result);
            if (result != 0 || name > 0 || stat(NAMES[name], &found) != 0 || at < 4) continue;
            printf("%s %u:   atime %ld.%09ld mtime %ld.%09ld\n", group, me, (long)found.st_atim.tv_sec,
                   found.st_atim.tv_nsec, (long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
        }
    }
    TRY(utimensat(AT_FDCWD, "file", NULL, 1));
    TRY(utimensat(AT_FDCWD, "dangling", NULL, 0));
    TRY(utimensat(AT_FDCWD, "dangling", NULL, AT_SYMLINK_NOFOLLOW));
    TRY(utimensat(AT_FDCWD, "", NULL, 0));
    TRY(futimens(open("file", O_RDONLY), NULL));
    TRY(futimens(open("file", O_PATH), NULL));
    TRY(futimens(99, NULL));
}

// Which bits of files of every mode are left after a change of content, owner or nothing.
static void privileges(void) {
    static const mode_t MODES[] = { 04755, 02755, 06777, 02666, 06666, 01666 };
    static const char *const CHANGES[] = { "write", "truncate", "cut", "allocate", "punch", "copy", "map", "chown", "chown nothing",
                                           "chgrp", "utimens", "pwrite nothing", "direct", "same size" };
    static char bytes[BLOCK] __attribute__((aligned(BLOCK)));
    for (size_t change = 0; change < COUNT(CHANGES); change++) {
        for (size_t at = 0; at < COUNT(MODES); at++) {
            char name[64], call[128];
            snprintf(name, sizeof name, "%s %04o", CHANGES[change], MODES[at]);
            int fd = open(name, O_RDWR | (change == 12 ? O_DIRECT : 0));
            long result = -1;
            switch (change) {
            case 0: result = pwrite(fd, bytes, 10, 0); break;
            case 1: result = truncate(name, 5); break;
            case 2: result = ftruncate(fd, 5); break;
            case 3: result = fallocate(fd, 0, 0, 100); break;
            case 4: result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 5); break;
            case 5: result = copy(open("file", O_RDONLY), 0, fd, 0, 5, 0); break;
            case 6: {
                char *mapped = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                mapped[0] = 1;
                result = munmap(mapped, BLOCK) || fsync(fd);
                break;
            }
            case 7: result = chown(name, me, -1); break;
            case 8: result = chown(name, -1, -1); break;
            case 9: result = chown(name, -1, me); break;
            case 10: result = utimensat(AT_FDCWD, name, NULL, 0); break;
            case 11: result = pwrite(fd, bytes, 0, 0); break;
            case 12: result = pwrite(fd, bytes, BLOCK, 0); break;
            case 13: result = ftruncate(fd, 10); break;
            }
            struct stat found;
            int error = errno;
            must(stat(name, &found));
            errno = error;
            snprintf(call, sizeof call, "%s: %04o", name, found.st_mode & 07777);
            report(call, result);
            close(fd);
        }
    }
}

// The files belong to OTHER, whose group is that of the directory; everybody may write them.
static void make_privileged(void) {
    static const mode_t MODES[] = { 04755, 02755, 06777, 02666, 06666, 01666 };
    static const char *const CHANGES[] = { "write", "truncate", "cut", "allocate", "punch", "copy", "map", "chown", "chown nothing",
                                           "chgrp", "utimens", "pwrite nothing", "direct", "same size" };
    make("file", 10, 0644);
    for (size_t change = 0; change < COUNT(CHANGES); change++) {
        for (size_t at = 0; at < COUNT(MODES); at++) {
            char name[64];
            snprintf(name, sizeof name, "%s %04o", CHANGES[change], MODES[at]);
            make(name, 10, 0666);
            must(chown(name, OTHER, OTHER) || chmod(name, MODES[at] | 0666));
        }
    }
}

// ---- the rest

static void locks(void) {
    int fd = open("file", O_RDWR), ro = open("file", O_RDONLY), wo = open("file", O_WRONLY), second = open("file", O_RDWR);
    int dir = open("dir", O_RDONLY), path = open("file", O_PATH);
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10 }, read_lock = lock, odd = lock;
    struct flock before = lock, far = lock, with_pid = lock, past = lock;
    read_lock.l_type = F_RDLCK;
    odd.l_type = 99;
    before.l_start = -1;
    far.l_start = LLONG_MAX;
    past.l_len = -1;
    with_pid.l_pid = 5;
    TRY(flock(fd, LOCK_EX));
    TRY(flock(second, LOCK_EX | LOCK_NB));
    TRY(flock(second, LOCK_SH | LOCK_NB));
    TRY(flock(fd, LOCK_SH));
    TRY(flock(second, LOCK_SH | LOCK_NB));
    TRY(flock(fd, 99));
    TRY(flock(path, LOCK_EX));
    TRY(flock(dir, LOCK_EX));
    TRY(flock(99, LOCK_EX));
    TRY(fcntl(fd, F_SETLK, &lock));
    TRY(fcntl(ro, F_SETLK, &lock));
    TRY(fcntl(wo, F_SETLK, &read_lock));
    TRY(fcntl(fd, F_SETLK, &odd));
    TRY(fcntl(fd, F_SETLK, &before));
    TRY(fcntl(fd, F_SETLK, &far));
    TRY(fcntl(fd, F_SETLK, &past));
    TRY(fcntl(dir, F_SETLK, &read_lock));
    TRY(fcntl(path, F_SETLK, &lock));
    TRY(fcntl(second, F_OFD_SETLK, &lock));
    TRY(fcntl(second, F_OFD_SETLK, &with_pid));
    TRY(fcntl(second, F_OFD_GETLK, &with_pid));
    struct flock found = lock;
    TRY(fcntl(second, F_OFD_GETLK, &found));
    TRY(found.l_type);
    TRY(fcntl(ro, F_SETLEASE, F_RDLCK));
    TRY(fcntl(fd, F_SETLEASE, F_WRLCK));
    TRY(fcntl(fd, F_GETLEASE));
    TRY(fcntl(fd, F_SETLEASE, 99));
    TRY(fcntl(dir, F_NOTIFY, DN_CREATE));
    TRY(fcntl(fd, F_NOTIFY, DN_CREATE));
    TRY(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    TRY(fcntl(fd, F_SETFL, O_DIRECT));
    TRY(fcntl(fd, F_SETFL, O_NOATIME));
    TRY(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
    TRY(fcntl(fd, F_GET_SEALS));
    TRY(fcntl(fd, F_GETPIPE_SZ));
    TRY(fcntl(fd, F_SET_RW_HINT, &(uint64_t){ RWH_WRITE_LIFE_SHORT }));
    TRY(fcntl(fd, F_SET_RW_HINT, &(uint64_t){ 99 }));
}

static void listings(void) {
    static char room[BLOCK];
    int dir = open("dir", O_RDONLY), file = open("file", O_RDONLY), path = open("dir", O_PATH);
    TRY(syscall(SYS_getdents64, dir, room, 1));
    TRY(syscall(SYS_getdents64, dir, room, 23));
    TRY(syscall(SYS_getdents64, dir, room, 24));
    TRY(syscall(SYS_getdents64, dir, nowhere, BLOCK));
    TRY(syscall(SYS_getdents64, file, room, BLOCK));
    TRY(syscall(SYS_getdents64, path, room, BLOCK));
    TRY(syscall(SYS_getdents64, 99, room, BLOCK));
    TRY(syscall(SYS_getdents64, dir, room, BLOCK) > 0);
    TRY(syscall(SYS_getdents64, dir, room, BLOCK));
    TRY(opendir("file") ? 0 : -1);
    TRY(opendir("closed") ? 0 : -1);
    TRY(opendir("missing") ? 0 : -1);
    TRY(opendir("loop") ? 0 : -1);
}

static long statx_of(int dir, const char *path, int flags, unsigned mask) {
    struct statx found;
    long result = statx(dir, path, flags, mask, &found);
    return result == 0 ? found.stx_mask & STATX_BASIC_STATS & mask : result;
}

static void facts(void) {
    struct stat found;
    struct statfs space;
    int path = open("file", O_PATH);
    TRY(stat("", &found));
    TRY(stat("missing", &found));
    TRY(stat("file/x", &found));
    TRY(stat("file/", &found));
    TRY(stat("loop", &found));
    TRY(lstat("loop", &found));
    TRY(lstat("link/", &found));
    TRY(stat("closed/x", &found));
    TRY(stat("dangling", &found));
    TRY(stat(nowhere, &found));
    TRY(stat("file", nowhere));
    TRY(fstat(path, &found));
    TRY(fstat(99, &found));
    TRY(statfs("file", &space));
    TRY(statfs("missing", &space));
    TRY(fstatfs(path, &space));
    TRY(space.f_namelen);
    TRY(statx_of(AT_FDCWD, "file", 0, STATX_BASIC_STATS));
    TRY(statx_of(AT_FDCWD, "file", 0, STATX_SIZE));
    TRY(statx_of(AT_FDCWD, "file", 0, 0));
    TRY(statx_of(AT_FDCWD, "file", 0, STATX__RESERVED));
    TRY(statx_of(AT_FDCWD, "file", 1, STATX_SIZE));
    TRY(statx_of(AT_FDCWD, "file", AT_STATX_SYNC_TYPE, STATX_SIZE));
    TRY(statx_of(AT_FDCWD, "file", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS));
    TRY(statx_of(AT_FDCWD, "file", AT_STATX_DONT_SYNC, STATX_BASIC_STATS));
    TRY(statx_of(path, "", 0, STATX_SIZE));
    TRY(statx_of(path, "", AT_EMPTY_PATH, STATX_SIZE));
    struct statx whole;
    TRY(statx(AT_FDCWD, "file", 0, STATX_BTIME, &whole));
    TRY((whole.stx_mask & STATX_BTIME) != 0);
    TRY(pathconf("file", _PC_NAME_MAX));
    TRY(pathconf("file", _PC_PATH_MAX));
}

static void handles(void) {
    struct { struct file_handle handle; unsigned char more[MAX_HANDLE_SZ]; } handle = { { 0 }, { 0 } };
    int mount = 0, dir = open(".", O_RDONLY), path = open("file", O_PATH);
    TRY(name_to_handle_at(AT_FDCWD, "file", &handle.handle, &mount, 0));
    TRY(handle.handle.handle_bytes > 0);
    handle.handle.handle_bytes = MAX_HANDLE_SZ + 1;
    TRY(name_to_handle_at(AT_FDCWD, "file", &handle.handle, &mount, 0));
    handle.handle.handle_bytes = MAX_HANDLE_SZ;
    TRY(name_to_handle_at(AT_FDCWD, "missing", &handle.handle, &mount, 0));
    TRY(name_to_handle_at(AT_FDCWD, "", &handle.handle, &mount, 0));
    TRY(name_to_handle_at(path, "", &handle.handle, &mount, AT_EMPTY_PATH));
    handle.handle.handle_bytes = MAX_HANDLE_SZ;
    TRY(name_to_handle_at(AT_FDCWD, "file", &handle.handle, &mount, 1));
    TRY(name_to_handle_at(AT_FDCWD, "file", &handle.handle, &mount, 0));
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDWR));
    OPEN(open_by_handle_at(path, &handle.handle, O_RDONLY));
    OPEN(open_by_handle_at(99, &handle.handle, O_RDONLY));
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDONLY | O_DIRECTORY));
    TRY(unlink("file"));
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDONLY));
    close(path);
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDONLY));
    handle.handle.handle_bytes = 0;
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDONLY));
    handle.handle.handle_bytes = 8;
    handle.handle.handle_type = 77;
    OPEN(open_by_handle_at(dir, &handle.handle, O_RDONLY));
}

static void controls(void) {
    int fd = open("file", O_RDWR), dir = open("dir", O_RDONLY), flags = 0, block = 0;
    struct { struct fiemap map; struct fiemap_extent one; } map = { { .fm_length = ~0ULL, .fm_extent_count = 1 }, { 0 } };
    struct fsxattr wide;
    int flagged = made("flagged", 10, 0644);
    TRY(ioctl(flagged, FS_IOC_GETFLAGS, &flags));
    flags = FS_IMMUTABLE_FL;
    TRY(ioctl(flagged, FS_IOC_SETFLAGS, &flags));
    OPEN(open("flagged", O_RDWR));
    TRY(link("flagged", "linked"));
    TRY(chmod("flagged", 0600));
    flags = FS_APPEND_FL;
    TRY(ioctl(flagged, FS_IOC_SETFLAGS, &flags));
    OPEN(open("flagged", O_RDWR | O_TRUNC));
    OPEN(open("flagged", O_WRONLY | O_APPEND));
    flags = 0;
    TRY(ioctl(flagged, FS_IOC_SETFLAGS, &flags));
    flags = 0x40000000;
    TRY(ioctl(flagged, FS_IOC_SETFLAGS, &flags));
    TRY(ioctl(fd, FS_IOC_FSGETXATTR, &wide));
    TRY(ioctl(dir, FS_IOC_GETFLAGS, &flags));
    TRY(ioctl(fd, FS_IOC_FIEMAP, &map));
    TRY(ioctl(fd, FIGETBSZ, &block));
    TRY(block);
    TRY(ioctl(fd, FIBMAP, &block));
    TRY(ioctl(fd, FIONREAD, &block));
    TRY(ioctl(dir, FIONREAD, &block));
    TRY(ioctl(fd, FS_IOC_GETVERSION, &block));
    TRY(ioctl(fd, FS_IOC_GETFSLABEL, (char[FSLABEL_MAX]){ 0 }));
    TRY(ioctl(fd, TCGETS, &(char[64]){ 0 }));
    TRY(ioctl(fd, 0x12345678, &block));
    TRY(ioctl(dir, 0x12345678, &block));
    TRY(ioctl(open("file", O_PATH), FIGETBSZ, &block));
    TRY(syscall(SYS_quotactl_fd, fd, QCMD(Q_GETQUOTA, USRQUOTA), 0, &(struct dqblk){ 0 }) < 0);
    TRY(syscall(SYS_quotactl_fd, fd, QCMD(99, USRQUOTA), 0, NULL) < 0);
    TRY(syscall(SYS_quotactl_fd, 99, QCMD(Q_GETQUOTA, USRQUOTA), 0, NULL));
    TRY(chroot("file"));
    TRY(chroot("missing"));
    TRY(mount("none", "file", "nothing", 0, NULL));
    TRY(umount2(".", 0));
}

static void execution(void) {
    make("program", 10, 0755);
    must(system("cp /bin/true true && chmod 755 true"));
    int wo = open("true", O_WRONLY);
#define RUN(path) (errno = 0, execve(path, (char *[]){ path, NULL }, (char *[]){ NULL }))
    TRY(RUN("true"));
    close(wo);
    TRY(RUN("program"));
    TRY(RUN("file"));
    TRY(RUN("dir"));
    TRY(RUN("missing"));
    TRY(RUN("file/x"));
    TRY(RUN("loop"));
    TRY(RUN("fifo"));
    must(system("cp /bin/sleep sleep && chmod 755 sleep"));
    int ready[2];
    must(pipe2(ready, O_CLOEXEC));
    pid_t child = fork();
    if (child == 0) {
        execl("./sleep", "sleep", "1000", NULL);
        _exit(1);
    }
    close(ready[1]);
    // The pipe closes when the child executes.
    must(read(ready[0], &child, 0) != 0);
    char byte;
    must(read(ready[0], &byte, 1) != 0);
    OPEN(open("sleep", O_WRONLY));
    OPEN(open("sleep", O_RDWR));
    TRY(truncate("sleep", 0));
    OPEN(open("sleep", O_RDONLY));
    TRY(unlink("sleep"));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

// A bind mount of the directory that is read-only, in a mount namespace of its own.
static void read_only(void) {
    int fd = open("file", O_RDWR);
    must(unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    must(mount(".", ".", NULL, MS_BIND, NULL) || mount(NULL, realpath(".", NULL), NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
    must(chdir(realpath(".", NULL)));
    OPEN(open("file", O_RDWR));
    OPEN(open("file", O_RDONLY));
    OPEN(open("file", O_RDONLY | O_TRUNC));
    OPEN(open("file", O_RDONLY | O_CREAT, 0600));
    OPEN(open("new", O_RDONLY | O_CREAT, 0600));
    OPEN(open("fifo", O_RDWR));
    TRY(mkdir("new", 0700));
    TRY(mkdir("dir", 0700));
    TRY(rmdir("dir"));
    TRY(rmdir("missing"));
    TRY(unlink("file"));
    TRY(unlink("missing"));
    TRY(rename("file", "new"));
    TRY(rename("missing", "new"));
    TRY(link("file", "new"));
    TRY(symlink("x", "new"));
    TRY(symlink("x", "file"));
    TRY(mknod("new", S_IFREG, 0));
    TRY(chmod("file", 0600));
    TRY(chown("file", -1, -1));
    TRY(truncate("file", 0));
    TRY(utimensat(AT_FDCWD, "file", NULL, 0));
    TRY(setxattr("file", "user.a", "a", 1, 0));
    TRY(removexattr("file", "user.a"));
    TRY(access("file", W_OK));
    TRY(access("fifo", W_OK));
    TRY(pwrite(fd, "x", 1, 0));
    look("file");
}

static void prepare(void) {
    make_objects();
    make("large", 4 * BLOCK, 0600);
}

static void run(const char *name, void (*before)(void), void (*body)(void), uid_t uid) {
    char dir[64];
    snprintf(dir, sizeof dir, "%s-%u", name, uid);
    make_dir(dir, 0755);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        group = name;
        me = uid;
        must(chdir(dir) || chown(".", uid, uid));
        // What root makes beforehand belongs to others; what the user makes is his own.
        if (before == make_others || before == make_privileged) before(), before = NULL;
        if (before == NULL && body != privileges) must(chown("file", uid, uid) || chown("dir", uid, uid) || chown("readonly", uid, uid));
        if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) fail("setresuid");
        if (before) before();
        body();
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) fail(name);
}

static const struct { const char *name; void (*before)(void), (*body)(void); int is_content, is_of_root; } GROUPS[] = {
    { "open", make_objects, open_all, 0, 0 },
    { "names", make_objects, open_names, 0, 0 },
    { "openat", make_objects, open_at, 0, 0 },
    { "tmpfile", make_objects, temporary, 1, 0 },
    { "write", prepare, read_and_write, 1, 0 },
    { "pipes", prepare, pipes, 1, 0 },
    { "direct", prepare, direct, 1, 0 },
    { "limit", prepare, limited, 1, 0 },
    { "seek", prepare, seek, 1, 0 },
    { "truncate", prepare, cut, 1, 0 },
    { "fallocate", prepare, allocate, 1, 0 },
    { "copy", prepare, copies, 1, 0 },
    { "clone", prepare, clones, 1, 0 },
    { "mmap", prepare, map, 1, 0 },
    { "rename", make_objects, renames, 0, 0 },
    { "link", make_objects, links, 0, 0 },
    { "remove", make_objects, removals, 0, 0 },
    { "make", make_objects, making, 0, 0 },
    { "xattr", make_objects, attributes, 0, 0 },
    { "owner", make_others, owners, 0, 0 },
    { "times", make_others, times, 0, 0 },
    { "privileges", make_privileged, privileges, 1, 0 },
    { "locks", prepare, locks, 0, 0 },
    { "getdents", make_objects, listings, 0, 0 },
    { "stat", make_objects, facts, 0, 0 },
    { "handle", make_objects, handles, 0, 0 },
    { "ioctl", make_objects, controls, 0, 0 },
    { "exec", make_objects, execution, 0, 0 },
    { "read-only", make_objects, read_only, 0, 1 },
};

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (chdir(argv[1]) != 0) fail(argv[1]);
    // All that a group prints has room, so that nothing is written while files may not grow.
    static char room[1 << 20];
    setvbuf(stdout, room, _IOFBF, sizeof room);
    umask(022);
    int only_content = strcmp(argv[2], "content") == 0;
    for (size_t at = 0; at < COUNT(GROUPS); at++) {
        if (only_content && !GROUPS[at].is_content) continue;
        run(GROUPS[at].name, GROUPS[at].before, GROUPS[at].body, 0);
        if (!GROUPS[at].is_of_root) run(GROUPS[at].name, GROUPS[at].before, GROUPS[at].body, USER);
    }
    return 0;
}
