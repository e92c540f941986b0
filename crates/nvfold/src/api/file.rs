//! An open file: reads and writes of its bytes, and operations on ranges of it.

use super::{change, change_with};
use crate::compression::Compression;
use crate::error::{Error, Result};
use crate::fs::{self, Core, Ladder};
use crate::inode::Inode;
use crate::jobs::{Jobs, ReshareStep};
use crate::media::BLOCK_BYTES;
use crate::mount::Mounted;
use crate::words::{AllocateMode, Attr, InodeNumber, MappedExtent, Reshared, Times, Whence};
use nvfold_sync::atomic::Ordering;
use std::sync::Arc;

/// The longest range that is cloned in one step.
const CLONE_STEP_BYTES: u64 = 64 << 20;

/// An open file, by its bytes. It keeps an unlinked inode alive until the last clone is dropped.
#[derive(Clone)]
pub struct File {
    pub(super) pin: Arc<PinnedInode>,
    /// What changes of the content through this handle do to mtime and ctime.
    pub(super) times: Times,
}

/// A range of a request that was copied from a file (ICID 4.1). It is a hint: the bytes are compared before they are
/// shared.
#[derive(Clone, Copy)]
pub struct Origin<'f> {
    /// Offset of the first byte in the request, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
    /// File that the range was copied from.
    pub source: &'f File,
    /// Offset of the first byte in the source, in bytes.
    pub source_offset: u64,
}

impl<'f> Origin<'f> {
    fn of_inode(&self) -> fs::InodeOrigin<'f> {
        let Origin { at, length, source, source_offset } = *self;
        fs::InodeOrigin { at, length, source: &source.pin.inode, source_offset }
    }
}

/// Keeps an inode from being freed.
pub(super) struct PinnedInode {
    pub(super) mounted: Arc<Mounted>,
    pub(super) inode: Arc<Inode>,
}

impl PinnedInode {
    pub(super) fn new(mounted: &Arc<Mounted>, inode: Arc<Inode>) -> PinnedInode {
        inode.pins.fetch_add(1, Ordering::SeqCst);
        PinnedInode { mounted: mounted.clone(), inode }
    }
}

impl Drop for PinnedInode {
    fn drop(&mut self) {
        let core = &self.mounted.core;
        // Look before locking: nearly every file still has a name.
        let is_last = self.inode.pins.fetch_sub(1, Ordering::SeqCst) == 1 && !core.read_only;
        if is_last && core.policies.has_streams() {
            let _inside = core.freeze_lock.enter();
            if !core.unmounted.load(Ordering::Relaxed) {
                // An error here loses no data: the stream just stays unshared.
                let _ = core.end_stream_of_file(&self.inode);
            }
        }
        if is_last && self.inode.peek().attributes.nlink == 0 {
            let inside = core.freeze_lock.enter();
            if !core.unmounted.load(Ordering::Relaxed) {
                core.free_if_unused(&self.inode, &mut self.inode.lock());
            }
            drop(inside);
            core.release_postponed();
        }
    }
}

impl File {
    #[inline]
    fn core(&self) -> &Core {
        &self.pin.mounted.core
    }

    #[inline]
    fn change<T>(&self, doing: &'static str, operation: impl Fn(&Core, &Inode) -> Result<T>) -> Result<T> {
        let PinnedInode { mounted, inode } = &*self.pin;
        change(mounted, doing, || self.answer(operation(&mounted.core, inode)))
    }

    #[inline]
    fn write<T>(&self, operation: impl Fn(&Core, &Inode, &Ladder) -> Result<T>) -> Result<T> {
        let PinnedInode { mounted, inode } = &*self.pin;
        change_with(mounted, "write", |ladder| self.answer(operation(&mounted.core, inode, ladder)))
    }

    /// Returns the handle, whose writes, clones and reservations now do this to mtime and ctime.
    #[must_use]
    pub fn with_times(self, times: Times) -> File {
        File { times, ..self }
    }

    /// Returns the number of the inode.
    pub fn ino(&self) -> InodeNumber {
        InodeNumber(self.pin.inode.ino)
    }

    /// Returns the attributes, as `fstat` does.
    pub fn attr(&self) -> Attr {
        let inode = &self.pin.inode;
        inode.attr(&inode.peek())
    }

    /// Reads into `buffer` from byte `offset`; returns the number of bytes, fewer than requested only at the end of
    /// the file. EIO for bytes in bad memory.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.answer(self.core().read(&self.pin.inode, offset, buffer))
    }

    /// Writes all of `data` atomically, or fails and changes nothing. EFBIG, ENOSPC, EROFS.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(|core, inode, ladder| core.write(inode, Some(offset), data, self.times, ladder)).map(drop)
    }

    /// Appends all of `data` atomically; returns the byte offset at which it begins. Errors as for `write_at`.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.write(|core, inode, ladder| core.write(inode, None, data, self.times, ladder))
    }

    /// Writes all of `data` as [`File::write_at`] does, and passes hints about where its bytes were copied from (ICID
    /// 4.1). If the source still holds the same bytes, and the policy of the file follows origins, they are shared
    /// instead of stored. A wrong origin only costs time: so does a source that cannot be read, has changed
    /// meanwhile, or belongs to another file system. Returns the number of bytes shared through origins.
    ///
    /// # Errors
    /// Those of [`File::write_at`].
    pub fn write_at_from(&self, offset: u64, data: &[u8], origins: &[Origin<'_>]) -> Result<u64> {
        self.write_from(Some(offset), data, origins).map(|(_, shared)| shared)
    }

    /// Writes as [`File::write_at_from`] does, at the end of the file; returns the offset of the data in bytes, and
    /// the number of bytes shared.
    pub fn append_from(&self, data: &[u8], origins: &[Origin<'_>]) -> Result<(u64, u64)> {
        self.write_from(None, data, origins)
    }

    /// Returns true if writes use origins, by the policy of the file, its directory or the mount.
    pub fn follows_origins(&self) -> bool {
        self.pin.mounted.core.follows_origins(&self.pin.inode)
    }

    fn write_from(&self, at: Option<u64>, data: &[u8], origins: &[Origin<'_>]) -> Result<(u64, u64)> {
        let is_here = |origin: &&Origin<'_>| Arc::ptr_eq(&origin.source.pin.mounted, &self.pin.mounted);
        let origins: Vec<fs::InodeOrigin<'_>> = origins.iter().filter(is_here).map(Origin::of_inode).collect();
        self.write(|core, inode, ladder| core.write_from(inode, at, data, &origins, self.times, ladder))
    }

    /// Sets the size in bytes; growing a file leaves a hole. EFBIG.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.change("truncate", |core, inode| core.resize(inode, &mut *inode.write()?, size, core.now()))
    }

    /// Reserves, zeroes or frees a range of bytes. EINVAL if `len` is 0; EFBIG, ENOSPC.
    ///
    /// Reserved space serves the first write to it; overwriting data always needs new blocks (copy on write).
    pub fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.change("fallocate", |core, inode| core.allocate(inode, offset, len, mode, self.times))
    }

    /// Finds the next data or hole at or after byte `offset`. ENXIO if `offset` is at or past the end, or no data
    /// follows.
    pub fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.answer(self.core().seek(&self.pin.inode, offset, whence))
    }

    /// Shares any byte range of `source` by changing metadata only, whatever the policy. Returns the number of bytes
    /// cloned, which is less than `len` where the source ends. Both may be the same file if the ranges do not overlap
    /// (else EINVAL). A clone of up to 64 MiB is atomic; a longer one is done in steps of that, and completed steps stay
    /// after an error or a crash.
    pub fn clone_from(&self, source: &File, source_offset: u64, offset: u64, len: u64) -> Result<u64> {
        let (source, target) = (&source.pin.inode, &self.pin.inode);
        self.core().check_clone((source, source_offset), (target, offset), len)?;
        let mut done = 0;
        loop {
            let (from, to) = (source_offset + done, offset + done);
            // No block of the source is in two steps.
            let step = (len - done).min(CLONE_STEP_BYTES - from % BLOCK_BYTES);
            let cloned =
                self.change("clone", |core, inode| core.clone_range(source, from, inode, to, step, self.times))?;
            done += cloned;
            if cloned < step || done == len {
                return Ok(done);
            }
        }
    }

    /// Shares the blocks that begin in a range with equal blocks of any file, whatever the policy, and makes holes of
    /// blocks of zeros. Contents, size and times do not change. Blocks without a fingerprint get one, so that later
    /// data can be shared with them. It works in steps: completed steps stay, also after an error, and repeating it
    /// changes nothing. Only whole blocks are shared; holes and reserved ranges stay.
    ///
    /// # Errors
    /// EIO if counts cannot be made exact after a crash. ENOSPC if the log cannot grow. EROFS.
    pub fn dedup_range(&self, offset: u64, len: u64) -> Result<Reshared> {
        self.reshare("dedup", offset, len, |jobs, inode, at, end| jobs.share_step(inode, at, end, None))
    }

    /// Shares as [`File::dedup_range`] does, and also compresses packed chunks that are not compressed yet, or that
    /// this compression makes smaller by at least a sixteenth. Later writes are stored as the mount and the file say.
    ///
    /// # Errors
    /// Those of [`File::dedup_range`]; ENOSPC if the compressed chunks do not fit next to the ones they replace.
    pub fn compress_range(&self, offset: u64, len: u64, compression: Compression) -> Result<Reshared> {
        self.reshare("compress", offset, len, |jobs, inode, at, end| jobs.share_step(inode, at, end, Some(compression)))
    }

    /// Undoes sharing: gives the file its own copy of each shared block of a range. Contents, size and times do not
    /// change; a byte range that was cloned becomes whole blocks. It works in steps, as [`File::dedup_range`]. The
    /// policy places later writes as before.
    ///
    /// # Errors
    /// ENOSPC, after copying as much as fits; [`UndedupPlan`](crate::UndedupPlan) predicts it. EIO, EROFS.
    pub fn undedup_range(&self, offset: u64, len: u64) -> Result<Reshared> {
        self.reshare("undedup", offset, len, |jobs, inode, at, end| jobs.undedup_step(inode, at, end))
    }

    fn reshare(
        &self,
        doing: &'static str,
        offset: u64,
        len: u64,
        step: impl Fn(Jobs<'_>, &Inode, u64, u64) -> Result<ReshareStep>,
    ) -> Result<Reshared> {
        if !self.core().read_only && self.core().is_reconciling() {
            // Dedup and undedup decide by reference counts, so these must be exact.
            self.pin.mounted.reconcile()?;
        }
        self.core().release_waiting();
        let end = offset.saturating_add(len);
        let (mut at, mut done) = (offset, Reshared::default());
        while at < end {
            let jobs = self.pin.mounted.jobs();
            let step = self.change(doing, |_, inode| jobs.contain_request(inode, || step(jobs, inode, at, end)))?;
            done += step.done;
            at = step.next;
        }
        Ok(done)
    }

    /// Returns at most `most` extents from byte `from` on, in order, split where the number of references changes.
    /// For a large file it may return fewer: continue after the last extent until the list is empty.
    pub fn extents(&self, from: u64, most: usize) -> Result<Vec<MappedExtent>> {
        // The caller is told how many references there are.
        self.core().release_waiting();
        self.answer(self.core().mapped_extents(&self.pin.inode, from, most))
    }

    /// Makes all acknowledged writes durable; see [`FileSystem::sync`](crate::FileSystem::sync).
    pub fn sync(&self) -> Result<()> {
        self.answer(self.core().region.sync().map_err(Error::from))
    }

    #[inline]
    fn answer<T>(&self, result: Result<T>) -> Result<T> {
        let of_inode = Error::of(|| format!("inode {}", self.pin.inode.ino));
        self.core().region.check().map_err(of_inode)?;
        result
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::api::FileSystem;
    use crate::check::{CheckOptions, check};
    use crate::dedup::policy::Policy;
    use crate::mount::{MkfsOptions, MountOptions};
    use crate::words::{FileKind, IndexKind, NewInode, RenameMode, SetAttr};
    use pmem::{DeviceSpec, OpenOptions, Region};

    const BYTES: u64 = 1 << 30;
    const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    const ROOT: InodeNumber = InodeNumber::ROOT;

    fn file(fs: &FileSystem, name: &str) -> File {
        fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
    }

    /// Returns a file of 262,144 reserved blocks.
    fn large_file(fs: &FileSystem) -> File {
        let large = file(fs, "large");
        large.allocate(0, BYTES, AllocateMode::Reserve).unwrap();
        large
    }

    /// Returns how often the freeze lock was entered meanwhile. All blocks are free when the call returns.
    fn entries(fs: &FileSystem, call: impl FnOnce()) -> u64 {
        let before = fs.core().freeze_lock.entered();
        call();
        assert!(fs.statfs().blocks_free > BYTES / BLOCK_BYTES, "{:?}", fs.statfs());
        fs.core().freeze_lock.entered() - before
    }

    #[test]
    fn calls_that_free_a_large_file_leave_the_freeze_lock_between_steps() {
        let region = Region::create(&DeviceSpec::Memory, BYTES + (64 << 20), &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let large = large_file(&fs);
        let truncate = || assert_eq!(fs.setattr(large.ino(), &size(4096)).unwrap().size, 4096);
        assert!(entries(&fs, truncate) > 60);
        large.allocate(0, BYTES, AllocateMode::Reserve).unwrap();
        assert!(entries(&fs, || large.allocate(0, BYTES, AllocateMode::PunchHole).unwrap()) > 60);
        large.allocate(0, BYTES, AllocateMode::Reserve).unwrap();
        drop(large);
        assert!(entries(&fs, || fs.unlink(ROOT, b"large").unwrap()) > 60);
        let large = large_file(&fs);
        fs.unlink(ROOT, b"large").unwrap();
        assert!(entries(&fs, || drop(large)) > 60);
        drop((large_file(&fs), file(&fs, "small")));
        let replace = || fs.rename(ROOT, b"small", ROOT, b"large", RenameMode::Replace).unwrap();
        assert!(entries(&fs, replace) > 60);
        fs.unlink(ROOT, b"large").unwrap();
        // What an unmount frees.
        let open = large_file(&fs);
        fs.unlink(ROOT, b"large").unwrap();
        fs.unmount().unwrap();
        drop(open);
        let report = check(&region, &CheckOptions::default()).unwrap();
        assert!(report.clean && report.findings.is_empty() && report.blocks == 0, "{report:#?}");
    }

    /// Blocks that can be found in either index, half of them shared: what is postponed leaves the index like the rest.
    #[test]
    fn a_truncated_large_file_leaves_nothing_in_the_index() {
        for index in [IndexKind::Dram, IndexKind::Pm] {
            let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
            FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
            let options = MountOptions { policy: Policy::Inline, ..MountOptions::default() };
            let fs = FileSystem::mount(region.clone(), options).unwrap();
            let mut bytes = vec![0; 24 << 20];
            let number = |at: usize| (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            bytes.chunks_mut(8).enumerate().for_each(|(at, word)| word.copy_from_slice(&number(at)));
            let (large, half) = (file(&fs, "large"), file(&fs, "half"));
            large.write_at(0, &bytes).unwrap();
            half.write_at(0, &bytes[12 << 20..]).unwrap();
            assert_eq!(fs.stats().stored_bytes, 24 << 20);
            large.set_len(0).unwrap();
            assert_eq!(fs.stats().stored_bytes, 12 << 20);
            large.write_at(0, &bytes).unwrap();
            let mut read = vec![0; bytes.len()];
            large.read_at(0, &mut read).unwrap();
            assert!(read == bytes && fs.stats().stored_bytes == 24 << 20, "{index:?}: {:?}", fs.stats());
            drop((large, half));
            fs.unlink(ROOT, b"large").unwrap();
            fs.unlink(ROOT, b"half").unwrap();
            assert_eq!((fs.stats().stored_bytes, fs.stats().index.entries), (0, 0));
            fs.unmount().unwrap();
            let report = check(&region, &CheckOptions::default()).unwrap();
            assert!(report.clean && report.findings.is_empty() && report.blocks == 0, "{report:#?}");
        }
    }

    /// Between the commit and the release, counts are too high.
    #[test]
    fn a_crash_and_an_unmount_release_what_a_change_has_postponed() {
        const SMALL_BYTES: u64 = 64 << 20;
        let device = || Region::create(&DeviceSpec::Memory, SMALL_BYTES, &OpenOptions::default()).unwrap();
        let region = device();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        let free = fs.statfs().blocks_free;
        let large = file(&fs, "large");
        large.allocate(0, 40 << 20, AllocateMode::Reserve).unwrap();
        drop(large);
        {
            let _inside = fs.core().freeze_lock.enter();
            fs.core().unlink(ROOT, b"large").unwrap();
        }
        assert!(fs.core().free_blocks() < free - 4096, "only the first are released");
        let (crashed, mut bytes) = (device(), vec![0; SMALL_BYTES as usize]);
        region.read_into(0, &mut bytes);
        let _ = crashed.fence(crashed.write(0, &bytes[..]).flush());
        let recovered = FileSystem::mount(crashed.clone(), MountOptions::default()).unwrap();
        recovered.reconcile().unwrap();
        assert_eq!(recovered.statfs().blocks_free, free);
        recovered.unmount().unwrap();
        fs.unmount().unwrap();
        for region in [crashed, region] {
            let report = check(&region, &CheckOptions::default()).unwrap();
            assert!(report.clean && report.findings.is_empty() && report.blocks == 0, "{report:#?}");
        }
    }

    /// With a pm index, what an overwrite drops is released by whoever asks for space, by the daemon, or when much of it
    /// waits; and it can be found until then.
    #[test]
    fn with_a_pm_index_dropped_blocks_are_released_later() {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { index: IndexKind::Pm, ..MkfsOptions::default() }).unwrap();
        let options = MountOptions { policy: Policy::Inline, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        let numbered = |first: u64, blocks: u64| -> Vec<u8> {
            (first..first + blocks).flat_map(|number| [number.to_le_bytes(); 512].concat()).collect()
        };
        let free = || fs.core().free_blocks();
        let (one, two) = (file(&fs, "one"), file(&fs, "two"));
        one.write_at(0, &numbered(1, 100)).unwrap();
        let before = free();
        one.write_at(0, &numbered(1001, 100)).unwrap();
        assert_eq!(free(), before - 100, "they wait");
        two.write_at(0, &numbered(1, 50)).unwrap();
        assert_eq!(free(), before - 100, "half of them are found");
        assert_eq!(fs.statfs().blocks_free, before - 50);
        two.set_len(0).unwrap();
        assert_eq!((free(), fs.stats().data_blocks, free()), (before - 50, 100, before));
        // The daemon.
        one.write_at(0, &numbered(2001, 100)).unwrap();
        assert_eq!(free(), before - 100);
        crate::Daemon::new(fs.clone()).turn().unwrap();
        assert_eq!(free(), before);
        // A list that is full: each call over it releases a step.
        let most = crate::store::postponed::LATE_MOST;
        for round in 0..most / 100 + 20 {
            one.write_at(0, &numbered(3001 + round * 100, 100)).unwrap();
            assert!(free() >= before - most, "round {round}: {} of {before}", free());
        }
        // A full device: what waits is space.
        let blocks = fs.statfs().blocks_available - 200;
        two.write_at(0, &numbered(1 << 20, blocks)).unwrap();
        for round in 0..10 {
            one.write_at(0, &numbered((1 << 30) + round * 100, 100)).unwrap();
        }
        drop((one, two));
        fs.unlink(ROOT, b"one").unwrap();
        fs.unlink(ROOT, b"two").unwrap();
        fs.unmount().unwrap();
        let report = check(&region, &CheckOptions::default()).unwrap();
        assert!(report.clean && report.findings.is_empty() && report.blocks == 0, "{report:#?}");
    }

    #[test]
    fn a_long_clone_is_done_in_steps_and_a_wrong_one_changes_nothing() {
        let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        let (source, target) = (file(&fs, "source"), file(&fs, "target"));
        source.write_at(0, b"the beginning").unwrap();
        source.write_at((200 << 20) - 5, b"end").unwrap();
        let before = fs.core().freeze_lock.entered();
        assert_eq!(target.clone_from(&source, 3, 7, BYTES).unwrap(), (200 << 20) - 5);
        assert!(fs.core().freeze_lock.entered() - before >= 4);
        let mut bytes = [0; 10];
        target.read_at(7, &mut bytes).unwrap();
        assert_eq!(&bytes, b" beginning");
        assert_eq!(target.read_at((200 << 20) - 1, &mut bytes).unwrap(), 3);
        assert_eq!(&bytes[..3], b"end");
        let overlapping = target.clone_from(&target, 0, 100 << 20, 150 << 20);
        assert!(matches!(overlapping, Err(Error::Posix { errno: crate::errno::EINVAL, .. })));
        let too_far = target.clone_from(&source, 0, u64::MAX / 2 - 4096, BYTES);
        assert!(matches!(too_far, Err(Error::Posix { errno: crate::errno::EFBIG, .. })));
        assert_eq!(target.attr().size, (200 << 20) + 2);
    }
}
