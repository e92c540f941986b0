/* What the calls do beyond what the examples show. */
#include "check.h"

static nvfold_device *device;

static struct stat stat_of(const char *path)
{
    struct stat stat;
    CHECK(nvfold_lstat(device, path, &stat) == 0);
    return stat;
}

int main(void)
{
    char buffer[300];
    struct stat stat;
    umask(027);
    device = nvfold_device_open("mem:", "size=64M");
    CHECK(device);

    /* The umask of the process when the device was opened, and one's own. */
    CHECK(nvfold_mkdir(device, "d", 0777) == 0 && stat_of("/d").st_mode == (S_IFDIR | 0750));
    CHECK(nvfold_umask(device, 0) == 027 && nvfold_umask(device, 022) == 0);
    int fd = nvfold_open(device, "d/f", O_RDWR | O_CREAT, 04777);
    CHECK(fd >= 0 && stat_of("/d/f").st_mode == (S_IFREG | 04755));
    CHECK(stat_of("/d/f").st_uid == geteuid() && stat_of("/d/f").st_gid == getegid());

    /* Opening. */
    FAILS(EEXIST, nvfold_open(device, "/d/f", O_RDWR | O_CREAT | O_EXCL, 0644));
    CHECK(nvfold_symlink(device, "d/new", "/to-new") == 0);
    FAILS(EEXIST, nvfold_open(device, "/to-new", O_RDWR | O_CREAT | O_EXCL, 0644));
    FAILS(ELOOP, nvfold_open(device, "/to-new", O_RDWR | O_NOFOLLOW, 0));
    FAILS(ENOENT, nvfold_open(device, "/to-new", O_RDWR, 0));
    int through = nvfold_open(device, "/to-new", O_RDWR | O_CREAT, 0600);
    CHECK(through >= 0 && stat_of("/d/new").st_mode == (S_IFREG | 0600));
    int directory = nvfold_open(device, "/d", O_RDONLY | O_DIRECTORY, 0);
    CHECK(directory >= 0);
    FAILS(ENOTDIR, nvfold_open(device, "/d/f", O_RDONLY | O_DIRECTORY, 0));
    FAILS(EISDIR, nvfold_read(directory, buffer, 1));
    int inside = nvfold_openat(directory, "f", O_RDWR, 0);
    CHECK(inside >= 0 && nvfold_fstat(inside, &stat) == 0 && stat.st_ino == stat_of("/d/f").st_ino);
    CHECK(nvfold_openat(directory, "/to-new", O_RDONLY, 0) >= 0);

    /* Content, positions, appends, truncation. */
    CHECK(nvfold_write(fd, "hello", 5) == 5 && nvfold_write(fd, " there", 6) == 6);
    CHECK(nvfold_lseek(fd, -5, SEEK_END) == 6 && nvfold_lseek(fd, 1, SEEK_CUR) == 7);
    CHECK(nvfold_read(fd, buffer, 300) == 4 && memcmp(buffer, "here", 4) == 0 && nvfold_read(fd, buffer, 300) == 0);
    int appends = nvfold_open(device, "/d/f", O_WRONLY | O_APPEND | O_DSYNC, 0);
    CHECK(nvfold_write(appends, "!", 1) == 1 && nvfold_lseek(appends, 0, SEEK_CUR) == 12);
    CHECK(nvfold_pwrite(appends, "J", 1, 0) == 1 && nvfold_pread(fd, buffer, 300, 0) == 12);
    CHECK(memcmp(buffer, "Jello there!", 12) == 0);
    FAILS(EBADF, nvfold_clone_range(fd, 0, appends, 0, 1));
    CHECK(nvfold_ftruncate(fd, 5) == 0 && nvfold_truncate(device, "/d/f", 8) == 0);
    CHECK(nvfold_pread(fd, buffer, 300, 0) == 8 && memcmp(buffer, "Jello\0\0\0", 8) == 0);
    int truncates = nvfold_open(device, "/d/f", O_WRONLY | O_TRUNC, 0);
    CHECK(truncates >= 0 && stat_of("/d/f").st_size == 0);
    /* What is reserved behind the end of an empty file goes as well. */
    CHECK(nvfold_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0 && stat_of("/d/f").st_blocks == 2048);
    CHECK(nvfold_open(device, "/d/f", O_WRONLY | O_TRUNC, 0) >= 0 && stat_of("/d/f").st_blocks == 0);
    CHECK(nvfold_fallocate(fd, 0, 0, 100000) == 0 && stat_of("/d/f").st_size == 100000);
    CHECK(nvfold_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192) == 0);
    CHECK(nvfold_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 200000) == 0 && stat_of("/d/f").st_size == 100000);
    CHECK(nvfold_fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 200000) == 0 && stat_of("/d/f").st_size == 200000);

    struct iovec parts[2] = {{buffer, 3}, {buffer + 10, 4}};
    CHECK(nvfold_pwrite(fd, "abcdefg", 7, 40) == 7 && nvfold_preadv(fd, parts, 2, 40) == 7);
    CHECK(memcmp(buffer, "abc", 3) == 0 && memcmp(buffer + 10, "defg", 4) == 0);
    CHECK(nvfold_pwritev(fd, parts, 2, 50) == 7 && nvfold_pread(fd, buffer, 7, 50) == 7);
    CHECK(memcmp(buffer, "abcdefg", 7) == 0);

    /* Names. */
    CHECK(nvfold_rename(device, "/d/f", "/d/new", 0) == 0 && stat_of("/d/new").st_size == 200000);
    FAILS(ENOENT, nvfold_rename(device, "/d/f", "/d/g", 0));
    FAILS(EEXIST, nvfold_rename(device, "/d/new", "/to-new", RENAME_NOREPLACE));
    FAILS(ENOTDIR, nvfold_rename(device, "/d/new", "/elsewhere/", 0));
    FAILS(EINVAL, nvfold_rename(device, "/d", "/d/below", 0));
    FAILS(EBUSY, nvfold_rename(device, "/", "/other", 0));
    FAILS(EPERM, nvfold_link(device, "/d", "/d2"));
    FAILS(EEXIST, nvfold_link(device, "/d/new", "/to-new"));
    CHECK(nvfold_link(device, "/to-new", "/link2") == 0 && S_ISLNK(stat_of("/link2").st_mode));
    FAILS(EINVAL, nvfold_readlink(device, "/d", buffer, 300));
    FAILS(EINVAL, nvfold_readlink(device, "/link2", buffer, 0));
    CHECK(nvfold_readlink(device, "/link2", buffer, 3) == 3 && memcmp(buffer, "d/n", 3) == 0);
    CHECK(nvfold_rename(device, "/link2", "/link3", RENAME_WHITEOUT | RENAME_NOREPLACE) == 0);
    CHECK(S_ISLNK(stat_of("/link3").st_mode) && stat_of("/link2").st_mode == S_IFCHR && stat_of("/link2").st_rdev == 0);
    CHECK(stat_of("/link2").st_uid == stat_of("/link3").st_uid && stat_of("/link2").st_nlink == 1);
    FAILS(EEXIST, nvfold_rename(device, "/link3", "/link2", RENAME_WHITEOUT | RENAME_NOREPLACE));
    FAILS(EINVAL, nvfold_rename(device, "/link3", "/link2", RENAME_WHITEOUT | RENAME_EXCHANGE));
    CHECK(nvfold_rename(device, "/link3", "/link2", 0) == 0);
    FAILS(ENOTEMPTY, nvfold_rmdir(device, "/d"));
    FAILS(EINVAL, nvfold_rmdir(device, "/d/."));
    FAILS(EISDIR, nvfold_unlink(device, "/d"));
    FAILS(ENOTDIR, nvfold_rmdir(device, "/d/new"));

    /* Clones of trees: both sides go on by themselves, and links within the tree stay links. */
    CHECK(nvfold_link(device, "/d/new", "/d/second") == 0 && nvfold_pwrite(fd, "stored", 6, 60) == 6);
    CHECK(nvfold_clone_tree(device, "/d", "/clone/") == 0 && stat_of("/clone/new").st_size == 200000);
    CHECK(nvfold_pwrite(fd, "after.", 6, 60) == 6);
    CHECK(stat_of("/clone/new").st_ino == stat_of("/clone/second").st_ino && stat_of("/clone/new").st_nlink == 2);
    CHECK(stat_of("/clone/new").st_ino != stat_of("/d/new").st_ino);
    int cloned = nvfold_open(device, "/clone/new", O_RDWR, 0);
    CHECK(nvfold_pread(cloned, buffer, 300, 0) == 300 && memcmp(buffer + 60, "stored", 6) == 0);
    CHECK(nvfold_pread(fd, buffer, 300, 0) == 300 && memcmp(buffer + 60, "after.", 6) == 0);
    CHECK(nvfold_close(cloned) == 0 && nvfold_unlink(device, "/d/second") == 0);
    FAILS(EEXIST, nvfold_clone_tree(device, "/d", "/clone"));
    FAILS(EINVAL, nvfold_clone_tree(device, "/d", "/d/below"));
    FAILS(ENOTDIR, nvfold_clone_tree(device, "/d/new", "/other"));
    FAILS(ENOENT, nvfold_clone_tree(device, "/none", "/other"));
    FAILS(EFAULT, nvfold_clone_tree(device, "/d", NULL));

    /* Limits: what is there is counted, what would exceed them fails, and zeros remove them. */
    struct nvfold_limits limits;
    CHECK(nvfold_limits(device, "/clone/new", &limits, sizeof limits) == 0 && limits.top == 0 && limits.used_inodes == 0);
    CHECK(nvfold_set_limits(device, "/clone", 1 << 20, 3, 0) == 0);
    CHECK(nvfold_limits(device, "/clone/new", &limits, sizeof limits) == 0);
    CHECK(limits.top == stat_of("/clone").st_ino && limits.limit_bytes == 1 << 20 && limits.limit_inodes == 3);
    CHECK(limits.used_inodes == 2 && limits.used_bytes > 0 && limits.expires_ns == 0 && limits.is_being_charged == 0);
    CHECK(nvfold_mkdir(device, "/clone/third", 0755) == 0);
    FAILS(EDQUOT, nvfold_mkdir(device, "/clone/fourth", 0755));
    CHECK(nvfold_mkdir(device, "/outside", 0755) == 0 && nvfold_rmdir(device, "/outside") == 0);
    FAILS(EXDEV, nvfold_rename(device, "/clone/new", "/moved", 0));
    FAILS(ENOTDIR, nvfold_set_limits(device, "/clone/new", 1, 0, 0));
    FAILS(ENOENT, nvfold_set_limits(device, "/none", 1, 0, 0));
    FAILS(EINVAL, nvfold_set_limits(device, "/clone", 0, 0, -1));
    FAILS(EFAULT, nvfold_limits(device, "/clone", NULL, sizeof limits));
    CHECK(nvfold_set_limits(device, "/clone", 0, 0, 0) == 0 && nvfold_mkdir(device, "/clone/fourth", 0755) == 0);
    CHECK(nvfold_limits(device, "/clone", &limits, sizeof limits) == 0 && limits.top == 0);

    /* Attributes. */
    CHECK(nvfold_chmod(device, "/d/new", 0400) == 0 && nvfold_fchmod(fd, 0444) == 0);
    CHECK(stat_of("/d/new").st_mode == (S_IFREG | 0444));
    CHECK(nvfold_chown(device, "/to-new", 5, (gid_t)-1) == 0 && nvfold_fchown(fd, (uid_t)-1, 6) == 0);
    CHECK(stat_of("/d/new").st_uid == 5 && stat_of("/d/new").st_gid == 6);
    CHECK(nvfold_lchown(device, "/to-new", 7, 8) == 0 && stat_of("/to-new").st_uid == 7 && stat_of("/d/new").st_uid == 5);
    struct timespec times[2] = {{-5, 7}, {0, UTIME_OMIT}};
    time_t before = stat_of("/d/new").st_mtim.tv_sec;
    CHECK(nvfold_futimens(fd, times) == 0 && stat_of("/d/new").st_atim.tv_sec == -5);
    CHECK(stat_of("/d/new").st_atim.tv_nsec == 7 && stat_of("/d/new").st_mtim.tv_sec == before);
    CHECK(nvfold_utimens(device, "/to-new", times, AT_SYMLINK_NOFOLLOW) == 0 && stat_of("/to-new").st_atim.tv_sec == -5);
    CHECK(nvfold_utimens(device, "/d/new", NULL, 0) == 0 && stat_of("/d/new").st_atim.tv_sec > 1000000000);
    CHECK(nvfold_setxattr(device, "/d/new", "user.a", "value", 5, XATTR_CREATE) == 0);
    FAILS(EEXIST, nvfold_fsetxattr(fd, "user.a", "other", 5, XATTR_CREATE));
    FAILS(ENODATA, nvfold_fsetxattr(fd, "user.b", "other", 5, XATTR_REPLACE));
    CHECK(nvfold_fgetxattr(fd, "user.a", buffer, 300) == 5 && memcmp(buffer, "value", 5) == 0);
    CHECK(nvfold_getxattr(device, "/d/new", "user.a", NULL, 0) == 5);
    FAILS(ERANGE, nvfold_fgetxattr(fd, "user.a", buffer, 4));
    CHECK(nvfold_flistxattr(fd, buffer, 300) == 7 && memcmp(buffer, "user.a", 7) == 0);
    CHECK(nvfold_listxattr(device, "/d/new", NULL, 0) == 7 && nvfold_fremovexattr(fd, "user.a") == 0);
    CHECK(nvfold_flistxattr(fd, buffer, 300) == 0);

    /* Directories: a name that stays is listed once, however many there are, and listing starts over. */
    for (int at = 0; at < 1000; at++) {
        snprintf(buffer, sizeof buffer, "/many/%d", at);
        CHECK(at > 0 || nvfold_mkdir(device, "/many", 0755) == 0);
        int file = nvfold_open(device, buffer, O_WRONLY | O_CREAT, 0644);
        CHECK(file >= 0 && nvfold_close(file) == 0);
    }
    nvfold_dir *many = nvfold_opendir(device, "/many");
    struct nvfold_dirent entry;
    static int seen[1000];
    int64_t after_500 = 0;
    for (int at = 0; nvfold_readdir(many, &entry) == 1; at++) {
        CHECK(entry.d_type == 8 && entry.d_ino > 0 && entry.d_namlen == strlen(entry.d_name));
        seen[atoi(entry.d_name)]++;
        CHECK(nvfold_telldir(many) == entry.d_off);
        if (at == 499)
            after_500 = entry.d_off;
        snprintf(buffer, sizeof buffer, "/many/%s", entry.d_name);
        CHECK(nvfold_unlink(device, buffer) == 0);
        snprintf(buffer, sizeof buffer, "/many/%d", at);
        int file = nvfold_open(device, buffer, O_WRONLY | O_CREAT, 0644);
        CHECK(file >= 0 && nvfold_close(file) == 0);
    }
    for (int at = 0; at < 1000; at++)
        CHECK(seen[at] == 1);
    CHECK(nvfold_seekdir(many, after_500) == 0 && nvfold_readdir(many, &entry) == 0);
    int count = 0;
    CHECK(nvfold_seekdir(many, 0) == 0);
    while (nvfold_readdir(many, &entry) == 1)
        count++;
    CHECK(count == 1000 && nvfold_closedir(many) == 0);

    struct statvfs space;
    CHECK(nvfold_statvfs(device, &space) == 0 && space.f_namemax == 255 && space.f_flag == 0);
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
