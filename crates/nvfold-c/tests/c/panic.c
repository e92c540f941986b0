/* A mistake of the library (a test makes it panic): EIO with a message. Its device takes no call any more, others go on. */
#include "check.h"

int main(int argc, char **argv)
{
    char buffer[8];
    CHECK(argc == 2);
    nvfold_device *device = nvfold_device_open(argv[1], "size=64M,create"), *other = nvfold_device_open("mem:", "size=64M");
    int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_write(fd, "kept", 4) == 4 && nvfold_fsync(fd) == 0);
    FAILS(EIO, nvfold_fgetxattr(fd, "user.nvfold.test-panic", buffer, 8));
    CHECK(strstr(nvfold_last_error(), "internal error") != NULL);
    FAILS(EIO, nvfold_read(fd, buffer, 1));
    FAILS(EIO, nvfold_mkdir(device, "/d", 0755));
    FAILS(EIO, nvfold_sync(device));
    CHECK(nvfold_mkdir(other, "/d", 0755) == 0);
    FAILS(EIO, nvfold_device_close(device));
    FAILS(EBADF, nvfold_device_close(device));
    /* Opened again it is recovered. */
    device = nvfold_device_open(argv[1], NULL);
    CHECK(device);
    fd = nvfold_open(device, "/file", O_RDONLY, 0);
    CHECK(nvfold_read(fd, buffer, 8) == 4 && memcmp(buffer, "kept", 4) == 0);
    CHECK(nvfold_device_close(device) == 0 && nvfold_device_close(other) == 0);
    return 0;
}
