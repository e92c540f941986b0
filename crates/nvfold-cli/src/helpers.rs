//! The names of helper programs, which mount(8), umount(8), mkfs(8) and fsck(8) look for.

/// The names of helper programs, and the command that each stands for.
pub(crate) const HELPERS: [(&str, &str); 7] = [
    ("mkfs.nvfold", "mkfs"),
    ("mount.nvfold", "mount"),
    ("mount.fuse.nvfold", "mount"),
    ("umount.nvfold", "umount"),
    ("umount.fuse.nvfold", "umount"),
    ("fsck.nvfold", "fsck"),
    ("fsck.fuse.nvfold", "fsck"),
];
