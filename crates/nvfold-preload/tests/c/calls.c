/* Calls of all families in a directory, and what they answer. Run in a directory of the host and in one of a device, it prints
   the same. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static void tell_stat(const char *what, const struct stat *stat) {
    printf("%s: mode %o, links %ld, size %lld, mtime %lld.%09ld\n", what, stat->st_mode, (long)stat->st_nlink,
           S_ISDIR(stat->st_mode) ? 0LL : (long long)stat->st_size, (long long)stat->st_mtim.tv_sec % 1000000,
           stat->st_mtim.tv_nsec % 1);
}

static int by_name(const void *one, const void *other) {
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

static void tell_names(const char *path) {
    char *names[100];
    int count = 0;
    DIR *dir = opendir(path);
    CHECK(dir != NULL);
    errno = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char name[300];
        snprintf(name, sizeof name, "%s(%d)", entry->d_name, entry->d_type);
        names[count++] = strdup(name);
    }
    printf("errno at the end: %d\n", errno);
    qsort(names, count, sizeof *names, by_name);
    for (int at = 0; at < count; at++) {
        printf("  %s\n", names[at]);
        free(names[at]);
    }
    TELL(closedir(dir));
}

static void positions_in_directories(void) {
    DIR *dir = opendir("many");
    CHECK(dir != NULL);
    struct stat stat;
    TELL(fstat(dirfd(dir), &stat));
    char third[300] = "";
    long before_third = 0;
    int count = 0;
    for (struct dirent *entry; (before_third = count < 2 ? telldir(dir) : before_third, entry = readdir(dir)) != NULL;) {
        if (++count == 3)
            strcpy(third, entry->d_name);
        if (count == 2)
            before_third = telldir(dir);
    }
    TELL(count);
    seekdir(dir, before_third);
    struct dirent *again = readdir(dir);
    TELL(again != NULL && strcmp(again->d_name, third) == 0);
    rewinddir(dir);
    for (count = 0; readdir(dir) != NULL;)
        count++;
    TELL(count);
    TELL(closedir(dir));
    struct dirent **list;
    int found = scandir("many", &list, NULL, alphasort);
    TELL(found);
    for (int at = 0; at < found; at++) {
        printf(" %s", list[at]->d_name);
        free(list[at]);
    }
    free(list);
    glob_t paths;
    TELL(glob("many/1*", 0, NULL, &paths));
    for (size_t at = 0; at < paths.gl_pathc; at++)
        printf(" %s", paths.gl_pathv[at]);
    printf("\n");
    globfree(&paths);
}

static int visits, visit_kinds;

static int visit(const char *path, const struct stat *stat, int kind, struct FTW *place) {
    (void)path, (void)stat;
    visits++;
    visit_kinds += kind * 10 + place->level;
    return 0;
}

static void names(void) {
    struct stat stat;
    TELL(mkdir("d", 0755));
    TELL(mkdir("d", 0755));
    TELL(mkdir("none/d", 0755));
    TELL(close(open("d/f", O_CREAT | O_WRONLY, 0640)));
    TELL(open("d/f", O_CREAT | O_EXCL | O_WRONLY, 0640));
    TELL(open("d/f/x", O_RDONLY));
    TELL(open("d", O_WRONLY));
    TELL(open("none", O_RDONLY));
    TELL(open("d/f", O_RDONLY | O_DIRECTORY));
    TELL(link("d/f", "d/g"));
    TELL(link("d/f", "d/g"));
    TELL(symlink("f", "d/l"));
    TELL(symlink("none", "d/away"));
    TELL(open("d/l", O_RDONLY | O_NOFOLLOW));
    TELL(open("d/away", O_RDONLY));
    char target[100] = "";
    TELL(readlink("d/l", target, sizeof target));
    TELL(strcmp(target, "f"));
    TELL(readlink("d/f", target, sizeof target));
    TELL(lstat("d/l", &stat));
    TELL(S_ISLNK(stat.st_mode));
    TELL(stat.st_size);
    TELL(access("d/l", R_OK | W_OK));
    TELL(access("d/away", F_OK));
    TELL(access("d/f", X_OK));
    tell_names("d");
    TELL(rename("d/g", "d/h"));
    TELL(rename("d/none", "d/h"));
    TELL(rename("d", "d/h"));
    TELL(renameat2(AT_FDCWD, "d/h", AT_FDCWD, "d/f", RENAME_NOREPLACE));
    TELL(renameat2(AT_FDCWD, "d/h", AT_FDCWD, "d/l", RENAME_EXCHANGE));
    TELL(renameat2(AT_FDCWD, "d/h", AT_FDCWD, "d/white", RENAME_WHITEOUT));
    TELL(lstat("d/h", &stat));
    TELL(stat.st_mode);
    TELL(stat.st_rdev);
    TELL(renameat2(AT_FDCWD, "d/white", AT_FDCWD, "d/h", RENAME_WHITEOUT | RENAME_NOREPLACE));
    TELL(renameat2(AT_FDCWD, "d/white", AT_FDCWD, "d/h", RENAME_WHITEOUT | RENAME_EXCHANGE));
    TELL(renameat2(AT_FDCWD, "d/white", AT_FDCWD, "d/h", 0));
    TELL(rmdir("d"));
    TELL(rmdir("d/f"));
    TELL(unlink("d"));
    TELL(unlink("d/none"));
    int dir = open("d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(dir >= 0);
    TELL(close(openat(dir, "by-dir", O_CREAT | O_RDWR, 0600)));
    TELL(fstatat(dir, "by-dir", &stat, 0));
    TELL(fstatat(dir, "", &stat, AT_EMPTY_PATH));
    TELL(S_ISDIR(stat.st_mode));
    TELL(faccessat(dir, "by-dir", F_OK, 0));
    TELL(mkdirat(dir, "sub", 0700));
    TELL(renameat(dir, "by-dir", dir, "sub/moved"));
    TELL(linkat(dir, "sub/moved", dir, "linked", 0));
    TELL(symlinkat("sub/moved", dir, "to-moved"));
    TELL(readlinkat(dir, "to-moved", target, sizeof target));
    TELL(unlinkat(dir, "linked", 0));
    TELL(unlinkat(dir, "sub", AT_REMOVEDIR));
    TELL(mkfifo("d/fifo", 0600));
    TELL(lstat("d/fifo", &stat));
    TELL(S_ISFIFO(stat.st_mode));
    TELL(remove("d/fifo"));
    TELL(nftw("d", visit, 10, FTW_PHYS));
    printf("%d visits, %d\n", visits, visit_kinds);
    char real[PATH_MAX], here[PATH_MAX];
    CHECK(getcwd(here, sizeof here) != NULL);
    CHECK(realpath("d/../d/to-moved", real) != NULL);
    printf("real path: %s\n", real + strlen(here));
    TELL(realpath("d/none/x", real) == NULL);
    TELL(fchdir(dir));
    CHECK(getcwd(real, sizeof real) != NULL);
    printf("in %s\n", real + strlen(here));
    TELL(access("sub/moved", F_OK));
    TELL(access("../d/sub/moved", F_OK));
    TELL(chdir("sub"));
    CHECK(getcwd(real, sizeof real) != NULL);
    printf("in %s\n", real + strlen(here));
    TELL(chdir("../.."));
    TELL(chdir("d/f"));
    TELL(access("d/sub", F_OK));
    TELL(close(dir));
    TELL(mkdir("many", 0755));
    for (int at = 0; at < 30; at++) {
        char name[40];
        snprintf(name, sizeof name, "many/%d", at);
        CHECK(close(open(name, O_CREAT | O_WRONLY, 0644)) == 0);
    }
    positions_in_directories();
    char made[] = "d/XXXXXX", folder[] = "d/tmpXXXXXX", wrong[] = "d/XXX";
    int fd = mkstemp(made);
    TELL(fd >= 0);
    TELL(close(fd));
    TELL(unlink(made));
    TELL(mkdtemp(folder) != NULL);
    TELL(rmdir(folder));
    TELL(mkstemp(wrong));
}

static void content(void) {
    int fd = open("content", O_CREAT | O_RDWR | O_TRUNC, 0644);
    CHECK(fd >= 0);
    char buffer[300];
    TELL(write(fd, "0123456789", 10));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(pwrite(fd, "abc", 3, 3));
    TELL(lseek(fd, -4, SEEK_END));
    TELL(read(fd, buffer, sizeof buffer));
    TELL(read(fd, buffer, sizeof buffer));
    TELL(pread(fd, buffer, 5, 2));
    printf("%.5s\n", buffer);
    TELL(pread(fd, buffer, 5, -1));
    TELL(lseek(fd, -1, SEEK_SET));
    TELL(lseek(fd, 0, 99));
    struct iovec parts[2] = {{"one", 3}, {"two", 3}};
    TELL(writev(fd, parts, 2));
    TELL(pwritev(fd, parts, 2, 100));
    TELL(lseek(fd, 0, SEEK_HOLE) > 0);
    struct iovec into[2] = {{buffer, 4}, {buffer + 100, 50}};
    TELL(preadv(fd, into, 2, 98));
    printf("%.2s %.4s\n", buffer + 2, buffer + 100);
    TELL(ftruncate(fd, 50));
    TELL(ftruncate(fd, -1));
    TELL(fallocate(fd, 0, 0, 1000));
    TELL(posix_fallocate(fd, 0, 2000));
    TELL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 5));
    struct stat stat;
    TELL(fstat(fd, &stat));
    TELL(stat.st_size);
    TELL(pread(fd, buffer, 10, 0));
    TELL(buffer[0] + buffer[4] + buffer[5]);
    TELL(fsync(fd));
    TELL(fdatasync(fd));
    TELL(syncfs(fd));
    TELL(flock(fd, LOCK_EX | LOCK_NB));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    TELL(fcntl(fd, F_SETLK, &lock));
    TELL(fcntl(fd, F_GETLK, &lock));
    TELL(lock.l_type == F_UNLCK);
    TELL(lockf(fd, F_TLOCK, 0));
    TELL(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    TELL(fcntl(fd, F_SETFL, O_APPEND));
    TELL(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    TELL(lseek(fd, 0, SEEK_SET));
    TELL(write(fd, "end", 3));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(fcntl(fd, F_SETFL, 0));
    TELL(fcntl(fd, F_GETFD));
    TELL(fcntl(fd, F_SETFD, FD_CLOEXEC));
    TELL(fcntl(fd, F_GETFD));
    int again = dup(fd);
    TELL(lseek(fd, 7, SEEK_SET));
    TELL(lseek(again, 0, SEEK_CUR));
    TELL(fcntl(again, F_GETFD));
    TELL(fcntl(fd, F_DUPFD, 90));
    TELL(fcntl(fd, F_DUPFD_CLOEXEC, 90));
    TELL(dup2(fd, 95));
    TELL(dup3(fd, fd, 0));
    TELL(close(again));
    TELL(close(again));
    TELL(read(again, buffer, 1));
    TELL(pread(95, buffer, 1, 2));
    TELL(close_range(90, 95, 0));
    TELL(pread(95, buffer, 1, 2));
    int waiting = 0;
    TELL(ioctl(fd, FIOCLEX));
    TELL(isatty(fd));
    (void)waiting;
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    struct timeval now = {0, 0};
    TELL(select(fd + 1, &reads, NULL, NULL, &now));
    struct pollfd poll_one = {.fd = fd, .events = POLLOUT};
    TELL(poll(&poll_one, 1, 0));
    TELL(write(fd, NULL, 0));
    int reader = open("content", O_RDONLY), writer = open("content", O_WRONLY);
    TELL(write(reader, "x", 1));
    TELL(read(writer, buffer, 1));
    TELL(ftruncate(reader, 1));
    int out = open("sent", O_CREAT | O_RDWR | O_TRUNC, 0644);
    off_t from = 1;
    TELL(sendfile(out, reader, &from, 1000));
    TELL(from);
    TELL(sendfile(out, reader, NULL, 100));
    TELL(lseek(reader, 0, SEEK_CUR));
    off_t start = 0, to = 5000;
    TELL(copy_file_range(reader, &start, out, &to, 1500, 0));
    TELL(to);
    TELL(lseek(out, 0, SEEK_END));
    close(reader), close(writer), close(out);
    TELL(truncate("sent", 10));
    TELL(stat.st_size);
    TELL(creat("created", 0600) >= 0);
    TELL(close(fd));
}

static void attributes(void) {
    struct stat stat;
    TELL(close(open("a", O_CREAT | O_WRONLY, 0666)));
    TELL(chmod("a", 0751));
    struct timespec times[2] = {{1000, 5}, {2000000, 7}};
    TELL(utimensat(AT_FDCWD, "a", times, 0));
    CHECK(lstat("a", &stat) == 0);
    tell_stat("a", &stat);
    TELL(stat.st_atim.tv_sec);
    struct timeval old_times[2] = {{3000, 0}, {4000, 0}};
    TELL(utimes("a", old_times));
    struct utimbuf oldest = {5000, 6000};
    TELL(utime("a", &oldest));
    int fd = open("a", O_RDWR);
    TELL(futimens(fd, times));
    TELL(fchmod(fd, 0600));
    TELL(fchown(fd, -1, -1));
    TELL(chown("a", -1, -1));
    TELL(lchown("a", -1, -1));
    struct statx more;
    TELL(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more));
    TELL(more.stx_mode);
    TELL(more.stx_mtime.tv_sec);
    umask(077);
    TELL(close(open("masked", O_CREAT | O_WRONLY, 0666)));
    CHECK(lstat("masked", &stat) == 0);
    TELL(stat.st_mode & 0777);
    umask(022);
    char value[20];
    TELL(setxattr("a", "user.one", "value", 5, 0));
    TELL(setxattr("a", "user.one", "value", 5, XATTR_CREATE));
    TELL(getxattr("a", "user.one", value, sizeof value));
    TELL(fgetxattr(fd, "user.one", NULL, 0));
    TELL(getxattr("a", "user.none", value, sizeof value));
    TELL(getxattr("a", "user.one", value, 2));
    TELL(listxattr("a", value, sizeof value));
    TELL(removexattr("a", "user.one"));
    struct statvfs space;
    TELL(fstatvfs(fd, &space));
    TELL(statvfs("a", &space));
    TELL(space.f_namemax);
    TELL(pathconf(".", _PC_NAME_MAX));
    TELL(close(fd));
}

static void mappings(void) {
    int fd = open("mapped", O_CREAT | O_RDWR, 0644);
    CHECK(write(fd, "mapped text", 11) == 11);
    char *memory = mmap(NULL, 5000, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(memory != MAP_FAILED);
    printf("%s\n", memory);
    char *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED);
    own[0] = 'M';
    TELL(memory[0]);
    TELL(munmap(own, 4096));
    TELL(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
    TELL(close(fd));
    printf("%s\n", memory);
    TELL(munmap(memory, 5000));
    TELL(munmap(memory + 1, 4096));
}

static void unlinked(void) {
    int fd = open("gone", O_CREAT | O_RDWR, 0644);
    CHECK(write(fd, "still here", 10) == 10);
    TELL(unlink("gone"));
    TELL(access("gone", F_OK));
    char buffer[20] = "";
    TELL(pread(fd, buffer, 10, 0));
    printf("%s\n", buffer);
    TELL(write(fd, "!", 1));
    struct stat stat;
    TELL(fstat(fd, &stat));
    TELL(stat.st_nlink);
    TELL(close(fd));
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(chdir(arguments[1]) == 0);
    umask(022);
    names();
    content();
    attributes();
    mappings();
    unlinked();
    return 0;
}
