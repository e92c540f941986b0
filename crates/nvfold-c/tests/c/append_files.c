/* The files for the program of Figure 5: makes them, or checks that A was appended to B twice. */
#include "check.h"

enum { A = 100000, B = 5000 };

int main(int argc, char **argv)
{
    static unsigned char a[A], b[B], found[B + 2 * A + 1];
    CHECK(argc == 3);
    fill(a, A, 1);
    fill(b, B, 2);
    if (strcmp(argv[1], "make") == 0) {
        nvfold_device *device = nvfold_device_open(argv[2], "create,size=64M");
        int fd = nvfold_open(device, "/A", O_WRONLY | O_CREAT, 0644);
        CHECK(nvfold_write(fd, a, A) == A);
        fd = nvfold_open(device, "/B", O_WRONLY | O_CREAT, 0644);
        CHECK(nvfold_write(fd, b, B) == B);
        /* Nothing is closed: the end of the process does it. */
        return 0;
    }
    nvfold_device *device = nvfold_device_open(argv[2], "ro");
    int fd = nvfold_open(device, "/B", O_RDONLY, 0);
    CHECK(nvfold_read(fd, found, sizeof found) == B + 2 * A);
    CHECK(memcmp(found, b, B) == 0 && memcmp(found + B, a, A) == 0 && memcmp(found + B + A, a, A) == 0);
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
