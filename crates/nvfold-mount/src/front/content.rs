//! The content of files: reads, writes, space, holes and clones.
//!
//! The kernel holds dirty pages that the server has not seen, and caches block counts that the server has changed. So
//! a notice reports each change of the count (`notices`), and before a search for holes the pages of the file are
//! written back.
//!
//! A direct write bypasses the page cache. The kernel drops the pages of its range before the write, and after it too
//! if the process waits for the write. Otherwise (AIO, io_uring) a page read in between would keep its old content.
//! So if the kernel may have pages of the file, a direct write is answered only after those of its range are dropped.

use super::unstored::as_the_kernel_keeps_it;
use super::{Answer, Front, lacks_room};
use crate::convert;
use nvfold::{AllocateMode, InodeNumber, Whence};
use nvfold_fuse::{Caller, Errno, Reply};

/// The largest `copy_file_range`, in bytes: what the 32-bit count of the reply can hold, in whole blocks.
const COPIED_AT_A_TIME: u64 = (1 << 32) - 4096;

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Front {
    /// Reads up to `size` bytes into the reply; fewer at the end of the file.
    pub(crate) fn read_into(&self, ino: InodeNumber, offset: u64, size: u32, reply: &mut Reply<'_>) -> Answer<()> {
        reply.fill(size as usize, |room| {
            let file = self.fs.open(ino).map_err(convert::errno)?;
            let length = file.read_at(offset, room).map_err(convert::errno)?;
            self.counters.read(length);
            self.note_read(&file, offset, &room[..length]);
            Ok(length)
        })
    }

    /// Writes. `from_cache`: the kernel writes pages back. It then does not ask for the file's block count
    /// afterwards, so a notice reports a change.
    pub(crate) fn write_to(&self, ino: InodeNumber, offset: u64, data: &[u8], from_cache: bool) -> Answer<()> {
        if from_cache {
            self.check_may_write(ino, offset).map_err(as_the_kernel_keeps_it)?;
        }
        let file = self.open_to_change(ino).map_err(convert::errno)?;
        let before = file.attr().blocks;
        let causes = self.causes_of(&file, offset, data);
        let written = self.with_room(|| causes.write(&file, offset, data));
        if from_cache && let Some(error) = written.as_ref().err().filter(|error| lacks_room(error)) {
            self.record_failed_writeback(ino, offset, Errno(error.errno()));
        }
        if from_cache && written.as_ref().is_err_and(|error| error.errno() == nvfold::errno::EROFS) {
            // Nobody may read from the cache what the file of a snapshot does not hold.
            self.notices.drop_pages((ino, (offset, data.len() as u64)));
        }
        let as_told = |errno| if from_cache { as_the_kernel_keeps_it(errno) } else { errno };
        let written = written.map_err(convert::errno).map_err(as_told)?;
        self.note_written(&file, offset, &causes, &written);
        self.counters.write(data.len());
        if !from_cache {
            return Ok(());
        }
        match before {
            before if before == file.attr().blocks => {}
            0 => self.notices.has_first_blocks(ino),
            _ => self.notices.has_other_blocks(ino),
        }
        Ok(())
    }

    /// Does an `fallocate`; `mode` holds its flags. EOPNOTSUPP for other combinations of flags.
    pub(crate) fn allocate(&self, ino: InodeNumber, offset: u64, length: u64, mode: u32) -> Answer<()> {
        let mode = match mode {
            0 => AllocateMode::Reserve,
            KEEP_SIZE => AllocateMode::ReserveKeepSize,
            flags if flags == PUNCH_HOLE | KEEP_SIZE => AllocateMode::PunchHole,
            ZERO_RANGE => AllocateMode::ZeroRange,
            flags if flags == ZERO_RANGE | KEEP_SIZE => AllocateMode::ZeroRangeKeepSize,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let reserve = |file: nvfold::File| self.with_room(|| file.allocate(offset, length, mode));
        self.open_to_change(ino).and_then(reserve).map_err(convert::errno)
    }

    /// Finds the next data or hole, after the kernel has written back its pages. ENXIO if there is none.
    pub(crate) fn seek(&self, who: &Caller, ino: InodeNumber, offset: i64, whence: u32) -> Answer<u64> {
        let whence = match whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        if !self.fs.is_read_only() {
            who.while_waiting(ino.0, || self.notices.write_back(ino));
        }
        self.fs.open(ino).and_then(|file| file.seek(offset, whence)).map_err(convert::errno)
    }

    /// Clones a range, which changes only metadata, and returns the number of cloned bytes. The count has 32 bits, so
    /// a longer range is cloned in part; the caller continues where it stopped.
    pub(crate) fn clone_range(
        &self,
        who: &Caller,
        (source, source_offset): (InodeNumber, u64),
        (target, target_offset): (InodeNumber, u64),
        length: u64,
    ) -> Answer<u32> {
        self.take_privileges_from(who, target)?;
        let clone = || {
            let (source, target) = (self.fs.open(source)?, self.open_to_change(target)?);
            let length = length.min(COPIED_AT_A_TIME);
            self.with_room(|| target.clone_from(&source, source_offset, target_offset, length))
        };
        clone().map(|cloned| cloned as u32).map_err(convert::errno)
    }

    /// Does an fsync. At levels where a fence makes data persistent, nothing is left to do, but the request is
    /// answered all the same: after an ENOSYS the kernel would not ask again. If this process then died, the kernel
    /// would drop dirty pages and still report a successful fsync.
    pub(crate) fn sync(&self) -> Answer<()> {
        if self.sync_needed { self.sync_all() } else { Ok(()) }
    }

    /// Makes durable what is stored; many who ask at once share a sync.
    pub(crate) fn sync_all(&self) -> Answer<()> {
        self.syncs.sync(|| self.fs.sync().map_err(convert::errno))
    }
}
