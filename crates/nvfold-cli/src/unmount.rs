//! Unmounting: by unmount(2), or by fusermount3 for a user other than root.

use crate::utab;
use rustix::mount::UnmountFlags;
use std::path::Path;

/// Calls unmount(2), or fusermount3 if that needs root, and takes the mount out of umount(8)'s table.
pub(crate) fn unmount(dir: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    nvfold_fuse::mount::unmount(dir, flags).inspect(|()| utab::forget(dir))
}
