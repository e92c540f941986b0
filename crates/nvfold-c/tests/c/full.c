/* A device that runs full in the middle: a write happens or does not, also one of which a part could be shared. */
#include "check.h"

enum { PIECE = 1 << 20 };

int main(void)
{
    static unsigned char bytes[PIECE + 4096], found[PIECE + 4096];
    nvfold_device *device = nvfold_device_open("mem:", "size=64M,policy=icid");
    int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT | O_APPEND, 0644);
    CHECK(fd >= 0);
    unsigned seed = 1;
    off_t size = 0;
    /* The last room goes in small pieces, but for some that metadata may take. */
    for (size_t piece = PIECE; piece >= 65536; piece /= 4) {
        ssize_t written;
        while (fill(bytes, piece, seed++), (written = nvfold_write(fd, bytes, piece)) == (ssize_t)piece)
            size += written;
        CHECK(written == -1 && errno == ENOSPC && strstr(nvfold_last_error(), "no space") != NULL);
        CHECK(nvfold_lseek(fd, 0, SEEK_END) == size);
    }
    CHECK(size >= 32 * PIECE);

    /* What is shared needs no space but for metadata. */
    CHECK(nvfold_pread(fd, bytes, PIECE, 0) == PIECE);
    int other = nvfold_open(device, "/other", O_RDWR | O_CREAT, 0644);
    CHECK(other >= 0 && nvfold_write(other, bytes, PIECE) == PIECE && shared_bytes(device) == PIECE);
    CHECK(nvfold_pread(other, found, PIECE, 0) == PIECE && memcmp(found, bytes, PIECE) == 0);
    /* Half of it is shared, half is new and has no room: nothing of it happens. */
    CHECK(nvfold_pread(fd, bytes, PIECE, PIECE) == PIECE);
    fill(bytes + PIECE / 2, PIECE / 2, 12345);
    CHECK(nvfold_pwrite(other, bytes, PIECE, 0) == -1 && errno == ENOSPC);
    memset(bytes, 0, sizeof bytes);
    CHECK(nvfold_pread(other, bytes, sizeof bytes, 0) == PIECE && memcmp(found, bytes, PIECE) == 0);
    /* Deleting works, and makes room. */
    CHECK(nvfold_unlink(device, "/file") == 0 && nvfold_close(fd) == 0);
    fd = nvfold_open(device, "/again", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && nvfold_write(fd, bytes, PIECE) == PIECE);
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
