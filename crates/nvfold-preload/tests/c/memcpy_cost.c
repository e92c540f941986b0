/* How long a memcpy takes, in ns: of 16, 32, 64, 128, 1024 and 65536 bytes. */
#define _GNU_SOURCE
#include "check.h"
#include <time.h>

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(void) {
    void *(*volatile copy)(void *, const void *, size_t) = memcpy;
    static char from[1 << 16], to[1 << 16];
    static const size_t sizes[] = {16, 32, 64, 128, 1024, 65536};
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        long rounds = sizes[at] > 10000 ? 20000 : 5000000;
        double best = 1e9;
        for (int try = 0; try < 7; try++) {
            double start = seconds();
            for (long round = 0; round < rounds; round++)
                copy(to, from, sizes[at]);
            double each = (seconds() - start) / (double)rounds * 1e9;
            best = each < best ? each : best;
        }
        printf("%zu %.2f\n", sizes[at], best);
    }
    return 0;
}
