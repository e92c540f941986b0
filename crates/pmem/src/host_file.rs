//! The host's file below a device of level `file`, as [`writeback`](crate::writeback) and [`journal`](crate::journal)
//! use it.
//!
//! Every change of the file goes through here, each with a look at its descriptor ([`Descriptor`]). So a test can
//! record the sequence of changes, and ask the model of a power cut ([`PowerCut`](crate::PowerCut)) what the disk may
//! hold after it.

use crate::descriptor::Descriptor;
use crate::power_cut::HostEvent;
use crate::{BLOCK_BYTES, host};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, Result, retry_on_intr};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file. A clone refers to the same file.
#[derive(Clone)]
pub(crate) struct HostFile {
    file: Arc<Descriptor>,
    recorder: Option<Arc<Recorder>>,
}

#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<HostEvent>>,
    /// The number of changes that still succeed, plus one; 0: all succeed.
    fails_in: AtomicU64,
    disk: Mutex<Disk>,
}

/// Zeros to store or to write, part by part.
pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The disk below a recorded file.
struct Disk {
    /// Pages of the file that have room on it.
    pages: BTreeSet<u64>,
    /// How many pages it has.
    pages_max: u64,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk { pages: BTreeSet::new(), pages_max: u64::MAX }
    }
}

impl Disk {
    /// Gives room to all pages of a range, or to none.
    fn take(&mut self, offset: u64, length: u64) -> Result<()> {
        let range = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        let there = self.pages.range(range.clone()).count() as u64;
        if self.pages.len() as u64 + (range.end - range.start) - there > self.pages_max {
            return Err(Errno::NOSPC);
        }
        self.pages.extend(range);
        Ok(())
    }

    /// Takes the room of the whole pages in a range back.
    fn give_back(&mut self, offset: u64, end: u64) {
        let mut behind = self.pages.split_off(&offset.div_ceil(BLOCK_BYTES));
        self.pages.append(&mut behind.split_off(&(end / BLOCK_BYTES)));
    }
}

impl HostFile {
    pub(crate) fn new(file: Arc<Descriptor>, records: bool) -> HostFile {
        HostFile { file, recorder: records.then(Arc::default) }
    }

    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.file
    }

    /// Takes the changes recorded since the last call.
    pub(crate) fn take_events(&self) -> Vec<HostEvent> {
        self.recorder.as_ref().map(|recorder| std::mem::take(&mut *recorder.events.lock())).unwrap_or_default()
    }

    /// Lets the `nth` change from now on fail with EIO, half done, and all later ones too; 0: none. Only recorded
    /// files fail.
    pub(crate) fn fail(&self, nth: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.fails_in.store(nth, Ordering::Relaxed);
        }
    }

    /// Lets the disk have room for this many bytes of the file; only the disk of a recorded file is limited.
    pub(crate) fn limit(&self, bytes: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.disk.lock().pages_max = bytes / BLOCK_BYTES;
        }
    }

    fn take_room(&self, offset: u64, length: u64) -> Result<()> {
        self.recorder.as_ref().map_or(Ok(()), |recorder| recorder.disk.lock().take(offset, length))
    }

    fn give_room_back(&self, offset: u64, end: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.disk.lock().give_back(offset, end);
        }
    }

    fn fails(&self) -> bool {
        let Some(recorder) = &self.recorder else { return false };
        match recorder.fails_in.load(Ordering::Relaxed) {
            0 => false,
            1 => true,
            more => {
                recorder.fails_in.store(more - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Returns how many bytes the host can still reserve for files; `u64::MAX` if it does not say.
    pub(crate) fn free_bytes(&self) -> u64 {
        if let Some(recorder) = &self.recorder {
            let disk = recorder.disk.lock();
            if disk.pages_max != u64::MAX {
                return disk.pages_max.saturating_sub(disk.pages.len() as u64).saturating_mul(BLOCK_BYTES);
            }
        }
        let stat = self.file.get().and_then(host::fstatfs);
        stat.map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_bsize as u64))
    }

    /// Reserves disk for a range, whose content stays as it is: later writes to it find room.
    pub(crate) fn reserve(&self, offset: u64, length: u64) -> Result<()> {
        self.take_room(offset, length)?;
        let file = self.file.get()?;
        retry_on_intr(|| host::fallocate(file, FallocateFlags::KEEP_SIZE, offset, length))
    }

    /// Gives the disk of a range that reads as zeros back. The host may refuse.
    pub(crate) fn give_back(&self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let Ok(file) = self.file.get() else { return };
        if retry_on_intr(|| host::fallocate(file, flags, offset, length)).is_ok() {
            self.give_room_back(offset, offset + length);
        }
    }

    /// Returns the size in bytes.
    pub(crate) fn length(&self) -> Result<u64> {
        Ok(self.file.stat()?.st_size as u64)
    }

    /// Reads as many bytes as the file has; fills the rest of `bytes` with zeros.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let file = self.file.get()?;
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| rustix::io::pread(file, &mut bytes[done..], offset + done as u64))? {
                0 => break,
                read => done += read,
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.file.get()?;
        if self.fails() {
            let half = &bytes[..bytes.len() / 2];
            let _ = rustix::io::pwrite(file, half, offset);
            self.record(|| HostEvent::Write { offset, bytes: half.to_vec() });
            return Err(Errno::IO);
        }
        self.take_room(offset, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| rustix::io::pwrite(file, &bytes[done..], offset + done as u64))? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        self.record(|| HostEvent::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Makes a range read as zeros: by a hole where the host can make one, by writing zeros elsewhere.
    pub(crate) fn clear(&self, offset: u64, length: u64) -> Result<()> {
        if self.fails() {
            return Err(Errno::IO);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = self.file.get()?;
        match retry_on_intr(|| host::fallocate(file, flags, offset, length)) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; length as usize];
                return self.write_at(offset, &zeros);
            }
            Err(errno) => return Err(errno),
        }
        self.give_room_back(offset, offset + length);
        self.record(|| HostEvent::Clear { offset, length });
        Ok(())
    }

    /// Writes zeros, which keep their disk.
    pub(crate) fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let parts = (0..length).step_by(ZEROS.len());
        parts
            .map(|at| (offset + at, (length - at).min(ZEROS.len() as u64)))
            .try_for_each(|(at, part)| self.write_at(at, &ZEROS[..part as usize]))
    }

    pub(crate) fn set_length(&self, bytes: u64) -> Result<()> {
        if self.fails() {
            return Err(Errno::IO);
        }
        let file = self.file.get()?;
        retry_on_intr(|| host::ftruncate(file, bytes))?;
        self.give_room_back(bytes, u64::MAX);
        self.record(|| HostEvent::SetLength(bytes));
        Ok(())
    }

    /// Waits until all earlier changes are on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.fails() {
            self.record(|| HostEvent::FailedSync);
            return Err(Errno::IO);
        }
        let file = self.file.get()?;
        retry_on_intr(|| rustix::fs::fdatasync(file))?;
        self.record(|| HostEvent::Sync);
        Ok(())
    }

    fn record(&self, event: impl FnOnce() -> HostEvent) {
        if let Some(recorder) = &self.recorder {
            recorder.events.lock().push(event());
        }
    }
}
