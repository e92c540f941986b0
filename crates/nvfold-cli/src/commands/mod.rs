//! The commands, one file for each: its arguments, its work, its report.

pub(crate) mod bench;
pub(crate) mod clone;
pub(crate) mod completions;
pub(crate) mod dedup;
pub(crate) mod dedup_stats;
pub(crate) mod df;
pub(crate) mod du;
pub(crate) mod estimate;
pub(crate) mod export;
pub(crate) mod fsck;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod policy;
pub(crate) mod reclaim;
pub(crate) mod remove;
pub(crate) mod run;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod top;
mod trees;
pub(crate) mod tune;
pub(crate) mod umount;
pub(crate) mod verify;
