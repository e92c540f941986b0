//! nvfold: a deduplicating file system for persistent memory and storage at memory speed.
//!
//! This crate is the file system itself, without a front end: it knows nothing of FUSE, and no thread of its own
//! outlives a call (a mount scans its tables with several). A program embeds it through [`FileSystem`] (names) and [`File`] (bytes).
//!
//! # The rooms, in reading order (arrows go down, never up)
//!
//! | room | question it answers |
//! |---|---|
//! | [`host`] | whole trees between the host's file systems and one of ours; what sharing would save there; the only room that makes OS calls |
//! | `fs` | the operations; the only room that knows names, files and dedup |
//! | `recovery`, [`check`] | mount after a crash; the numbered invariants as code (fsck) |
//! | [`dedup`] | share or store? |
//! | `namespace` | inode table, inode logs, directories |
//! | `file` | extents |
//! | [`chunk`] | chunk table, references, dedup transactions, index |
//! | `space` | segments, block allocation, giving memory back |
//! | [`chunking`], [`fingerprint`] | pure functions of bytes |
//! | [`media`] | the bytes on the device |
//!
//! To follow one write: [`File::write_at`], then `fs::data`, `dedup::inline`, `chunk`, `fs::commit`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod check;
pub mod chunk;
pub mod chunking;
pub mod dedup;
mod error;
mod file;
pub mod fingerprint;
mod fs;
pub mod host;
pub mod media;
mod namespace;
mod padded;
mod parallel;
#[cfg(all(test, feature = "shuttle"))]
mod races;
mod recovery;
mod space;
mod sync;
mod types;

pub use error::{Error, Result, errno};
pub use fs::{Daemon, File, FileSystem, UndedupPlan};
pub use recovery::{convert_index, read_superblock};
#[cfg(not(feature = "shuttle"))]
pub use sync::locked_instructions;
pub use types::*;

// The README's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
