/* What cannot be done on a device, and the answer to it. `refusals DIR HOST-DIR` */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#define FAILS(call, number)                                                                                            \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECK((long long)(call) == -1 && errno == (number));                                                           \
    } while (0)

/* RWF_NOAPPEND */
#define NOAPPEND 0x20

int main(int count, char **arguments) {
    CHECK(count == 3);
    CHECK(chdir(arguments[1]) == 0);
    char host[200], other[200], absolute[200];
    snprintf(host, sizeof host, "%s/host", arguments[2]);
    snprintf(other, sizeof other, "%s/other", arguments[2]);
    snprintf(absolute, sizeof absolute, "%s/f", arguments[1]);
    int fd = open("f", O_CREAT | O_RDWR, 0755), there = open(host, O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && there >= 0 && write(fd, "content", 7) == 7 && write(there, "host", 4) == 4);

    /* Mappings. */
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EACCES);
    void *place = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mmap(place, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP);
    CHECK(munmap(place, 4096) == 0);
    char *shared = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && memcmp(shared, "content", 7) == 0);

    /* Between the device and the host. */
    FAILS(rename("f", host), EXDEV);
    FAILS(rename(host, "g"), EXDEV);
    FAILS(link("f", host), EEXIST);
    FAILS(link("f", other), EXDEV);
    FAILS(copy_file_range(fd, NULL, there, NULL, 7, 0), EXDEV);
    CHECK(symlink(host, "to-host") == 0 && symlink(absolute, "absolute") == 0);
    CHECK(access("to-host", F_OK) == 0 && access("absolute", F_OK) == 0);
    struct stat stat;
    CHECK(lstat("to-host", &stat) == 0 && S_ISLNK(stat.st_mode));
    char path[300];
    snprintf(path, sizeof path, "..%s", host);
    CHECK(access(path, F_OK) == 0);
    snprintf(path, sizeof path, "%s/../..%s", arguments[1], host);
    CHECK(access(path, F_OK) == 0);
    snprintf(path, sizeof path, "%s/..//.%s/./f", arguments[2], arguments[1]);
    CHECK(access(path, F_OK) == -1 && errno == ENOENT);
    snprintf(path, sizeof path, "/proc/..//.%s/./f", arguments[1]);
    CHECK(access(path, F_OK) == 0);

    /* What needs a kernel. */
    FAILS(open(".", O_TMPFILE | O_RDWR, 0600), EOPNOTSUPP);
    CHECK(mkfifo("fifo", 0600) == 0);
    FAILS(open("fifo", O_RDONLY | O_NONBLOCK), EOPNOTSUPP);
    FAILS(open("fifo", O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open("to-host", O_RDONLY | O_DIRECTORY | O_NOFOLLOW), ENOTDIR);
    FAILS(setxattr("f", "system.posix_acl_access", "x", 1, 0), EOPNOTSUPP);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    FAILS(splice(fd, NULL, pipes[1], NULL, 7, 0), EINVAL);
    FAILS(fcntl(fd, F_SETPIPE_SZ, 4096), EINVAL);
    FAILS(execl(absolute, absolute, NULL), ENOENT);

    FAILS(inotify_add_watch(inotify_init(), "f", IN_MODIFY), EOPNOTSUPP);
    int fd_of_mount;
    struct file_handle handle = {.handle_bytes = 0};
    FAILS(name_to_handle_at(AT_FDCWD, "f", &handle, &fd_of_mount, 0), EOPNOTSUPP);
    FAILS(tee(fd, pipes[1], 7, 0), EINVAL);
    struct iovec part = {"x", 1};
    FAILS(vmsplice(fd, &part, 1, 0), EINVAL);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", arguments[1]);
    FAILS(bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address), EOPNOTSUPP);
    FAILS(chroot("."), EOPNOTSUPP);
    FAILS(acct(absolute), EOPNOTSUPP);
    FAILS(mount(absolute, "/mnt", "ext4", 0, NULL), EOPNOTSUPP);
    FAILS(umount2(absolute, 0), EOPNOTSUPP);
    char *roots[] = {absolute, NULL};
    CHECK(fts_open(roots, FTS_PHYSICAL, NULL) == NULL && errno == EOPNOTSUPP);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 5, absolute, O_RDONLY, 0) == EOPNOTSUPP);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);

    /* Flags of the kernel that are newer than many a kernel. */
    int appends = open("log", O_CREAT | O_RDWR | O_APPEND, 0644);
    CHECK(write(appends, "0123", 4) == 4);
    CHECK(pwritev2(appends, &part, 1, 1, NOAPPEND) == 1);
    CHECK(lseek(appends, 2, SEEK_SET) == 2);
    CHECK(pwritev2(appends, &part, 1, -1, NOAPPEND) == 1 && lseek(appends, 0, SEEK_CUR) == 3);
    FAILS(pwritev2(appends, &part, 1, 0, NOAPPEND | RWF_APPEND), EINVAL);
    FAILS(preadv2(appends, &part, 1, 0, 1 << 20), EOPNOTSUPP);
    char text[10] = "";
    CHECK(pread(appends, text, 9, 0) == 4 && strcmp(text, "0xx3") == 0);

    /* Addresses and lengths that are none. */
    char *volatile none = NULL;
    struct stat *volatile no_stat = NULL;
    volatile size_t endless = (size_t)SSIZE_MAX + 1;
    FAILS(pread(fd, none, 5, 0), EFAULT);
    FAILS(write(fd, none, 5), EFAULT);
    FAILS(read(fd, host, endless), EINVAL);
    FAILS(open(none, O_RDONLY), EFAULT);
    FAILS(lstat("f", no_stat), EFAULT);
    FAILS(fstat(fd, no_stat), EFAULT);
    FAILS(readv(fd, (struct iovec *)none, 2), EFAULT);
    volatile int negative = -1;
    FAILS(readv(fd, (struct iovec *)none, negative), EINVAL);
    FAILS(fcntl(fd, F_GETLK, none), EFAULT);
    static char endless_path[5000], long_name[400];
    memset(long_name, 'n', sizeof long_name - 1);
    for (size_t at = 0; at < sizeof endless_path - 3; at += 2)
        memcpy(endless_path + at, "./", 2);
    FAILS(open(endless_path, O_RDONLY), ENAMETOOLONG);
    FAILS(mkdir(long_name, 0700), ENAMETOOLONG);
    FAILS(open("", O_RDONLY), ENOENT);
    FAILS(dup2(fd, -1), EBADF);
    FAILS(dup2(fd, 1 << 29), EBADF);
    FAILS(fcntl(fd, F_DUPFD, -1), EINVAL);
    CHECK(fopen("f", none) == NULL && errno == EINVAL);
    return 0;
}
