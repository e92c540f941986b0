/* A process and its device: what exit does, and fork. */
#include "check.h"
#include <sys/wait.h>

int main(int argc, char **argv)
{
    char buffer[8] = {0};
    CHECK(argc == 3);
    if (strcmp(argv[1], "write") == 0) {
        nvfold_device *device = nvfold_device_open(argv[2], "size=64M,create");
        int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
        CHECK(nvfold_write(fd, "kept", 4) == 4);
        exit(0);
    }
    nvfold_device *device = nvfold_device_open(argv[2], NULL);
    CHECK(device);
    int fd = nvfold_open(device, "/file", O_RDWR, 0);
    CHECK(nvfold_pread(fd, buffer, 8, 0) == 4 && memcmp(buffer, "kept", 4) == 0);
    if (strcmp(argv[1], "read") == 0)
        return nvfold_device_close(device) < 0;

    /* Both ends of a child: exit, which runs handlers, and not. */
    for (int handlers = 0; handlers < 2; handlers++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            FAILS(EIO, nvfold_read(fd, buffer, 1));
            FAILS(EIO, nvfold_pwrite(fd, "lost", 4, 0));
            CHECK(nvfold_device_open("mem:", "size=64M") == NULL && errno == EIO);
            CHECK(strstr(nvfold_last_error(), "forked") != NULL);
            FAILS(EIO, nvfold_device_close(device));
            if (handlers)
                exit(0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(nvfold_pread(fd, buffer, 8, 0) == 4 && memcmp(buffer, "kept", 4) == 0);
    return nvfold_device_close(device) < 0;
}
