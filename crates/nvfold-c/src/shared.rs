//! Pages of files that are mapped shared: memory that several mappings of a file have in common, and what keeps it and the
//! file equal. `nvfold run` makes them for MAP_SHARED.
//!
//! The problem: the kernel does not know the file, so a store to a mapping reaches nobody. The idea: the pages of a file are
//! one memory file (memfd), which all its shared mappings map: so they see each other's stores, and what lies after its end
//! is SIGBUS, by the kernel's own hand. The device has the bytes as they were last written back; where the two differ, the
//! program has stored.
//!
//! ```text
//! store              memory file                          (nobody is told)
//! read               device, then what the memory file has of the range
//! write, truncate    device, then the memory file takes over what has changed      `change`
//! write back         blocks that differ: memory file -> device, by ordinary writes  msync, fsync, close, munmap, each second
//! ```
//!
//! A write back that fails (ENOSPC) loses nothing: the pages stay, differ, and are tried again.
//!
//! Lock order: the gate of the file, its pages, the file system. Changes hold the gate shared, and who makes or drops pages
//! holds it alone, so that no change passes by pages that are being filled.
#![forbid(unsafe_code)]

use crate::device::Device;
use crate::failure::{Failure, Outcome};
use crate::written::note_write;
use nvfold::{File, InodeNumber};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are compared, and written where they differ.
const BLOCK_BYTES: u64 = 4096;
/// Bytes that are compared or filled at a time.
const AT_A_TIME: u64 = 1 << 18;
const GATES: usize = 64;

/// Pages by device and file.
static PAGES: RwLock<BTreeMap<(usize, u64), Arc<Pages>>> = RwLock::new(BTreeMap::new());
/// Whether there ever were any. Read after a gate is taken, or where a moment too early does no harm.
static IS_USED: AtomicBool = AtomicBool::new(false);
static GATE: [Gate; GATES] = [const { Gate(RwLock::new(())) }; GATES];

/// Alone in its cache line, for writers of different files take different ones.
#[repr(align(128))]
struct Gate(RwLock<()>);

/// A memory file, as whoever makes mappings of it provides it.
pub struct Memory {
    pub file: std::fs::File,
    /// Called before it is closed.
    pub closing: fn(RawFd),
}

impl Drop for Memory {
    fn drop(&mut self) {
        (self.closing)(self.file.as_raw_fd());
    }
}

/// The pages of a file.
pub struct Pages {
    device: Arc<Device>,
    file: File,
    memory: Memory,
    /// Whether a program may have stored to them.
    is_written: AtomicBool,
    held: Mutex<Held>,
}

/// What the memory file has.
struct Held {
    /// Ranges of the file that were mapped, start and end: whole blocks, apart from each other.
    ranges: BTreeMap<u64, u64>,
    /// Its length: that of the file.
    size: u64,
}

impl Held {
    /// The parts of a range that are here, up to the end of the file.
    fn parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.size);
        let before = self.ranges.range(..range.start).next_back();
        let overlapping = before.into_iter().chain(self.ranges.range(range.start..));
        let parts = overlapping.map(|(from, to)| (*from).max(range.start)..(*to).min(end));
        parts.take_while(|part| part.start < end).filter(|part| part.start < part.end).collect()
    }

    /// Adds a range; returns the parts that were not here.
    fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut new, mut at) = (Vec::new(), range.start);
        let (mut from, mut to) = (range.start, range.end);
        let touching: Vec<(u64, u64)> =
            self.ranges.range(..=range.end).filter(|(_, end)| **end >= range.start).map(|(a, b)| (*a, *b)).collect();
        for (start, end) in touching {
            if start > at {
                new.push(at..start);
            }
            at = at.max(end);
            (from, to) = (from.min(start), to.max(end));
            self.ranges.remove(&start);
        }
        if at < range.end {
            new.push(at..range.end);
        }
        self.ranges.insert(from, to);
        new
    }
}

/// Parts of at most `AT_A_TIME` bytes.
fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(AT_A_TIME as usize).map(move |start| start..(start + AT_A_TIME).min(end))
}

fn on_memory<T>(outcome: io::Result<T>) -> Outcome<T> {
    outcome.map_err(|error| {
        Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("memory of a shared mapping: {error}"))
    })
}

fn gate(device: &Device, ino: InodeNumber) -> &'static RwLock<()> {
    &GATE[(device.handle ^ ino.0 as usize) % GATES].0
}

fn find(device: &Device, ino: InodeNumber) -> Option<Arc<Pages>> {
    if !IS_USED.load(Ordering::Acquire) {
        return None;
    }
    PAGES.read().get(&(device.handle, ino.0)).cloned()
}

/// Returns whether a file has pages.
pub fn has_pages(device: &Device, ino: InodeNumber) -> bool {
    find(device, ino).is_some()
}

/// Returns the pages of a file, which have this range of it then. `memory` makes an empty memory file.
pub fn pages(
    device: &Arc<Device>,
    file: &File,
    range: Range<u64>,
    memory: impl FnOnce() -> Outcome<Memory>,
) -> Outcome<Arc<Pages>> {
    let ino = file.ino();
    let _alone = gate(device, ino).write();
    let pages = match find(device, ino) {
        Some(pages) => pages,
        None => {
            let size = device.run(|_| Ok(file.attr().size))?;
            let memory = memory()?;
            on_memory(memory.file.set_len(size))?;
            let held = Mutex::new(Held { ranges: BTreeMap::new(), size });
            let is_written = AtomicBool::new(false);
            Arc::new(Pages { device: device.clone(), file: file.clone(), memory, is_written, held })
        }
    };
    pages.hold(range)?;
    IS_USED.store(true, Ordering::Release);
    PAGES.write().insert((device.handle, ino.0), pages.clone());
    Ok(pages)
}

/// Makes a change of a file; `operation` says which bytes of it are others now. The size is looked at.
pub fn change<T>(
    device: &Device,
    ino: InodeNumber,
    operation: impl FnOnce() -> Outcome<(T, Range<u64>)>,
) -> Outcome<T> {
    let _gate = gate(device, ino).read();
    let Some(pages) = find(device, ino) else { return operation().map(|(answer, _)| answer) };
    let mut held = pages.held.lock();
    let outcome = operation();
    let changed = outcome.as_ref().map_or(0..0, |(_, changed)| changed.clone());
    pages.take_over(&mut held, &changed)?;
    outcome.map(|(answer, _)| answer)
}

/// Puts what pages of the file have over what was read from the device.
pub fn read_over(device: &Device, ino: InodeNumber, offset: u64, buffer: &mut [u8]) -> Outcome<()> {
    if !IS_USED.load(Ordering::Acquire) {
        return Ok(());
    }
    let _gate = gate(device, ino).read();
    let Some(pages) = find(device, ino) else { return Ok(()) };
    let held = pages.held.lock();
    for part in held.parts(&(offset..offset + buffer.len() as u64)) {
        let room = &mut buffer[(part.start - offset) as usize..(part.end - offset) as usize];
        on_memory(pages.memory.file.read_exact_at(room, part.start))?;
    }
    Ok(())
}

/// Writes the stores to a file back. Returns whether it has any pages.
pub fn write_back(device: &Device, ino: InodeNumber) -> Outcome<bool> {
    if !IS_USED.load(Ordering::Acquire) {
        return Ok(false);
    }
    let _gate = gate(device, ino).read();
    find(device, ino).map_or(Ok(false), |pages| pages.write_back(0..u64::MAX).map(|()| true))
}

/// Writes the stores to all files back, whatever fails; returns the first failure.
pub fn write_back_all() -> Outcome<()> {
    let all: Vec<_> = PAGES.read().values().cloned().collect();
    let outcomes: Vec<_> = all.iter().map(|pages| pages.write_back(0..u64::MAX)).collect();
    all.into_iter().for_each(release);
    outcomes.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}

/// Returns whether a program may still store to pages, or stores were not written back.
pub fn are_written() -> bool {
    PAGES.read().values().any(|pages| pages.is_written.load(Ordering::Relaxed))
}

/// Drops the pages if no mapping has them any more. They stay when their stores cannot be written back.
pub fn release(pages: Arc<Pages>) {
    let (device, ino) = (pages.device.clone(), pages.file.ino());
    drop(pages);
    let _alone = gate(&device, ino).write();
    // All who look for pages hold the gate, so the count is of mappings, and of the table itself.
    let unused = find(&device, ino).filter(|pages| Arc::strong_count(pages) == 2);
    if unused.is_some_and(|pages| pages.write_back(0..u64::MAX).is_ok()) {
        let removed = PAGES.write().remove(&(device.handle, ino.0));
        drop(removed);
    }
}

/// A device is closed: no more is written back to it.
pub fn leave(device: usize) {
    let left: Vec<_> = {
        let mut all = PAGES.write();
        let (left, rest) = std::mem::take(&mut *all).into_iter().partition(|((of, _), _)| *of == device);
        *all = rest;
        let left: BTreeMap<_, _> = left;
        left.into_values().collect()
    };
    drop(left);
}

impl Pages {
    /// Returns the descriptor of the memory file.
    pub fn descriptor(&self) -> RawFd {
        self.memory.file.as_raw_fd()
    }

    /// Notes that a program may store to them from now on.
    pub fn may_be_written(&self) {
        self.is_written.store(true, Ordering::Relaxed);
    }

    /// Makes them have a range too, as when a mapping grows.
    pub fn extend(&self, range: Range<u64>) -> Outcome<()> {
        let _alone = gate(&self.device, self.file.ino()).write();
        self.hold(range)
    }

    /// Makes what was written back durable.
    pub fn sync(&self) -> Outcome<()> {
        self.device.run(|_| Ok(self.file.sync()?))
    }

    fn hold(&self, range: Range<u64>) -> Outcome<()> {
        let mut held = self.held.lock();
        let whole = range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES);
        for new in held.add(whole) {
            self.fill(&held, &new, true)?;
        }
        Ok(())
    }

    /// Fills parts of a range with what the device has. What is new has zeros already, which take no memory.
    fn fill(&self, held: &Held, range: &Range<u64>, is_new: bool) -> Outcome<()> {
        let mut bytes = vec![0; AT_A_TIME.min(range.end.min(held.size).saturating_sub(range.start)) as usize];
        for step in held.parts(range).into_iter().flat_map(steps) {
            let bytes = &mut bytes[..(step.end - step.start) as usize];
            self.read_device(step.start, bytes)?;
            if !is_new || bytes.iter().any(|byte| *byte != 0) {
                on_memory(self.memory.file.write_all_at(bytes, step.start))?;
            }
        }
        Ok(())
    }

    /// Reads what the device has; zeros behind its end.
    fn read_device(&self, offset: u64, bytes: &mut [u8]) -> Outcome<()> {
        let read = self.device.run(|_| Ok(self.file.read_at(offset, bytes)?))?;
        bytes[read..].fill(0);
        Ok(())
    }

    /// Takes over the size of the file, and what has changed.
    fn take_over(&self, held: &mut Held, changed: &Range<u64>) -> Outcome<()> {
        let size = self.file.attr().size;
        if size > held.size {
            // What a program stored behind the end, in the last page, was never the file's.
            let tail = held.size..held.size.next_multiple_of(BLOCK_BYTES).min(size);
            on_memory(self.memory.file.set_len(size))?;
            on_memory(self.memory.file.write_all_at(&vec![0; (tail.end - tail.start) as usize], tail.start))?;
        } else if size < held.size {
            on_memory(self.memory.file.set_len(size))?;
        }
        held.size = size;
        self.fill(held, changed, false)
    }

    /// Writes back the blocks of a range that differ from the device; returns the first failure, and goes on behind it.
    pub fn write_back(&self, range: Range<u64>) -> Outcome<()> {
        if !self.is_written.load(Ordering::Relaxed) {
            return Ok(());
        }
        let held = self.held.lock();
        let (mut ours, mut theirs) = (vec![0; AT_A_TIME as usize], vec![0; AT_A_TIME as usize]);
        let mut outcome = Ok(());
        let whole = range.start / BLOCK_BYTES * BLOCK_BYTES..range.end;
        for step in held.parts(&whole).into_iter().flat_map(steps) {
            let length = (step.end - step.start) as usize;
            let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
            on_memory(self.memory.file.read_exact_at(ours, step.start))?;
            self.read_device(step.start, theirs)?;
            for run in differing_runs(ours, theirs) {
                let written = self.write_run(step.start + run.start as u64, &ours[run]);
                outcome = outcome.and(written);
            }
        }
        outcome
    }

    fn write_run(&self, at: u64, data: &[u8]) -> Outcome<()> {
        self.device.run(|_| Ok(self.file.write_at(at, data)?))?;
        note_write(&self.device, self.file.ino(), at, data, 0);
        Ok(())
    }
}

/// Ranges of blocks that differ, neighbours together.
fn differing_runs(ours: &[u8], theirs: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    if ours == theirs {
        return runs;
    }
    let blocks = ours.chunks(BLOCK_BYTES as usize).zip(theirs.chunks(BLOCK_BYTES as usize));
    let mut at = 0;
    for (our, their) in blocks {
        let block = at..at + our.len();
        at = block.end;
        match runs.last_mut() {
            _ if our == their => {}
            Some(last) if last.end == block.start => last.end = block.end,
            _ => runs.push(block),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(ranges: &[Range<u64>], size: u64) -> Held {
        Held { ranges: ranges.iter().map(|range| (range.start, range.end)).collect(), size }
    }

    fn pairs(ranges: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        ranges.into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn adding_a_range_merges_it_with_its_neighbours_and_returns_the_new_parts() {
        let mut held = held(&[], 1 << 20);
        let mut add = |range| pairs(held.add(range));
        assert_eq!(add(4096..8192), [(4096, 8192)]);
        assert_eq!(add(16384..20480), [(16384, 20480)]);
        assert_eq!(add(4096..8192), []);
        assert_eq!(add(8192..12288), [(8192, 12288)]);
        assert_eq!(add(0..24576), [(0, 4096), (12288, 16384), (20480, 24576)]);
        assert_eq!(held.ranges, BTreeMap::from([(0, 24576)]));
    }

    #[test]
    fn the_parts_of_a_shared_mapping_end_at_the_end_of_the_file() {
        let held = held(&[0..4096, 8192..16384, 20480..24576], 10_000);
        let parts = |range| pairs(held.parts(&range));
        assert_eq!(parts(0..u64::MAX), [(0, 4096), (8192, 10_000)]);
        assert_eq!(parts(100..200), [(100, 200)]);
        assert_eq!(parts(9000..9500), [(9000, 9500)]);
        assert_eq!(parts(4096..8192), []);
        assert_eq!(parts(10_000..30_000), []);
    }

    #[test]
    fn changed_blocks_of_a_shared_mapping_are_found_and_merged_into_ranges() {
        let ours = vec![1; 5 * 4096 - 1];
        let mut theirs = ours.clone();
        assert_eq!(differing_runs(&ours, &theirs), []);
        (theirs[0], theirs[4096], theirs[5 * 4096 - 2]) = (0, 0, 0);
        assert_eq!(differing_runs(&ours, &theirs), [0..8192, 16384..5 * 4096 - 1]);
    }
}
