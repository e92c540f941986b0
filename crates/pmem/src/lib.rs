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
//! | `copy` | streaming copies in AVX-512, AVX2, SSE2 and portable twins |
//! | `flush`, `atomic` | clwb, clflushopt, clflush; 16-byte atomics |
//! | `profile`, `cache` | emulated devices: what they charge, and for which reads |
//! | `counters`, `wear`, `thread` | what was written, flushed and fenced, and how often which block |
//! | `recorder` | every store, flush and fence, and the states a crash could leave |
//! | [`clock`] | time of day, processor time, what is owed to emulated devices |
//! | `schedule` | feature `shuttle`: accesses as points where a test switches threads |
//!
//! All `unsafe` of nvfold's core lives here. The story is told once, in `device`: a mapping is shared memory
//! that other processes could change; no `&mut` to it is ever made, metadata is read by copying and
//! written through atomics, and `&[u8]` is handed out only for bytes that copy on write keeps as they are.
#![warn(missing_docs)]

mod atomic;
mod cache;
pub mod clock;
mod copy;
mod counters;
mod device;
mod fault;
mod flush;
mod order;
mod prefetch;
mod profile;
mod recorder;
mod region;
#[cfg(feature = "shuttle")]
mod schedule;
mod thread;
mod wear;

pub use counters::Counters;
pub use device::{DeviceSpec, FlushMode, Keeper, OpenOptions, PersistenceLevel, PmemError};
pub use order::{Clean, Dirty, Flight, Group, InFlight, Landed, Pm, PmPtr};
pub use prefetch::prefetch;
pub use profile::{Profile, ProfileError};
pub use recorder::{Action, Event, Pending, PendingWord, Recording, Replay, Site, StoreOrder};
pub use region::Region;
#[cfg(feature = "shuttle")]
pub use schedule::switch_threads_at_media;
pub use wear::WearSummary;

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
