/* Threads use a device while it is closed, again and again: each call ends with its answer or with EBADF. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 6, ROUNDS = 20 };

static nvfold_device *volatile device;
static volatile int is_over;

static void *work(void *argument)
{
    char buffer[5000], name[16];
    int number = *(int *)argument;
    memset(buffer, 'a' + number, sizeof buffer);
    snprintf(name, sizeof name, "/%d", number);
    while (!is_over) {
        nvfold_device *now = device;
        int fd = nvfold_open(now, name, O_RDWR | O_CREAT, 0644);
        CHECK(fd >= 0 || errno == EBADF);
        if (fd < 0)
            continue;
        CHECK(nvfold_write(fd, buffer, sizeof buffer) == sizeof buffer || errno == EBADF);
        CHECK(nvfold_pread(fd, buffer, sizeof buffer, 0) == sizeof buffer || errno == EBADF);
        void *map = nvfold_mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
        CHECK(map != MAP_FAILED || errno == EBADF);
        nvfold_dir *directory = nvfold_opendir(now, "/");
        struct nvfold_dirent entry;
        CHECK(directory || errno == EBADF);
        CHECK(!directory || nvfold_readdir(directory, &entry) >= 0 || errno == EBADF);
        CHECK(!directory || nvfold_closedir(directory) == 0 || errno == EBADF);
        CHECK(map == MAP_FAILED || nvfold_munmap(map, 4096) == 0);
        CHECK(nvfold_close(fd) == 0 || errno == EBADF);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    CHECK(argc == 2);
    device = nvfold_device_open(argv[1], "size=64M,create,policy=icid");
    CHECK(device);
    for (int at = 0; at < THREADS; at++) {
        numbers[at] = at;
        CHECK(pthread_create(&threads[at], NULL, work, &numbers[at]) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        usleep(5000);
        CHECK(nvfold_device_close(device) == 0);
        device = nvfold_device_open(argv[1], "policy=icid");
        CHECK(device);
    }
    is_over = 1;
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    char byte;
    for (int at = 0; at < THREADS; at++) {
        char name[16];
        snprintf(name, sizeof name, "/%d", at);
        int fd = nvfold_open(device, name, O_RDONLY, 0);
        CHECK(fd < 0 || nvfold_pread(fd, &byte, 1, 0) == 0 || byte == 'a' + at);
    }
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
