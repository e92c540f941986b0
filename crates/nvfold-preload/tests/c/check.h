/* What the programs of these tests have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints what a call answers, and errno if it failed: the same on the host as on a device. */
#define TELL(call)                                                                                                     \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long long answer_ = (long long)(call);                                                                         \
        printf("%d: %s -> %lld %s\n", __LINE__, #call, answer_, answer_ == -1 ? strerror(errno) : "");                 \
    } while (0)

/* Ends the program unless it holds. */
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s is not so: %s\n", __FILE__, __LINE__, #what, strerror(errno));                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
