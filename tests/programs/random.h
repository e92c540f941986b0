// Numbers that depend on `state` alone (SplitMix64).
#include <stdint.h>

static uint64_t state;

static uint64_t next(void) {
    state += 0x9e3779b97f4a7c15;
    uint64_t mixed = state;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

static uint64_t below(uint64_t limit) {
    return next() % limit;
}
