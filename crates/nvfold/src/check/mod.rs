//! fsck (to be filled).
