/* Handles and descriptors: two devices in one process, and all that was closed. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    char buffer[8] = {0};
    nvfold_device *one = nvfold_device_open(argv[1], "size=64M,create,policy=icid");
    nvfold_device *two = nvfold_device_open("mem:", "size=64M,policy=icid");
    CHECK(one && two && one != two);
    CHECK(nvfold_device_open(argv[1], NULL) == NULL && errno == EBUSY);

    int a = nvfold_open(one, "/file", O_RDWR | O_CREAT, 0644), b = nvfold_open(two, "/file", O_RDWR | O_CREAT, 0644);
    CHECK(a >= 1 << 30 && b >= 1 << 30 && a != b);
    CHECK(nvfold_write(a, "one", 3) == 3 && nvfold_write(b, "two", 3) == 3);
    CHECK(nvfold_pread(a, buffer, 3, 0) == 3 && memcmp(buffer, "one", 3) == 0);
    CHECK(nvfold_pread(b, buffer, 3, 0) == 3 && memcmp(buffer, "two", 3) == 0);
    struct stat of_a, of_b;
    CHECK(nvfold_fstat(a, &of_a) == 0 && nvfold_fstat(b, &of_b) == 0 && of_a.st_dev != of_b.st_dev);
    FAILS(EXDEV, nvfold_clone_range(a, 0, b, 0, 3));
    CHECK(nvfold_openat(b, "/file", O_RDONLY, 0) == -1 && errno == ENOTDIR);

    /* What came from one device is not shared on another, and is right. */
    static unsigned char block[8192], found[8192];
    fill(block, sizeof block, 9);
    CHECK(nvfold_pwrite(a, block, sizeof block, 0) == sizeof block);
    CHECK(nvfold_pread(a, found, sizeof found, 0) == sizeof found);
    CHECK(nvfold_pwrite(b, found, sizeof found, 0) == sizeof found && shared_bytes(two) == 0);
    memset(found, 0, sizeof found);
    CHECK(nvfold_pread(b, found, sizeof found, 0) == sizeof found && memcmp(found, block, sizeof block) == 0);

    /* Descriptors of the same open file, and of another. */
    int again = nvfold_dup(a), other = nvfold_open(one, "/file", O_RDONLY, 0);
    CHECK(again >= 0 && other >= 0 && again != a);
    CHECK(nvfold_lseek(a, 5, SEEK_SET) == 5 && nvfold_lseek(again, 0, SEEK_CUR) == 5);
    CHECK(nvfold_lseek(other, 0, SEEK_CUR) == 0);
    FAILS(EBADF, nvfold_write(other, "x", 1));
    FAILS(EINVAL, nvfold_ftruncate(other, 1));
    int writes = nvfold_open(one, "/file", O_WRONLY, 0);
    FAILS(EBADF, nvfold_read(writes, buffer, 1));
    CHECK(nvfold_mmap(NULL, 1, PROT_READ, MAP_PRIVATE, writes, 0) == MAP_FAILED && errno == EACCES);

    /* What was closed stays closed, whatever is opened then. */
    CHECK(nvfold_close(a) == 0);
    FAILS(EBADF, nvfold_close(a));
    FAILS(EBADF, nvfold_read(a, buffer, 1));
    FAILS(EBADF, nvfold_fsync(a));
    for (int times = 0; times < 500; times++) {
        int fd = nvfold_open(one, "/file", O_RDONLY, 0);
        CHECK(fd >= 0 && fd != a && nvfold_close(fd) == 0);
        FAILS(EBADF, nvfold_read(a, buffer, 1));
    }
    CHECK(nvfold_pread(again, buffer, 1, 0) == 1);
    FAILS(EBADF, nvfold_read(0, buffer, 1));
    FAILS(EBADF, nvfold_read(-1, buffer, 1));
    FAILS(EBADF, nvfold_read((1 << 30) | 0xfffff, buffer, 1));
    FAILS(EBADF, nvfold_read(0x7fffffff, buffer, 1));

    /* A file lives while it is open, without a name too. */
    CHECK(nvfold_unlink(one, "/file") == 0 && nvfold_fstat(again, &of_a) == 0 && of_a.st_nlink == 0);
    CHECK(nvfold_pread(again, found, sizeof found, 0) == sizeof found && memcmp(found, block, sizeof block) == 0);

    /* A device takes all that is open on it with it; mappings stay. */
    nvfold_dir *directory = nvfold_opendir(one, "/");
    unsigned char *map = nvfold_mmap(NULL, sizeof block, PROT_READ | PROT_WRITE, MAP_PRIVATE, again, 0);
    CHECK(directory && map != MAP_FAILED);
    CHECK(nvfold_device_close(one) == 0);
    FAILS(EBADF, nvfold_device_close(one));
    FAILS(EBADF, nvfold_read(again, buffer, 1));
    FAILS(EBADF, nvfold_close(other));
    FAILS(EBADF, nvfold_sync(one));
    FAILS(EBADF, nvfold_mkdir(one, "/d", 0755));
    struct nvfold_dirent entry;
    FAILS(EBADF, nvfold_readdir(directory, &entry));
    CHECK(memcmp(map, block, sizeof block) == 0);
    map[0] = (unsigned char)~map[0];
    CHECK(nvfold_pwrite(b, map, sizeof block, 0) == sizeof block);
    CHECK(nvfold_munmap(map, sizeof block) == 0);
    FAILS(EINVAL, nvfold_munmap(map, sizeof block));

    /* It is released, and clean. */
    one = nvfold_device_open(argv[1], "ro");
    CHECK(one);
    FAILS(EROFS, nvfold_open(one, "/new", O_WRONLY | O_CREAT, 0644));
    FAILS(EROFS, nvfold_mkdir(one, "/new", 0755));
    FAILS(ENOENT, nvfold_open(one, "/file", O_RDONLY, 0));
    CHECK(nvfold_device_close(one) == 0 && nvfold_device_close(two) == 0);
    return 0;
}
