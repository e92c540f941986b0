/* Arguments that no program should pass: each has an answer, and nothing is changed by it. */
#include "check.h"
#include <limits.h>
#include <stdint.h>

#define HUGE_LENGTH ((size_t)1 << 63)

static nvfold_device *const no_device = NULL;

int main(void)
{
    char buffer[64], *nothing = NULL;
    /* Through a variable: a compiler that sees a length that no object has warns. */
    volatile size_t huge = HUGE_LENGTH, whole = SIZE_MAX;
    struct stat stat;
    struct iovec vector = {buffer, sizeof buffer};

    /* Devices. */
    errno = 0;
    CHECK(nvfold_device_open(NULL, NULL) == NULL && errno == EFAULT);
    CHECK(nvfold_device_open("", NULL) == NULL && errno == ENOENT);
    CHECK(nvfold_device_open("mem:", NULL) == NULL && errno == EINVAL);
    CHECK(nvfold_device_open("mem:", "size=12") == NULL && errno == EINVAL);
    CHECK(nvfold_device_open("mem:", "size=64M,nonsense") == NULL && errno == EINVAL);
    CHECK(strstr(nvfold_last_error(), "nonsense") != NULL);
    CHECK(nvfold_device_open("mem:", "size=64M,policy=all") == NULL && errno == EINVAL);
    CHECK(nvfold_device_open("not/there", NULL) == NULL && errno == ENOENT);
    CHECK(nvfold_device_open("/dev/null", NULL) == NULL && errno == EINVAL);
    CHECK(nvfold_device_open("new", "create") == NULL && errno == EINVAL);
    CHECK(access("new", F_OK) < 0);
    FILE *text = fopen("text", "w");
    CHECK(text && fputs("this is no device", text) >= 0 && ftruncate(fileno(text), 1 << 26) == 0 && fclose(text) == 0);
    CHECK(nvfold_device_open("text", NULL) == NULL && errno == EINVAL);
    CHECK(nvfold_device_open("text", "create,size=64M") == NULL && errno == EINVAL);
    text = fopen("text", "r");
    CHECK(text && fread(buffer, 1, 7, text) == 7 && memcmp(buffer, "this is", 7) == 0 && fclose(text) == 0);
    FAILS(EBADF, nvfold_device_close(no_device));
    FAILS(EBADF, nvfold_sync((nvfold_device *)(uintptr_t)12345));
    FAILS(EBADF, nvfold_sync((nvfold_device *)(void *)buffer));

    nvfold_device *device = nvfold_device_open("mem:", "size=64M,policy=icid");
    CHECK(device);
    FAILS(EFAULT, nvfold_statvfs(device, NULL));
    FAILS(EFAULT, nvfold_stats(device, NULL, sizeof(struct nvfold_stats)));
    /* A program that knows less of the structure gets less. */
    uint64_t first[2] = {7, 7};
    CHECK(nvfold_stats(device, (struct nvfold_stats *)(void *)first, 8) == 0 && first[0] == 64 << 20 && first[1] == 7);

    /* Paths. */
    FAILS(EFAULT, nvfold_open(device, NULL, O_RDONLY, 0));
    FAILS(ENOENT, nvfold_open(device, "", O_RDONLY, 0));
    FAILS(ENOENT, nvfold_open(device, "none", O_RDONLY, 0));
    static char path[2 * PATH_MAX];
    memset(path, 'x', sizeof path - 1);
    FAILS(ENAMETOOLONG, nvfold_open(device, path, O_RDONLY, 0));
    path[256] = '\0';
    FAILS(ENAMETOOLONG, nvfold_open(device, path, O_RDWR | O_CREAT, 0644));
    path[255] = '\0';
    CHECK(nvfold_mkdir(device, path, 0700) == 0 && nvfold_rmdir(device, path) == 0);
    FAILS(EINVAL, nvfold_open(device, "f", O_ACCMODE, 0));
    FAILS(EINVAL, nvfold_open(device, "f", O_RDONLY | O_CREAT | O_TRUNC, 0644));
    FAILS(EOPNOTSUPP, nvfold_open(device, "/", O_RDWR | O_TMPFILE, 0600));
    FAILS(EISDIR, nvfold_open(device, "/", O_RDWR, 0));
    FAILS(EISDIR, nvfold_open(device, "new/", O_RDWR | O_CREAT, 0644));
    FAILS(EFAULT, nvfold_symlink(device, NULL, "link"));
    FAILS(ENOENT, nvfold_symlink(device, "", "link"));
    FAILS(EFAULT, nvfold_rename(device, "f", NULL, 0));
    FAILS(EINVAL, nvfold_rename(device, "f", "g", 64));
    FAILS(EFAULT, nvfold_stat(device, "/", NULL));
    FAILS(EFAULT, nvfold_stat(device, "/", (struct stat *)(void *)(buffer + 1 - ((uintptr_t)buffer & 1))));
    FAILS(EBUSY, nvfold_rmdir(device, "/"));
    FAILS(EISDIR, nvfold_unlink(device, "/"));
    FAILS(EEXIST, nvfold_mkdir(device, "/", 0755));
    FAILS(EINVAL, nvfold_truncate(device, "/", -1));

    int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 1 << 30);
    CHECK(nvfold_write(fd, "0123456789", 10) == 10);
    FAILS(ENOTDIR, nvfold_openat(fd, "x", O_RDONLY, 0));
    FAILS(ENOTDIR, nvfold_stat(device, "/file/", &stat));

    /* A slash at the end: what is removed, renamed or made is the name before it, and never what a link there leads to. */
    CHECK(nvfold_mkdir(device, "d", 0755) == 0 && nvfold_symlink(device, "d", "to-d") == 0);
    CHECK(nvfold_symlink(device, "none", "to-none") == 0);
    FAILS(ENOTDIR, nvfold_rmdir(device, "to-d/"));
    FAILS(ENOTDIR, nvfold_unlink(device, "to-d/"));
    FAILS(ENOTDIR, nvfold_unlink(device, "file/"));
    FAILS(EISDIR, nvfold_unlink(device, "d/"));
    FAILS(ENOTDIR, nvfold_rename(device, "to-d/", "e", 0));
    FAILS(ENOTDIR, nvfold_rename(device, "file", "e/", 0));
    FAILS(ENOTDIR, nvfold_rename(device, "d", "to-d/", RENAME_EXCHANGE));
    FAILS(EEXIST, nvfold_mkdir(device, "to-none/", 0755));
    FAILS(EISDIR, nvfold_open(device, "file/", O_RDWR | O_CREAT, 0644));
    FAILS(EISDIR, nvfold_open(device, "to-none/", O_RDWR | O_CREAT, 0644));
    FAILS(ENOENT, nvfold_link(device, "file", "new/"));
    FAILS(ENOENT, nvfold_symlink(device, "file", "new/"));
    FAILS(EINVAL, nvfold_readlink(device, "to-d/", buffer, 10));
    CHECK(nvfold_lstat(device, "to-d/", &stat) == 0 && S_ISDIR(stat.st_mode));
    CHECK(nvfold_mkdir(device, "new/", 0755) == 0 && nvfold_rename(device, "new/", "e/", 0) == 0);
    CHECK(nvfold_rmdir(device, "e/") == 0 && nvfold_rmdir(device, "d") == 0);
    CHECK(nvfold_unlink(device, "to-d") == 0 && nvfold_unlink(device, "to-none") == 0);
    FAILS(EINVAL, nvfold_rmdir(device, "."));
    FAILS(ENOTEMPTY, nvfold_rmdir(device, ".."));

    CHECK(nvfold_opendir(device, "/file") == NULL && errno == ENOTDIR);

    /* Buffers and lengths: a pointer that cannot be, with no byte asked for, is none of our business. */
    CHECK(nvfold_pread(fd, nothing, 0, 0) == 0 && nvfold_pwrite(fd, nothing, 0, 0) == 0);
    CHECK(nvfold_read(fd, nothing, 0) == 0 && nvfold_write(fd, nothing, 0) == 0);
    FAILS(EFAULT, nvfold_pread(fd, nothing, 1, 0));
    FAILS(EFAULT, nvfold_pwrite(fd, nothing, 1, 0));
    FAILS(EINVAL, nvfold_pread(fd, buffer, huge, 0));
    FAILS(EINVAL, nvfold_pwrite(fd, buffer, huge, 0));
    FAILS(EINVAL, nvfold_read(fd, buffer, whole));
    FAILS(EFAULT, nvfold_pwrite(fd, buffer, huge - 1, 0));
    FAILS(EFAULT, nvfold_pread(fd, (void *)(uintptr_t)-8, 16, 0));
    FAILS(EINVAL, nvfold_pread(fd, buffer, 1, -1));
    FAILS(EINVAL, nvfold_pwrite(fd, buffer, 1, -1));
    FAILS(EFBIG, nvfold_pwrite(fd, buffer, 10, INT64_MAX));
    CHECK(nvfold_pread(fd, buffer, 10, INT64_MAX) == 0);
    /* More than there is room for, and fewer bytes than that: only what is there is stored to the buffer. */
    CHECK(nvfold_pread(fd, buffer, 1 << 30, 5) == 5 && memcmp(buffer, "56789", 5) == 0);

    FAILS(EFAULT, nvfold_readv(fd, NULL, 1));
    CHECK(nvfold_readv(fd, NULL, 0) == 0 && nvfold_writev(fd, NULL, 0) == 0);
    FAILS(EINVAL, nvfold_readv(fd, &vector, -1));
    FAILS(EINVAL, nvfold_writev(fd, &vector, 1025));
    FAILS(EINVAL, nvfold_preadv(fd, &vector, 1, -1));
    struct iovec absurd[2] = {{buffer, 8}, {buffer, HUGE_LENGTH}};
    FAILS(EINVAL, nvfold_writev(fd, absurd, 2));
    struct iovec none[2] = {{buffer, 0}, {NULL, 8}};
    FAILS(EFAULT, nvfold_writev(fd, none, 2));
    FAILS(EFAULT, nvfold_writev(fd, (struct iovec *)(void *)(buffer + 1 - ((uintptr_t)buffer & 1)), 1));

    /* Positions, sizes, ranges. */
    FAILS(EINVAL, nvfold_lseek(fd, -1, SEEK_SET));
    FAILS(EINVAL, nvfold_lseek(fd, 0, 99));
    FAILS(ENXIO, nvfold_lseek(fd, 10, SEEK_DATA));
    FAILS(ENXIO, nvfold_lseek(fd, -5, SEEK_HOLE));
    FAILS(EOVERFLOW, nvfold_lseek(fd, INT64_MAX, SEEK_END));
    CHECK(nvfold_lseek(fd, INT64_MAX, SEEK_SET) == INT64_MAX);
    FAILS(EFBIG, nvfold_write(fd, "x", 1));
    FAILS(EINVAL, nvfold_ftruncate(fd, -1));
    FAILS(EINVAL, nvfold_fallocate(fd, 0, 0, 0));
    FAILS(EINVAL, nvfold_fallocate(fd, 0, -1, 10));
    FAILS(EINVAL, nvfold_fallocate(fd, 0, 0, -1));
    FAILS(EOPNOTSUPP, nvfold_fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10));
    FAILS(EINVAL, nvfold_clone_range(fd, 0, fd, 100, huge));
    FAILS(EINVAL, nvfold_clone_range(fd, -1, fd, 100, 1));
    FAILS(EINVAL, nvfold_clone_range(fd, 0, fd, 5, 10));
    CHECK(nvfold_clone_range(fd, 0, fd, 100, 0) == 0);
    struct timespec times[2] = {{0, -5}, {0, 0}};
    FAILS(EINVAL, nvfold_futimens(fd, times));
    FAILS(EFAULT, nvfold_fstat(fd, NULL));

    /* Attributes. */
    FAILS(EFAULT, nvfold_fsetxattr(fd, NULL, "v", 1, 0));
    FAILS(EFAULT, nvfold_fsetxattr(fd, "user.a", NULL, 1, 0));
    FAILS(EINVAL, nvfold_fsetxattr(fd, "user.a", "v", 1, 77));
    FAILS(EINVAL, nvfold_fsetxattr(fd, "user.a", "v", huge, 0));
    FAILS(ENODATA, nvfold_fgetxattr(fd, "user.a", buffer, sizeof buffer));
    FAILS(EINVAL, nvfold_setxattr(device, "/file", "user.nvfold.dedup", "all", 3, 0));
    FAILS(ENODATA, nvfold_removexattr(device, "/file", "user.a"));

    /* Memory. */
    errno = 0;
    CHECK(nvfold_memcpy(buffer, nothing, 1) == NULL && errno == EFAULT);
    CHECK(nvfold_memcpy(nothing, buffer, 1) == NULL && errno == EFAULT);
    errno = 0;
    CHECK(nvfold_memcpy(buffer, buffer, huge) == NULL && errno == EINVAL);
    CHECK(nvfold_memmove(buffer, buffer + 1, whole) == NULL && errno == EINVAL);
    CHECK(nvfold_memcpy(buffer, nothing, 0) == buffer && nvfold_memcpy(buffer, buffer, 64) == buffer);
    errno = 0;
    CHECK(nvfold_memcmp(buffer, nothing, 1) == INT_MIN && errno == EFAULT);
    CHECK(ICID_memcmp(buffer, buffer, huge) == INT_MIN && errno == EINVAL);
    CHECK(nvfold_memcmp(nothing, nothing, 0) == 0 && ICID_memcmp("abd", "abc", 3) > 0 && ICID_memcmp("a", "b", 1) < 0);
    CHECK(nvfold_mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(nvfold_mmap(NULL, huge, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(nvfold_mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(nvfold_mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 7) == MAP_FAILED && errno == EINVAL);
    CHECK(nvfold_mmap(NULL, 1, PROT_READ, MAP_PRIVATE, 5, 0) == MAP_FAILED && errno == EBADF);
    FAILS(EINVAL, nvfold_munmap(buffer, sizeof buffer));
    FAILS(EINVAL, nvfold_munmap(NULL, 4096));

    /* Directories. */
    nvfold_dir *directory = nvfold_opendir(device, "/");
    FAILS(EFAULT, nvfold_readdir(directory, NULL));
    FAILS(EINVAL, nvfold_seekdir(directory, -1));
    FAILS(EBADF, nvfold_closedir((nvfold_dir *)(void *)device));
    FAILS(EBADF, nvfold_sync((nvfold_device *)(void *)directory));
    CHECK(nvfold_closedir(directory) == 0);
    FAILS(EBADF, nvfold_closedir(directory));

    /* The paper's calls without a device, and with one. */
    unsetenv("ICID_DEVICE");
    FAILS(ENODEV, ICID_open("/file", O_RDONLY));
    CHECK(ICID_device() == NULL && errno == ENODEV);
    FAILS(EBADF, ICID_exit());
    FAILS(EFAULT, ICID_init(NULL, NULL));
    FAILS(EINVAL, ICID_init("mem:", "size=64M,size=x"));
    CHECK(ICID_init("mem:", "size=64M") == 0);
    FAILS(EBUSY, ICID_init("mem:", "size=64M"));
    FAILS(EBADF, ICID_read(7, buffer, 1));
    FAILS(EBADF, ICID_write(-1, buffer, 1));
    FAILS(EBADF, ICID_close(0));
    CHECK(ICID_exit() == 0);
    FAILS(EBADF, ICID_exit());

    /* All that has changed nothing. */
    CHECK(nvfold_fstat(fd, &stat) == 0 && stat.st_size == 10);
    CHECK(nvfold_pread(fd, buffer, 64, 0) == 10 && memcmp(buffer, "0123456789", 10) == 0);
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
