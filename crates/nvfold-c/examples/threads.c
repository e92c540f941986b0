/*
 * Threads that share a device: appends of all of them to one file, whole and in no order, and files of their own beside it.
 *
 *     cc -std=c99 -pthread threads.c $(pkg-config --cflags --libs nvfold)
 */
#define _GNU_SOURCE
#include <nvfold.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, LINES = 500, LINE = 100 };

static nvfold_device *device;
static int journal;

static void check(int is_well, const char *what)
{
    if (!is_well) {
        fprintf(stderr, "%s: %s\n", what, nvfold_last_error());
        exit(1);
    }
}

static void *work(void *number)
{
    char line[LINE], name[32];
    int thread = *(int *)number;
    memset(line, 'a' + thread, sizeof line);
    line[LINE - 1] = '\n';
    snprintf(name, sizeof name, "/own%d", thread);
    int own = nvfold_open(device, name, O_WRONLY | O_CREAT, 0644);
    check(own >= 0, "open");
    for (int at = 0; at < LINES; at++) {
        check(nvfold_write(journal, line, LINE) == LINE, "append");
        check(nvfold_write(own, line, LINE) == LINE, "write");
    }
    check(nvfold_close(own) == 0, "close");
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS], lines[THREADS] = {0};
    device = nvfold_device_open(argc > 1 ? argv[1] : "mem:", argc > 2 ? argv[2] : "size=64M");
    check(device != NULL, "open the device");
    journal = nvfold_open(device, "/journal", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    check(journal >= 0, "open");
    for (int at = 0; at < THREADS; at++) {
        numbers[at] = at;
        if (pthread_create(&threads[at], NULL, work, &numbers[at]) != 0)
            return 1;
    }
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);

    char line[LINE];
    for (off_t at = 0; nvfold_pread(journal, line, LINE, at) == LINE; at += LINE) {
        for (int byte = 1; byte < LINE - 1; byte++)
            check(line[byte] == line[0], "two appends mixed");
        check(line[LINE - 1] == '\n', "an append was cut off");
        lines[line[0] - 'a']++;
    }
    for (int at = 0; at < THREADS; at++)
        check(lines[at] == LINES, "an append is missing");
    printf("%d threads, %d lines each, all whole\n", THREADS, LINES);
    return nvfold_device_close(device) < 0;
}
