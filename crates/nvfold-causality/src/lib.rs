//! I/O causality (ICID): which bytes that are about to be written were copied from which file.
//!
//! The problem: a program reads a file into memory, assembles pieces of it and writes them to another file, and the
//! file system sees only new bytes. The idea is ICID's: follow the copies instead of searching for equal data. Every
//! answer of this crate is a **hint**. The file system compares the bytes before it shares any, so a wrong answer
//! costs a compare and never makes the content of a file wrong.
//!
//! This crate is pure data: no devices, no system calls, no threads, and addresses are only numbers to it. Processes
//! use it (the C library and what `nvfold run` preloads) and so do mounts; the file system itself does not.
//!
//! | file | what |
//! |---|---|
//! | `rec_tree` | [`RecTree`]: which memory of a process came from which file |
//! | `pages` | the pages of a part of the tree and their records; the three variants; eviction |
//! | `tree` | B-tree from a page to its node |
//! | `areas` | mapped memory |
//! | `sources` | the answer to a look-up |
//! | `record` | the 16 bytes of a record |
//! | `files` | the tokens that stand for files in records |
//! | `reserve` | the memory budget of all parts; which memory has no records |
//! | [`anchors`] | finds copies that no record shows, by samples of their content |
//! | [`hint`] | the message by which a process tells a mount's server about a write to come |
//! | `races` | tests of concurrency, under a scheduler (feature `shuttle`) |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod anchors;
mod areas;
mod files;
pub mod hint;
mod pages;
#[cfg(all(test, feature = "shuttle"))]
mod races;
mod rec_tree;
mod record;
mod reserve;
mod sources;
mod tree;

pub use files::FileToken;
pub use pages::Variant;
pub use rec_tree::{RecTree, TreeOptions, TreeStats};
pub use record::PAGE_BYTES;
pub use sources::CopySource;
