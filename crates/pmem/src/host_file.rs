//! The host's file below a device of level `file`, as [`writeback`](crate::writeback) and [`journal`](crate::journal)
//! use it.
//!
//! Every change of the file goes through here. So a test can record the changes, in order, and ask the model of a
//! power cut ([`PowerCut`](crate::PowerCut)) what the disk may hold after it.

use crate::host;
use crate::power_cut::HostEvent;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, Result, retry_on_intr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file. A clone refers to the same file.
#[derive(Clone)]
pub(crate) struct HostFile {
    file: Arc<OwnedFd>,
    recorder: Option<Arc<Recorder>>,
}

#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<HostEvent>>,
    /// The number of changes that still succeed, plus one; 0: all succeed.
    fails_in: AtomicU64,
}

impl HostFile {
    pub(crate) fn new(file: Arc<OwnedFd>, records: bool) -> HostFile {
        HostFile { file, recorder: records.then(Arc::default) }
    }

    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
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

    /// Returns the size in bytes.
    pub(crate) fn length(&self) -> Result<u64> {
        Ok(host::fstat(&self.file)?.st_size as u64)
    }

    /// Reads as many bytes as the file has; fills the rest of `bytes` with zeros.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| rustix::io::pread(&self.file, &mut bytes[done..], offset + done as u64))? {
                0 => break,
                read => done += read,
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.fails() {
            let half = &bytes[..bytes.len() / 2];
            let _ = rustix::io::pwrite(&self.file, half, offset);
            self.record(|| HostEvent::Write { offset, bytes: half.to_vec() });
            return Err(Errno::IO);
        }
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| rustix::io::pwrite(&self.file, &bytes[done..], offset + done as u64))? {
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
        match retry_on_intr(|| host::fallocate(&self.file, flags, offset, length)) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; length as usize];
                return self.write_at(offset, &zeros);
            }
            Err(errno) => return Err(errno),
        }
        self.record(|| HostEvent::Clear { offset, length });
        Ok(())
    }

    pub(crate) fn set_length(&self, bytes: u64) -> Result<()> {
        if self.fails() {
            return Err(Errno::IO);
        }
        retry_on_intr(|| host::ftruncate(&self.file, bytes))?;
        self.record(|| HostEvent::SetLength(bytes));
        Ok(())
    }

    /// Waits until all earlier changes are on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.fails() {
            self.record(|| HostEvent::FailedSync);
            return Err(Errno::IO);
        }
        retry_on_intr(|| rustix::fs::fdatasync(&self.file))?;
        self.record(|| HostEvent::Sync);
        Ok(())
    }

    fn record(&self, event: impl FnOnce() -> HostEvent) {
        if let Some(recorder) = &self.recorder {
            recorder.events.lock().push(event());
        }
    }
}
