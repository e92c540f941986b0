//! Persistence: map a device, store, flush, fence, count and record.
//!
//! (Interface first: the bodies follow. See DESIGN.md section 3.)

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes in one CPU cache line: the unit of flushing.
pub const LINE_BYTES: u64 = 64;
/// Bytes in one block.
pub const BLOCK_BYTES: u64 = 4096;

/// State of bytes that were stored but not flushed.
pub enum Dirty {}
/// State of bytes whose flush was issued but not fenced. Not `Send`: a fence orders its own thread only.
pub struct InFlight(PhantomData<*const ()>);
/// State of bytes that are durable.
pub enum Clean {}

/// A typed handle to bytes on the media: region and offset, never a reference.
#[must_use]
pub struct Pm<'r, T: ?Sized, S> {
    region: &'r Region,
    offset: u64,
    len: u64,
    _state: PhantomData<(S, fn() -> Box<T>)>,
}

/// A pointer that may be stored on media: made only by a [`Clean`] handle.
pub struct PmPtr<T: ?Sized> {
    offset: u64,
    _type: PhantomData<fn() -> Box<T>>,
}

/// Any number of handles in flight whose types and offsets no longer matter; one fence cleans them all.
#[must_use]
#[derive(Default)]
pub struct Flight(PhantomData<Cell<*const ()>>);

/// Receipt of a fenced [`Flight`].
#[must_use]
pub struct Landed(());

/// Something `Region::fence` makes clean: handles, a `Flight`, tuples of up to four of them, `Option`, `Vec`.
pub trait Group {
    /// The same group, clean.
    type Clean;
}

/// Where a device lives: a path (plain file, tmpfs, hugetlbfs, DAX file, device-dax), or `mem:` (memfd).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A file or DAX device.
    Path(PathBuf),
    /// An anonymous memory device.
    Memory,
}

/// What a fence is worth on this device (DESIGN.md section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceLevel {
    /// MAP_SYNC or device-dax: a fence makes data power-safe.
    Dax,
    /// tmpfs, hugetlbfs, memfd: survives the process, not power.
    Memory,
    /// Page cache of a disk file system: `Region::sync` makes data power-safe.
    File,
}

/// One device, mapped: the only way to touch media.
pub struct Region {
    _private: (),
}

/// Why a device could not be opened or grown, or a range could not be touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmemError {
    /// A system call on the device failed.
    #[error("{doing} {device}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Path or `mem:`.
        device: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl PmemError {
    /// The POSIX error number.
    pub fn errno(&self) -> i32 {
        match self {
            PmemError::Io { source, .. } => source.raw_os_error().unwrap_or(5),
        }
    }
}
impl Region {
    #[allow(missing_docs)]
    pub fn unused() -> Option<(Range<u64>, PmPtr<u64>)> { None::<(Range<u64>, PmPtr<u64>)> }
}
#[allow(dead_code)]
fn _bounds<T: FromBytes + IntoBytes + Immutable + KnownLayout>(_: Pm<'_, T, Dirty>) {}
