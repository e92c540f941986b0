/* What is known of copies is a hint: whatever the program does, the file holds what was written. */
#include "check.h"

enum { SIZE = 40960 };

static nvfold_device *device;
static unsigned char content[SIZE], buffer[2 * SIZE], found[2 * SIZE];
static unsigned long long shared_before, stored_before;

/* Writes memory to a file and checks it; tells what was shared. */
static unsigned long long written(int fd, const unsigned char *bytes, size_t length)
{
    shared_before = shared_bytes(device);
    stored_before = stored_bytes(device);
    CHECK(nvfold_ftruncate(fd, 0) == 0);
    CHECK(nvfold_pwrite(fd, bytes, length, 0) == (ssize_t)length);
    CHECK(nvfold_pread(fd, found, sizeof found, 0) == (ssize_t)length && memcmp(found, bytes, length) == 0);
    return shared_bytes(device) - shared_before;
}

static int new_file(const char *name)
{
    int fd = nvfold_open(device, name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    return fd;
}

int main(void)
{
    device = nvfold_device_open("mem:", "size=64M,policy=icid");
    CHECK(device);
    int a = new_file("/a"), b = new_file("/b");
    fill(content, SIZE, 1);
    CHECK(nvfold_write(a, content, SIZE) == SIZE);

    /* Memory changed after the copy: at its ends, in the middle, everywhere. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE && written(b, buffer, SIZE) == SIZE);
    buffer[0] ^= 1;
    buffer[SIZE - 1] ^= 1;
    buffer[20000] ^= 1;
    unsigned long long shared = written(b, buffer, SIZE);
    CHECK(shared > SIZE - 3 * 4096 && shared < SIZE);
    fill(buffer, SIZE, 2);
    CHECK(written(b, buffer, SIZE) == 0);

    /* A copy onto itself changes nothing; a copy that overlaps moves. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_memcpy(buffer, buffer, SIZE) == buffer && written(b, buffer, SIZE) == SIZE);
    CHECK(nvfold_memcpy(buffer + 1000, buffer, SIZE) == buffer + 1000);
    CHECK(memcmp(buffer + 1000, content, SIZE) == 0 && written(b, buffer + 1000, SIZE) == SIZE);
    CHECK(nvfold_memmove(buffer + 500, buffer + 1000, SIZE) == buffer + 500);
    CHECK(memcmp(buffer + 500, content, SIZE) == 0 && written(b, buffer + 500, SIZE) == SIZE);

    /* Copies by other means than ours leave what is known of the target stale. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    memmove(buffer, buffer + 1, SIZE - 1);
    CHECK(written(b, buffer, SIZE) == 0);

    /* A source that changed, shrank, lost its name, was replaced by another, was closed. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_pwrite(a, "changed", 7, 8192) == 7);
    shared = written(b, buffer, SIZE);
    CHECK(shared > 0 && shared < SIZE);
    CHECK(nvfold_pwrite(a, content, SIZE, 0) == SIZE && nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_ftruncate(a, 100) == 0 && written(b, buffer, SIZE) <= 100);
    CHECK(nvfold_pwrite(a, content, SIZE, 0) == SIZE && nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_unlink(device, "/a") == 0 && written(b, buffer, SIZE) == SIZE);
    int other = new_file("/a");
    CHECK(nvfold_close(a) == 0 && written(b, buffer, SIZE) == 0);
    a = other;
    CHECK(nvfold_pwrite(a, content, SIZE, 0) == SIZE);

    /* The source is the target: over itself, and shifted within itself. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE && nvfold_pwrite(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_pwrite(a, buffer, SIZE, 1000) == SIZE);
    CHECK(nvfold_pread(a, found, sizeof found, 0) == SIZE + 1000);
    CHECK(memcmp(found, content, 1000) == 0 && memcmp(found + 1000, content, SIZE) == 0);
    CHECK(nvfold_ftruncate(a, 0) == 0 && nvfold_pwrite(a, content, SIZE, 0) == SIZE);

    /* Read into memory that another file was read into; into buffers of a vector; a read that is cut off by the end. */
    CHECK(nvfold_pread(a, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_ftruncate(b, 0) == 0 && nvfold_pread(b, buffer, SIZE, 0) == 0 && written(b, buffer, SIZE) == SIZE);
    struct iovec parts[3] = {{buffer + SIZE, 10000}, {NULL, 0}, {buffer, SIZE}};
    CHECK(nvfold_preadv(a, parts, 3, 5000) == SIZE - 5000);
    CHECK(memcmp(buffer + SIZE, content + 5000, 10000) == 0 && memcmp(buffer, content + 15000, SIZE - 15000) == 0);
    CHECK(written(b, buffer + SIZE, 10000) == 10000 && written(b, buffer, SIZE - 15000) == SIZE - 15000);

    /* Mappings: shared read-only, a private one that was written to, a part given back, after the descriptor is closed. */
    unsigned char *map = nvfold_mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, a, 0);
    CHECK(map != MAP_FAILED && memcmp(map, content, SIZE) == 0 && written(b, map, SIZE) == SIZE);
    map[5000] ^= 1;
    shared = written(b, map, SIZE);
    CHECK(shared > 0 && shared < SIZE);
    CHECK(nvfold_munmap(map, 8192) == 0);
    CHECK(nvfold_close(a) == 0);
    CHECK(written(b, map + 8192, SIZE - 8192) == SIZE - 8192);
    CHECK(nvfold_memcpy(buffer, map + 8192, 4096) == buffer && written(b, buffer, 4096) == 4096);
    CHECK(nvfold_munmap(map + 8192, SIZE - 8192) == 0);
    CHECK(written(b, buffer, 4096) == 0);

    /* A hole reads as zeros and is no source that could be wrong. */
    a = new_file("/holes");
    CHECK(nvfold_pwrite(a, content, 4096, 16384) == 4096);
    CHECK(nvfold_pread(a, buffer, 20480, 0) == 20480);
    CHECK(written(b, buffer, 20480) >= 4096);

    /* A device that follows nothing: the same calls, and nothing shared this way. */
    nvfold_device *plain = nvfold_device_open("mem:", "size=64M,policy=off");
    int c = nvfold_open(plain, "/c", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_write(c, content, SIZE) == SIZE && nvfold_pread(c, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_memcpy(found, buffer, SIZE) == found && nvfold_pwrite(c, found, SIZE, SIZE) == SIZE);
    CHECK(shared_bytes(plain) == 0);
    CHECK(nvfold_device_close(plain) == 0);

    /* With origins=on it follows, and a directory with a policy of its own shares. */
    plain = nvfold_device_open("mem:", "size=64M,policy=off,origins=on");
    CHECK(nvfold_mkdir(plain, "/d", 0755) == 0 && nvfold_setxattr(plain, "/d", "user.nvfold.dedup", "icid", 4, 0) == 0);
    c = nvfold_open(plain, "/c", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_write(c, content, SIZE) == SIZE && nvfold_pread(c, buffer, SIZE, 0) == SIZE);
    CHECK(nvfold_pwrite(c, buffer, SIZE, SIZE) == SIZE && shared_bytes(plain) == 0);
    int d = nvfold_open(plain, "/d/d", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_write(d, buffer, SIZE) == SIZE && shared_bytes(plain) == SIZE);
    CHECK(nvfold_device_close(plain) == 0);

    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
