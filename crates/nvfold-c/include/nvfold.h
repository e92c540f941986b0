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

/**
 * What a device holds, in bytes. Later versions may have more fields behind these.
 */
struct nvfold_stats {
  /**
   * Size of the device.
   */
  uint64_t device_bytes;
  /**
   * What all files hold: what would be stored without sharing and compression.
   */
  uint64_t logical_bytes;
  /**
   * What data takes on the device, in whole blocks and packed pieces.
   */
  uint64_t stored_bytes;
  /**
   * Saved by sharing, less what is stored and in no file any more: logical - stored - compressed away.
   */
  uint64_t saved_bytes;
  /**
   * Saved by compression.
   */
  uint64_t compressed_away_bytes;
  /**
   * Tables, logs, directories and attributes in use.
   */
  uint64_t metadata_bytes;
  /**
   * Free.
   */
  uint64_t free_bytes;
  /**
   * Shared since the device was opened because it was known where the bytes had been copied from (policies icid,
   * icid+inline and icid+deext; see nvfold_memcpy).
   */
  uint64_t shared_by_origin_bytes;
  /**
   * Set aside for tables, and not in use.
   */
  uint64_t reserved_bytes;
};

/**
 * The limits of the tree that a file or directory is charged to, and what it uses of them. Later versions may have
 * more fields behind these.
 */
struct nvfold_limits {
  /**
   * Number of the directory that has the limits; 0 when there is none, and all else is 0 then.
   */
  uint64_t top;
  /**
   * Logical bytes that the files of the tree may have, without holes; 0: no limit.
   */
  uint64_t limit_bytes;
  /**
   * Logical bytes that they have.
   */
  uint64_t used_bytes;
  /**
   * Inodes that the tree may have, with its directory; 0: no limit.
   */
  uint64_t limit_inodes;
  /**
   * Inodes that it has.
   */
  uint64_t used_inodes;
  /**
   * When a mount removes the tree, in nanoseconds since 1970; 0: never.
   */
  int64_t expires_ns;
  /**
   * 1 while files that were there before the limits are still being counted, else 0.
   */
  uint64_t is_being_charged;
};

/**
 * An entry of a directory.
 */
struct nvfold_dirent {
  /**
   * Number of the inode.
   */
  uint64_t d_ino;
  /**
   * For nvfold_seekdir: to go on behind this entry. Stable as long as the entry is there.
   */
  int64_t d_off;
  /**
   * Bytes of the name.
   */
  uint16_t d_namlen;
  /**
   * DT_REG, DT_DIR, DT_LNK, ...
   */
  uint8_t d_type;
  /**
   * The name, which ends in NUL.
   */
  char d_name[256];
};

/**
 * Opens a device: a file, a DAX file, a device-dax node, or "mem:" for memory that lives as long as the handle.
 *
 * `options`: NULL, or a list such as "size=1G,create,policy=inline":
 *
 *   create         make and format the device when there is none, or an empty file; needs size=
 *   format         format it whatever it holds: everything on it is lost
 *   size=SIZE      size of a new device in bytes, or with K, M, G, T (powers of 1024); mem: needs it
 *   ro             change nothing; the device is not recovered either
 *   policy=NAME    which dedup system places new data, as with `nvfold mount -o policy=`
 *   origins=on     follow where bytes are copied from, for files and directories with a policy of their own that shares
 *                  them; auto, unless given: when the policy of the device does
 *   label=, index=, pack=, compress=, mode=, profile=, discard, nodiscard, threads=
 *                  as with `nvfold mkfs` and `nvfold mount`
 *
 * After a crash the device is recovered. A thread works beside the program until the device is closed: it does what a
 * mount does in the background. Files that are made belong to the effective user and group of the process, and the umask
 * that it has now applies to them (see nvfold_umask).
 *
 * Returns the handle, or NULL: EBUSY when another process (or this one) has it open; EINVAL for wrong options and for what
 * holds no nvfold; ENOENT, EACCES, EROFS, EIO.
 */
nvfold_device *nvfold_device_open(const char *path, const char *options);

/**
 * Closes a device cleanly: everything acknowledged is on it, and the next one to open it has nothing to
 * recover. Calls of other threads that are under way end first. Descriptors and directories that are open on it are
 * closed; mappings stay, until they are unmapped.
 *
 * A device that is open when the process ends by exit() or by returning from main is closed then.
 *
 * Returns 0, or -1: EBADF; EIO and others when the device failed, which is as after a crash then. The handle is gone in any
 * case.
 */
int nvfold_device_close(nvfold_device *device);

/**
 * Makes everything acknowledged durable, on the whole device, all or nothing. It costs something on devices in plain files
 * alone; there it happens by itself too, a second after the changes stop, and every 5 s.
 */
int nvfold_sync(nvfold_device *device);

/**
 * Physical space: copying data that is there hardly changes it.
 */
int nvfold_statvfs(nvfold_device *device, struct statvfs *space);

/**
 * What the device holds and what sharing saves. `size` is sizeof(struct nvfold_stats), by which later versions know how much
 * of it the program has.
 */
int nvfold_stats(nvfold_device *device, struct nvfold_stats *stats, size_t size);

/**
 * Sets the permission bits that files made on this device from now on do not get; returns those of before, or (mode_t)-1.
 * The umask of the process counted when the device was opened, and does not count any more.
 */
mode_t nvfold_umask(nvfold_device *device, mode_t mask);

/**
 * A sentence about the last call of this thread that failed: what was being done, to what, why it failed, and often what to
 * do. It is valid until the next call of this thread fails. Never NULL; empty when none has failed. errno is as the call
 * left it.
 */
const char *nvfold_last_error(void);

/**
 * The version of the library, for example "0.1.0".
 */
const char *nvfold_version(void);

/**
 * Opens a file, as open(2). A directory can be opened with O_RDONLY, for nvfold_openat, nvfold_fstat and the like.
 *
 * `flags`: O_RDONLY, O_WRONLY or O_RDWR, and of O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_SYNC and
 * O_DSYNC any; others mean nothing here, but O_PATH and O_TMPFILE, which are EOPNOTSUPP. With O_CREAT `mode` is that of a
 * new file, less the umask (nvfold_umask); without it anything.
 *
 * Returns a descriptor, which is none of the kernel's (2^30 or above), or -1: ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP,
 * EROFS, ENOSPC, EINVAL, EMFILE, EOPNOTSUPP for what is neither a file nor a directory.
 */
int nvfold_open(nvfold_device *device, const char *path, int flags, mode_t mode);

/**
 * As nvfold_open; a path that does not begin with a / is relative to the open directory `directory`.
 */
int nvfold_openat(int directory, const char *path, int flags, mode_t mode);

/**
 * Closes a descriptor. The number is EBADF from then on; it comes back after more than 1000 others only. What is known of
 * copies from the file is forgotten with its last descriptor.
 */
int nvfold_close(int fd);

/**
 * Another descriptor of the same open file: position and flags are shared.
 */
int nvfold_dup(int fd);

/**
 * Reads `length` bytes at the position, which moves behind them. Returns the bytes read: fewer only at the end of the
 * file, and 2147479552 at most. A read sees a write of another thread completely or not at all.
 * -1: EBADF, EISDIR, EFAULT, EINVAL (more than SSIZE_MAX), EIO.
 */
ssize_t nvfold_read(int fd, void *buffer, size_t length);

/**
 * Writes `length` bytes (2147479552 at most) at the position, which moves behind them; of a file that is open with
 * O_APPEND at its end. All of it happens, or nothing; two appends never mix.
 * -1: EBADF, EFAULT, EINVAL, EFBIG, ENOSPC, EROFS, EIO.
 */
ssize_t nvfold_write(int fd, const void *buffer, size_t length);

/**
 * As nvfold_read, at an offset; the position stays.
 */
ssize_t nvfold_pread(int fd, void *buffer, size_t length, off_t at);

/**
 * As nvfold_write, at an offset; the position stays. With O_APPEND too it writes at the offset, as POSIX says (and Linux
 * does not).
 */
ssize_t nvfold_pwrite(int fd, const void *buffer, size_t length, off_t at);

/**
 * As nvfold_read, into `count` buffers (1024 at most), one after the other. It is one read.
 */
ssize_t nvfold_readv(int fd, const struct iovec *buffers, int count);

/**
 * As nvfold_write, from `count` buffers (1024 at most), one after the other. It is one write, atomic as a whole.
 */
ssize_t nvfold_writev(int fd, const struct iovec *buffers, int count);

/**
 * As nvfold_readv, at an offset; the position stays.
 */
ssize_t nvfold_preadv(int fd, const struct iovec *buffers, int count, off_t at);

/**
 * As nvfold_writev, at an offset; the position stays.
 */
ssize_t nvfold_pwritev(int fd, const struct iovec *buffers, int count, off_t at);

/**
 * Moves the position, as lseek(2): SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE. Returns it.
 * -1: EINVAL, EOVERFLOW, ENXIO (no data, or no file, behind the offset), EISDIR.
 */
off_t nvfold_lseek(int fd, off_t at, int whence);

/**
 * What is known of an open file. st_dev tells the open devices of this process apart, st_blksize is 4096, and st_blocks
 * counts what is shared in every file that names it.
 */
int nvfold_fstat(int fd, struct stat *stat);

/**
 * Sets the size; growing leaves a hole. EINVAL when it is not open for writing.
 */
int nvfold_ftruncate(int fd, off_t length);

/**
 * Reserves, zeroes or frees a range, as fallocate(2): `mode` is 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it,
 * or FALLOC_FL_ZERO_RANGE with it or without. EOPNOTSUPP for others.
 */
int nvfold_fallocate(int fd, int mode, off_t at, off_t length);

/**
 * Makes all that was written durable (of the whole device, all or nothing).
 */
int nvfold_fsync(int fd);

/**
 * The same as nvfold_fsync.
 */
int nvfold_fdatasync(int fd);

/**
 * Sets the permission bits.
 */
int nvfold_fchmod(int fd, mode_t mode);

/**
 * Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them.
 */
int nvfold_fchown(int fd, uid_t owner, gid_t group);

/**
 * Sets the times of access and modification, as futimens(3): NULL for now, UTIME_NOW, UTIME_OMIT.
 */
int nvfold_futimens(int fd, const struct timespec *times);

/**
 * Makes a range of one file name the bytes of another (or of the same one, where they do not overlap): an instant copy, of any
 * bytes, that takes no space until one of the two is written. Whatever the policy. Returns the bytes cloned: fewer than
 * asked for only where the source ends.
 * -1: EBADF (also for a target that is open with O_APPEND), EXDEV when the two are on different devices, EINVAL, EISDIR,
 * EFBIG, ENOSPC.
 */
ssize_t nvfold_clone_range(int source, off_t source_at, int target, off_t target_at, size_t length);

/**
 * Memory with what the file holds from `at` on: a snapshot, made now. What is written to the file later does not show, and
 * what the program stores there (with PROT_WRITE and MAP_PRIVATE) does not reach the file. What lies behind the end of the
 * file is zeros. `address` is a hint that is not followed; `at` is a multiple of 4096.
 *
 * The memory is the process's own: it counts as such, and stays when the descriptor or the device is closed, until it is
 * unmapped.
 *
 * Returns the memory, or MAP_FAILED: EACCES (not open for reading, PROT_EXEC), ENODEV (MAP_SHARED with PROT_WRITE), EINVAL,
 * EOPNOTSUPP (MAP_FIXED), ENOMEM, EBADF.
 */
void *nvfold_mmap(void *address, size_t length, int prot, int flags, int fd, off_t at);

/**
 * Gives back memory of nvfold_mmap, or whole pages of it. EINVAL for any other memory.
 */
int nvfold_munmap(void *address, size_t length);

/**
 * What is known of a file; a link at the end of the path is followed. See nvfold_fstat.
 */
int nvfold_stat(nvfold_device *device, const char *path, struct stat *stat);

/**
 * As nvfold_stat; of a link at the end of the path it tells what the link is.
 */
int nvfold_lstat(nvfold_device *device, const char *path, struct stat *stat);

/**
 * Makes a directory, with the permission bits `mode` less the umask.
 */
int nvfold_mkdir(nvfold_device *device, const char *path, mode_t mode);

/**
 * Removes an empty directory. ENOTEMPTY, ENOTDIR, EINVAL for a path that ends in ".", EBUSY for the root.
 */
int nvfold_rmdir(nvfold_device *device, const char *path);

/**
 * Removes a name of anything but a directory (EISDIR). A file lives on while it is open.
 */
int nvfold_unlink(nvfold_device *device, const char *path);

/**
 * Gives a file another name, as link(2): a link at the end of `path` is not followed. EEXIST, EPERM for a directory, EMLINK.
 */
int nvfold_link(nvfold_device *device, const char *path, const char *new_path);

/**
 * Makes a symbolic link at `path` to `target`, which is taken as it is. EEXIST; ENOENT for an empty target.
 */
int nvfold_symlink(nvfold_device *device, const char *target, const char *path);

/**
 * The target of a symbolic link: `size` bytes of it at most, without a NUL. Returns the bytes put there. EINVAL when it is no
 * link, or `size` is 0.
 */
ssize_t nvfold_readlink(nvfold_device *device, const char *path, void *buffer, size_t size);

/**
 * Renames, in one step. `flags`: 0, RENAME_NOREPLACE (EEXIST when the new name is there), RENAME_EXCHANGE (swap the two),
 * RENAME_WHITEOUT (leave a character device 0:0 at the old name), or the first and the last together.
 * ENOENT, EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL for a directory into itself and for unknown flags, EBUSY for the root.
 */
int nvfold_rename(nvfold_device *device, const char *path, const char *new_path, unsigned int flags);

/**
 * Copies a directory with all that is below it to a new name, as it is at one instant of the call, whatever other threads
 * write meanwhile. No data is copied; it is shared until one of the two changes. Owners, times, attributes, holes and hard
 * links within the tree are kept. The copy is there whole or not at all. EEXIST, ENOENT, ENOTDIR, EINVAL into itself,
 * ENOSPC; ENOMEM when too much is changed meanwhile.
 */
int nvfold_clone_tree(nvfold_device *device, const char *path, const char *new_path);

/**
 * Sets the size of a file; growing leaves a hole.
 */
int nvfold_truncate(nvfold_device *device, const char *path, off_t length);

/**
 * Sets the permission bits.
 */
int nvfold_chmod(nvfold_device *device, const char *path, mode_t mode);

/**
 * Sets owner and group; (uid_t)-1 and (gid_t)-1 leave them.
 */
int nvfold_chown(nvfold_device *device, const char *path, uid_t owner, gid_t group);

/**
 * As nvfold_chown; a link at the end of the path is not followed.
 */
int nvfold_lchown(nvfold_device *device, const char *path, uid_t owner, gid_t group);

/**
 * Sets the times of access and modification: `times` as nvfold_futimens has them, `flags` 0 or AT_SYMLINK_NOFOLLOW.
 */
int nvfold_utimens(nvfold_device *device, const char *path, const struct timespec *times, int flags);

/**
 * Sets the limits of the tree below a directory, in place of those it has: logical bytes of its files (shared or not,
 * without holes), inodes (with the directory), and the time in nanoseconds since 1970 at which a mount removes the
 * tree. For each, 0 is no limit; with three zeros the directory has no limits of its own any more. What is there
 * already is counted before the call returns; limits below that are allowed. What would exceed a limit fails with
 * EDQUOT; names cannot be moved or linked into another tree (EXDEV). ENOENT, ENOTDIR, EROFS, EINVAL for a negative
 * time.
 */
int nvfold_set_limits(nvfold_device *device, const char *path, uint64_t limit_bytes, uint64_t limit_inodes, int64_t expires_ns);

/**
 * The limits that apply at a path, and what is used of them: those of the nearest directory above that has limits.
 * `size` is sizeof(struct nvfold_limits), by which later versions know how much of it the program has.
 */
int nvfold_limits(nvfold_device *device, const char *path, struct nvfold_limits *limits, size_t size);

/**
 * Begins to read a directory. Returns a handle for nvfold_readdir, or NULL: ENOENT, ENOTDIR, ...
 */
nvfold_dir *nvfold_opendir(nvfold_device *device, const char *path);

/**
 * Puts the next entry into `entry`; returns 1, or 0 at the end, or -1 (EBADF, EFAULT, EIO). The entries "." and ".." are not
 * among them. While others make and remove names, a name that stays is listed exactly once, and what is made after
 * nvfold_opendir is not listed. Threads that read one handle get each entry once among them.
 */
int nvfold_readdir(nvfold_dir *directory, struct nvfold_dirent *entry);

/**
 * Goes on behind the entry of which `position` is the d_off; 0: from the start, with what is there now.
 */
int nvfold_seekdir(nvfold_dir *directory, int64_t position);

/**
 * The position: d_off of the entry that was read last, 0 at the start. -1: EBADF.
 */
int64_t nvfold_telldir(nvfold_dir *directory);

/**
 * Ends reading a directory. EBADF.
 */
int nvfold_closedir(nvfold_dir *directory);

/**
 * The value of an extended attribute; returns its bytes. With `size` 0 nothing but that. ENODATA, ERANGE.
 *
 * Two mean something to nvfold, as on a mount: "user.nvfold.dedup" (the policy for new data of a file, or of what is made in
 * a directory) and "user.nvfold.compress".
 */
ssize_t nvfold_getxattr(nvfold_device *device, const char *path, const char *name, void *value, size_t size);

/**
 * Sets an extended attribute: any name of 1 to 255 bytes, `size` bytes of value, 65536 at most. `flags`: 0, XATTR_CREATE
 * (EEXIST when it is there), XATTR_REPLACE (ENODATA when it is not). E2BIG, ERANGE, ENOSPC, EINVAL.
 */
int nvfold_setxattr(nvfold_device *device, const char *path, const char *name, const void *value, size_t size, int flags);

/**
 * The names of all extended attributes, each with a NUL behind it; returns the bytes of all. With `size` 0 nothing but
 * that. ERANGE.
 */
ssize_t nvfold_listxattr(nvfold_device *device, const char *path, void *names, size_t size);

/**
 * Removes an extended attribute. ENODATA.
 */
int nvfold_removexattr(nvfold_device *device, const char *path, const char *name);

/**
 * As nvfold_getxattr, of an open file.
 */
ssize_t nvfold_fgetxattr(int fd, const char *name, void *value, size_t size);

/**
 * As nvfold_setxattr, of an open file.
 */
int nvfold_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);

/**
 * As nvfold_listxattr, of an open file.
 */
ssize_t nvfold_flistxattr(int fd, void *names, size_t size);

/**
 * As nvfold_removexattr, of an open file.
 */
int nvfold_fremovexattr(int fd, const char *name);

/**
 * Copies memory, as memmove(3): the two may overlap, or be the same. Returns `target`; NULL for NULL (EFAULT) and for more
 * than SSIZE_MAX bytes (EINVAL), when nothing is copied.
 *
 * On a device that follows origins (policy=icid, icid+inline or icid+deext) it is known then that the copy comes from where
 * its source came from: nvfold_read and nvfold_mmap, and copies of that. When it is written by nvfold_write or one of its
 * kind, bytes that are still those of the file are shared with it instead of stored. What the program changes by other means
 * is found by comparing. What was read through a descriptor is followed until that is closed, what was mapped until it
 * is unmapped.
 */
void *nvfold_memcpy(void *target, const void *source, size_t length);

/**
 * The same as nvfold_memcpy.
 */
void *nvfold_memmove(void *target, const void *source, size_t length);

/**
 * Compares memory, as memcmp(3): below, equal to or above 0. INT_MIN, with errno, for NULL (EFAULT) and for more than
 * SSIZE_MAX bytes (EINVAL): what cannot be compared is not equal.
 */
int nvfold_memcmp(const void *one, const void *other, size_t length);

#ifdef __cplusplus
}
#endif

#endif /* NVFOLD_H */
