/* A daemon closes all descriptors, and opens files of its own, which get our numbers: they are never touched, the device is
 * lost, and what a call answers is right or EIO. Arguments: device, options, a folder for the files. */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBERS = 16, BLOCK = 4096, BLOCKS = 256, OWN = 3 << 20 };

/* More than the device and its journal have. */
static const off_t OWN_LENGTH = (off_t)2 << 30;

static unsigned char own[OWN], read_back[OWN];

static unsigned char data[BLOCKS * BLOCK], found[BLOCKS * BLOCK];

/* The descriptors of this process above 2. */
static int numbers_of(int *numbers)
{
    int count = 0;
    DIR *list = opendir("/proc/self/fd");
    CHECK(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        int number = atoi(entry->d_name);
        if (number > 2 && number != dirfd(list) && count < NUMBERS)
            numbers[count++] = number;
    }
    closedir(list);
    return count;
}

/* Closes all of them, as closefrom(3) does, which is not in every libc. */
static void close_from_3(void)
{
    int numbers[NUMBERS];
    int count = numbers_of(numbers);
    while (count > 0)
        CHECK(close(numbers[--count]) == 0);
}

static void open_own(int number, const char *folder, char *name)
{
    sprintf(name, "%s/own-%d", folder, number);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, own, OWN) == OWN && ftruncate(fd, OWN_LENGTH) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    if (fd != number)
        CHECK(dup2(fd, number) == number && close(fd) == 0);
}

static void check_own(int number, const char *name)
{
    struct stat stat;
    CHECK(fstat(number, &stat) == 0 && stat.st_size == OWN_LENGTH);
    CHECK(pread(number, read_back, OWN, 0) == OWN && memcmp(own, read_back, OWN) == 0);
    CHECK(lseek(number, OWN, SEEK_DATA) == -1 && errno == ENXIO);
    int other = open(name, O_RDONLY);
    CHECK(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK && close(other) == 0);
    unlink(name);
}

/* EIO, with a sentence about the descriptor. */
static int is_lost(long answer)
{
    return answer == -1 && errno == EIO && strstr(nvfold_last_error(), "closed or replaced nvfold's descriptor") != NULL;
}

#define RIGHT_OR_LOST(call) CHECK((call) == 0 || is_lost(-1))

/* Writes, reads, syncs, discards and grows: each is right, or EIO. Returns whether the device is lost. */
static int work(nvfold_device *device, int fd, int round)
{
    fill(data, sizeof data, round + 1);
    errno = 0;
    long wrote = nvfold_pwrite(fd, data, sizeof data, 0);
    CHECK(wrote == sizeof data || is_lost(wrote));
    long got = nvfold_pread(fd, found, sizeof found, 0);
    CHECK(is_lost(got) || (got == sizeof found && (wrote < 0 || memcmp(data, found, sizeof data) == 0)));
    RIGHT_OR_LOST(nvfold_fsync(fd));
    RIGHT_OR_LOST(nvfold_fallocate(fd, 0, 0, 4 << 20));
    RIGHT_OR_LOST(nvfold_ftruncate(fd, 0));
    int more = nvfold_open(device, "/more", O_RDWR | O_CREAT, 0644);
    CHECK(more >= 0 || is_lost(more));
    if (more >= 0) {
        CHECK(nvfold_pwrite(more, data, 99, 0) == 99 || is_lost(-1));
        CHECK(nvfold_close(more) == 0);
        RIGHT_OR_LOST(nvfold_unlink(device, "/more"));
    }
    return is_lost(nvfold_sync(device));
}

int main(int argc, char **argv)
{
    int numbers[NUMBERS];
    char names[NUMBERS][4096];
    CHECK(argc == 5);
    close_from_3(); /* what the test has left open */
    nvfold_device *device = nvfold_device_open(argv[1], argv[2]);
    CHECK(device);
    int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
    fill(data, sizeof data, 7);
    CHECK(nvfold_pwrite(fd, data, sizeof data, 0) == sizeof data && nvfold_fsync(fd) == 0);
    int kept = nvfold_open(device, "/kept", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_pwrite(kept, "kept", 4, 0) == 4 && nvfold_fsync(kept) == 0);
    int count = numbers_of(numbers);
    CHECK(count > 0);
    for (int at = 0; at < count; at++)
        CHECK(numbers[at] >= 50); /* not among the low numbers of simple programs */

    close_from_3();
    fill(own, OWN, 99);
    for (int at = 0; at < count; at++)
        open_own(numbers[at], argv[3], names[at]);
    if (strcmp(argv[4], "work") == 0) {
        int round = 0;
        while (!work(device, fd, round++)) {}
        CHECK(is_lost(nvfold_pwrite(fd, data, 1, 0)));
        CHECK(is_lost(nvfold_pread(fd, found, 1, 0)));
        CHECK(is_lost(nvfold_fsync(fd)));
        CHECK(is_lost(nvfold_ftruncate(fd, 8 << 20)));
        CHECK(is_lost(nvfold_open(device, "/new", O_RDWR | O_CREAT, 0644)));
        struct stat stat;
        CHECK(is_lost(nvfold_stat(device, "/file", &stat)));
    }
    CHECK(is_lost(nvfold_device_close(device)));
    for (int at = 0; at < count; at++)
        check_own(numbers[at], names[at]);

    if (strncmp(argv[1], "mem:", 4) != 0) {
        for (int at = 0; at < count; at++)
            CHECK(close(numbers[at]) == 0);
        device = nvfold_device_open(argv[1], NULL);
        kept = nvfold_open(device, "/kept", O_RDONLY, 0);
        CHECK(nvfold_pread(kept, found, 5, 0) == 4 && memcmp(found, "kept", 4) == 0);
        CHECK(nvfold_device_close(device) == 0);
    }
    return 0;
}
