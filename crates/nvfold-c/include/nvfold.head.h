/*
 * nvfold: a deduplicating file system on a device of its own, inside this process. No kernel is on the way, and no mount.
 *
 *     #include <nvfold.h>
 *     cc program.c $(pkg-config --cflags --libs nvfold)
 *
 *     nvfold_device *device = nvfold_device_open("pool", "size=1G,create");
 *     int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
 *     nvfold_write(fd, "text", 4);
 *     nvfold_close(fd);
 *     nvfold_device_close(device);
 *
 * Calls are those of POSIX with nvfold_ in front, with the same structures and flags. What holds for all of them:
 *
 * Failure. A call that fails returns -1 (NULL, MAP_FAILED) and sets errno; nvfold_last_error() has a sentence about it. A
 * call happens wholly or not at all. Each names the errors that are its own; beside them there can be EBADF for a handle or
 * descriptor that is not open (any more), EFAULT for a pointer that is NULL or misaligned (other bad pointers are undefined
 * behaviour, as for memcpy), ENAMETOOLONG, EROFS, ENOSPC, EDQUOT (nvfold_set_limits), and EIO for what the device cannot
 * give. An internal error of the library is EIO as well: it never ends the process, but the device takes no call any more
 * until it is opened again, which recovers it.
 *
 * Units. Lengths, sizes and offsets are bytes; times are struct timespec. A length above SSIZE_MAX is EINVAL, a negative
 * offset too.
 *
 * Paths. They begin at the root of the device, with a / in front or without. Symbolic links are followed, 40 at most
 * (ELOOP). Permissions are stored, not checked: the process has the whole device.
 *
 * Threads. Every call may be made from any thread, at the same time. A read sees a write wholly or not at all. Calls are not
 * async-signal-safe, and must not be cancelled (pthread_cancel) while they last.
 *
 * fork. The device stays the parent's: in the child every call fails with EIO until exec.
 *
 * Descriptors. The library holds one descriptor of the kernel for each device, with a high number. A daemon calls
 * closefrom(3) first and opens devices afterwards. If a program closes or replaces that descriptor, the device is lost: a file
 * of the program under its number is never touched, and every call on the device fails with EIO, nvfold_device_close too.
 * What had reached the device is there when it is opened again (mem: is gone). Until this is noticed, within a second and by
 * each sync, calls go on.
 *
 * Signals. Threads of the library block all signals, so no handler of the program runs on them. Opening the first device installs a handler for SIGBUS, which turns failing memory of a device into EIO; signals
 * about anything else go to the handler of before.
 *
 * This file is made by cbindgen; see crates/nvfold-c/cbindgen.toml.
 */
#ifndef NVFOLD_H
#define NVFOLD_H

/* RENAME_NOREPLACE, SEEK_DATA, FALLOC_FL_PUNCH_HOLE and the like need _GNU_SOURCE before the first header. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* A program that asks its compiler for nothing but ISO C has not all of these. */
struct iovec;
struct stat;
struct statvfs;
struct timespec;

#ifdef __cplusplus
extern "C" {
#endif

/* An open device. The value is only ever compared; what was closed is told (EBADF). */
typedef struct nvfold_device nvfold_device;

/* A directory that is being read. */
typedef struct nvfold_dir nvfold_dir;
