/* Checks that end the program with the line that failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <icid.h>
#include <sys/xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, nvfold_last_error()); \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* That a call fails with an errno, and says why. */
#define FAILS(error, call)                                                                                            \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        CHECK((call) == -1 && errno == (error));                                                                      \
        CHECK(nvfold_last_error()[0] != '\0');                                                                        \
    } while (0)

static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++) {
        seed = seed * 1103515245u + 12345u;
        bytes[at] = (unsigned char)(seed >> 16);
    }
}

static inline unsigned long long shared_bytes(nvfold_device *device)
{
    struct nvfold_stats stats;
    CHECK(nvfold_stats(device, &stats, sizeof stats) == 0);
    return stats.shared_by_origin_bytes;
}

static inline unsigned long long stored_bytes(nvfold_device *device)
{
    struct nvfold_stats stats;
    CHECK(nvfold_stats(device, &stats, sizeof stats) == 0);
    return stats.stored_bytes;
}
