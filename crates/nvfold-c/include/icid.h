/*
 * The calls of ICID ("I/O Causality Based In-line Data Deduplication for Non-Volatile Memory Enabled Storage Systems",
 * Table 2) under their names, on an nvfold device. What is read, copied and mapped by them is known to come from its file,
 * and when it is written again its bytes are shared instead of stored, where they are still the same.
 *
 *     #include <icid.h>
 *     cc program.c $(pkg-config --cflags --libs nvfold)
 *     ICID_DEVICE=pool ./a.out
 *
 * Which device: the paper has no call for that. The one that ICID_init names; without it, at the first ICID_open, the one
 * that the environment variable ICID_DEVICE names, with the options of nvfold_device_open in ICID_OPTIONS. Its policy is
 * "icid" unless the options name another. Paths are those on the device. It is closed by ICID_exit, or at the end of the
 * process.
 *
 * Changed from Table 2: types are those of POSIX (ssize_t, const void *), so that a failure can be told from a length;
 * ICID_memcmp returns int, for memcmp has a sign, which a pointer has not.
 *
 * Descriptors are those of nvfold.h, whose calls can be used on them too (nvfold_fstat, nvfold_lseek, ...), and every
 * ICID_ call takes descriptors of nvfold_open. What nvfold.h says of errors, threads and fork holds here.
 *
 * This file is made by cbindgen; see crates/nvfold-c/cbindgen.toml.
 */
#ifndef ICID_H
#define ICID_H

#include <nvfold.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Opens a file, as nvfold_open. With O_CREAT there is a third argument, the mode; without it none is needed.
 * -1 as for nvfold_open; ENODEV when neither ICID_init nor ICID_DEVICE says which device.
 */
int ICID_open(const char *path, int oflag, ...);

/**
 * Opens the device that the calls of this header are about, as nvfold_device_open; `options` may be NULL. Returns 0 or -1;
 * EBUSY when one is open already.
 */
int ICID_init(const char *device, const char *options);

/**
 * Closes the device, as nvfold_device_close. Returns 0 or -1; EBADF when none is open.
 */
int ICID_exit(void);

/**
 * The handle of the device, for the calls of nvfold.h that take one; NULL: ENODEV.
 */
nvfold_device *ICID_device(void);

/**
 * Closes a descriptor, as nvfold_close. What is known of copies from the file is forgotten with its last descriptor.
 */
int ICID_close(int fd);

/**
 * Copies memory, as nvfold_memcpy.
 */
void *ICID_memcpy(void *dest, const void *src, size_t len);

/**
 * Compares memory, as nvfold_memcmp. (In the paper it returns void *; memcmp returns an int, of which the sign counts.)
 */
int ICID_memcmp(const void *s1, const void *s2, size_t len);

/**
 * Memory with what the file holds, as nvfold_mmap: a snapshot. What is copied from it, or written as it is, is known to come
 * from the file.
 */
void *ICID_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);

/**
 * Gives back memory of ICID_mmap, as nvfold_munmap.
 */
int ICID_munmap(void *addr, size_t len);

/**
 * Reads, as nvfold_read, and notes where the bytes came from.
 */
ssize_t ICID_read(int fd, void *buf, size_t len);

/**
 * Writes, as nvfold_write. Of bytes that are known to come from a file it is the file's that are named, where they are the
 * same still; the others are stored.
 */
ssize_t ICID_write(int fd, const void *buf, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* ICID_H */
