/* 2,000 threads: each makes a file of its own and appends lines to one that all share. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 2000

static const char *prefix;
static int shared;
static pthread_barrier_t all_here;

static void *work(void *argument) {
    long number = (long)argument;
    pthread_barrier_wait(&all_here);
    char path[200], line[64];
    snprintf(path, sizeof path, "%s/t%ld", prefix, number);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fprintf(file, "thread %ld\n", number) > 0);
    CHECK(fclose(file) == 0);
    /* Numbers of the host and of the device are never taken for each other. */
    for (int round = 0; round < 5; round++) {
        struct stat stat;
        int host = open("/dev/null", O_RDWR), ours = open(path, O_RDONLY);
        CHECK(host >= 0 && ours >= 0 && host != ours);
        CHECK(fstat(host, &stat) == 0 && S_ISCHR(stat.st_mode));
        CHECK(fstat(ours, &stat) == 0 && S_ISREG(stat.st_mode));
        CHECK(close(round % 2 ? host : ours) == 0 && close(round % 2 ? ours : host) == 0);
    }
    int length = snprintf(line, sizeof line, "line of thread %06ld\n", number);
    for (int round = 0; round < 3; round++)
        CHECK(write(shared, line, length) == length);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    prefix = arguments[1];
    /* As many may be open at once as threads and more. */
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max < 10000 ? limit.rlim_max : 10000;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    char path[200];
    snprintf(path, sizeof path, "%s/shared", prefix);
    shared = open(path, O_CREAT | O_WRONLY | O_APPEND | O_TRUNC, 0644);
    CHECK(shared >= 0);
    static pthread_t threads[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    CHECK(pthread_barrier_init(&all_here, NULL, THREADS) == 0);
    for (long at = 0; at < THREADS; at++)
        CHECK((errno = pthread_create(&threads[at], &attributes, work, (void *)at)) == 0);
    for (long at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    close(shared);
    static int seen[THREADS];
    FILE *file = fopen(path, "r");
    long number;
    int lines = 0;
    while (fscanf(file, "line of thread %ld\n", &number) == 1)
        seen[number]++, lines++;
    CHECK(feof(file) && lines == 3 * THREADS);
    fclose(file);
    for (long at = 0; at < THREADS; at++) {
        CHECK(seen[at] == 3);
        snprintf(path, sizeof path, "%s/t%ld", prefix, at);
        file = fopen(path, "r");
        CHECK(file != NULL && fscanf(file, "thread %ld", &number) == 1 && number == at);
        fclose(file);
    }
    return 0;
}
