/* Stores to a shared mapping, and the end of the program. `mappings_end store WAY DIR`, `mappings_end full DIR` */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define RW (PROT_READ | PROT_WRITE)

/* How often the thread that writes back has rested; -1: there is none. */
static long rests(void) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    long found = -1;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], line[200], name[200] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            if (sscanf(line, "Name: %199s", name) == 1)
                continue;
            if (strcmp(name, "nvfold-maps") == 0)
                (void)sscanf(line, "voluntary_ctxt_switches: %ld", &found);
        }
        if (status != NULL)
            fclose(status);
    }
    closedir(tasks);
    return found;
}

static void wait_until_it_rests(long before) {
    while (rests() <= before)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void store(const char *way, char **arguments) {
    int fd = open(way, O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
    char *memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    memory[0] = 's';
    memory[2 * PAGE - 1] = 't';
    if (strcmp(way, "_exit") == 0)
        _exit(0);
    if (strcmp(way, "exec") == 0)
        execl("/bin/true", "true", NULL);
    if (strcmp(way, "killed") == 0) {
        /* It begins, rests for a second, and rests again when it has written back. */
        wait_until_it_rests(0);
        wait_until_it_rests(rests());
        raise(SIGKILL);
    }
    (void)arguments;
}

/* A device without room: who syncs is told, and nothing is lost. */
static void full(void) {
    int fd = open("mapped", O_CREAT | O_RDWR, 0644), filler = open("filler", O_CREAT | O_RDWR, 0644);
    const size_t bytes = 1 << 20;
    CHECK(ftruncate(fd, bytes) == 0);
    char *memory = mmap(NULL, bytes, RW, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    unsigned seed = 1;
    unsigned block[PAGE / sizeof seed];
    ssize_t written;
    do {
        for (size_t at = 0; at < sizeof block / sizeof *block; at++)
            block[at] = seed = seed * 1664525 + 1013904223;
        written = write(filler, block, sizeof block);
    } while (written == (ssize_t)sizeof block);
    CHECK(written == -1 && errno == ENOSPC);
    for (size_t at = 0; at < bytes; at += sizeof seed) {
        seed = seed * 1664525 + 1013904223;
        memcpy(memory + at, &seed, sizeof seed);
    }
    unsigned last = seed;
    CHECK(msync(memory, bytes, MS_SYNC) == -1 && errno == ENOSPC);
    CHECK(fsync(fd) == -1 && errno == ENOSPC);
    CHECK(pread(fd, &seed, sizeof seed, bytes - sizeof seed) == sizeof seed && seed == last);
    CHECK(munmap(memory, bytes) == 0);
    CHECK(pread(fd, &seed, sizeof seed, bytes - sizeof seed) == sizeof seed && seed == last);
    CHECK(close(fd) == -1 && errno == ENOSPC);
    CHECK(ftruncate(filler, 0) == 0 && close(filler) == 0);
    fd = open("mapped", O_RDWR);
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    /* With nothing left to write back there is no thread soon. */
    while (rests() >= 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

int main(int count, char **arguments) {
    CHECK(count >= 3 && chdir(arguments[count - 1]) == 0);
    if (strcmp(arguments[1], "full") == 0)
        full();
    else
        store(arguments[2], arguments);
    return 0;
}
