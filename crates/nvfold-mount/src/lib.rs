//! Mounts a [`FileSystem`](nvfold::FileSystem) on a directory, by FUSE: with this crate a Rust program shows what it
//! embeds to all other programs.
//!
//! [`Mount::new`] mounts and starts the threads that answer the kernel; [`Mount::unmount`], or dropping it, takes the
//! mount down. The program keeps its own handle of the file system and can go on using it meanwhile. `examples/mount.rs`
//! is a whole program.
//!
//! ```text
//! FileSystem -> mount(2) or fusermount3 -> handshake -> threads -> Mount
//!   threads: those that answer the kernel (nvfold_fuse), one for housekeeping (`housekeeping`), one that shares what is
//!            queued and fills in fingerprints (`daemon`), one that watches whether the mount is read-only (`access`);
//!            after a crash one that reconciles until it is done (`reconcile`)
//! unmounted -> nameless files freed, threads ended -> the program unmounts the FileSystem, which leaves the device clean
//! ```
//!
//! The mount needs root, or fusermount3 (package fuse3) and /dev/fuse. `umount DIR` and `fusermount3 -u DIR` end it, as a
//! program that calls `Mount::wait` sees. `nvfold umount` waits for the end of the process, too.
//!
//! | module | content |
//! |---|---|
//! | `mount` | [`Mount`]: what it is made of, how it ends |
//! | `connection` | [`Connection`]: a mount that another process serves |
//! | `front` | requests of the kernel become calls of the library |
//! | `handshake` | what is agreed with the kernel |
//! | `protocol_page` | a test: docs/semantics.md says what of the protocol is answered |
//! | [`requests`], `settings` | what commands ask of a mount, by extended attributes |
//! | [`clones`], `moves` | clones of trees: what a command asks; what moves meanwhile |
//! | [`backups`], `image` | what a command asks for a backup; the device as it was at one moment |
//! | [`snapshots`] | what a command asks about snapshots, and about what two files share |
//! | [`limits`] | what a command asks about the limits of trees, and sets |
//! | [`growth`] | the question of a command that makes the file system longer |
//! | `access`, `daemon`, `housekeeping`, `reconcile`, `background` | threads beside the requests |
//! | `shortages`, `switches` | what runs short, and what policies choose: told once |
//! | `notices` | what the server tells the kernel on its own initiative |
//! | `lookups`, `pages`, `hints`, `syncs`, `turns` | what is remembered between requests, all of it bounded |
//! | `acl`, `rights`, `convert` | ACLs, and what a user may do by them; conversions between the types of FUSE and of the library |
//! | `options`, `reports`, `events`, `counters`, `latencies`, `memory`, [`mounts`] | options, reports, counts, times; limits; the mount table |
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod access;
mod acl;
mod background;
pub mod backups;
pub mod clones;
mod connection;
mod convert;
mod counters;
mod daemon;
mod events;
mod front;
pub mod growth;
mod handshake;
mod hints;
mod housekeeping;
mod image;
mod latencies;
pub mod limits;
mod lookups;
mod memory;
mod mount;
pub mod mounts;
mod moves;
mod notices;
mod options;
mod pages;
#[cfg(test)]
mod protocol_page;
mod reconcile;
mod reports;
pub mod requests;
mod rights;
mod settings;
mod shortages;
pub mod snapshots;
mod switches;
mod syncs;
mod turns;

pub use connection::Connection;
pub use counters::{Counters, Requests};
pub use events::{Event, Room};
pub use latencies::Latency;
pub use mount::{Error, Flusher, Mount};
pub use options::{Cache, Options, WantedTransport};
pub use reports::{METRICS_ATTRIBUTE, REPORT_ATTRIBUTE, Reader, Reports, USAGE_ATTRIBUTE};
pub use rustix::mount::MountFlags;
pub use settings::Setting;

// The example is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
