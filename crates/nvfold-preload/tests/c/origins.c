/* Copies that are shared: from one file to another by every way that the library follows. Prints how many bytes the device
   stores for each. `origins DIR` */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BYTES (2 << 20)

static const char *prefix;
static char source[200], target[200];

static long long stored(void) {
    struct statvfs space;
    CHECK(statvfs(prefix, &space) == 0);
    return (long long)(space.f_blocks - space.f_bfree) * (long long)space.f_frsize;
}

static void must_share(const char *what, long long before) {
    long long grew = stored() - before;
    FILE *one = fopen(source, "r"), *other = fopen(target, "r");
    static char a[BYTES], b[BYTES];
    CHECK(fread(a, 1, BYTES, one) == BYTES && fread(b, 1, BYTES, other) == BYTES && memcmp(a, b, BYTES) == 0);
    fclose(one), fclose(other);
    printf("%s: %lld bytes stored\n", what, grew);
    CHECK(grew < BYTES / 4);
    CHECK(unlink(target) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    prefix = arguments[1];
    snprintf(source, sizeof source, "%s/source", prefix);
    snprintf(target, sizeof target, "%s/target", prefix);
    static char buffer[BYTES], copy[BYTES];
    unsigned long long state = 88172645463325252ULL;
    for (size_t at = 0; at < BYTES; at++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        buffer[at] = (char)(at % 64 == 63 ? '\n' : 'a' + state % 26);
    }
    FILE *file = fopen(source, "w");
    CHECK(file != NULL && fwrite(buffer, 1, BYTES, file) == BYTES && fclose(file) == 0);
    memset(buffer, 0, BYTES);

    long long before = stored();
    int in = open(source, O_RDONLY), out = open(target, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    CHECK(read(in, buffer, BYTES) == BYTES);
    /* A length that the compiler knows is copied in place, where nobody sees it. */
    volatile size_t part_bytes = 4096;
    for (size_t at = 0; at < BYTES; at += 4096)
        memcpy(copy + at, buffer + at, part_bytes);
    CHECK(write(out, copy, BYTES) == BYTES);
    close(out);
    must_share("read, memcpy, write", before);

    before = stored();
    FILE *from = fopen(source, "r"), *to = fopen(target, "w");
    static char part[5000];
    for (size_t got; (got = fread(part, 1, sizeof part, from)) > 0;)
        CHECK(fwrite(part, 1, got, to) == got);
    fclose(from), fclose(to);
    must_share("fread, fwrite", before);

    before = stored();
    from = fopen(source, "r"), to = fopen(target, "w");
    setvbuf(to, NULL, _IOFBF, 1 << 16);
    static char line[300], again[300];
    while (fgets(line, sizeof line, from)) {
        strcpy(again, line);
        CHECK(fputs(again, to) >= 0);
    }
    fclose(from), fclose(to);
    must_share("fgets, strcpy, fputs", before);

    before = stored();
    char *memory = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, in, 0);
    CHECK(memory != MAP_FAILED);
    out = open(target, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    memmove(copy, memory, part_bytes * (BYTES / 4096));
    CHECK(write(out, copy, BYTES) == BYTES);
    close(out);
    CHECK(munmap(memory, BYTES) == 0);
    must_share("mmap, memmove, write", before);

    before = stored();
    out = open(target, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    off_t start = 0;
    CHECK(sendfile(out, in, &start, BYTES) == BYTES);
    close(out);
    must_share("sendfile", before);

    before = stored();
    out = open(target, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    CHECK(lseek(in, 0, SEEK_SET) == 0 && copy_file_range(in, NULL, out, NULL, BYTES, 0) == BYTES);
    close(out);
    must_share("copy_file_range", before);
    return 0;
}
