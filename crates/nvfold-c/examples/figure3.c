/*
 * The paper's Figure 3: a file of four blocks is read, two blocks are changed in memory, and all is saved as another file. Only
 * the two are stored; the others are those of the first file.
 */
#define _GNU_SOURCE
#include <icid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, BLOCKS = 4 };

static void check(int is_well, const char *what)
{
    if (!is_well) {
        fprintf(stderr, "%s: %s\n", what, nvfold_last_error());
        exit(1);
    }
}

/* Bytes that do not repeat. */
static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++) {
        seed = seed * 1103515245u + 12345u;
        bytes[at] = (unsigned char)(seed >> 16);
    }
}

static struct nvfold_stats stats(void)
{
    struct nvfold_stats now;
    check(nvfold_stats(ICID_device(), &now, sizeof now) == 0, "stats");
    return now;
}

int main(int argc, char **argv)
{
    static unsigned char file[BLOCKS * BLOCK], saved[BLOCKS * BLOCK];
    check(ICID_init(argc > 1 ? argv[1] : "mem:", argc > 2 ? argv[2] : "size=64M") == 0, "init");

    fill(file, sizeof file, 1);
    int file_0 = ICID_open("/file0", O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(file_0 >= 0, "open");
    check(ICID_write(file_0, file, sizeof file) == sizeof file, "write");
    struct nvfold_stats before = stats();

    /* An editor: loads the file, changes A and D, saves it under another name. */
    unsigned char *memory = malloc(sizeof file);
    check(memory != NULL && nvfold_lseek(file_0, 0, SEEK_SET) == 0, "lseek");
    check(ICID_read(file_0, memory, sizeof file) == sizeof file, "read");
    fill(memory, BLOCK, 2);
    fill(memory + 3 * BLOCK, BLOCK, 3);
    int file_1 = ICID_open("/file1", O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(ICID_write(file_1, memory, sizeof file) == sizeof file, "write");

    struct nvfold_stats after = stats();
    printf("shared %llu bytes, stored %lld\n",
           (unsigned long long)(after.shared_by_origin_bytes - before.shared_by_origin_bytes),
           (long long)(after.stored_bytes - before.stored_bytes));
    check(nvfold_pread(file_1, saved, sizeof saved, 0) == sizeof saved, "pread");
    printf("the second file is %s\n", memcmp(saved, memory, sizeof saved) ? "wrong" : "right");
    free(memory);
    return ICID_exit() < 0;
}
