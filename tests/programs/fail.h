// Ends a program whose system call failed.
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}
