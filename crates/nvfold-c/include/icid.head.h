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
