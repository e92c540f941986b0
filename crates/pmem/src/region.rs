//! `Region`: the only way to touch media.
//!
//! The problem: every access to media must be checked, counted, and sometimes charged and recorded, but the fast path
//! must stay fast. The idea: an access is checked against the device's length, done and counted. Only if the region
//! is *watched* is it also charged and recorded. A region is watched with a profile other than `native`, with wear
//! tracking or with the recorder. The fast path pays one branch for that.

use crate::counters::{Counter, Counters};
use crate::device::{DeviceSpec, Mapping, OpenOptions, PersistenceLevel, PmemError, StoreObserver};
use crate::fault::{Faults, SECTOR_BYTES};
use crate::flush::store_fence;
use crate::host_file::ZEROS;
use crate::order::{Dirty, Fenced, Group, InFlight, Pm, PmPtr};
use crate::power_cut::HostEvent;
use crate::profile::{BULK_LINES, Profile};
use crate::recorder::{Action, Event, Recording};
use crate::wear::{LineWear, Wear, WearSummary};
use crate::writeback::{STORE_BYTES_MAX, Storing, SyncErrors};
use crate::{BLOCK_BYTES, LINE_BYTES, atomic, cache, host, shared, thread};
use parking_lot::MutexGuard;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Streams shorter than this go through the cache where flushes cost nothing: there, draining the write-combining
/// buffers at the fence costs more than the cache lines that streaming would save.
const STREAM_BYTES_MIN: usize = 1024;

/// A mapped device. It is cheap to clone; dropping the last clone unmaps the device and releases its lock.
///
/// Offsets are device offsets in bytes. A range outside the device, or a write to a read-only region, is a mistake of
/// the caller and panics: check numbers that come from media with [`Region::contains`] first.
///
/// A reader may see part of what another thread stores at the same time. No value is ever invalid, because only types
/// without invalid bit patterns are read. Values shorter than 128 bytes are read by aligned words, which are never
/// torn; longer reads may be torn anywhere. Media is never borrowed: every read returns a copy.
///
/// A device can fail under its mapping: another process truncates it, its host has no memory for its holes, or lines
/// become unreadable. By itself that raises SIGBUS and ends the process. Here the access continues and reads zeros
/// for the missing bytes. Call [`Region::check`] afterwards to learn of the failure; it costs one load while the
/// device is healthy.
///
/// ```
/// use pmem::{DeviceSpec, OpenOptions, Region};
///
/// # fn main() -> Result<(), pmem::PmemError> {
/// let region = Region::create(&DeviceSpec::Memory, 1 << 20, &OpenOptions::default())?;
/// let data = region.stream(4096, b"the bytes, written past the cache");
/// let data = region.fence(data); // durable now
/// let commit = region.store_ptr(0, data.ptr(), 0).flush();
/// let _ = region.fence(commit);
/// assert_eq!(region.load_u64(0), 4096);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
    /// The same record as the mapping's, kept here so that the one branch of an access needs no second pointer.
    faults: &'static Faults,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = out.debug_struct("Region");
        fields.field("name", &self.name()).field("len_bytes", &self.len_bytes()).field("level", &self.level());
        fields.finish_non_exhaustive()
    }
}

/// The device.
impl Region {
    /// Opens an existing device.
    ///
    /// # Errors
    /// Missing, no permission, neither a regular file nor device-dax, size 0 or not a multiple of 4096, in use;
    /// `mem:`, which exists only after [`Region::create`].
    pub fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Region, PmemError> {
        Ok(Region::of(Mapping::open(spec, options)?))
    }

    /// Creates a sparse device of `size_bytes`, or opens an existing one and gives it that size. The content of an
    /// existing device stays as far as it fits. A device-dax node keeps its own size, which must not be smaller.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn create(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Region, PmemError> {
        Ok(Region::of(Mapping::create(spec, size_bytes, options)?))
    }

    /// Opens an existing device and makes it longer, to `size_bytes`; the new part reads as zeros. Its content and, after
    /// an error, its size stay. A device-dax node keeps its own size, which must not be smaller.
    ///
    /// # Errors
    /// As [`Region::open`]; a device that is longer already; those of the host.
    pub fn lengthen(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Region, PmemError> {
        Ok(Region::of(Mapping::lengthen(spec, size_bytes, options)?))
    }

    /// Makes the device longer while it is mapped, to `size_bytes`. Offsets stay, and other threads may use the device
    /// meanwhile. The new part reads as zeros, except for what a file that was longer already has there.
    ///
    /// # Errors
    /// [`PmemError::NoRoomBehind`] beyond [`Region::capacity_bytes`]; a smaller size than the device or its file has;
    /// those of the host. The device has its old length then.
    pub fn lengthen_mapped(&self, size_bytes: u64) -> Result<(), PmemError> {
        if self.is_lost() {
            return Err(self.lost());
        }
        self.assert_writable();
        self.mapping.lengthen_mapped(size_bytes)
    }

    /// Takes back what [`Region::lengthen_mapped`] did, if nothing was stored to the new part, and nothing will be.
    pub fn shorten_mapped(&self, size_bytes: u64) {
        self.mapping.shorten_mapped(size_bytes);
    }

    /// Returns how long the device can become while it is mapped; its length, unless
    /// [`can_grow`](OpenOptions::can_grow) was set.
    pub fn capacity_bytes(&self) -> u64 {
        self.mapping.capacity_bytes()
    }

    /// Returns how many bytes the file of the device has by now. Another process may have made it longer since it was
    /// mapped; at level `file` that is not known.
    pub fn host_bytes(&self) -> u64 {
        self.mapping.host_bytes()
    }

    fn of(mapping: Mapping) -> Region {
        Region { faults: mapping.faults, mapping: Arc::new(mapping) }
    }

    /// Returns the size of the device in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.length()
    }

    /// Returns what a fence guarantees on this device.
    pub fn level(&self) -> PersistenceLevel {
        self.mapping.level
    }

    /// Returns whether the region is read-only.
    pub fn is_read_only(&self) -> bool {
        self.mapping.read_only
    }

    /// Returns the path, or `mem:`.
    pub fn name(&self) -> &str {
        &self.mapping.name
    }

    /// Returns the profile of the emulated device.
    pub fn profile(&self) -> &Profile {
        self.mapping.throttle.profile()
    }

    /// Returns the address at which a byte is mapped in this process, as a number for asking the host about it.
    pub fn address(&self, offset: u64) -> usize {
        self.at(offset, 1).addr()
    }

    /// Returns whether `length` bytes at `offset` lie in the device.
    #[inline]
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.mapping.length())
    }
}

/// Reading.
impl Region {
    /// Reads a value by copying it.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: u64) -> T {
        let mut value = MaybeUninit::<T>::uninit();
        self.copy_out(offset, value.as_mut_ptr().cast(), size_of::<T>());
        // SAFETY: all its bytes were just written, and `FromBytes` says that any bytes are a value.
        unsafe { value.assume_init() }
    }

    /// Copies bytes out.
    #[inline]
    pub fn read_into(&self, offset: u64, buffer: &mut [u8]) {
        self.copy_out(offset, buffer.as_mut_ptr(), buffer.len());
    }

    /// Returns a copy of `length` bytes at `offset`.
    pub fn to_vec(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length as usize);
        self.copy_out(offset, bytes.as_mut_ptr(), length as usize);
        // SAFETY: `copy_out` has just written that many bytes.
        unsafe { bytes.set_len(length as usize) };
        bytes
    }

    /// Copies bytes out for a scan of a table, through the file where there is one. A read of the file does not make
    /// the host allocate memory for a hole, as a load would, and maps no page for a single look.
    pub fn scan_into(&self, offset: u64, buffer: &mut [u8]) {
        assert!(self.contains(offset, buffer.len() as u64), "a scan inside the device");
        let mut done = 0;
        while done < buffer.len() && !self.mapping.is_character_device && !self.faults.watched() {
            let file = self.mapping.file.get();
            match file.and_then(|file| host::pread(file, &mut buffer[done..], offset + done as u64)) {
                Ok(bytes) if bytes > 0 => done += bytes,
                Err(Errno::INTR) => {}
                // The mapping handles a device that is shorter than it was, bad, or without its descriptor.
                _ => break,
            }
        }
        let reading = self.before_read(offset, done as u64);
        self.after_read(reading, offset, done as u64);
        self.read_into(offset + done as u64, &mut buffer[done..]);
    }

    /// Returns true if the host holds neither memory nor disk for a range, so that the range reads as zeros. Returns
    /// false where the host cannot tell.
    pub fn is_hole(&self, offset: u64, length: u64) -> bool {
        if self.mapping.writeback.as_ref().is_some_and(|writeback| writeback.holds(offset..offset + length)) {
            return false;
        }
        match self.mapping.file.get().and_then(|file| host::seek(file, SeekFrom::Data(offset))) {
            Ok(data) => data >= offset + length,
            Err(Errno::NXIO) => !self.mapping.is_character_device,
            Err(_) => false,
        }
    }

    /// Prefetches the lines of many ranges (offset, length) at once, so that later reads need not wait for each in
    /// turn. A prefetch is not an access and is not recorded, but the lines come from the media, so they are charged
    /// now. The rest of one latency is charged with the thread's next read.
    pub fn fetch(&self, ranges: &[(u64, u64)]) {
        for (offset, length) in ranges.iter().copied().filter(|(_, length)| *length > 0) {
            crate::prefetch_lines(self.at(offset, length) as usize, length as usize);
        }
        if self.faults.watched() {
            self.charge_fetch(ranges);
        }
    }

    /// Returns whether a read that misses the caches takes longer than from DRAM: on persistent memory, or on an
    /// emulated device.
    #[inline]
    pub fn is_slow_to_read(&self) -> bool {
        self.mapping.flushes || self.mapping.throttle.charges()
    }

    #[cold]
    #[inline(never)]
    fn charge_fetch(&self, ranges: &[(u64, u64)]) {
        let fetched = ranges.iter().map(|(offset, length)| self.fetched(*offset, *length)).sum();
        self.mapping.tally.add(Counter::LinesRead, fetched);
        self.charged(self.mapping.throttle.charge_fetch(fetched));
    }

    /// Returns whether the media holds `bytes` at `offset`. It stops soon after the first difference. If another
    /// thread stores to the range at the same time, the comparison sees some mix of old and new bytes.
    #[inline]
    pub fn equal(&self, offset: u64, bytes: &[u8]) -> bool {
        let reading = self.before_read(offset, bytes.len() as u64);
        let media = self.at(offset, bytes.len() as u64);
        // SAFETY: `at` checked that the range is mapped, and with it its words: a device has whole blocks.
        let equal = unsafe { self.mapping.wide.equal(media, bytes) };
        self.after_read(reading, offset, bytes.len() as u64);
        equal
    }

    /// Returns how many bytes at `offset` equal the first of `bytes`. The rest is as in [`Region::equal`].
    pub fn common_prefix(&self, offset: u64, bytes: &[u8]) -> u64 {
        const STRIDE: usize = 256;
        let reading = self.before_read(offset, bytes.len() as u64);
        let media = self.at(offset, bytes.len() as u64);
        // SAFETY: as in `equal`; each part lies in the checked range.
        let is_equal = |at: usize, part: &[u8]| unsafe { self.mapping.wide.equal(media.add(at), part) };
        let strides = bytes.chunks(STRIDE).enumerate();
        let equal = strides.take_while(|(stride, part)| is_equal(stride * STRIDE, part)).count() * STRIDE;
        let rest = bytes.iter().enumerate().skip(equal);
        let different = rest.into_iter().find(|(at, byte)| !is_equal(*at, std::slice::from_ref(byte)));
        self.after_read(reading, offset, bytes.len() as u64);
        different.map_or(bytes.len(), |(at, _)| at) as u64
    }

    /// Appends to `found` the runs of `bytes` that equal the media at `offset`, as offsets in `bytes`: all runs of at
    /// least `least` bytes, and shorter ones at the beginning and at the end of the range. The rest is as in
    /// [`Region::equal`].
    pub fn equal_runs(&self, offset: u64, bytes: &[u8], least: usize, found: &mut Vec<Range<usize>>) {
        let reading = self.before_read(offset, bytes.len() as u64);
        let media = self.at(offset, bytes.len() as u64);
        // SAFETY: as in `equal`.
        unsafe { crate::runs::equal_runs_at(media, bytes, least, found) };
        self.after_read(reading, offset, bytes.len() as u64);
    }

    /// Loads an aligned word (acquire).
    #[inline]
    pub fn load_u64(&self, offset: u64) -> u64 {
        let reading = self.before_read(offset, 8);
        // A relaxed load and a fence: memory that is mapped read-only allows no other load. On x86 the fence is no
        // instruction.
        let word = u64::from_le(self.word(offset).load(Ordering::Relaxed));
        std::sync::atomic::fence(Ordering::Acquire);
        self.after_read(reading, offset, 8);
        word
    }

    /// Loads an aligned pair of words at once (acquire).
    #[inline]
    pub fn load_u128(&self, offset: u64) -> u128 {
        assert!(offset.is_multiple_of(16), "16-byte atomics are aligned");
        let at = self.at(offset, 16);
        let reading = self.before_read(offset, 16);
        // SAFETY: mapped and aligned (the base is page-aligned).
        let pair = u128::from_le(unsafe { atomic::load(at.cast()) });
        self.after_read(reading, offset, 16);
        pair
    }
}

/// Writing.
impl Region {
    /// Stores a value through the cache, in aligned words where its offset allows.
    #[inline]
    #[track_caller]
    pub fn write<T: IntoBytes + Immutable + ?Sized>(&self, offset: u64, value: &T) -> Pm<'_, T, Dirty> {
        let bytes = value.as_bytes();
        self.store(offset, bytes);
        Pm::new(self, offset, bytes.len() as u64)
    }

    /// Stores bytes past the cache. Partly covered lines, and short streams where that is cheaper, go through the
    /// cache and are flushed.
    #[inline]
    #[track_caller]
    pub fn stream(&self, offset: u64, bytes: &[u8]) -> Pm<'_, [u8], InFlight> {
        let length = bytes.len() as u64;
        let head = (offset.next_multiple_of(LINE_BYTES) - offset).min(length) as usize;
        let tail = head + (bytes.len() - head) / LINE_BYTES as usize * LINE_BYTES as usize;
        if bytes.len() < STREAM_BYTES_MIN && !self.mapping.flushes {
            self.store_and_flush(offset, bytes);
        } else {
            self.store_and_flush(offset, &bytes[..head]);
            self.stream_lines(offset + head as u64, &bytes[head..tail]);
            self.store_and_flush(offset + tail as u64, &bytes[tail..]);
        }
        Pm::new(self, offset, length)
    }

    /// Streams zeros.
    #[track_caller]
    pub fn stream_zeros(&self, offset: u64, length: u64) -> Pm<'_, [u8], InFlight> {
        static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        let mut at = 0;
        while at < length {
            // Parts end on line boundaries, so that only the first and the last line can be covered in part.
            let line_rest = ZEROS.len() as u64 - (offset + at) % LINE_BYTES;
            let part = line_rest.min(length - at);
            let _ = self.stream(offset + at, &ZEROS[..part as usize]);
            at += part;
        }
        Pm::new(self, offset, length)
    }

    /// Stores an aligned word at once (release).
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, offset: u64, value: u64) -> Pm<'_, u64, Dirty> {
        self.assert_writable();
        let word = self.word(offset);
        let Some(storing) = self.begin_store(offset, 8) else { return Pm::new(self, offset, 8) };
        word.store(value.to_le(), Ordering::Release);
        self.stored(storing, offset, &value.to_le_bytes(), false);
        Pm::new(self, offset, 8)
    }

    /// Stores a pointer at once (release), with `mark` in the low bits that are free in the pointer.
    #[inline]
    #[track_caller]
    pub fn store_ptr<T: ?Sized>(&self, offset: u64, pointer: PmPtr<T>, mark: u64) -> Pm<'_, u64, Dirty> {
        debug_assert!(pointer.offset() & mark == 0, "the mark would change the pointer");
        self.store_u64(offset, pointer.offset() | mark)
    }

    /// Stores an aligned pair of words at once (release).
    #[inline]
    #[track_caller]
    pub fn store_u128(&self, offset: u64, value: u128) -> Pm<'_, u128, Dirty> {
        let at = self.pair(offset);
        let reading = self.before_read(offset, 16);
        let Some(storing) = self.begin_store(offset, 16) else { return Pm::new(self, offset, 16) };
        // SAFETY: mapped, writable and aligned.
        unsafe { atomic::store(at, value.to_le()) };
        self.exchanged(reading, offset, 16); // such a store is made of an exchange
        self.stored(storing, offset, &value.to_le_bytes(), true);
        Pm::new(self, offset, 16)
    }

    /// Replaces an aligned word if it equals `current`.
    ///
    /// # Errors
    /// The value of the word, if it is another.
    #[inline]
    #[track_caller]
    pub fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<Pm<'_, u64, Dirty>, u64> {
        self.assert_writable();
        let word = self.word(offset);
        let reading = self.before_read(offset, 8);
        let Some(storing) = self.begin_store(offset, 8) else { return Ok(Pm::new(self, offset, 8)) };
        let exchanged = word.compare_exchange(current.to_le(), new.to_le(), Ordering::AcqRel, Ordering::Acquire);
        self.exchanged(reading, offset, 8);
        exchanged.map_err(u64::from_le)?;
        self.stored(storing, offset, &new.to_le_bytes(), false);
        Ok(Pm::new(self, offset, 8))
    }

    /// Replaces an aligned pair of words at once if it equals `current`.
    ///
    /// # Errors
    /// The value of the pair, if it is another.
    #[inline]
    #[track_caller]
    pub fn compare_exchange_u128(&self, offset: u64, current: u128, new: u128) -> Result<Pm<'_, u128, Dirty>, u128> {
        let at = self.pair(offset);
        let reading = self.before_read(offset, 16);
        let Some(storing) = self.begin_store(offset, 16) else { return Ok(Pm::new(self, offset, 16)) };
        // SAFETY: mapped, writable and aligned.
        let seen = u128::from_le(unsafe { atomic::compare_exchange(at, current.to_le(), new.to_le()) });
        self.exchanged(reading, offset, 16);
        if seen != current {
            return Err(seen);
        }
        self.stored(storing, offset, &new.to_le_bytes(), true);
        Ok(Pm::new(self, offset, 16))
    }

    /// Issues the flush of a range, whichever thread stored to it.
    #[inline]
    #[track_caller]
    pub fn flush(&self, offset: u64, length: u64) -> Pm<'_, [u8], InFlight> {
        self.flush_lines(offset, length);
        Pm::new(self, offset, length)
    }

    /// Waits until everything in the group is durable: one sfence for the whole group.
    ///
    /// Where no flushes are issued (`FlushMode::Auto` below level `dax`), only the order in which other threads see
    /// the stores counts. A process that maps the device after this one was killed sees the same order. The CPU keeps
    /// that order for stores through the cache; so the sfence is issued only when this thread has streamed since its
    /// last fence.
    #[inline]
    #[track_caller]
    pub fn fence<G: Group>(&self, group: G) -> G::Clean {
        let mut start = None;
        if thread::take_streamed() || self.mapping.flushes {
            start = self.watch(u64::MAX);
            store_fence();
        } else {
            std::sync::atomic::fence(Ordering::Release); // a barrier for the compiler: no instruction on x86
        }
        self.mapping.tally.add(Counter::Fences, 1);
        if self.faults.watched() {
            self.fenced(start);
        }
        group.landed(Fenced(()))
    }

    /// Issues (if the device needs it), counts, charges and records the flush of a range.
    #[inline]
    #[track_caller]
    pub(crate) fn flush_lines(&self, offset: u64, length: u64) {
        let start = self.watch(length);
        if self.mapping.flushes {
            let at = self.at(offset, length);
            // SAFETY: mapped; the instruction was detected when the device was opened.
            unsafe { self.mapping.instruction.flush(at, length as usize) };
        }
        self.mapping.tally.add(Counter::LinesFlushed, lines_touched(offset, length));
        if self.faults.watched() {
            self.flushed(start, offset, length);
        }
    }
}

/// Memory and disk of the host.
impl Region {
    /// Asks the host for the memory of a range at once, instead of page fault by page fault. It does so at level
    /// `memory` only, and ignores errors.
    pub fn populate(&self, offset: u64, length: u64) {
        let at = self.at_mut(offset, length);
        if self.mapping.level == PersistenceLevel::Memory {
            // SAFETY: the range is ours and mapped; populating it changes no content.
            let _ = unsafe { host::madvise(at.cast(), length as usize, Advice::LinuxPopulateWrite) };
        }
    }

    /// Returns whether the host takes memory of the device back.
    pub fn can_punch(&self) -> bool {
        self.mapping.can_punch
    }

    /// Gives the memory of whole pages back to the host; they then read as zeros. Where the host cannot do that
    /// ([`Region::can_punch`]) nothing happens and the bytes stay. The host decides when the hole reaches the media:
    /// no fence waits for it.
    ///
    /// # Errors
    /// The host's, for example if it has no memory for its own tables.
    #[track_caller]
    pub fn punch(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        let _ = self.at_mut(offset, length);
        if !self.can_punch() || length == 0 {
            return Ok(());
        }
        if self.mapping.writeback.is_some() {
            self.clear_in_memory(offset, length);
            return Ok(());
        }
        if self.faults.watched() && !self.may_store(offset, length) {
            return Ok(());
        }
        let recorder = self.lock_recorder();
        self.make_hole(offset, length).map_err(|errno| self.failed("give back memory of", errno))?;
        record(recorder, || Action::Punch { offset, length });
        Ok(())
    }

    /// Makes a hole through the shared mapping, which hits no other file whatever happens to the descriptor meanwhile.
    /// The host may refuse that, for example for memory that the program has locked; then through the file.
    fn make_hole(&self, offset: u64, length: u64) -> rustix::io::Result<()> {
        let file = self.mapping.file.get()?;
        let at = self.at_mut(offset, length);
        // SAFETY: the range is ours and mapped. Other threads see zeros, as if they were stored.
        if unsafe { host::madvise(at.cast(), length as usize, Advice::LinuxRemove) }.is_ok() {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| host::fallocate(file, flags, offset, length))
    }

    /// Clears a range at level `file`. The sync makes holes of pages of zeros later.
    #[track_caller]
    fn clear_in_memory(&self, offset: u64, length: u64) {
        let end = offset + length;
        let mut at = self.next_allocated(offset, end);
        self.give_back_reserved(offset, at);
        while at < end {
            let part = (end - at).min(ZEROS.len() as u64);
            self.store_hole(at, &ZEROS[..part as usize]);
            let next = self.next_allocated(at + part, end);
            self.give_back_reserved(at + part, next);
            at = next;
        }
    }

    /// Stores zeros of which the sync makes holes.
    #[track_caller]
    fn store_hole(&self, offset: u64, zeros: &[u8]) {
        let to = self.at_mut(offset, zeros.len() as u64);
        let Some(storing) = self.begin_store(offset, zeros.len() as u64) else { return };
        // SAFETY: as in `store`.
        unsafe { shared::store(to, zeros) };
        if let Some(writeback) = &self.mapping.writeback {
            writeback.punch(offset..offset + zeros.len() as u64);
        }
        self.stored(storing, offset, zeros, false);
    }

    /// Gives the disk of a range back that was reserved and not stored to.
    fn give_back_reserved(&self, offset: u64, end: u64) {
        if let Some(writeback) =
            self.mapping.writeback.as_ref().filter(|writeback| writeback.reserves() && offset < end)
        {
            writeback.file().give_back(offset, end - offset);
        }
    }

    /// Waits until all holes are on the media, so that they are holes after a power failure too. It is for callers
    /// that rely on the zeros of a hole. At level `memory` nothing survives a power failure, and at level `file`
    /// holes come with the sync that needs them; there is nothing to wait for at either.
    ///
    /// # Errors
    /// The host's.
    #[track_caller]
    pub fn settle_holes(&self) -> Result<(), PmemError> {
        if self.mapping.level == PersistenceLevel::Dax && !self.mapping.is_character_device {
            let file = self.mapping.file.get();
            let synced = file.and_then(|file| rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file)));
            synced.map_err(|errno| self.failed("write back holes of", errno))?;
        }
        record(self.lock_recorder(), || Action::SettleHoles);
        Ok(())
    }

    /// Returns the parts of a range for which the host holds memory or disk; the rest reads as zeros. A scan of only
    /// these parts does not make the host allocate pages for holes. Where the host cannot tell, it returns the whole
    /// range.
    pub fn allocated_ranges(&self, offset: u64, length: u64) -> Vec<Range<u64>> {
        let end = offset.saturating_add(length).min(self.len_bytes());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = self.next_allocated(offset, end);
        while at < end {
            let stop = self.end_of_allocated(at, end);
            match ranges.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = stop,
                None => ranges.push(at..stop),
            }
            at = self.next_allocated(stop, end);
        }
        ranges
    }

    /// Returns the end of an allocated part that begins at `start`, or an offset up to which it is known to be
    /// allocated.
    fn end_of_allocated(&self, start: u64, end: u64) -> u64 {
        let held = self.mapping.writeback.as_ref().is_some_and(|writeback| writeback.holds(start..start + 1));
        if held {
            return ((start / BLOCK_BYTES + 1) * BLOCK_BYTES).min(end);
        }
        let hole = self.mapping.file.get().and_then(|file| host::seek(file, SeekFrom::Hole(start))).ok();
        hole.filter(|hole| *hole > start).map_or(end, |hole| hole.min(end))
    }

    /// Returns the first offset in `offset..end` for which the host holds memory or disk, or `end` if there is none;
    /// the bytes before it read as zeros. Returns `offset` where the host cannot tell. Unlike
    /// [`Region::allocated_ranges`] it does not look for the end of the allocated part, which takes time in
    /// proportion to its length.
    pub fn next_allocated(&self, offset: u64, end: u64) -> u64 {
        if offset >= end {
            return end;
        }
        let in_file = match self.mapping.file.get().and_then(|file| host::seek(file, SeekFrom::Data(offset))) {
            Ok(start) => start.clamp(offset, end),
            Err(Errno::NXIO) if !self.mapping.is_character_device => end,
            Err(_) => offset,
        };
        let writeback = self.mapping.writeback.as_ref();
        let in_memory = writeback.and_then(|writeback| writeback.next_kept_page(&(offset..in_file)));
        in_memory.unwrap_or(in_file)
    }

    /// Returns the bytes of host memory or disk that the device takes.
    pub fn allocated_bytes(&self) -> u64 {
        if self.mapping.is_character_device {
            return self.len_bytes();
        }
        self.mapping.file.stat().map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Makes everything that was stored before the call durable, all or none, at level `file` (module `writeback`).
    /// At the other levels a fence has done that already, and the call only looks whether the device is lost
    /// ([`Region::probe`]).
    ///
    /// # Errors
    /// The disk's: then nothing is lost unless a power cut comes before a later sync succeeds. [`PmemError::Lost`],
    /// [`PmemError::DescriptorClosed`].
    pub fn sync(&self) -> Result<(), PmemError> {
        let Some(writeback) = &self.mapping.writeback else {
            return if self.probe() { Ok(()) } else { Err(self.lost()) };
        };
        writeback.sync().map_err(|errno| self.failed("write back", errno))
    }

    /// Lets another process have the device, at the end of this one: a process cannot end while one of its threads is
    /// stuck in the kernel. Nothing may be stored from now on.
    pub fn let_go(&self) {
        self.mapping.let_go();
    }

    /// As [`Region::sync`], and cuts off the journal behind the device, which dropping the last `Region` of it does too.
    /// A process may end with a `Region` left, so unmounting calls this. Later stores make the journal anew.
    ///
    /// # Errors
    /// As [`Region::sync`]. If only the cut fails, everything is durable, and the next open replays the journal.
    pub fn cut_journal_off(&self) -> Result<(), PmemError> {
        let Some(writeback) = self.mapping.writeback.as_ref().filter(|_| !self.mapping.read_only) else {
            return Ok(());
        };
        writeback.cut_journal_off().map_err(|errno| self.failed("write back", errno))
    }

    /// Returns whether stores need disk or memory that another program may take first: at level `file` on a host that
    /// can reserve disk, known after [`Region::admit`], and at level `memory` if the memory of this process is limited
    /// ([`MemoryLimit`](crate::MemoryLimit)). Then a caller reserves the places of what it accepts.
    pub fn reserves(&self) -> bool {
        let disk = || self.mapping.writeback.as_ref().is_some_and(|writeback| writeback.reserves());
        !self.mapping.read_only && (self.mapping.room.is_some() || disk())
    }

    /// Reserves disk or memory of the host for a range, until [`Region::punch`] gives it back. Its content stays. Only
    /// where [`Region::reserves`] says so; elsewhere nothing happens.
    ///
    /// # Errors
    /// The host's: ENOSPC or EDQUOT if it has no room. A part of the range may have its disk then.
    pub fn reserve(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        if let Some(room) = &self.mapping.room {
            let held = || self.allocated_ranges(offset, length);
            let reserved = room.reserve(&self.mapping.file, offset..offset + length, held);
            return reserved.map_err(|errno| self.failed("reserve memory for", errno));
        }
        let Some(writeback) = self.mapping.writeback.as_ref().filter(|_| self.reserves()) else { return Ok(()) };
        writeback.reserve(offset, length).map_err(|errno| self.failed("reserve disk for", errno))
    }

    /// Takes disk or memory of the host for a range now, wherever the host can do that, so that a store there cannot
    /// fail for the lack of it. Its content stays.
    ///
    /// # Errors
    /// The host's: ENOSPC or EDQUOT if it has no room.
    pub fn take_room(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        if self.reserves() || self.mapping.is_character_device || self.mapping.writeback.is_some() {
            return self.reserve(offset, length);
        }
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        let take = |file| host::fallocate(file, FallocateFlags::KEEP_SIZE, offset, length);
        match self.mapping.file.get().and_then(|file| rustix::io::retry_on_intr(|| take(file))) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.failed("take room for", errno)),
        }
    }

    /// Returns how many bytes the host can still reserve, where [`Region::reserves`] says so.
    pub fn host_free_bytes(&self) -> Option<u64> {
        if let Some(room) = &self.mapping.room {
            return Some(room.free_bytes(&self.mapping.file, u64::MAX));
        }
        self.mapping.writeback.as_ref().filter(|_| self.reserves()).map(|writeback| writeback.file().free_bytes())
    }

    /// Returns whether a change may begin whose stores must reach the device. A caller asks before it accepts
    /// anything. Costs one load except at level `file`.
    ///
    /// # Errors
    /// At level `file`: ENOSPC if the disk has no room for a journal; the error of a sync, if syncs fail and memory has
    /// little room for what they did not store.
    #[inline]
    pub fn admit(&self) -> Result<(), PmemError> {
        if self.faults.watched() { self.admit_watched() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn admit_watched(&self) -> Result<(), PmemError> {
        let Some(writeback) = self.mapping.writeback.as_ref().filter(|_| !self.mapping.read_only) else {
            return Ok(());
        };
        writeback.admit().map_err(|(errno, doing)| self.failed(doing, errno))
    }

    /// Returns the syncs that failed since the device was opened: in the background, of full memory, or asked for.
    pub fn sync_errors(&self) -> SyncErrors {
        self.mapping.writeback.as_ref().map(|writeback| writeback.errors()).unwrap_or_default()
    }
}

/// Failures of the device.
impl Region {
    /// Returns whether all that this thread has read since its last call was there, and whether the device still
    /// takes stores. Call it after an operation, and before anything relies on what was read.
    ///
    /// # Errors
    /// [`PmemError::Lost`], from then on always: some store may not have reached the device.
    /// [`PmemError::DescriptorClosed`], from then on always: the program has closed our descriptor.
    /// [`PmemError::BadMemory`]: some bytes that were read are unreadable; each is reported once.
    #[inline]
    pub fn check(&self) -> Result<(), PmemError> {
        if self.faults.watched() { self.check_watched() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_watched(&self) -> Result<(), PmemError> {
        let bad = thread::take_bad(self.id());
        if self.is_lost() {
            return Err(self.lost());
        }
        bad.map_or(Ok(()), |offset| Err(self.bad_memory("read", offset, SECTOR_BYTES)))
    }

    /// Returns whether stores to a range reach the device. A store to a page with bad memory does not, and the device
    /// counts as lost after it. A caller that asks first can store elsewhere.
    ///
    /// # Errors
    /// [`PmemError::BadMemory`].
    #[inline]
    pub fn check_writable(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        if self.faults.watched() { self.check_frozen(offset, length) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_frozen(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        let frozen = self.faults.frozen_in(offset, length);
        frozen.map_or(Ok(()), |page| Err(self.bad_memory("write", page, BLOCK_BYTES)))
    }

    /// Returns whether the device is lost: another process truncated it, its host has no memory for it, a store went to
    /// bad memory, or the program has closed our descriptor. Stores to a lost device have no effect that lasts.
    pub fn is_lost(&self) -> bool {
        self.faults.watched() && self.faults.is_lost()
    }

    /// Asks the host whether the device still has its size and we its descriptor, and marks it lost if not. Without this
    /// call a truncation is noticed only when an access goes behind the new end, and a closed descriptor at its next
    /// use. Returns true if the device is not lost.
    pub fn probe(&self) -> bool {
        let is_short =
            |stat: rustix::fs::Stat| !self.mapping.is_character_device && (stat.st_size as u64) < self.len_bytes();
        if self.mapping.file.stat().is_ok_and(is_short) {
            self.faults.lose();
        }
        !self.is_lost()
    }

    /// Returns whether a range that was just read is intact and can be written. If not, the pending error is dropped,
    /// so that [`Region::check`] does not report it again: for callers that then go elsewhere. On a lost device no
    /// range is intact, because behind its new end it reads as zeros.
    #[inline]
    pub fn sound_or_forget(&self, offset: u64, length: u64) -> bool {
        !self.faults.watched() || self.forget_if_bad(offset, length)
    }

    #[cold]
    #[inline(never)]
    fn forget_if_bad(&self, offset: u64, length: u64) -> bool {
        thread::forget_bad(self.id(), offset / SECTOR_BYTES * SECTOR_BYTES..offset + length);
        !self.is_lost() && self.faults.frozen_in(offset, length).is_none()
    }

    /// Returns the offsets of the pages (4096 bytes) with bad memory. Stores to them do not reach the device.
    pub fn frozen_pages(&self) -> Vec<u64> {
        if self.faults.watched() { self.faults.frozen().map(|(page, _)| page).collect() } else { Vec::new() }
    }

    /// Returns the ranges that were found to be bad since the device was opened, in the order in which they were
    /// found.
    pub fn bad_ranges(&self) -> Vec<Range<u64>> {
        if self.faults.watched() { self.faults.bad().collect() } else { Vec::new() }
    }

    /// Reads a range only to learn whether it can be read.
    ///
    /// # Errors
    /// As [`Region::check`].
    pub fn scrub(&self, offset: u64, length: u64) -> Result<(), PmemError> {
        let reading = self.before_read(offset, length);
        let _ = self.at(offset, length);
        let load = |line: u64| {
            // SAFETY: the line touches the range that was just checked, and a device has whole blocks.
            unsafe { shared::word(self.mapping.base.add((line * LINE_BYTES) as usize)) }.load(Ordering::Relaxed)
        };
        std::hint::black_box(line_range(offset, length).fold(0, |sum, line| sum ^ load(line)));
        self.after_read(reading, offset, length);
        self.check()
    }

    /// Calls `store_observer` before every later store; `None` ends that. A caller can thereby undo stores. If the
    /// observer returns false, the store is not done and the device counts as lost.
    /// Stores cost more meanwhile.
    pub fn keep_before_stores(&self, store_observer: Option<Arc<StoreObserver>>) {
        let is_observed = store_observer.is_some();
        *self.mapping.store_observer.lock() = store_observer;
        if is_observed {
            self.faults.watch();
        } else if !self.mapping.is_poisoned.load(Ordering::Relaxed) {
            self.faults.end_watching();
        }
    }

    /// For tests: makes the lines of a range bad from now on. They fail at their next read, by the same code as
    /// memory that the hardware reports as bad.
    pub fn poison(&self, offset: u64, length: u64) {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        let lines = offset / LINE_BYTES * LINE_BYTES..(offset + length).next_multiple_of(LINE_BYTES);
        self.mapping.poisoned.lock().push(lines);
        self.mapping.is_poisoned.store(true, Ordering::Relaxed);
        self.faults.watch();
    }

    fn bad_memory(&self, doing: &'static str, offset: u64, length: u64) -> PmemError {
        PmemError::BadMemory { doing, device: self.name().into(), offset, length }
    }

    /// Returns an id that tells this mapping's notes of a thread from those of other mappings.
    fn id(&self) -> usize {
        std::ptr::from_ref(self.faults).addr()
    }

    #[cold]
    #[inline(never)]
    fn touch_poisoned(&self, offset: u64, length: u64) {
        if !self.mapping.is_poisoned.load(Ordering::Relaxed) {
            return;
        }
        let poisoned = self.mapping.poisoned.lock();
        let is_bad = |start: u64, end: u64| poisoned.iter().any(|lines| lines.start < end && start < lines.end);
        let end = offset + length;
        for sector in (offset / SECTOR_BYTES * SECTOR_BYTES..end).step_by(SECTOR_BYTES as usize) {
            let touched = is_bad(sector.max(offset), (sector + SECTOR_BYTES).min(end));
            if touched && self.faults.bad_in(sector, SECTOR_BYTES).is_none() {
                let replaced = self.faults.replace_page(sector, &|sector| is_bad(sector, sector + SECTOR_BYTES));
                assert!(replaced, "the host gives a page");
            }
        }
    }

    /// Records for this thread that it has read bad memory.
    #[inline]
    fn note_bad(&self, offset: u64, length: u64) {
        if self.faults.watched()
            && let Some(sector) = self.faults.bad_in(offset, length)
        {
            thread::note_bad(self.id(), sector);
        }
    }

    /// Marks the device lost if a store went to a frozen page, because it reached only the private page.
    fn lose_if_frozen(&self, offset: u64, length: u64) {
        if self.faults.frozen_in(offset, length).is_some() {
            self.faults.lose();
        }
    }
}

/// Counters and recordings.
impl Region {
    /// Returns the totals since the device was opened.
    pub fn counters(&self) -> Counters {
        self.mapping.tally.snapshot()
    }

    /// Returns the line writes per block, if `track_wear` was set.
    pub fn wear(&self) -> Option<WearSummary> {
        self.mapping.wear.as_ref().map(|[written, _]| written.summary(self.len_bytes()))
    }

    /// Returns the line writes to the blocks that a range touches, if `track_wear` was set.
    pub fn lines_written_in(&self, offset: u64, length: u64) -> Option<u64> {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        self.mapping.wear.as_ref().map(|[written, _]| written.lines_in(offset, length))
    }

    /// Returns how evenly the lines that a range touches were written, if `track_lines` was set.
    pub fn line_wear(&self, offset: u64, length: u64) -> Option<LineWear> {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        self.mapping.line_wear.as_ref().map(|lines| lines.line_wear(offset, length))
    }

    /// Returns how many lines of the blocks that a range touches were fetched from the media (module `cache`), if
    /// `track_wear` was set.
    pub fn lines_read_in(&self, offset: u64, length: u64) -> Option<u64> {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        self.mapping.wear.as_ref().map(|[_, read]| read.lines_in(offset, length))
    }

    /// Returns a copy of the recording, if `record` was set.
    pub fn recording(&self) -> Option<Recording> {
        self.mapping.recorder.as_ref().map(|events| Recording { events: events.lock().clone() })
    }

    /// Takes the recorded changes of the host's file, if `record_host` was set (level `file`).
    pub fn take_host_events(&self) -> Vec<HostEvent> {
        self.mapping.writeback.as_ref().map(|writeback| writeback.file().take_events()).unwrap_or_default()
    }

    /// For tests with `record_host`: lets the `nth` change of the host's file from now on fail with EIO, half done,
    /// and all later ones too. With 0 no change fails.
    pub fn fail_host(&self, nth: u64) {
        if let Some(writeback) = &self.mapping.writeback {
            writeback.file().fail(nth);
        }
    }

    /// For tests with `record_host`: lets the host's disk have room for this many bytes of the file, the journal
    /// included, or at level `memory` its memory for this many; `u64::MAX`: for all.
    pub fn limit_host(&self, bytes: u64) {
        if let Some(room) = &self.mapping.room {
            room.limit(bytes);
        }
        if let Some(writeback) = &self.mapping.writeback {
            writeback.file().limit(bytes);
        }
    }

    /// Takes the recording and goes on with an empty one; returns an empty one if `record` was not set.
    pub fn take_recording(&self) -> Recording {
        let events = self.mapping.recorder.as_ref().map(|events| std::mem::take(&mut *events.lock()));
        Recording { events: events.unwrap_or_default() }
    }
}

/// The functions that move bytes. All pointers into the mapping come from `at`.
impl Region {
    #[inline]
    fn at(&self, offset: u64, length: u64) -> *const u8 {
        assert!(self.contains(offset, length), "{length} bytes at {offset:#x} lie outside the device");
        #[cfg(feature = "shuttle")]
        crate::schedule::point();
        // SAFETY: the offset is inside the mapping (or one past its end for a length of 0).
        unsafe { self.mapping.base.add(offset as usize) }
    }

    #[inline]
    fn at_mut(&self, offset: u64, length: u64) -> *mut u8 {
        self.assert_writable();
        self.at(offset, length).cast_mut()
    }

    /// Returns whether a store to a range may be done. Not without the descriptor: the lock went with it, so another
    /// process may own the device.
    fn may_store(&self, offset: u64, length: u64) -> bool {
        !self.faults.is_descriptor_lost() && self.keep_before_store(offset, length)
    }

    /// Calls the store observer, if there is one, with the range that a store is about to overwrite. Returns false if
    /// the observer refused: then the store must not be done.
    #[cold]
    #[inline(never)]
    fn keep_before_store(&self, offset: u64, length: u64) -> bool {
        let store_observer = self.mapping.store_observer.lock().clone();
        let kept = store_observer.is_none_or(|store_observer| length == 0 || store_observer(self, offset, length));
        if !kept {
            self.faults.lose();
        }
        kept
    }

    #[inline]
    fn assert_writable(&self) {
        assert!(!self.mapping.read_only, "a read-only device is written");
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        let at = self.at(offset, 8);
        // SAFETY: mapped as long as self lives, and aligned (the base is page-aligned). A read-only region is only
        // loaded from, relaxed: every caller that stores asserts that the region is writable.
        unsafe { shared::word(at) }
    }

    #[inline]
    fn pair(&self, offset: u64) -> *mut u128 {
        assert!(offset.is_multiple_of(16), "16-byte atomics are aligned");
        self.at_mut(offset, 16).cast()
    }

    #[inline(always)]
    fn copy_out(&self, offset: u64, to: *mut u8, length: usize) {
        let start = self.before_read(offset, length as u64);
        let from = self.at(offset, length as u64);
        // SAFETY: `at` checked that the range is mapped, and with it its words: a device has whole blocks. The
        // destination is the caller's own memory of that length. It is not media, because no reference to media exists.
        unsafe { self.mapping.wide.load(from, to, length) };
        self.after_read(start, offset, length as u64);
    }

    /// Stores bytes through the cache, in whole aligned words where possible, so that our stores tear no word.
    #[inline]
    #[track_caller]
    fn store(&self, offset: u64, bytes: &[u8]) {
        if bytes.len() > STORE_BYTES_MAX && self.faults.watched() {
            return self.in_parts(offset, bytes, Region::store_part);
        }
        self.store_part(offset, bytes);
    }

    /// Does long stores in parts, because memory must have room for each at level `file`.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn in_parts(&self, offset: u64, bytes: &[u8], store: impl Fn(&Region, u64, &[u8])) {
        let parts = (offset..).step_by(STORE_BYTES_MAX).zip(bytes.chunks(STORE_BYTES_MAX));
        parts.for_each(|(at, part)| store(self, at, part));
    }

    #[inline]
    #[track_caller]
    fn store_part(&self, offset: u64, bytes: &[u8]) {
        let to = self.at_mut(offset, bytes.len() as u64);
        let Some(storing) = self.begin_store(offset, bytes.len() as u64) else { return };
        // SAFETY: `at_mut` checked that the range is mapped and writable, and with it its words: a device has whole
        // blocks.
        unsafe { shared::store(to, bytes) };
        self.stored(storing, offset, bytes, false);
    }

    #[inline]
    #[track_caller]
    fn store_and_flush(&self, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.store(offset, bytes);
            self.flush_lines(offset, bytes.len() as u64);
        }
    }

    /// Streams whole aligned lines.
    #[inline]
    #[track_caller]
    fn stream_lines(&self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if bytes.len() > STORE_BYTES_MAX && self.faults.watched() {
            return self.in_parts(offset, bytes, Region::stream_lines);
        }
        debug_assert!(offset.is_multiple_of(LINE_BYTES));
        let to = self.at_mut(offset, bytes.len() as u64);
        let start = self.watch(bytes.len() as u64);
        let Some(storing) = self.begin_store(offset, bytes.len() as u64) else { return };
        thread::note_stream();
        // SAFETY: the source is a slice of this many lines, the target was checked; `offset` is a multiple of 64 and
        // the base page-aligned; the instructions were detected when the device was opened.
        unsafe { self.mapping.streaming.copy_lines(bytes.as_ptr(), to, bytes.len() / LINE_BYTES as usize) };
        self.mapping.tally.add(Counter::BytesStreamed, bytes.len() as u64);
        if self.faults.watched() {
            self.streamed(start, storing, offset, bytes);
        }
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> PmemError {
        if self.is_lost() {
            return self.lost();
        }
        PmemError::Io { doing, device: self.name().into(), source: errno.into() }
    }
}

impl Region {
    /// Returns why the device is lost.
    fn lost(&self) -> PmemError {
        let device = self.name().into();
        match self.faults.is_descriptor_lost() {
            true => PmemError::DescriptorClosed { device },
            false => PmemError::Lost { device },
        }
    }
}

#[cfg(test)]
impl Region {
    pub(crate) fn writeback(&self) -> Option<&Arc<crate::writeback::Writeback>> {
        self.mapping.writeback.as_ref()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.faults.watched()
    }
}

/// The lock of the recorder, held during a store so that the log keeps the order of the stores.
type Recorder<'r> = Option<MutexGuard<'r, Vec<Event>>>;

/// A store under way on a watched region.
#[derive(Default)]
struct Store<'r> {
    recorder: Recorder<'r>,
    /// Keeps a sync of level `file` from coming in the middle of the store.
    storing: Option<Storing<'r>>,
}

/// A read under way: the number of lines that it fetches from the media, and its start if it fetches any and is
/// charged.
struct Reading {
    fetched: u64,
    start: Option<Instant>,
}

/// Watching: charges, wear and the recorder.
impl Region {
    /// Returns the start of an access of `length` bytes, if it is large and its time is charged. All functions below
    /// are behind the one branch of the fast path.
    #[inline]
    fn watch(&self, length: u64) -> Option<Instant> {
        if self.faults.watched() { self.watch_charged(length) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn watch_charged(&self, length: u64) -> Option<Instant> {
        (length >= BULK_LINES * LINE_BYTES && self.mapping.throttle.charges()).then(Instant::now)
    }

    #[inline]
    fn lock_recorder(&self) -> Recorder<'_> {
        if self.faults.watched() { self.lock_recorder_slow() } else { None }
    }

    #[cold]
    #[inline(never)]
    fn lock_recorder_slow(&self) -> Recorder<'_> {
        self.mapping.recorder.as_ref().map(|events| events.lock())
    }

    /// Prepares a store to a range; the caller calls [`Region::stored`] or [`Region::streamed`] after it. `None`
    /// means that the store must not be done and the device is lost.
    #[inline]
    fn begin_store(&self, offset: u64, length: u64) -> Option<Store<'_>> {
        if self.faults.watched() { self.begin_store_slow(offset, length) } else { Some(Store::default()) }
    }

    #[cold]
    #[inline(never)]
    fn begin_store_slow(&self, offset: u64, length: u64) -> Option<Store<'_>> {
        if !self.may_store(offset, length) {
            return None;
        }
        let writeback = self.mapping.writeback.as_ref();
        let storing = writeback.map(|writeback| writeback.store(offset, length));
        Some(Store { storing, recorder: self.lock_recorder_slow() })
    }

    #[inline]
    #[track_caller]
    fn stored(&self, store: Store<'_>, offset: u64, bytes: &[u8], at_once: bool) {
        self.mapping.tally.add(Counter::BytesStored, bytes.len() as u64);
        if self.faults.watched() {
            self.record_store(store, offset, bytes, at_once);
        } else {
            // Nothing was locked; without this the compiler would emit code to check that.
            std::mem::forget(store);
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn record_store(&self, store: Store<'_>, offset: u64, bytes: &[u8], at_once: bool) {
        record(store.recorder, || Action::Store { offset, bytes: bytes.to_vec(), at_once });
        cache::store(self.mapping.number, line_range(offset, bytes.len() as u64));
        self.lose_if_frozen(offset, bytes.len() as u64);
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn streamed(&self, start: Option<Instant>, store: Store<'_>, offset: u64, bytes: &[u8]) {
        if store.storing.is_some() {
            // The sync of another thread copies these bytes. They must be visible before the sync may run, although
            // they went past the cache.
            store_fence();
        }
        record(store.recorder, || Action::Stream { offset, bytes: bytes.to_vec() });
        cache::stream(self.mapping.number, line_range(offset, bytes.len() as u64));
        self.written(start, offset, bytes.len() as u64);
        self.lose_if_frozen(offset, bytes.len() as u64);
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn flushed(&self, start: Option<Instant>, offset: u64, length: u64) {
        record(self.lock_recorder(), || Action::Flush { offset, length });
        self.written(start, offset, length);
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn fenced(&self, start: Option<Instant>) {
        record(self.lock_recorder(), || Action::Fence);
        self.charged(self.mapping.throttle.charge_fence(start));
    }

    /// Charges and counts lines that reached the media.
    fn written(&self, start: Option<Instant>, offset: u64, length: u64) {
        if self.mapping.throttle.charges() {
            self.charged(self.mapping.throttle.charge_write(start, lines_touched(offset, length)));
        }
        if let Some([written, _]) = &self.mapping.wear {
            written.add(offset, length);
        }
        if let Some(lines) = &self.mapping.line_wear {
            lines.add(offset, length);
        }
    }

    /// Counts an exchange of a word or a pair, whether it succeeded or not. Its line was read.
    #[inline]
    fn exchanged(&self, reading: Option<Reading>, offset: u64, length: u64) {
        self.mapping.tally.add(Counter::Exchanges, 1);
        self.after_read(reading, offset, length);
    }

    /// Begins a read. Lines that a test has poisoned fail now, as bad memory fails when it is touched.
    #[inline]
    fn before_read(&self, offset: u64, length: u64) -> Option<Reading> {
        if self.faults.watched() { self.watch_read(offset, length) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn watch_read(&self, offset: u64, length: u64) -> Option<Reading> {
        self.touch_poisoned(offset, length);
        let fetched = self.fetched(offset, length);
        Some(Reading { fetched, start: (self.mapping.throttle.charges() && fetched > 0).then(Instant::now) })
    }

    /// Returns how many lines of a range have to be fetched, or 0 if nothing counts them.
    fn fetched(&self, offset: u64, length: u64) -> u64 {
        match &self.mapping.wear {
            // A region that is only recorded is read at full speed.
            None if !self.mapping.throttle.charges() => 0,
            None => cache::read(self.mapping.number, line_range(offset, length)),
            Some([_, read]) => self.fetch_by_block(read, offset, length),
        }
    }

    /// Ends a read.
    #[inline]
    fn after_read(&self, reading: Option<Reading>, offset: u64, length: u64) {
        if self.faults.watched() {
            self.was_read(reading, offset, length);
        }
    }

    #[cold]
    #[inline(never)]
    fn was_read(&self, reading: Option<Reading>, offset: u64, length: u64) {
        self.note_bad(offset, length);
        if let Some(Reading { fetched, start }) = reading {
            self.mapping.tally.add(Counter::LinesRead, fetched);
            self.charged(self.mapping.throttle.charge_read(start, fetched));
        }
    }

    /// Returns how many lines of a range are fetched, and counts each in its block.
    fn fetch_by_block(&self, read: &Wear, offset: u64, length: u64) -> u64 {
        let blocks = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        let in_block = |block: u64| {
            let start = offset.max(block * BLOCK_BYTES);
            let end = (offset + length).min((block + 1) * BLOCK_BYTES);
            let fetched = cache::read(self.mapping.number, line_range(start, end - start));
            read.add_lines(start, fetched);
            fetched
        };
        blocks.map(in_block).sum()
    }

    fn charged(&self, ps: u64) {
        self.mapping.tally.add(Counter::ChargedPs, ps);
    }
}

#[track_caller]
fn record(recorder: Recorder<'_>, action: impl FnOnce() -> Action) {
    if let Some(mut events) = recorder {
        events.push(Event { thread: thread::number(), site: Location::caller(), action: action() });
    }
}

/// Returns the numbers of the lines that a range touches; an empty range touches none.
#[inline]
fn line_range(offset: u64, length: u64) -> Range<u64> {
    let first = offset / LINE_BYTES;
    first..if length == 0 { first } else { (offset + length).div_ceil(LINE_BYTES) }
}

/// Returns how many lines a range touches.
#[inline]
fn lines_touched(offset: u64, length: u64) -> u64 {
    let lines = line_range(offset, length);
    lines.end - lines.start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(options: &OpenOptions) -> Region {
        Region::create(&DeviceSpec::Memory, 1 << 20, options).expect("memory for a small region")
    }

    fn observe(region: &Region, seen: &Arc<AtomicU64>) {
        let seen = seen.clone();
        region.keep_before_stores(Some(Arc::new(move |region, offset, _| {
            seen.store(region.load_u64(offset), Ordering::Relaxed);
            true
        })));
    }

    #[test]
    fn a_region_is_watched_only_while_its_stores_are_observed() {
        let (region, seen) = (region(&OpenOptions::default()), Arc::new(AtomicU64::new(0)));
        let _ = region.store_u64(64, 7);
        assert!(!region.is_watched());
        observe(&region, &seen);
        let _ = region.store_u64(64, 8);
        assert!(region.is_watched() && seen.load(Ordering::Relaxed) == 7, "what was there before the store");
        region.keep_before_stores(None);
        let _ = region.store_u64(64, 9);
        assert!(!region.is_watched() && seen.load(Ordering::Relaxed) == 7);
    }

    /// Other threads use the device meanwhile.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no address space to reserve")]
    fn a_mapped_device_becomes_longer_and_shorter_again() {
        for as_file in [false, true] {
            let options = OpenOptions { can_grow: true, as_file, track_wear: true, ..OpenOptions::default() };
            let region = region(&options);
            let address = region.address(0);
            assert!(region.capacity_bytes() > 1 << 24);
            let is_over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0.. {
                        let _ = region.fence(region.store_u64(64, number).flush());
                        assert_eq!(region.load_u64(64), number);
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
                for bytes in (2..12).map(|mib| mib << 20) {
                    region.lengthen_mapped(bytes).unwrap();
                    region.lengthen_mapped(bytes).unwrap();
                    assert_eq!((region.len_bytes(), region.address(0)), (bytes, address));
                    assert!(region.to_vec(bytes - 4096, 4096) == [0; 4096]);
                    let _ = region.fence(region.stream(bytes - 5000, &[7; 5000]));
                    region.sync().unwrap();
                    assert!(region.to_vec(bytes - 5000, 5000) == [7; 5000]);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            assert!(region.lengthen_mapped(1 << 20).is_err() && region.lengthen_mapped((12 << 20) + 1).is_err());
            region.lengthen_mapped(16 << 20).unwrap();
            region.shorten_mapped(11 << 20);
            assert!(!region.contains((11 << 20) - 1, 2) && region.wear().unwrap().blocks == 11 << 8);
            region.lengthen_mapped(16 << 20).unwrap();
            assert!(region.to_vec((11 << 20) - 5000, 10_000) == [[7; 5000], [0; 5000]].concat());
            let most = region.capacity_bytes();
            let refused = region.lengthen_mapped(most + 4096).unwrap_err();
            assert!(matches!(refused, PmemError::NoRoomBehind { .. }), "{refused}");
            assert!(!region.is_lost() && region.probe());
        }
        let fixed = region(&OpenOptions::default());
        assert_eq!(fixed.capacity_bytes(), 1 << 20);
        assert!(matches!(fixed.lengthen_mapped(2 << 20), Err(PmemError::NoRoomBehind { .. })));
    }

    #[test]
    fn a_region_that_must_be_watched_stays_so_after_an_observer() {
        let recorded = region(&OpenOptions { record: true, ..OpenOptions::default() });
        let (poisoned, lost) = (region(&OpenOptions::default()), region(&OpenOptions::default()));
        let seen = Arc::new(AtomicU64::new(0));
        for region in [&recorded, &poisoned, &lost] {
            observe(region, &seen);
        }
        poisoned.poison(4096, 64);
        lost.faults.lose();
        for region in [recorded, poisoned, lost] {
            region.keep_before_stores(None);
            assert!(region.is_watched());
        }
    }
}
