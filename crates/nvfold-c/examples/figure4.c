/*
 * The paper's Figure 4: a part of file A is copied through memory to the end of file B. As it is, B names the bytes of A (step
 * 8); what was changed in memory is found by comparing, and stored (step 9). Copies of copies, mapped files and vectors go
 * the same way.
 */
#define _GNU_SOURCE
#include <icid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 64 * 1024, PART = 20000, PART_AT = 1000 };

static void check(int is_well, const char *what)
{
    if (!is_well) {
        fprintf(stderr, "%s: %s\n", what, nvfold_last_error());
        exit(1);
    }
}

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++) {
        seed = seed * 1103515245u + 12345u;
        bytes[at] = (unsigned char)(seed >> 16);
    }
}

static struct nvfold_stats before;

static void tell(const char *what)
{
    struct nvfold_stats now;
    check(nvfold_stats(ICID_device(), &now, sizeof now) == 0, "stats");
    printf("%s: shared %llu, stored %lld\n", what,
           (unsigned long long)(now.shared_by_origin_bytes - before.shared_by_origin_bytes),
           (long long)(now.stored_bytes - before.stored_bytes));
    before = now;
}

int main(int argc, char **argv)
{
    static unsigned char content[SIZE];
    check(ICID_init(argc > 1 ? argv[1] : "mem:", argc > 2 ? argv[2] : "size=64M") == 0, "init");
    int a = ICID_open("/A", O_RDWR | O_CREAT | O_TRUNC, 0644);
    int b = ICID_open("/B", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    check(a >= 0 && b >= 0, "open");
    fill(content, sizeof content, 1);
    check(ICID_write(a, content, sizeof content) == sizeof content, "write");
    fill(content, sizeof content, 2);
    check(ICID_write(b, content, sizeof content) == sizeof content, "write");
    check(nvfold_stats(ICID_device(), &before, sizeof before) == 0, "stats");

    unsigned char *part = malloc(PART), *copy = malloc(2 * PART);
    check(part != NULL && copy != NULL, "malloc");
    check(nvfold_pread(a, part, PART, PART_AT) == PART, "read");
    check(ICID_write(b, part, PART) == PART, "append");
    tell("as it was");

    /* A copy of the copy, in two halves that changed places. */
    check(ICID_memcpy(copy, part + PART / 2, PART / 2) == copy, "memcpy");
    check(ICID_memcpy(copy + PART / 2, part, PART / 2) == copy + PART / 2, "memcpy");
    check(ICID_write(b, copy, PART) == PART, "append");
    tell("copied on");

    struct iovec halves[2] = {{part, PART / 2}, {copy, PART / 2}};
    check(nvfold_writev(b, halves, 2) == PART, "writev");
    tell("in a vector");

    /* Changed behind the library's back: 8192 bytes in the middle. */
    fill(part + 4096, 8192, 3);
    check(ICID_write(b, part, PART) == PART, "append");
    tell("changed in memory");

    unsigned char *map = ICID_mmap(NULL, SIZE, PROT_READ, MAP_SHARED, a, 0);
    check(map != MAP_FAILED, "mmap");
    check(ICID_write(b, map + 4096, 8192) == 8192, "append");
    tell("from the mapping");
    check(ICID_munmap(map, SIZE) == 0, "munmap");

    /* What was known of A ends with it. */
    check(nvfold_pread(a, part, PART, 0) == PART, "read");
    ICID_close(a);
    check(ICID_write(b, part, 8192) == 8192, "append");
    tell("closed");
    free(part);
    free(copy);
    return ICID_exit() < 0;
}
