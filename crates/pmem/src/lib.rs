//! Persistence: map a device, store, flush, fence, count and record.
//!
//! The problem: on persistent memory a store is not durable until its cache line is flushed and a fence has waited
//! for the flush, and nothing in the language says so. A single forgotten flush makes the file system lose data.
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
//! | `fault` | devices that fail under the mapping: SIGBUS is recorded instead of ending the process |
//! | `order` | the handles and their states |
//! | `device`, `owner` | opening, mapping, locking; what a fence is worth there; who else holds a device |
//! | `reserved` | address space behind a mapping, into which a device becomes longer |
//! | `descriptor` | the descriptor of a device, which the program may have closed |
//! | `signals` | threads that never run the program's signal handlers |
//! | `shared` | media accesses that the language allows: atomic words, and wide loads, stores and compares |
//! | `copy` | streaming copies in AVX-512, AVX2, SSE2 and portable twins |
//! | `runs` | which parts of two ranges are equal, in AVX-512, AVX2 and a portable twin |
//! | [`simd`] | looking for rising bytes in AVX-512, AVX2 and a portable twin (for the chunkers) |
//! | `xxh3` | XXH3-64 of long inputs in AVX-512 (for fingerprints; on other CPUs a library computes them) |
//! | `prefetch` | asking for lines of memory before they are needed |
//! | `flush`, `atomic` | clwb, clflushopt, clflush; 16-byte atomics |
//! | `profile`, `cache` | emulated devices: what they charge, and for which reads |
//! | `counters`, `wear`, `thread` | what was written, flushed and fenced, and how often which block and line |
//! | `recorder` | every store, flush and fence, and the states a crash could leave |
//! | `writeback`, `journal`, `host_file` | level `file`: dirty pages, and the sync that writes all of them or none |
//! | `cgroup` | level `memory`: room under the memory limits of the process |
//! | `power_cut` | the states that a power cut could leave at level `file` |
//! | `host` | the system calls about a device, and their stand-ins under Miri |
//! | [`clock`] | time of day, processor time, time owed to emulated devices |
//! | `schedule` | feature `shuttle`: accesses as points where a test switches threads |
//!
//! All `unsafe` of nvfold's core lives here. `device` and `shared` contain the safety argument: other threads and
//! processes change mapped memory at any moment, so every access is atomic, and no reference to it is ever given out.
//! No sequence of safe calls is undefined behaviour; `make miri` looks for one.
#![warn(missing_docs)]

mod atomic;
mod cache;
mod cgroup;
pub mod clock;
mod copy;
mod counters;
mod descriptor;
mod device;
mod fault;
mod flush;
mod host;
mod host_file;
mod journal;
mod order;
mod owner;
mod power_cut;
mod prefetch;
mod profile;
mod recorder;
mod region;
mod reserved;
mod runs;
#[cfg(feature = "shuttle")]
mod schedule;
mod shared;
mod signals;
#[cfg(feature = "papers")]
pub mod simd;
mod thread;
mod wear;
mod writeback;
mod xxh3;

pub use cgroup::MemoryLimit;
pub use counters::Counters;
pub use device::{DeviceSpec, FlushMode, OpenOptions, PersistenceLevel, PmemError, StoreObserver, Trust};
pub use order::{Clean, Dirty, Flight, Group, InFlight, Landed, Pm, PmPtr};
pub use power_cut::{HostEvent, HostImage, PowerCut};
pub use prefetch::{prefetch, prefetch_lines};
pub use profile::{Profile, ProfileError};
pub use recorder::{Action, Event, Pending, PendingWord, Recording, Replay, Site, StoreOrder};
pub use region::Region;
pub use runs::equal_runs;
#[cfg(feature = "shuttle")]
pub use schedule::switch_threads_at_media;
pub use signals::with_signals_blocked;
pub use wear::{LineWear, WearSummary};
pub use writeback::SyncErrors;
pub use xxh3::xxh3_64_wide;

/// Bytes in one CPU cache line: the unit of flushing.
pub const LINE_BYTES: u64 = 64;
/// Bytes in one block: the unit of wear counting.
pub const BLOCK_BYTES: u64 = 4096;
/// The largest device has 16 TiB, because media addresses have 44 bits.
pub const DEVICE_BYTES_MAX: u64 = 1 << 44;

/// Returns random bytes from the operating system (used for the identities of file systems).
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // A signal can interrupt the call; the loop then asks for the rest.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

// The example is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
