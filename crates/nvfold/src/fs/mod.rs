//! The operations: the only room that knows names, files and dedup.
//!
//! Each operation is a method of [`Core`]; `api` calls them and waits for space or recovery where one asks for it.
//!
//! | file | what |
//! |---|---|
//! | [`core`] | what is behind a mount; how an operation comes in |
//! | `cache` | the inodes that are in DRAM |
//! | `read`, `write`, `range` | bytes: reading, writing, size, reserved space, clones |
//! | `claims`, `publish`, `commit`, `release` | how a change becomes durable and whole, and what it lets go |
//! | `share`, `undedup_plan` | sharing what is stored already, and the way back |
//! | `names`, `rename`, `birth`, `attributes`, `xattr` | inodes and what leads to them |
//! | `compact` | rewriting a log |
//! | `policy` | which policy new data of a file gets |
//! | `background`, `share_queued`, `fill` | what policies put off |
//! | `gate` | keeping operations out for a moment |
//! | [`options`] | how a device is mounted |
//!
//! **Lock order**: gate; a policy's lock of its work under way; tree lock; one directory (several under the tree lock);
//! other inodes by number; then, never held together: inode cache shard, inode table, allocator cursor, allocator search,
//! index shard, journal slot, work queue. A TX_ID generator is taken before any of these and after the inodes.
//! Readers take the inode's lock shared, and a writer keeps it to itself until its commit word is fenced. So readers see
//! only what is fenced, also where DRAM is changed earlier (`publish`).

mod attributes;
mod background;
mod birth;
mod cache;
mod claims;
mod commit;
mod compact;
pub(crate) mod core;
mod fill;
mod gate;
mod names;
pub(crate) mod options;
mod policy;
mod publish;
mod range;
mod read;
mod release;
mod rename;
mod share;
pub(crate) mod share_queued;
mod undedup_plan;
mod write;
mod xattr;

pub(crate) use commit::store_words;
pub(crate) use core::Core;
pub(crate) use names::NAME_BYTES_MAX;
pub(crate) use share::Step;
pub use undedup_plan::UndedupPlan;
