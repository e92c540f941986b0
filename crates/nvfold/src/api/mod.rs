//! The public interface: [`FileSystem`] works on names and inodes, [`File`] on bytes.
//!
//! Both are thin: they check their arguments and call an operation of `fs`. This module decides one thing. If an
//! operation finds too little space while recovery or background work may still free some, the caller waits for that
//! work, and the operation runs again.
//!
//! | file | contents |
//! |---|---|
//! | `file` | [`File`]: bytes and ranges of an open file |
//! | `daemon` | the dedup daemon of policy `denova`, which a front end runs |
//! | `stats` | statistics of a mount |
//! | `trees` | directories with all that is below them |
//! | `limits` | limits of trees |
//! | `rest` | the device between two operations, for copies of it |

mod daemon;
mod file;
mod limits;
mod rest;
mod stats;
mod trees;

pub use daemon::Daemon;
pub use file::{File, Origin};
pub use rest::AtRest;
pub use stats::Stats;

use crate::compression::Compression;
use crate::dedup::denova::options::DedupMode;
use crate::dedup::nv_dedup::options::MethodChoice;
use crate::dedup::policy::{Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::fs::{Core, Ladder};
use crate::jobs::{Effort, Jobs, Worked};
use crate::media::BLOCK_BYTES;
use crate::media::log_entry::NAME_BYTES_MAX;
use crate::mount::{self, MkfsOptions, MountOptions, Mounted, Resized};
use crate::panics::Job;
use crate::space::KEPT_BLOCKS;
use crate::space::reclaim::Victims;
use crate::words::*;
use file::PinnedInode;
use nvfold_sync::atomic::Ordering;
use pmem::Region;
use std::sync::Arc;

/// Background work frees at least this many blocks for an operation that ran out of space, before the operation is
/// retried.
const ROOM_BLOCKS: u64 = 256;

/// A mounted file system, by names and inodes. It is cheap to clone; every method may be called from any thread.
///
/// ```
/// use nvfold::{FileSystem, FileKind, InodeNumber, MkfsOptions, MountOptions, NewInode};
/// use pmem::{DeviceSpec, OpenOptions, Region};
///
/// let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default())?;
/// FileSystem::mkfs(&region, &MkfsOptions::default())?;
/// let fs = FileSystem::mount(region, MountOptions::default())?;
/// let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
/// for name in [b"one", b"two"] {
///     let file = fs.open(fs.create(InodeNumber::ROOT, name, &new)?.ino)?;
///     file.write_at(0, &[7; 1 << 20])?;
/// }
/// let stats = fs.stats();
/// assert_eq!(stats.logical_bytes, 2 << 20);
/// assert_eq!(stats.stored_bytes, 4096, "all blocks are equal: one is stored");
/// fs.unmount()?;
/// # Ok::<(), nvfold::Error>(())
/// ```
#[derive(Clone)]
pub struct FileSystem {
    mounted: Arc<Mounted>,
}

/// Runs an operation that changes something, and retries it when it runs out of space that can still be freed. It
/// first waits for recovery, which may find free blocks from before a crash, then for background work that may free
/// space, then for reclamation.
fn change<T>(mounted: &Mounted, doing: &'static str, operation: impl Fn() -> Result<T>) -> Result<T> {
    change_with(mounted, doing, |_| operation())
}

/// The same for an operation that goes down a [`Ladder`] of places. All work for space takes from one [`Effort`], but not
/// the wait for recovery: that is needed once a mount, and what it finds may be most of the device.
fn change_with<T>(mounted: &Mounted, doing: &'static str, operation: impl Fn(&Ladder) -> Result<T>) -> Result<T> {
    let (core, jobs) = (&mounted.core, mounted.jobs());
    let (effort, ladder) = (Effort::default(), Ladder::default());
    // Only once: the retried operation may open a packed segment again.
    let mut may_give_up = true;
    loop {
        match core.change_by(doing, || operation(&ladder)) {
            // What is used of a limit is known when recovery has counted it.
            Err(Error::OverLimit { .. }) if core.is_reconciling() => mounted.reconcile()?,
            // Another call has dropped it.
            Err(Error::NoSpace { .. }) if core.release_waiting() => {}
            // Room where it is stored best, before other places are tried.
            Err(Error::NoSpace { .. }) if ladder.has_stopped() => {
                if !jobs.make_segment(&effort) {
                    ladder.open();
                }
            }
            // A removed tree is sure space.
            Err(Error::NoSpace { blocks_needed, .. })
                if mounted.trees().has_removed()
                    && mounted.trees().make_room(blocks_needed.max(ROOM_BLOCKS)).unwrap_or(false) => {}
            Err(error @ Error::NoSpace { .. }) if core.is_reconciling() => {
                // If recovery cannot finish, no further space becomes known, and the known space was not enough.
                if mounted.reconcile().is_err() {
                    return Err(error);
                }
            }
            Err(error @ Error::NoSpace { blocks_needed, .. })
                if core.policies.space_freeing_policy().may_free_space() && !core.panics.have_stopped(Job::Share) =>
            {
                // The queue may hold data that is already stored. The operation fails only when nothing more can be
                // shared.
                if make_room(jobs, blocks_needed).is_err() {
                    return Err(error);
                }
            }
            Err(Error::NoSpace { .. }) if may_give_up && core.give_up_empty_packed() > 0 => may_give_up = false,
            // Dead bytes in packed segments are space, too.
            Err(Error::NoSpace { .. }) if jobs.make_segment(&effort) => {}
            // Scattered free blocks make a segment.
            Err(Error::NoSpace { blocks_needed, blocks_free, .. })
                if blocks_free >= blocks_needed && jobs.make_segment_of_blocks(&effort) => {}
            // So are the unreferenced bytes of chunks of which extents use only a few bytes.
            Err(Error::NoSpace { .. }) if jobs.collect_for_space(&effort) => {}
            result => return result,
        }
    }
}

/// Runs background work until `blocks` blocks more are free (at least [`ROOM_BLOCKS`]), or nothing is left to do. It
/// takes from no [`Effort`]: what is in the queue is looked at once, by this call or another.
fn make_room(jobs: Jobs<'_>, blocks: u64) -> Result<()> {
    let enough = jobs.space.free_blocks() + blocks.max(ROOM_BLOCKS);
    while jobs.space.free_blocks() < enough && !jobs.step_of(Job::Share, jobs.policies.space_freeing_policy())? {}
    Ok(())
}

impl FileSystem {
    pub(crate) fn core(&self) -> &Core {
        &self.mounted.core
    }

    pub(crate) fn jobs(&self) -> Jobs<'_> {
        self.mounted.jobs()
    }

    fn change<T>(&self, doing: &'static str, operation: impl Fn() -> Result<T>) -> Result<T> {
        change(&self.mounted, doing, operation)
    }

    /// Formats a device. All data on it is lost. The superblock is written last, so an interrupted format leaves no
    /// file system instead of a partial one.
    ///
    /// # Errors
    /// [`Error::Format`] when the device is too small, too large or not a multiple of 4096 bytes, or holds an
    /// nvfold file system and `force` is not set.
    pub fn mkfs(region: &Region, options: &MkfsOptions) -> Result<()> {
        mount::format(region, options)
    }

    /// Mounts a device. After a clean unmount it loads the saved DRAM state. After a crash it finishes the
    /// interrupted operations and scans the tables. [`FileSystem::reconcile_step`] later makes the counts exact and
    /// finds the free blocks from before the crash; all files can be used meanwhile.
    ///
    /// # Errors
    /// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`]; the device is unchanged in these
    /// cases.
    pub fn mount(region: Region, options: MountOptions) -> Result<FileSystem> {
        Ok(FileSystem { mounted: Arc::new(mount::open(region, &options)?) })
    }

    /// Does one bounded step of recovery after a crash; returns true when nothing is left. Front ends call it in a
    /// loop on their own thread; otherwise it runs when space is needed, and in `unmount`. Changing operations wait
    /// for the current step (well below a millisecond, except for a file with very many extents); readers do not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if an inode cannot be read: the blocks it references are unknown, so no block from before
    /// the crash is freed and no count is lowered. Everything else continues; fsck names the inode.
    /// [`Error::NotReconciled`] if another error ended recovery.
    pub fn reconcile_step(&self) -> Result<bool> {
        self.mounted.reconcile_step()
    }

    /// Does all steps of recovery. Errors as [`FileSystem::reconcile_step`].
    pub fn reconcile(&self) -> Result<()> {
        self.mounted.reconcile()
    }

    /// Does one bounded step of the policies' background work: computes missing fingerprints (NV-Dedup 4.4.2), cuts
    /// data again that was written out of order, does a step of a policy that a program has brought, and packs the ends
    /// of files that grew and rest now. Returns true when there is currently nothing to do; new writes may change that.
    /// Front ends call it in a loop on their own thread.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub fn fill_step(&self) -> Result<bool> {
        let jobs = self.jobs();
        let is_filled = jobs.step_of(Job::Fill, jobs.policies.filling_policy())?;
        let are_cut = jobs.step_of(Job::CutSeam, jobs.policies.deext())?;
        let of_program = jobs.policies.custom_policy().map(|policy| jobs.step_of(Job::OwnPolicy, policy));
        Ok(is_filled & are_cut & of_program.transpose()?.unwrap_or(true) & jobs.settle_step()?)
    }

    /// Does one step of reordering a chain of the pm index (DeNOVA IV-E), if a search asked for it; returns true when
    /// there is nothing to do ([`ReorderOptions`]). Searches and changes may run between the steps.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub fn reorder_step(&self) -> Result<bool> {
        self.jobs().reorder_step()
    }

    /// Does one step of reclamation, which takes at most a millisecond. It moves the live chunks out of the segments
    /// with the fewest live bytes (DeEXT III-D), and replaces chunks of which only a few bytes are in use by smaller
    /// ones (ICID 4.6). Returns true when there is currently nothing to do, or when a reader still uses a moved
    /// chunk. Front ends call it in a loop every second, on their own thread; otherwise it runs when space is needed.
    /// Readers and writers may run meanwhile.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub fn reclaim_step(&self, victims: Victims) -> Result<bool> {
        Ok(self.jobs().reclaim_step(victims)? != Worked::GoesOn)
    }

    /// Returns the number of items that background work has skipped since mount because they could not be read: see
    /// [`Skipped`].
    pub fn skipped(&self) -> Skipped {
        self.core().skipped()
    }

    /// Returns the number of changes that were refused since mount because of a mistake in nvfold: see [`Refused`].
    pub fn refused(&self) -> Refused {
        self.core().refused()
    }

    /// Returns the panics since mount in work beside the calls: see [`Panicked`].
    pub fn panicked(&self) -> Panicked {
        self.core().panicked()
    }

    /// Saves the DRAM state and marks the device clean. Open `File`s can still be read, except those of unlinked
    /// inodes, which are freed; writes through them fail with EROFS. Dropping a `FileSystem` without unmounting
    /// leaves the device as a crash does, and the next mount recovers it. A device with bad memory is left in that
    /// state, too, and so is one after a panic ([`FileSystem::panicked`]).
    ///
    /// # Errors
    /// Those of [`FileSystem::reconcile_step`]; the device is then left as after a crash. Errors of the device.
    /// [`pmem::PmemError::Lost`] or [`pmem::PmemError::DescriptorClosed`] when the device was lost; nothing is written
    /// then.
    pub fn unmount(self) -> Result<()> {
        let core = self.core();
        if core.read_only || core.unmounted.load(Ordering::SeqCst) {
            return Ok(());
        }
        let _no_limits = self.mounted.trees().begin_limits();
        let _no_copies = core.pending.end_all();
        core.region.probe();
        core.check_lost()?;
        let reconciled = self.mounted.reconcile();
        // What cannot be charged now is charged after the next mount.
        let _charged = reconciled.is_ok() && self.charge_all().is_ok();
        core.end_streams();
        self.jobs().settle_all();
        let _closed = self.close_without_removed();
        if core.unmounted.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        core.check_lost()?;
        reconciled?;
        if !core.region.frozen_pages().is_empty() {
            // Counts in bad memory could not be updated, so the device is not marked clean and the next mount scans
            // everything. `trim` first takes the marks off free segments: the next mount then keeps no block there in
            // use because an unreadable inode might reference it.
            core.release_all_postponed();
            core.space.trim()?;
            return Ok(core.region.cut_journal_off()?);
        }
        if core.panics.are_any() || self.mounted.trees().has_removed() {
            // What work has left behind when it panicked is known only to recovery; so are trees that could not be freed.
            return Ok(core.region.cut_journal_off()?);
        }
        core.free_nameless();
        core.release_all_postponed();
        if let Some(index) = core.chunks.index.fact() {
            index.end_reordering();
        }
        core.shrink_inode_table();
        self.jobs().end_reclaiming();
        core.space.trim()?;
        self.mounted.leave_clean()?;
        Ok(core.region.cut_journal_off()?)
    }

    /// Gives the file system and its device `device_bytes` bytes while it is in use; without a number, the file system gets
    /// what the device has. Open files and all other operations go on, and ENOSPC ends. Recovery after a crash is
    /// completed first. A device that is to become longer must have been opened with
    /// [`can_grow`](pmem::OpenOptions::can_grow). A crash at any moment leaves the old size or the new one.
    ///
    /// # Errors
    /// [`Error::Resize`] if it cannot have that size; EROFS; [`pmem::PmemError::NoRoomBehind`]; those of the host, ENOSPC
    /// for example, and those of [`FileSystem::reconcile_step`]. The file system has its old size then.
    pub fn grow(&self, device_bytes: Option<u64>) -> Result<Resized> {
        let core = self.core();
        core.answer(self.mounted.grow(device_bytes))
    }

    /// Returns how often the file system can still be made longer, and whether it has a pm index that was made for fewer
    /// blocks than there are.
    pub fn growth(&self) -> (usize, bool) {
        let core = self.core();
        let has_pm_index = core.chunks.index.fact().is_some();
        (core.geometry.growths_left(), has_pm_index && core.geometry.index_is_small())
    }

    /// Closes the freeze lock when all removed trees are freed that can be. Trees that are removed meanwhile are freed too.
    fn close_without_removed(&self) -> Vec<impl Drop> {
        loop {
            // An error leaves what is still there to recovery.
            let done = self.mounted.trees().end_removing();
            let closed = self.core().freeze_lock.close();
            if done.is_err() || self.core().unmounted.load(Ordering::SeqCst) || !self.mounted.trees().can_go_on() {
                return closed;
            }
        }
    }

    /// Returns true if the device was mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.core().read_only
    }

    /// Returns the policy for new data.
    pub fn policy(&self) -> Policy {
        self.core().policies.policy
    }

    /// Returns how new packed chunks are stored.
    pub fn compression(&self) -> Compression {
        self.core().compression
    }

    /// Returns whether equal data is shared between files of one owner only: see [`Share`](crate::Share).
    pub fn shares_by_owner(&self) -> bool {
        self.core().domains.are_by_owner()
    }

    /// Returns how new packed chunks of a file are stored; for a directory, those of files made in it: see
    /// [`COMPRESSION_ATTRIBUTE`].
    ///
    /// # Errors
    /// ENOENT, EIO.
    ///
    /// [`COMPRESSION_ATTRIBUTE`]: crate::COMPRESSION_ATTRIBUTE
    pub fn compression_of(&self, ino: InodeNumber) -> Result<Compression> {
        self.core().compression_of(ino)
    }

    /// Returns how the method of policy `nv-dedup` is chosen: fixed by the user, or by sampling.
    pub fn method(&self) -> MethodChoice {
        self.core().policies.nv_dedup.sampling.choice()
    }

    /// Sets how the method of policy `nv-dedup` is chosen from now on.
    pub fn set_method(&self, choice: MethodChoice) {
        self.core().policies.nv_dedup.sampling.set_choice(choice);
    }

    /// Returns when policy `denova` shares (DeNOVA IV-B2).
    pub fn dedup_mode(&self) -> DedupMode {
        self.core().policies.denova.mode()
    }

    /// Sets when policy `denova` shares from now on. Queued entries stay queued.
    pub fn set_dedup_mode(&self, mode: DedupMode) {
        self.core().policies.denova.set_mode(mode);
    }

    /// Pauses the dedup daemon, or resumes it.
    pub fn pause_dedup(&self, paused: bool) {
        self.core().policies.denova.pause(paused);
    }

    /// Shares a bounded part of the queued data, regardless of mode, limits and pause; returns true when the queue is
    /// empty.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub fn drain_step(&self) -> Result<bool> {
        let core = self.core();
        if !core.read_only && core.is_reconciling() {
            self.mounted.reconcile_step()?;
            return Ok(false);
        }
        self.jobs().step_of(Job::Share, core.policies.space_freeing_policy())
    }

    /// Returns how chunk entries are found from fingerprints on this device.
    pub fn index_kind(&self) -> IndexKind {
        self.core().chunks.index.stats().kind
    }

    /// Returns the function of weak fingerprints: the device's if it has a pm index, otherwise the mount's.
    pub fn weak_function(&self) -> crate::fingerprint::WeakFunction {
        self.core().chunks.weak_function()
    }

    /// Returns the policy for new data of a file, or for new files of a directory, and why: see
    /// [`POLICY_ATTRIBUTE`](crate::POLICY_ATTRIBUTE).
    /// ENOENT.
    pub fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        self.core().answer(self.core().policy_of(ino))
    }

    /// Returns the policy that currently places new data of a file or directory. Where [`FileSystem::policy_of`]
    /// returns [`Policy::Auto`], this is the policy that `auto` chose there. ENOENT.
    pub fn chosen_policy_of(&self, ino: InodeNumber) -> Result<Policy> {
        self.core().answer(self.core().chosen_policy_of(ino))
    }

    /// Returns the device.
    pub fn region(&self) -> &Region {
        &self.core().region
    }

    /// Finds a name in a directory; `.` and `..` are found too. ENOENT, ENOTDIR, ENAMETOOLONG.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        self.core().answer(self.core().lookup(parent, name))
    }

    /// Returns the directory entry of a name without reading the inode that it references, so the name of a damaged
    /// inode can be removed. ENOENT, ENOTDIR.
    pub fn entry(&self, parent: InodeNumber, name: &[u8]) -> Result<DirEntry> {
        self.core().answer(self.core().entry(parent, name))
    }

    /// Returns how many names of a directory are damage, so that listings leave them out: names that no directory can
    /// have, and second entries of a name. ENOTDIR.
    pub fn damaged_names(&self, dir: InodeNumber) -> Result<usize> {
        self.core().answer(self.core().damaged_names(dir))
    }

    /// Returns the attributes of an inode, as `stat` does. ENOENT.
    pub fn getattr(&self, ino: InodeNumber) -> Result<Attr> {
        let inode = self.core().answer(self.core().inode(ino.0))?;
        let state = inode.read()?;
        Ok(inode.attr(&state))
    }

    /// Changes attributes, all of them or none. ENOENT; EISDIR or EINVAL for the size of something that is not a
    /// file; EFBIG.
    pub fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> {
        self.setattr_with(ino, change, &[])
    }

    /// Changes attributes as `setattr` does, and extended attributes in the same commit: all or nothing. Errors of
    /// both; EINVAL if an extended attribute is given twice.
    pub fn setattr_with(&self, ino: InodeNumber, change: &SetAttr, xattrs: &[XattrChange<'_>]) -> Result<Attr> {
        self.change("change attributes", || self.core().setattr(ino, change, xattrs))
    }

    /// Makes a regular file, fifo, socket or device node. EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, ENOSPC.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        self.create_with(parent, name, new, &[])
    }

    /// Makes a file as `create` does, and sets these extended attributes (names and values) in the same commit. One
    /// of them may be the policy attribute; otherwise the policy is inherited from the directory. Errors of both;
    /// EINVAL if an extended attribute is given twice.
    pub fn create_with(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &NewInode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<Attr> {
        if matches!(new.kind, FileKind::Directory | FileKind::Symlink) {
            let why = "directories and symlinks have calls of their own";
            return Err(Error::Posix { doing: "create", why, errno: errno::EINVAL });
        }
        self.change("create", || self.core().create_with_xattrs(parent, name, new, xattrs))
    }

    /// Makes a directory; `new.kind` is ignored. Errors as for `create`.
    pub fn mkdir(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        self.mkdir_with(parent, name, new, &[])
    }

    /// Makes a directory as `mkdir` does, and sets these extended attributes in the same commit: see
    /// [`FileSystem::create_with`].
    pub fn mkdir_with(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &NewInode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<Attr> {
        let new = NewInode { kind: FileKind::Directory, ..*new };
        self.change("mkdir", || self.core().create_with_xattrs(parent, name, &new, xattrs))
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes without NUL); `new.kind` is ignored. Errors as for
    /// `create`.
    pub fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> {
        self.change("symlink", || self.core().symlink(parent, name, target, new))
    }

    /// Returns the target of a symbolic link. EINVAL if the inode is not a symbolic link.
    pub fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> {
        self.core().answer(self.core().readlink(ino))
    }

    /// Adds a name (a hard link) to an inode. EPERM for directories, EEXIST, EMLINK.
    pub fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        self.change("link", || self.core().link(ino, parent, name))
    }

    /// Removes a name of an inode that is not a directory. ENOENT, EISDIR.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("unlink", || self.core().unlink(parent, name))
    }

    /// Removes an empty directory. ENOENT, ENOTDIR, ENOTEMPTY.
    pub fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("rmdir", || self.core().rmdir(parent, name))
    }

    /// Renames atomically. ENOENT, EEXIST, EISDIR, ENOTDIR, ENOTEMPTY; EINVAL for moving a directory into itself.
    pub fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.change("rename", || self.core().rename(parent, name, new_parent, new_name, mode))
    }

    /// Calls `each` for every entry after `cookie` (0 for all entries) until it returns false; `.` and `..` are left
    /// out, and in the root the directory that holds the snapshots ([`SNAPSHOTS`]), which can be looked up. The directory is
    /// read-locked meanwhile: `each` must not change it.
    pub fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let is_hidden = |entry: &DirEntry| dir == InodeNumber::ROOT && entry.name == SNAPSHOTS[0];
        let mut each = |entry: DirEntry| is_hidden(&entry) || each(entry);
        self.core().answer(self.core().readdir(dir, cookie, &mut each))
    }

    /// Returns the newest cookie of a directory. A renamed entry gets a new cookie, so a listing may see it again; a
    /// listing that stops at the cookie that was newest when it began is sure to end.
    pub fn last_cookie(&self, dir: InodeNumber) -> Result<u64> {
        self.core().answer(self.core().last_cookie(dir))
    }

    /// Returns the parent of a directory; the parent of the root is the root.
    pub fn parent(&self, dir: InodeNumber) -> Result<InodeNumber> {
        let inode = self.core().answer(self.core().inode(dir.0))?;
        let _live = inode.read()?;
        Ok(InodeNumber(inode.parent.load(Ordering::Relaxed)))
    }

    /// Returns the error for a directory that a walk over the tree meets a second time. A directory has one name, so the
    /// names of a device that has two for it are damaged, and may lead from it to itself.
    pub fn met_again(&self, dir: InodeNumber) -> Error {
        let what = format!("inode {}: names lead to this directory twice, or from it to itself", dir.0);
        Error::Corrupt { what, at: self.core().table.slot(dir.0).unwrap_or_default() }
    }

    /// Sets an extended attribute. The name has at most 255 bytes and no NUL, the value at most 65536 bytes. EEXIST,
    /// ENODATA by `mode`; E2BIG, ERANGE, ENOSPC.
    pub fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let doing = "set an extended attribute";
        self.change(doing, || self.core().set_xattr(ino, name, value, mode))
    }

    /// Returns the value of an extended attribute. ENODATA.
    pub fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.core().answer(self.core().get_xattr(ino, name))
    }

    /// Returns the names of all extended attributes.
    pub fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> {
        self.core().answer(self.core().list_xattr(ino))
    }

    /// Removes an extended attribute. ENODATA.
    pub fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("remove an extended attribute", || self.core().remove_xattr(ino, name))
    }

    /// Opens (pins) an inode of any kind; the data calls need a regular file. ENOENT.
    pub fn open(&self, ino: InodeNumber) -> Result<File> {
        let pin = Arc::new(PinnedInode::new(&self.mounted, self.core().answer(self.core().inode(ino.0))?));
        // The inode is pinned before it is checked: an unlink that saw no pin has set `freed` by now.
        drop(pin.inode.read()?);
        Ok(File { pin, times: Times::default() })
    }

    /// Makes a regular file without a name (O_TMPFILE); `link` can give it one. It is charged to the limited tree of the
    /// root, if that has limits.
    pub fn tmpfile(&self, new: &NewInode) -> Result<File> {
        self.tmpfile_in(InodeNumber::ROOT, new)
    }

    /// The same, charged to the limited tree that this directory is charged to. ENOENT, ENOTDIR, EROFS, ENOSPC, EDQUOT.
    pub fn tmpfile_in(&self, directory: InodeNumber, new: &NewInode) -> Result<File> {
        let new = NewInode { kind: FileKind::Regular, ..*new };
        let pinned = self.change("create", || self.core().tmpfile(directory, &new))?;
        Ok(File {
            pin: Arc::new(PinnedInode { mounted: self.mounted.clone(), inode: pinned }),
            times: Times::default(),
        })
    }

    /// For tests: makes all parts of the inode table up to that of this number, and gives new inodes the numbers from
    /// there on, until a lower one becomes free.
    ///
    /// # Errors
    /// ENOSPC.
    #[doc(hidden)]
    pub fn grow_inode_table(&self, first: InodeNumber) -> Result<()> {
        self.change("create", || self.core().table.grow_to(first.0, &self.core().space))
    }

    /// For tests: empties segments of blocks, as an operation does that needs a whole segment and finds none. Returns
    /// true if one became free.
    #[doc(hidden)]
    pub fn empty_segments_of_blocks(&self) -> bool {
        loop {
            let effort = Effort::default();
            let has_freed = self.jobs().empty_segments_of_blocks(&effort);
            if has_freed || !effort.is_spent() {
                return has_freed;
            }
        }
    }

    /// For tests: does one step of a collection, which begins if none is under way, whatever [`FileSystem::reclaim_step`]
    /// has to do before. Returns true when none is under way any more.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    #[doc(hidden)]
    pub fn collect_step(&self) -> Result<bool> {
        Ok(self.jobs().collect_step()? != Worked::GoesOn || !self.jobs().is_collecting())
    }

    /// Returns the shortest run of bytes that is shared with the bytes that it was copied from, in bytes:
    /// [`MountOptions::origin_bytes_min`]. The first call may measure what the device costs.
    pub fn origin_bytes_min(&self) -> u64 {
        let core = self.core();
        core.policies.origin_bytes_min.bytes(&core.ground())
    }

    /// Makes all acknowledged operations durable, all or nothing. It costs nothing except at persistence level
    /// `file`: there each changed page is written twice, and the call waits for the disk once. Without a call, a sync
    /// happens a second after the changes stop, and at the latest 5 s after a change.
    ///
    /// # Errors
    /// Those of the disk, such as ENOSPC: no data is lost while the process lives, and the next sync tries again.
    pub fn sync(&self) -> Result<()> {
        self.core().answer(self.core().region.sync().map_err(Error::from))
    }

    /// Returns the physical space of the device in blocks, and the number of inodes, as `statfs` does.
    pub fn statfs(&self) -> StatFs {
        let core = self.core();
        core.release_waiting();
        core.space.look_at_host();
        let free = core.free_blocks();
        // Wherever the free blocks lie, they can become segments of the table: `Core::make_segment_of_blocks`.
        let possible = core.table.possible(free);
        StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: core.space.total_blocks(),
            blocks_free: free,
            blocks_available: free.saturating_sub(KEPT_BLOCKS + core.blocks_beside_content(free)),
            inodes: possible,
            // The inode count may run ahead of `free`, which was read before: concurrent creates use up space.
            inodes_free: possible.saturating_sub(core.table.in_use() + core.table.areas()),
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }

    /// For tests: makes the `nth` allocation of blocks from now on fail as if the device were full; 0 turns this off.
    /// Returns how many allocations the previous setting was still away from failing, or 0 if it has failed.
    #[doc(hidden)]
    pub fn fail_allocation(&self, nth: u64) -> u64 {
        self.core().space.fail_reservation(nth)
    }

    /// For tests: makes the turns of clones this long, in lines of logs or so; 0: as long as usual.
    #[doc(hidden)]
    pub fn set_clone_turn(&self, work: usize) {
        self.core().pending.set_turn(work);
    }

    /// Gives the memory of free segments, and of free blocks in other segments, back to the host; returns the number
    /// of bytes. Its running time is not bounded; [`FileSystem::trim_step`] does the same in the background. Unmount
    /// gives back whole segments only. The call does nothing if `discard` is off.
    pub fn trim(&self) -> Result<u64> {
        let core = self.core();
        core.release_waiting();
        let _inside = core.freeze_lock.enter();
        if core.read_only || core.unmounted.load(Ordering::Relaxed) || core.region.is_lost() {
            return Ok(0);
        }
        self.shrink_table();
        Ok(core.space.trim()? + core.space.give_back_all()?)
    }

    /// Does one step of a round that gives memory back to the host; returns true at the end of the round. A step
    /// takes at most a millisecond. Only space that is free in two consecutive rounds is given back, so blocks that
    /// are reused at once cost nothing. Front ends run a round every second, on their own thread. The host then holds
    /// at most 1.05 times the stored bytes plus 8 MiB, some seconds after the last change; inodes of very many small
    /// files come on top. The call does nothing if `discard` is off.
    ///
    /// # Errors
    /// Those of the host. An error loses no data; the next round tries again.
    pub fn trim_step(&self) -> Result<bool> {
        let core = self.core();
        let _inside = core.freeze_lock.enter_background();
        if core.read_only || core.unmounted.load(Ordering::Relaxed) || core.region.is_lost() {
            return Ok(true);
        }
        self.jobs().contain_all(Job::Trim, true, || {
            let is_over = core.space.give_back_step()?;
            if is_over {
                self.shrink_table();
            }
            Ok(is_over)
        })
    }

    /// Frees segments of the inode table and packed segments that are empty.
    fn shrink_table(&self) {
        let core = self.core();
        // Reconcile has recorded which segments belong to the inode table, and accepts no data block in them. Until
        // it is done, none of these segments may be reused for data.
        if !core.is_reconciling() {
            core.shrink_inode_table();
            core.give_up_empty_packed();
        }
    }

    /// Follows a path from the root, symbolic links included. ENOENT, ENOTDIR, ELOOP after 40 links.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        let mut links_left = 40;
        self.resolve_from(InodeNumber::ROOT, path, &mut links_left)
    }

    fn resolve_from(&self, start: InodeNumber, path: &[u8], links_left: &mut u32) -> Result<Attr> {
        let start = if path.first() == Some(&b'/') { InodeNumber::ROOT } else { start };
        let mut at = self.getattr(start)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let directory = at.ino;
            at = self.lookup(directory, name)?;
            if at.kind == FileKind::Symlink {
                *links_left = links_left.checked_sub(1).ok_or(Error::Posix {
                    doing: "resolve a path",
                    why: "too many symbolic links",
                    errno: errno::ELOOP,
                })?;
                let target = self.readlink(at.ino)?;
                at = self.resolve_from(directory, &target, links_left)?;
            }
        }
        Ok(at)
    }
}
