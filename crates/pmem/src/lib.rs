//! Persistence: map a device, store, flush, fence, count and record.
//!
//! The problem: on persistent memory a store is not durable until its cache line was flushed and a fence has
//! waited for it, and nothing in the language says so. One forgotten flush is a file system that loses data.
//!
//! The idea: [`Region`] is the only way to touch media, and **order is a type**. A write gives a
//! [`Pm`]`<T, Dirty>`; `flush` makes it `InFlight`; [`Region::fence`] makes a whole [`Group`] of those
//! `Clean` with one sfence; and only a `Clean` handle gives a [`PmPtr`], which is what may be stored where
//! it can be reached. (SquirrelFS has this axis and one of operation states; we keep one.)
//!
//! ```text
//! write ---> Dirty --flush--> InFlight --fence--> Clean ---> PmPtr
//! stream -----------------------^
//! ```
//!
//! | module | what |
//! |---|---|
//! | `region` | [`Region`]: loads, stores, atomics, streams, fences |
//! | `fault` | devices that fail under the mapping: SIGBUS becomes a note |
//! | `order` | the handles and their states |
//! | `device` | opening, mapping, locking; what a fence is worth there |
//! | `shared` | what an access to media is to the language: loads, stores and compares of atomic words, and wide ones |
//! | `copy` | streaming copies in AVX-512, AVX2, SSE2 and portable twins |
//! | `runs` | which parts of two ranges are equal, in AVX-512, AVX2 and a portable twin |
//! | [`simd`] | looking for rising bytes in AVX-512, AVX2 and a portable twin (for the chunkers) |
//! | `xxh3` | XXH3-64 of long inputs in AVX-512 (for fingerprints; elsewhere a library makes them) |
//! | `prefetch` | asking for lines of memory before they are needed |
//! | `flush`, `atomic` | clwb, clflushopt, clflush; 16-byte atomics |
//! | `profile`, `cache` | emulated devices: what they charge, and for which reads |
//! | `counters`, `wear`, `thread` | what was written, flushed and fenced, and how often which block and line |
//! | `recorder` | every store, flush and fence, and the states a crash could leave |
//! | `writeback`, `journal`, `host_file` | level `file`: dirty pages, and how a sync brings all of them to the disk or none |
//! | `power_cut` | the states that a power cut could leave at level `file` |
//! | `host` | the system calls about a device, and what stands in for them under Miri |
//! | [`clock`] | time of day, processor time, what is owed to emulated devices |
//! | `schedule` | feature `shuttle`: accesses as points where a test switches threads |
//!
//! All `unsafe` of nvfold's core lives here. The story is told in `device` and `shared`: a mapping is memory that other
//! threads and processes change at any moment, so every access is atomic, and no reference to it is ever given out. No
//! sequence of safe calls is undefined behaviour; `make miri` looks for one.
#![warn(missing_docs)]

mod atomic;
mod cache;
pub mod clock;
mod copy;
mod counters;
mod device;
mod fault;
mod flush;
mod host;
mod host_file;
mod journal;
mod order;
mod power_cut;
mod prefetch;
mod profile;
mod recorder;
mod region;
mod runs;
#[cfg(feature = "shuttle")]
mod schedule;
mod shared;
pub mod simd;
mod thread;
mod wear;
mod writeback;
mod xxh3;

pub use counters::Counters;
pub use device::{DeviceSpec, FlushMode, OpenOptions, PersistenceLevel, PmemError, StoreObserver};
pub use order::{Clean, Dirty, Flight, Group, InFlight, Landed, Pm, PmPtr};
pub use power_cut::{HostEvent, HostImage, PowerCut};
pub use prefetch::{prefetch, prefetch_lines};
pub use profile::{Profile, ProfileError};
pub use recorder::{Action, Event, Pending, PendingWord, Recording, Replay, Site, StoreOrder};
pub use region::Region;
pub use runs::equal_runs;
#[cfg(feature = "shuttle")]
pub use schedule::switch_threads_at_media;
pub use wear::{LineWear, WearSummary};
pub use xxh3::xxh3_64_wide;

/// Bytes in one CPU cache line: the unit of flushing.
pub const LINE_BYTES: u64 = 64;
/// Bytes in one block: the unit of wear counting.
pub const BLOCK_BYTES: u64 = 4096;
/// Largest device: 16 TiB, for media addresses have 44 bits.
pub const DEVICE_BYTES_MAX: u64 = 1 << 44;

/// Random bytes from the operating system (identities of file systems).
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // Interrupted by a signal at worst: the rest is asked for again.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}
