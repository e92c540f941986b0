/*
 * The program of the paper's Figure 5: appends one file to another. What was read from A is known to come from there, so B
 * names the bytes of A, and nothing is stored a second time.
 *
 *     cc -std=c99 append.c $(pkg-config --cflags --libs nvfold)
 *     ICID_DEVICE=pool ./a.out /A /B
 *
 * Changed from the figure: the size is asked for, O_APPEND belongs to the flags (as a third argument it would be the mode),
 * and errors are looked at.
 */
#define _GNU_SOURCE
#include <icid.h>
#include <stdio.h>
#include <stdlib.h>

static ssize_t append_files(const char *file_a, const char *file_b)
{
    int fd_a = ICID_open(file_a, O_RDONLY);
    int fd_b = ICID_open(file_b, O_RDWR | O_APPEND | O_CREAT, 0644);
    struct stat a;
    if (fd_a < 0 || fd_b < 0 || nvfold_fstat(fd_a, &a) < 0)
        return -1;
    size_t size = (size_t)a.st_size;
    char *buf = malloc(size ? size : 1);
    ssize_t length = buf ? ICID_read(fd_a, buf, size) : -1;
    if (length >= 0)
        length = ICID_write(fd_b, buf, (size_t)length);
    /* What is known of A ends here, and B keeps what it shares. */
    ICID_close(fd_a);
    ICID_close(fd_b);
    free(buf);
    return length;
}

int main(int argc, char **argv)
{
    struct nvfold_stats before, after;
    if (argc != 3) {
        fprintf(stderr, "usage: ICID_DEVICE=DEVICE %s FILE-A FILE-B\n", argv[0]);
        return 2;
    }
    /* The first call opens the device. */
    nvfold_device *device = ICID_device();
    if (!device || nvfold_stats(device, &before, sizeof before) < 0) {
        fprintf(stderr, "%s\n", nvfold_last_error());
        return 1;
    }
    ssize_t length = append_files(argv[1], argv[2]);
    if (length < 0 || nvfold_stats(device, &after, sizeof after) < 0) {
        fprintf(stderr, "%s\n", nvfold_last_error());
        return 1;
    }
    printf("appended %zd bytes, %llu of them shared; stored bytes grew by %lld\n", length,
           (unsigned long long)after.shared_by_origin_bytes, (long long)(after.stored_bytes - before.stored_bytes));
    return ICID_exit() < 0;
}
