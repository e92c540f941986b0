/* A tour through the calls of nvfold.h: names, content, holes, clones, attributes, directories, errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <nvfold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int is_well, const char *what)
{
    if (!is_well) {
        fprintf(stderr, "%s: %s\n", what, nvfold_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    nvfold_device *device = nvfold_device_open(argc > 1 ? argv[1] : "mem:", argc > 2 ? argv[2] : "size=64M");
    check(device != NULL, "open the device");
    printf("nvfold %s\n", nvfold_version());
    nvfold_umask(device, 022);

    /* Names. */
    check(nvfold_mkdir(device, "/docs", 0777) == 0, "mkdir");
    int fd = nvfold_open(device, "/docs/letter", O_RDWR | O_CREAT | O_EXCL, 0666);
    check(fd >= 0, "open");
    check(nvfold_symlink(device, "docs/letter", "/latest") == 0, "symlink");
    check(nvfold_link(device, "/docs/letter", "/docs/again") == 0, "link");

    /* Content, in two buffers at once, and a hole. */
    struct iovec text[2] = {{"Dear ", 5}, {"reader,\n", 8}};
    check(nvfold_writev(fd, text, 2) == 13, "writev");
    check(nvfold_pwrite(fd, "The end.\n", 9, 1 << 20) == 9, "pwrite");
    printf("data ends at %lld, goes on at %lld\n", (long long)nvfold_lseek(fd, 0, SEEK_HOLE),
           (long long)nvfold_lseek(fd, 4096, SEEK_DATA));
    char buffer[14] = {0};
    check(nvfold_lseek(fd, 0, SEEK_SET) == 0 && nvfold_read(fd, buffer, 13) == 13, "read");
    printf("%s", buffer);

    /* A clone of a range at any offset takes no space. */
    int clone = nvfold_open(device, "/docs/clone", O_RDWR | O_CREAT, 0600);
    check(nvfold_clone_range(fd, 5, clone, 100, 6) == 6, "clone_range");
    check(nvfold_pread(clone, buffer, 6, 100) == 6, "pread");
    printf("cloned %.6s\n", buffer);

    struct stat stat;
    check(nvfold_stat(device, "/latest", &stat) == 0, "stat");
    printf("%lld bytes, mode %o, %d links\n", (long long)stat.st_size, (unsigned)stat.st_mode, (int)stat.st_nlink);
    check(nvfold_lstat(device, "/latest", &stat) == 0 && S_ISLNK(stat.st_mode), "lstat");
    ssize_t length = nvfold_readlink(device, "/latest", buffer, sizeof buffer);
    printf("/latest -> %.*s\n", (int)length, buffer);

    /* Attributes: the policy of a directory is one. */
    check(nvfold_setxattr(device, "/docs", "user.nvfold.dedup", "off", 3, 0) == 0, "setxattr");
    length = nvfold_getxattr(device, "/docs", "user.nvfold.dedup", buffer, sizeof buffer);
    printf("policy of /docs: %.*s\n", (int)length, buffer);
    struct timespec times[2] = {{1, 2}, {3, 4}};
    check(nvfold_utimens(device, "/docs/letter", times, 0) == 0, "utimens");
    check(nvfold_fstat(fd, &stat) == 0 && stat.st_mtim.tv_sec == 3 && stat.st_mtim.tv_nsec == 4, "times");

    check(nvfold_rename(device, "/docs/again", "/docs/clone", RENAME_EXCHANGE) == 0, "rename");
    nvfold_dir *directory = nvfold_opendir(device, "/docs");
    struct nvfold_dirent entry;
    int found;
    while ((found = nvfold_readdir(directory, &entry)) == 1)
        printf("/docs/%s\n", entry.d_name);
    check(found == 0 && nvfold_closedir(directory) == 0, "readdir");

    /* A snapshot of a file in memory. */
    const char *map = nvfold_mmap(NULL, 13, PROT_READ, MAP_PRIVATE, fd, 0);
    check(map != MAP_FAILED, "mmap");
    check(nvfold_pwrite(fd, "Lieb", 4, 0) == 4, "pwrite");
    printf("mapped: %.4s\n", map);
    check(nvfold_munmap((void *)(size_t)map, 13) == 0, "munmap");

    /* Errors: errno, and a sentence. */
    if (nvfold_open(device, "/none/file", O_RDONLY, 0) < 0 && errno == ENOENT)
        printf("error: %s\n", nvfold_last_error());
    check(nvfold_rmdir(device, "/docs") < 0 && errno == ENOTEMPTY, "rmdir");

    struct statvfs space;
    check(nvfold_statvfs(device, &space) == 0 && space.f_bsize == 4096 && space.f_bavail > 0, "statvfs");
    check(nvfold_fsync(fd) == 0 && nvfold_close(fd) == 0 && nvfold_close(clone) == 0, "close");
    check(nvfold_device_close(device) == 0, "close the device");
    return 0;
}
