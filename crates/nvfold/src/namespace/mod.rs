//! Names and what they stand for: inode slots, the log of each inode, directories.

pub mod directory;
pub mod log;
pub mod table;
