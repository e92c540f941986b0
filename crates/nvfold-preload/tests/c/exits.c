/* Ways to end: `exits WAY DIR` leaves a file open with text in its buffer. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

static const char *prefix;

static FILE *make(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", prefix, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    return file;
}

static void at_the_end(void) {
    fputs("by atexit", make("atexit"));
}

__attribute__((destructor)) static void later_still(void) {
    if (prefix != NULL)
        fputs("by a destructor", make("destructor"));
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    prefix = arguments[2];
    atexit(at_the_end);
    FILE *file = make("left");
    fputs("in the buffer", file);
    FILE *written = make("written");
    fputs("written", written);
    fflush(written);
    if (strcmp(arguments[1], "_exit") == 0)
        _exit(3);
    if (strcmp(arguments[1], "quick_exit") == 0)
        quick_exit(4);
    if (strcmp(arguments[1], "abort") == 0)
        abort();
    if (strcmp(arguments[1], "exit") == 0)
        exit(5);
    return 6;
}
