//! The commands, one file for each: its arguments, its work, its report.

pub mod bench;
pub mod completions;
pub mod dedup;
pub mod dedup_stats;
pub mod df;
pub mod du;
pub mod estimate;
pub mod export;
pub mod fsck;
pub mod import;
pub mod info;
pub mod man;
pub mod mkfs;
pub mod mount;
pub mod policy;
pub mod reclaim;
pub mod run;
pub mod stats;
pub mod sync;
pub mod top;
mod trees;
pub mod tune;
pub mod umount;
pub mod verify;
