//! `Region`: the only way to touch media.

use crate::counters::{Counter, Counters, WearSummary, thread_number};
use crate::device::{DeviceSpec, Mapping, OpenOptions, PersistenceLevel, PmemError};
use crate::flush::store_fence;
use crate::order::{Dirty, Fenced, Group, InFlight, Pm};
use crate::profile::{Profile, spin};
use crate::recorder::{Event, Recording};
use crate::{BLOCK_BYTES, LINE_BYTES};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::mm::{Advice, MsyncFlags};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One device, mapped. Cheap to clone; the device is unmapped and its lock released with the last clone.
///
/// Offsets are device offsets in bytes. A range outside the device, or a write to a read-only region, is a mistake
/// of the caller and panics: numbers that come from media are checked with [`Region::contains`] first.
#[derive(Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
}

thread_local! {
    /// This thread has stored past the cache since its last fence.
    static STREAMED: Cell<bool> = const { Cell::new(false) };
}

impl Region {
    /// Opens an existing device.
    ///
    /// # Errors
    /// Not there, no permission, no regular file or device-dax, size 0 or not a multiple of 4096, in use.
    pub fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Region, PmemError> {
        Ok(Region { mapping: Arc::new(Mapping::open(spec, options)?) })
    }

    /// Creates a device of `size_bytes` (sparse), or opens one and gives it that size.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn create(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Region, PmemError> {
        Ok(Region { mapping: Arc::new(Mapping::create(spec, size_bytes, options)?) })
    }

    /// Size of the device in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.mapping.length
    }

    /// What a fence is worth here.
    pub fn level(&self) -> PersistenceLevel {
        self.mapping.level
    }

    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.mapping.read_only
    }

    /// Path, or `mem:`.
    pub fn name(&self) -> &str {
        &self.mapping.name
    }

    /// The emulated device.
    pub fn profile(&self) -> &Profile {
        &self.mapping.profile
    }

    /// Whether `length` bytes at `offset` lie in the device.
    #[inline]
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.mapping.length)
    }

    /// Reads a value by copying it.
    #[inline]
    pub fn read<T: FromBytes + IntoBytes>(&self, offset: u64) -> T {
        let mut value = T::new_zeroed();
        self.read_into(offset, value.as_mut_bytes());
        value
    }

    /// Copies bytes out.
    #[inline]
    pub fn read_into(&self, offset: u64, buffer: &mut [u8]) {
        let from = self.at(offset, buffer.len() as u64);
        // SAFETY: `at` checked that the source is mapped; the destination is ours and cannot overlap a mapping
        // that no `&mut` points into. A concurrent store to the same metadata gives old or new words; the
        // callers verify checksums or hold the lock that excludes it.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
        self.after_read(offset, buffer.len() as u64);
    }

    /// Borrows bytes that nobody changes while they are borrowed: those of referenced chunks (copy on write).
    #[inline]
    pub fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        let from = self.at(offset, length);
        self.after_read(offset, length);
        // SAFETY: mapped as long as self lives, and not written meanwhile by the contract above.
        unsafe { std::slice::from_raw_parts(from, length as usize) }
    }

    /// Whether the media holds these bytes at `offset`. Stops at the first difference; memcmp of the platform is
    /// vectorised at run time.
    #[inline]
    pub fn equal(&self, offset: u64, bytes: &[u8]) -> bool {
        self.bytes(offset, bytes.len() as u64) == bytes
    }

    /// Loads an aligned word.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> u64 {
        let value = self.word(offset).load(Ordering::Acquire);
        self.after_read(offset, 8);
        u64::from_le(value)
    }

    /// Loads an aligned pair of words at once.
    #[inline]
    pub fn load_u128(&self, offset: u64) -> u128 {
        assert!(offset.is_multiple_of(16), "16-byte atomics are aligned");
        let at = self.at(offset, 16);
        self.after_read(offset, 16);
        // SAFETY: mapped and aligned.
        u128::from_le(unsafe { pair::load(at.cast()) })
    }

    /// Stores a value through the cache, in aligned words where its place allows.
    #[inline]
    pub fn write<T: IntoBytes + Immutable + ?Sized>(&self, offset: u64, value: &T) -> Pm<'_, T, Dirty> {
        let bytes = value.as_bytes();
        self.store(offset, bytes);
        Pm::new(self, offset, bytes.len() as u64)
    }

    /// Stores bytes past the cache. Lines that are covered only in part go through the cache and are flushed.
    #[inline]
    pub fn stream(&self, offset: u64, bytes: &[u8]) -> Pm<'_, [u8], InFlight> {
        let length = bytes.len() as u64;
        let to = self.at_mut(offset, length);
        let head = (offset.next_multiple_of(LINE_BYTES) - offset).min(length) as usize;
        let lines = (bytes.len() - head) / LINE_BYTES as usize;
        let tail = head + lines * LINE_BYTES as usize;
        if head > 0 {
            self.store(offset, &bytes[..head]);
            self.flush_lines(offset, head as u64);
        }
        if lines > 0 {
            STREAMED.set(true);
            // SAFETY: both ranges were checked; offset + head is a multiple of 64 and the base is page-aligned;
            // the instructions were detected when the device was opened.
            unsafe { self.mapping.streaming.copy_lines(bytes.as_ptr().add(head), to.add(head), lines) };
            self.mapping.tally.add(Counter::BytesStreamed, (tail - head) as u64);
            if self.mapping.slow {
                self.after_stream(offset + head as u64, &bytes[head..tail]);
            }
        }
        if tail < bytes.len() {
            self.store(offset + tail as u64, &bytes[tail..]);
            self.flush_lines(offset + tail as u64, length - tail as u64);
        }
        Pm::new(self, offset, length)
    }

    /// Streams zeros.
    pub fn stream_zeros(&self, offset: u64, length: u64) -> Pm<'_, [u8], InFlight> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = 0;
        while at < length {
            let part = (length - at).min(ZEROS.len() as u64);
            let _ = self.stream(offset + at, &ZEROS[..part as usize]);
            at += part;
        }
        Pm::new(self, offset, length)
    }

    /// Stores an aligned word at once.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Pm<'_, u64, Dirty> {
        self.writable();
        self.word(offset).store(value.to_le(), Ordering::Release);
        self.after_store(offset, &value.to_le_bytes());
        Pm::new(self, offset, 8)
    }

    /// Replaces an aligned word if it is `current`; otherwise returns what it is.
    pub fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<Pm<'_, u64, Dirty>, u64> {
        self.writable();
        let word = self.word(offset);
        word.compare_exchange(current.to_le(), new.to_le(), Ordering::AcqRel, Ordering::Acquire)
            .map_err(u64::from_le)?;
        self.after_store(offset, &new.to_le_bytes());
        Ok(Pm::new(self, offset, 8))
    }

    /// Replaces an aligned pair of words at once if it is `current`; otherwise returns what it is.
    #[inline]
    pub fn compare_exchange_u128(&self, offset: u64, current: u128, new: u128) -> Result<Pm<'_, u128, Dirty>, u128> {
        assert!(offset.is_multiple_of(16), "16-byte atomics are aligned");
        let at = self.at_mut(offset, 16);
        // SAFETY: mapped, writable and aligned.
        let seen = u128::from_le(unsafe { pair::compare_exchange(at.cast(), current.to_le(), new.to_le()) });
        if seen != current {
            return Err(seen);
        }
        self.after_store(offset, &new.to_le_bytes());
        Ok(Pm::new(self, offset, 16))
    }

    /// Waits until everything in the group is durable: one sfence for all of it.
    ///
    /// Where flushes are not issued (`FlushMode::Auto` below level `dax`) what counts is the order in which other
    /// processors and a killed process's memory see stores. The CPU keeps that order for stores through the cache;
    /// the sfence is needed, and issued, only when this thread has streamed since its last fence.
    #[inline]
    pub fn fence<G: Group>(&self, group: G) -> G::Clean {
        if STREAMED.replace(false) || self.mapping.flushes {
            store_fence();
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        self.mapping.tally.add(Counter::Fences, 1);
        if self.mapping.slow {
            self.charge(self.mapping.profile.fence_ns);
            self.record(|thread| Event::Fence { thread });
        }
        group.landed(Fenced(()))
    }

    /// Asks the host for the memory of a range at once, instead of page fault by page fault. Best effort, at level
    /// `memory` only.
    pub fn populate(&self, offset: u64, length: u64) {
        if self.mapping.level != PersistenceLevel::Memory || length == 0 {
            return;
        }
        let at = self.at_mut(offset, length);
        // SAFETY: the range is ours and mapped; populating changes no content.
        let _ = unsafe { rustix::mm::madvise(at.cast(), length as usize, Advice::LinuxPopulateWrite) };
    }

    /// Whether memory can be given back.
    pub fn can_punch(&self) -> bool {
        !self.mapping.is_character_device && !self.mapping.read_only && self.mapping.recorder.is_none()
    }

    /// Gives the memory of a range back to the host; it reads as zeros then. Where the host cannot do that nothing
    /// happens and the bytes stay.
    pub fn punch(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        let _ = self.at_mut(offset, length);
        if !self.can_punch() || length == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.mapping.file, flags, offset, length) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.failed("give back memory of", errno)),
        }
    }

    /// The parts of a range for which the host holds memory or disk; the rest reads as zeros. A scan that keeps to
    /// them does not make the host allocate pages for holes.
    pub fn allocated_ranges(&self, offset: u64, length: u64) -> Vec<Range<u64>> {
        let end = (offset + length).min(self.len_bytes());
        let mut ranges = Vec::new();
        let mut at = offset;
        while at < end {
            let start = match rustix::fs::seek(&self.mapping.file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => break,
                // The host cannot tell: all of it may hold data.
                Err(_) => at,
            };
            if start >= end {
                break;
            }
            let stop = rustix::fs::seek(&self.mapping.file, SeekFrom::Hole(start)).unwrap_or(end);
            let stop = if stop > start { stop.min(end) } else { end };
            ranges.push(start..stop);
            at = stop;
        }
        ranges
    }

    /// Bytes of host memory or disk that the device takes.
    pub fn allocated_bytes(&self) -> u64 {
        if self.mapping.is_character_device {
            return self.len_bytes();
        }
        rustix::fs::fstat(&self.mapping.file).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// At level `file`: writes everything to disk and waits. Elsewhere a fence has done all there is to do.
    pub fn sync(&self) -> Result<(), PmemError> {
        if self.mapping.level != PersistenceLevel::File || self.mapping.read_only {
            return Ok(());
        }
        // SAFETY: the range is our whole mapping.
        let synced =
            unsafe { rustix::mm::msync(self.mapping.base.cast(), self.mapping.length as usize, MsyncFlags::SYNC) };
        synced.map_err(|errno| self.failed("sync", errno))
    }

    /// Totals since it was opened.
    pub fn counters(&self) -> Counters {
        self.mapping.tally.snapshot()
    }

    /// Line writes a block, when `track_wear` was asked for.
    pub fn wear(&self) -> Option<WearSummary> {
        self.mapping.wear.as_ref().map(|wear| wear.summary())
    }

    /// Takes what was recorded; empty when `record` was not asked for.
    pub fn take_recording(&self) -> Recording {
        let taken = self.mapping.recorder.as_ref().map(|events| std::mem::take(&mut *events.lock()));
        Recording { events: taken.unwrap_or_default() }
    }

    /// Issues (if it buys anything here), counts, charges and records the flush of a range.
    #[inline]
    pub(crate) fn flush_lines(&self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let lines = (offset + length).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
        if self.mapping.flushes {
            let at = self.at(offset, length);
            // SAFETY: mapped; the instruction was detected when the device was opened.
            unsafe { self.mapping.instruction.flush(at, length as usize) };
        }
        self.mapping.tally.add(Counter::LinesFlushed, lines);
        if self.mapping.slow {
            self.charge(self.mapping.profile.write_line_ns * lines);
            self.wear_out(offset, length);
            self.record(|thread| Event::Flush { thread, offset, length });
        }
    }

    #[inline]
    fn at(&self, offset: u64, length: u64) -> *const u8 {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        // SAFETY: the offset is inside the mapping (or one past its end for a length of 0).
        unsafe { self.mapping.base.add(offset as usize) }
    }

    #[inline]
    fn at_mut(&self, offset: u64, length: u64) -> *mut u8 {
        self.writable();
        self.at(offset, length).cast_mut()
    }

    #[inline]
    fn writable(&self) {
        assert!(!self.mapping.read_only, "a read-only device is written");
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        let at = self.at(offset, 8);
        // SAFETY: mapped as long as self lives, aligned, and all other accesses to words that change are atomic or
        // copies whose result is verified.
        unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }
    }

    /// Stores bytes in whole aligned words where possible, so that no word is torn by our own stores.
    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) {
        let to = self.at_mut(offset, bytes.len() as u64);
        let (words, rest) = if offset.is_multiple_of(8) { bytes.as_chunks::<8>() } else { (&[][..], bytes) };
        for (at, word) in words.iter().enumerate() {
            // SAFETY: in range (checked above) and aligned: the base is page-aligned and the offset a multiple of 8.
            unsafe { AtomicU64::from_ptr(to.cast::<u64>().add(at)) }
                .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let done = words.len() * 8;
        for (at, byte) in rest.iter().enumerate() {
            // SAFETY: in range; bytes are always aligned.
            unsafe { AtomicU8::from_ptr(to.add(done + at)) }.store(*byte, Ordering::Relaxed);
        }
        self.after_store(offset, bytes);
    }

    #[inline]
    fn after_store(&self, offset: u64, bytes: &[u8]) {
        self.mapping.tally.add(Counter::BytesStored, bytes.len() as u64);
        if self.mapping.slow {
            self.record(|thread| Event::Store { thread, offset, bytes: bytes.to_vec() });
        }
    }

    #[cold]
    fn after_stream(&self, offset: u64, bytes: &[u8]) {
        self.charge(self.mapping.profile.write_line_ns * (bytes.len() as u64).div_ceil(LINE_BYTES));
        self.wear_out(offset, bytes.len() as u64);
        self.record(|thread| Event::Stream { thread, offset, bytes: bytes.to_vec() });
    }

    #[inline]
    fn after_read(&self, offset: u64, length: u64) {
        if self.mapping.slow && length > 0 {
            let lines = (offset + length).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
            self.mapping.tally.add(Counter::BytesRead, lines * LINE_BYTES);
            self.charge(self.mapping.profile.read_line_ns * lines);
        }
    }

    fn charge(&self, ns: u64) {
        if ns > 0 {
            self.mapping.tally.add(Counter::ChargedNs, ns);
            spin(ns);
        }
    }

    fn wear_out(&self, offset: u64, length: u64) {
        if let Some(wear) = &self.mapping.wear {
            wear.add(offset, length);
        }
    }

    fn record(&self, event: impl FnOnce(usize) -> Event) {
        if let Some(events) = &self.mapping.recorder {
            events.lock().push(event(thread_number()));
        }
    }

    fn failed(&self, doing: &'static str, errno: rustix::io::Errno) -> PmemError {
        PmemError::Io { doing, device: self.name().into(), source: errno.into() }
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(LINE_BYTES));

/// Two words at once: cmpxchg16b where the CPU has it, else a lock that all users of the word share.
mod pair {
    use super::Mutex;

    static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

    /// # Safety
    /// `at` is mapped, readable, and a multiple of 16.
    #[inline]
    pub(super) unsafe fn load(at: *const u128) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") && is_x86_feature_detected!("cmpxchg16b") {
            let (low, high): (u64, u64);
            // SAFETY: aligned by contract; on CPUs with AVX an aligned 16-byte load is one access (Intel SDM 9.1.1,
            // AMD APM 7.3.2), written in assembly so that the compiler cannot split it.
            unsafe {
                std::arch::asm!(
                    "vmovdqa {pair}, [{at}]", "vmovq {low}, {pair}", "vpextrq {high}, {pair}, 1",
                    at = in(reg) at, pair = out(xmm_reg) _, low = out(reg) low, high = out(reg) high,
                    options(nostack, readonly, preserves_flags));
            }
            return u128::from(high) << 64 | u128::from(low);
        }
        let _held = lock(at);
        // SAFETY: mapped and aligned by contract; writers hold the same lock.
        unsafe { at.read_volatile() }
    }

    /// Returns what was there; it was replaced if that is `current`.
    ///
    /// # Safety
    /// `at` is mapped, writable, and a multiple of 16.
    #[inline]
    pub(super) unsafe fn compare_exchange(at: *mut u128, current: u128, new: u128) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") && is_x86_feature_detected!("cmpxchg16b") {
            // SAFETY: aligned and writable by contract, instruction detected.
            return unsafe { cmpxchg16b(at, current, new) };
        }
        let _held = lock(at);
        // SAFETY: mapped, writable and aligned by contract; all users hold the same lock.
        unsafe {
            let seen = at.read_volatile();
            if seen == current {
                at.write_volatile(new);
            }
            seen
        }
    }

    /// # Safety
    /// As [`compare_exchange`]; needs cmpxchg16b.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    unsafe fn cmpxchg16b(at: *mut u128, current: u128, new: u128) -> u128 {
        let (mut low, mut high) = (current as u64, (current >> 64) as u64);
        // SAFETY: the memory is valid and aligned by contract. The compiler keeps rbx for itself, so it is swapped
        // in and restored; no operand can lie in it, for all have registers of their own.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx", "lock cmpxchg16b [rdi]", "mov rbx, rsi",
                in("rdi") at, inout("rsi") new as u64 => _, in("rcx") (new >> 64) as u64,
                inout("rax") low, inout("rdx") high, options(nostack));
        }
        u128::from(high) << 64 | u128::from(low)
    }

    fn lock(at: *const u128) -> parking_lot::MutexGuard<'static, ()> {
        LOCKS[at.addr() / 64 % LOCKS.len()].lock()
    }
}
