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
//! | `trees` | operations on a directory with all below it: cloning, removing |
//! | `jobs` | work beside the calls: what policies defer, sharing what is stored, making space |
//! | `fs` | names and files: the operations |
//! | `store` | the transaction: what a change stores, claims, publishes and releases |
//! | `dedup` | decides whether to share or to store |
//! | `inode` | inodes: their table, logs, directories, extents |
//! | `chunk` | chunk table, references, dedup transactions, index |
//! | `space` | segments, block allocation, giving memory back |
//! | `media` | the bytes on the device |
//! | `chunking`, `compression`, `fingerprint`, `words` | pure functions of bytes; the shared vocabulary |
//! | `error`, `parallel` | errors; several threads for one table. Locks and atomics: crate `nvfold-sync` |
//! | `panics` | contains panics in work beside the calls |
//! | `serial` | types that are serialized as their names (feature `serde`) |
//! | `refusals` | counts changes that were refused because of a mistake in nvfold |
//! | [`internals`] | the names of inner rooms that tests and the laboratory need |
//! | `races` | tests that switch threads at every access (feature `shuttle`) |
//!
//! Every name that leaves the crate is listed below: for all programs at the root, for those that bring their own
//! policy in [`custom_policy`].
//!
//! To follow one write: ARCHITECTURE.md, "One write".
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(all(test, not(feature = "papers")))]
compile_error!("the tests need the functions of the papers: cargo test -p nvfold --features papers");

mod api;
pub mod check;
mod chunk;
mod chunking;
mod compression;
mod dedup;
mod error;
mod fingerprint;
mod fs;
pub mod host;
mod inode;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod internals;
mod jobs;
mod media;
mod mount;
mod panics;
mod parallel;
#[cfg(all(test, feature = "shuttle"))]
mod races;
mod refusals;
#[cfg(feature = "serde")]
mod serial;
mod space;
mod store;
mod trees;
mod words;

// Devices: how they are made, mounted and described.
pub use media::superblock::Superblock;
pub use media::{BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN};
pub use mount::{MkfsOptions, MountOptions, Recovery, Resized, Share, convert_index, grow, read_superblock, resize};
pub use words::{Clock, IndexKind, Stopwatch};

// Names and bytes: the operations, and the words in which they speak.
pub use api::{AtRest, Daemon, File, FileSystem, Origin};
pub use words::{AllocateMode, Attr, DirEntry, FileKind, InodeNumber, MappedExtent, NewInode, RenameMode, SetAttr};
pub use words::{StatFs, TimeNs, Times, Whence, XattrChange, XattrMode};

// Trees: a directory with all that is below it.
pub use trees::{CloneCaller, CloneOptions, CloneProgress, Cloned, Difference, Snapshot, SnapshotUsage};
pub use words::{ExpiredTree, LimitedTree, Limits, SNAPSHOTS};

// Errors.
pub use error::{Error, Result, errno};
#[cfg(not(feature = "shuttle"))]
pub use panics::panic_is_contained;

// Policies: which there are, their options, and what a directory can be given.
pub use chunk::generators::Generators;
pub use chunking::{Chunker, PieceLengths};
pub use compression::{COMPRESSION_ATTRIBUTE, Compression};
pub use dedup::ORIGIN_BYTES_MIN_RANGE;
pub use dedup::auto::options::{AutoOptions, Prefer};
pub use dedup::denova::options::{DeNovaOptions, DedupMode};
pub use dedup::nv_dedup::options::{Costs, Method, MethodChoice, NvDedupOptions, Thresholds};
pub use dedup::policy::{POLICY_ATTRIBUTE, Pack, Policy, PolicyOf, Verify};
pub use dedup::stream::{Classes, DeExtOptions, Mean};
pub use fingerprint::{StrongFunction, WeakFunction};
pub use space::reclaim::Victims;
pub use words::ReorderOptions;

// What was done: statistics.
pub use api::Stats;
pub use dedup::auto::options::{AutoStats, Chosen, PolicyEstimate, Reason};
pub use dedup::denova::options::DeNovaStats;
pub use dedup::nv_dedup::options::NvDedupStats;
pub use dedup::policy::PolicyStats;
pub use jobs::UndedupPlan;
pub use space::SegmentWear;
pub use words::{FileId, IndexStats, OriginStats, Panicked, ReclaimStats, Refused, Removed, Removing, Reshared};
pub use words::{Skipped, Usage};

/// What a program needs to bring its own policy ([`MountOptions::custom_policy`]). `tests/tests/toy_policy/` is one in
/// a single file.
pub mod custom_policy {
    // A policy, and what it decides about.
    pub use crate::dedup::{Dedup, Looks, NewChunk, Piece, Place, Places, PolicyDevice};
    pub use crate::fingerprint::Fingerprint;

    // The chunk table, where references are taken.
    pub use crate::chunk::reference::Reference;
    pub use crate::chunk::transaction::Transaction;
    pub use crate::chunk::{Chunks, Released};
    pub use crate::media::{BlockNumber, ChunkRef, PackedNumber};

    // Work in the background.
    pub use crate::chunk::reference::Hold;
    pub use crate::dedup::work::{
        Batch, Fate, Filled, Finder, Host, Left, ShareRequest, Shared, Stored, Token, Unfingerprinted,
    };
}

// The examples of the README and of the crate's own are compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
