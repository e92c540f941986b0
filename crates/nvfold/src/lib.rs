//! nvfold: a deduplicating file system for persistent memory and storage at memory speed.
//!
//! This crate is the file system itself, without a front end: it has no FUSE code, and no thread that it starts
//! outlives the call (a mount scans its tables with several). A program embeds it through [`FileSystem`] (names) and
//! [`File`] (bytes).
//!
//! # The rooms, in reading order (arrows go down, never up: `tests/tests/rooms.rs`)
//!
//! | room | its task |
//! |---|---|
//! | [`host`] | trees of the host's file systems: import, export, verify, estimate; the only room that makes OS calls |
//! | `api` | [`FileSystem`] and [`File`]: the only interface to the rooms below; waits for space or recovery |
//! | [`check`] | the numbered invariants as code (fsck) |
//! | `mount` | mkfs, mounting, recovery after a crash |
//! | `fs` | the operations; the only room that knows names, files and dedup |
//! | [`dedup`] | decides whether to share or to store |
//! | `inode` | inodes: their table, logs, directories, extents |
//! | [`chunk`] | chunk table, references, dedup transactions, index |
//! | `space` | segments, block allocation, giving memory back |
//! | [`media`] | the bytes on the device |
//! | [`chunking`], [`compression`], [`fingerprint`], `words` | pure functions of bytes; the shared vocabulary |
//! | `error`, `padded`, `parallel`, `sync` | errors; what all rooms use of threads, locks and cache lines |
//! | `panics` | contains panics in work beside the calls |
//! | `serial` | types that are serialized as their names (feature `serde`) |
//! | `refusals` | counts changes that were refused because of a mistake in nvfold |
//! | `races` | tests that switch threads at every access (feature `shuttle`) |
//!
//! To follow one write: ARCHITECTURE.md, "One write".
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
pub mod check;
pub mod chunk;
pub mod chunking;
pub mod compression;
pub mod dedup;
mod error;
pub mod fingerprint;
mod fs;
pub mod host;
mod inode;
pub mod media;
mod mount;
mod padded;
mod panics;
mod parallel;
#[cfg(all(test, feature = "shuttle"))]
mod races;
mod refusals;
#[cfg(feature = "serde")]
mod serial;
mod space;
mod sync;
mod words;

pub use api::{Daemon, File, FileSystem, Origin, Stats};
pub use chunk::transaction::Generators;
pub use compression::{COMPRESSION_ATTRIBUTE, Compression};
pub use dedup::auto::options::{AutoOptions, AutoStats, Chosen, Estimate, Prefer, Reason};
pub use dedup::denova::options::{DeNovaOptions, DeNovaStats, DedupMode};
pub use dedup::nv_dedup::options::{Costs, Method, MethodChoice, NvDedupOptions, NvDedupStats, Thresholds};
pub use dedup::policy::{POLICY_ATTRIBUTE, Pack, Policy, PolicyOf, PolicyStats, Verify};
pub use dedup::stream::{Classes, DeExtOptions, Mean};
pub use error::{Error, Result, errno};
pub use fs::UndedupPlan;
pub use mount::{MkfsOptions, MountOptions, Recovery, Share, convert_index, read_superblock};
#[cfg(not(feature = "shuttle"))]
pub use panics::panic_is_contained;
pub use space::SegmentWear;
pub use space::reclaim::Victims;
#[cfg(not(feature = "shuttle"))]
pub use sync::{locked_instructions, number_this_thread};
pub use words::*;

// The README's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
