//! Limits of trees.

use super::{DeviceHandle, OutLimits};
use crate::caller::CText;
use crate::failure::call;
use crate::names::Name;
use nvfold::LimitedTree;
use std::ffi::c_int;

/// The limits of the tree that a file or directory is charged to, and what it uses of them. Later versions may have
/// more fields behind these.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Limits {
    /// Number of the directory that has the limits; 0 when there is none, and all else is 0 then.
    pub top: u64,
    /// Logical bytes that the files of the tree may have, without holes; 0: no limit.
    pub limit_bytes: u64,
    /// Logical bytes that they have.
    pub used_bytes: u64,
    /// Inodes that the tree may have, with its directory; 0: no limit.
    pub limit_inodes: u64,
    /// Inodes that it has.
    pub used_inodes: u64,
    /// When a mount removes the tree, in nanoseconds since 1970; 0: never.
    pub expires_ns: i64,
    /// 1 while files that were there before the limits are still being counted, else 0.
    pub is_being_charged: u64,
}

impl Limits {
    fn of(tree: LimitedTree) -> Limits {
        Limits {
            top: tree.top.0,
            limit_bytes: tree.limits.logical_bytes.unwrap_or(0),
            used_bytes: tree.logical_bytes,
            limit_inodes: tree.limits.inodes.unwrap_or(0),
            used_inodes: tree.inodes,
            expires_ns: tree.limits.expires.unwrap_or(0),
            is_being_charged: tree.is_being_charged.into(),
        }
    }
}

/// Sets the limits of the tree below a directory, in place of those it has: logical bytes of its files (shared or not,
/// without holes), inodes (with the directory), and the time in nanoseconds since 1970 at which a mount removes the
/// tree. For each, 0 is no limit; with three zeros the directory has no limits of its own any more. What is there
/// already is counted before the call returns; limits below that are allowed. What would exceed a limit fails with
/// EDQUOT; names cannot be moved or linked into another tree (EXDEV). ENOENT, ENOTDIR, EROFS, EINVAL for a negative
/// time.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_set_limits(
    device: DeviceHandle,
    path: CText<'_>,
    limit_bytes: u64,
    limit_inodes: u64,
    expires_ns: i64,
) -> c_int {
    call("nvfold_set_limits", || {
        let (device, path) = (device.device()?, path.bytes()?);
        Name::of_root(&device, path).set_limits(limit_bytes, limit_inodes, expires_ns).map(|()| 0)
    })
}

/// The limits that apply at a path, and what is used of them: those of the nearest directory above that has limits.
/// `size` is sizeof(struct nvfold_limits), by which later versions know how much of it the program has.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_limits(
    device: DeviceHandle,
    path: CText<'_>,
    mut limits: OutLimits<'_>,
    size: usize,
) -> c_int {
    call("nvfold_limits", || {
        let (device, path) = (device.device()?, path.bytes()?);
        limits.check()?;
        let tree = Name::of_root(&device, path).limited_tree()?;
        limits.put_prefix(tree.map(Limits::of).unwrap_or_default(), size).map(|()| 0)
    })
}
