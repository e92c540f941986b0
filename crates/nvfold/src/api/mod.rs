//! The public interface: [`FileSystem`] works on names and inodes, [`File`] on bytes.
//!
//! Both are thin: they check their arguments and call an operation of `fs`. One thing is decided here: if an operation
//! finds too little space while recovery or background work may still free some, it waits for that and runs again.

mod daemon;
mod file;
mod stats;

pub use daemon::Daemon;
pub use file::{File, Origin};
pub use stats::Stats;

use crate::compression::Compression;
use crate::dedup::denova::options::DedupMode;
use crate::dedup::nv_dedup::options::MethodChoice;
use crate::dedup::policy::{Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::fs::{Core, NAME_BYTES_MAX, Worked};
use crate::media::inode::INODES_PER_SEGMENT;
use crate::media::{BLOCK_BYTES, SEGMENT_BLOCKS};
use crate::mount::{self, MkfsOptions, MountOptions, Mounted};
use crate::space::KEPT_BLOCKS;
use crate::space::reclaim::Victims;
use crate::sync::atomic::Ordering;
use crate::words::*;
use file::Pin;
use pmem::Region;
use std::sync::Arc;

/// Space that work in the background makes for an operation that found too little, before it tries again: so many
/// blocks at least.
const ROOM_BLOCKS: u64 = 256;

/// A mounted file system: names. Cheap to clone; every method may be called from any thread.
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

/// Runs an operation that changes something. One that finds too little space while that of before a crash is not known
/// yet waits until it is, and runs again; so does one that finds too little while work in the background may free some.
fn change<T>(mounted: &Mounted, doing: &'static str, operation: impl Fn() -> Result<T>) -> Result<T> {
    let core = &mounted.core;
    // Once: what fails again may open a segment again.
    let mut may_give_up = true;
    loop {
        match core.change_by(doing, &operation) {
            Err(error @ Error::NoSpace { .. }) if core.is_reconciling() => {
                // What cannot be reconciled leaves the space that is known, and that was not enough.
                if mounted.reconcile().is_err() {
                    return Err(error);
                }
            }
            Err(error @ Error::NoSpace { blocks_needed, .. }) if core.policies.that_frees_space().may_free_space() => {
                // What is queued may be there already. The operation fails only when nothing more can be shared.
                if make_room(core, blocks_needed).is_err() {
                    return Err(error);
                }
            }
            Err(Error::NoSpace { .. }) if may_give_up && core.give_up_empty_packed() > 0 => may_give_up = false,
            // What is dead in segments of packed chunks is space, too.
            Err(Error::NoSpace { .. }) if core.make_segment() => {}
            // So is what nobody names of chunks of which others name a few bytes.
            Err(Error::NoSpace { .. }) if core.collect_for_space() => {}
            result => return result,
        }
    }
}

/// Works in the background until there is some more space, or nothing is left to do.
fn make_room(core: &Core, blocks: u64) -> Result<()> {
    let enough = core.space.free_blocks() + blocks.max(ROOM_BLOCKS);
    while core.space.free_blocks() < enough && !core.step_of(core.policies.that_frees_space())? {}
    Ok(())
}

impl FileSystem {
    fn core(&self) -> &Core {
        &self.mounted.core
    }

    fn change<T>(&self, doing: &'static str, operation: impl Fn() -> Result<T>) -> Result<T> {
        change(&self.mounted, doing, operation)
    }

    /// Formats a device. Everything on it is lost. The superblock is written last, so a format that was cut
    /// off leaves no file system rather than half of one.
    ///
    /// # Errors
    /// [`Error::Format`] when the device is too small, too large or not a multiple of 4096 bytes, or holds an
    /// nvfold file system and `force` is not set.
    pub fn mkfs(region: &Region, options: &MkfsOptions) -> Result<()> {
        mount::format(region, options)
    }

    /// Mounts a device. After a clean unmount it loads the saved DRAM state. After a crash it finishes the operations that
    /// were cut off and scans the tables. Exact counts, and which blocks from before the crash are free, are left to
    /// [`FileSystem::reconcile_step`]; all files can be used meanwhile.
    ///
    /// # Errors
    /// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`]; the device is unchanged then.
    pub fn mount(region: Region, options: MountOptions) -> Result<FileSystem> {
        Ok(FileSystem { mounted: Arc::new(mount::open(region, &options)?) })
    }

    /// Does one bounded step of recovery after a crash; returns true when nothing is left. Front ends call it in a loop on
    /// their own thread; otherwise it runs when space is needed, and in `unmount`. Changing operations wait for the current
    /// step (well below a millisecond, except for a file with very many extents); readers do not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if an inode cannot be read: what it names is unknown, so no block from before the crash is freed
    /// and no count is lowered. Everything else continues; fsck names the inode. [`Error::NotReconciled`] if another error
    /// ended it.
    pub fn reconcile_step(&self) -> Result<bool> {
        self.mounted.reconcile_step()
    }

    /// Does all steps of recovery. Errors as [`FileSystem::reconcile_step`].
    pub fn reconcile(&self) -> Result<()> {
        self.mounted.reconcile()
    }

    /// Does one bounded step of the policies' background work: computes missing fingerprints (NV-Dedup 4.4.2), and cuts data
    /// again that was written out of order. Returns true when there is nothing to do now; new writes may change that. Front
    /// ends call it in a loop on their own thread.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn fill_step(&self) -> Result<bool> {
        let core = self.core();
        Ok(core.step_of(core.policies.that_fills())? & core.step_of(core.policies.deext())?)
    }

    /// Does one step of reordering a chain of the pm index (DeNOVA IV-E), if a search asked for it; returns true when there
    /// is nothing to do ([`ReorderOptions`]). Searches and changes run between the steps.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn reorder_step(&self) -> Result<bool> {
        self.core().reorder_step()
    }

    /// Does one step, a millisecond at most, of reclamation. It moves the chunks in use out of the segments with the fewest
    /// live bytes (DeEXT III-D), and replaces chunks of which only a few bytes are in use by smaller ones (ICID 4.6). Returns
    /// true when there is nothing to do now, or when a reader still uses what has moved. Front ends call it in a loop every
    /// second, on their own thread; otherwise it runs when space is needed. Readers and writers run meanwhile.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn reclaim_step(&self, victims: Victims) -> Result<bool> {
        Ok(self.core().reclaim_step(victims)? != Worked::GoesOn)
    }

    /// Returns what background work has skipped since mount because it could not be read: see [`Skipped`].
    pub fn skipped(&self) -> Skipped {
        self.core().skipped()
    }

    /// Saves the DRAM state and marks the device clean. Open `File`s can still be read, except those without a name, which
    /// are gone; writes through them fail with EROFS. Dropping a `FileSystem` without unmounting leaves the device as a
    /// crash does, and the next mount recovers it. A device with bad memory is left like that too.
    ///
    /// # Errors
    /// Those of [`FileSystem::reconcile_step`]: the device is as after a crash then. Those of the device.
    /// [`pmem::PmemError::Lost`] when it was lost: nothing is written then.
    pub fn unmount(self) -> Result<()> {
        let core = self.core();
        if core.read_only || core.unmounted.load(Ordering::SeqCst) {
            return Ok(());
        }
        core.check_lost()?;
        let reconciled = self.mounted.reconcile();
        core.end_streams();
        let _closed = core.gate.close();
        if core.unmounted.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        core.check_lost()?;
        reconciled?;
        if !core.region.frozen_pages().is_empty() {
            // Counts in bad memory could not follow: the next mount looks at everything, but not for blocks that something
            // unreadable may name in segments that are known to be free.
            core.space.trim()?;
            return Ok(core.region.sync()?);
        }
        core.free_nameless();
        core.table.shrink(&core.space);
        core.end_reclaiming();
        core.space.trim()?;
        self.mounted.leave_clean()
    }

    /// Whether it was mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.core().read_only
    }

    /// Returns the policy for new data.
    pub fn policy(&self) -> Policy {
        self.core().policies.policy
    }

    /// How new packed chunks are stored.
    pub fn compression(&self) -> Compression {
        self.core().compression
    }

    /// How new packed chunks of a file are stored, or of what is made in a directory: see [`COMPRESSION_ATTRIBUTE`].
    ///
    /// # Errors
    /// ENOENT, EIO.
    ///
    /// [`COMPRESSION_ATTRIBUTE`]: crate::COMPRESSION_ATTRIBUTE
    pub fn compression_of(&self, ino: InodeNumber) -> Result<Compression> {
        self.core().compression_of(ino)
    }

    /// Returns who chooses the method of policy `nv-dedup`.
    pub fn method(&self) -> MethodChoice {
        self.core().policies.nv_dedup.sampling.choice()
    }

    /// Sets who chooses the method of policy `nv-dedup` from now on.
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

    /// Shares a bounded part of what is queued, regardless of mode, limits and pause; returns true when the queue is empty.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn drain_step(&self) -> Result<bool> {
        let core = self.core();
        if !core.read_only && core.is_reconciling() {
            self.mounted.reconcile_step()?;
            return Ok(false);
        }
        core.step_of(core.policies.that_frees_space())
    }

    /// Returns how chunk entries are found from fingerprints on this device.
    pub fn index_kind(&self) -> IndexKind {
        self.core().chunks.index.stats().kind
    }

    /// Returns the function of weak fingerprints: that of the device with a pm index, otherwise that of the mount.
    pub fn weak_function(&self) -> crate::fingerprint::WeakFunction {
        self.core().chunks.weak_function()
    }

    /// Returns the policy for new data of a file, or for new files of a directory, and why: see [`POLICY_ATTRIBUTE`].
    /// ENOENT.
    pub fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        self.core().answer(self.core().policy_of(ino))
    }

    /// Returns the policy that places new data of a file or directory now: where [`FileSystem::policy_of`] says
    /// [`Policy::Auto`], it is the one that was chosen there. ENOENT.
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

    /// Returns the entry of a name in a directory, without reading the inode that it leads to. A damaged inode's name can be
    /// removed this way. ENOENT, ENOTDIR.
    pub fn entry(&self, parent: InodeNumber, name: &[u8]) -> Result<DirEntry> {
        self.core().answer(self.core().entry(parent, name))
    }

    /// Returns what `stat` returns. ENOENT.
    pub fn getattr(&self, ino: InodeNumber) -> Result<Attr> {
        let inode = self.core().answer(self.core().inode(ino.0))?;
        let state = inode.read()?;
        Ok(inode.attr(&state))
    }

    /// Changes attributes, all of them or none. ENOENT; EISDIR or EINVAL for the size of something that is not a file; EFBIG.
    pub fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> {
        self.setattr_with(ino, change, &[])
    }

    /// Changes attributes as `setattr` does, and extended attributes in the same commit: all or nothing. Errors of both;
    /// EINVAL if one is named twice.
    pub fn setattr_with(&self, ino: InodeNumber, change: &SetAttr, xattrs: &[XattrChange<'_>]) -> Result<Attr> {
        self.change("change attributes", || self.core().setattr(ino, change, xattrs))
    }

    /// Makes a regular file, fifo, socket or device node. EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, ENOSPC.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        self.create_with(parent, name, new, &[])
    }

    /// Makes a file as `create` does, with these extended attributes (names and values) in the same commit. One of them may
    /// be the policy attribute; otherwise it is inherited from the directory. Errors of both; EINVAL if one is named twice.
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

    /// Makes a directory; `new.kind` is ignored. Errors as `create`.
    pub fn mkdir(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        self.mkdir_with(parent, name, new, &[])
    }

    /// Makes a directory as `mkdir` does, with these extended attributes in the same commit: see [`FileSystem::create_with`].
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

    /// Makes a symbolic link to `target` (1 to 4095 bytes, any); `new.kind` is ignored. Errors as `create`.
    pub fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> {
        self.change("symlink", || self.core().symlink(parent, name, target, new))
    }

    /// Returns the target of a symbolic link. EINVAL when it is none.
    pub fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> {
        self.core().answer(self.core().readlink(ino))
    }

    /// Gives an inode one more name. EPERM for directories, EEXIST, EMLINK.
    pub fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        self.change("link", || self.core().link(ino, parent, name))
    }

    /// Removes a name of anything except a directory. ENOENT, EISDIR.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("unlink", || self.core().unlink(parent, name))
    }

    /// Removes an empty directory. ENOENT, ENOTDIR, ENOTEMPTY.
    pub fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("rmdir", || self.core().rmdir(parent, name))
    }

    /// Renames atomically. ENOENT, EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL for a directory into itself.
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

    /// Calls `each` for every entry after `cookie` (0: from the start; no `.` and `..`) until it returns false.
    /// The directory is locked for readers meanwhile: `each` must not change it.
    pub fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.core().answer(self.core().readdir(dir, cookie, each))
    }

    /// Returns the newest cookie of a directory. A listing that stops after the newest cookie of its beginning ends, even if
    /// every name it finds is renamed, which gives the name a new cookie.
    pub fn last_cookie(&self, dir: InodeNumber) -> Result<u64> {
        self.core().answer(self.core().last_cookie(dir))
    }

    /// Returns the parent of a directory; the parent of the root is the root.
    pub fn parent(&self, dir: InodeNumber) -> Result<InodeNumber> {
        let inode = self.core().answer(self.core().inode(dir.0))?;
        let _live = inode.read()?;
        Ok(InodeNumber(inode.parent.load(Ordering::Relaxed)))
    }

    /// Sets an extended attribute; any name without NUL, 255 bytes at most, value 65536 bytes at most.
    /// EEXIST, ENODATA by `mode`; E2BIG, ERANGE, ENOSPC.
    pub fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let doing = "set an extended attribute";
        self.change(doing, || self.core().set_xattr(ino, name, value, mode))
    }

    /// Value of an extended attribute. ENODATA.
    pub fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.core().answer(self.core().get_xattr(ino, name))
    }

    /// Names of all extended attributes.
    pub fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> {
        self.core().answer(self.core().list_xattr(ino))
    }

    /// Removes an extended attribute. ENODATA.
    pub fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> {
        self.change("remove an extended attribute", || self.core().remove_xattr(ino, name))
    }

    /// Opens (pins) an inode of any kind; the data calls need a regular file. ENOENT.
    pub fn open(&self, ino: InodeNumber) -> Result<File> {
        let pin = Arc::new(Pin::new(&self.mounted, self.core().answer(self.core().inode(ino.0))?));
        // Pinned first, looked at second: an unlink that saw no pin has set `freed` by now.
        drop(pin.inode.read()?);
        Ok(File { pin })
    }

    /// A regular file without a name (O_TMPFILE); `link` can give it one.
    pub fn tmpfile(&self, new: &NewInode) -> Result<File> {
        let new = NewInode { kind: FileKind::Regular, ..*new };
        let pinned = self.change("create", || self.core().tmpfile(&new))?;
        Ok(File { pin: Arc::new(Pin { mounted: self.mounted.clone(), inode: pinned }) })
    }

    /// Makes everything acknowledged durable, all or nothing. It costs nothing except at persistence level `file`: there
    /// changed pages are written twice, and the disk is waited for once. Without a call this happens 5 s after a change.
    ///
    /// # Errors
    /// Those of the disk, such as ENOSPC: nothing is lost while the process lives, and the next sync tries again.
    pub fn sync(&self) -> Result<()> {
        self.core().answer(self.core().region.sync().map_err(Error::from))
    }

    /// Returns the physical space of the device.
    pub fn statfs(&self) -> StatFs {
        let core = self.core();
        let free = core.free_blocks();
        let possible = core.table.end() + free / SEGMENT_BLOCKS * INODES_PER_SEGMENT;
        StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: core.space.total_blocks(),
            blocks_free: free,
            blocks_available: free.saturating_sub(KEPT_BLOCKS + core.blocks_beside_content(free)),
            inodes: possible,
            // Inodes that are made right now may use space that was not free a moment ago.
            inodes_free: possible.saturating_sub(core.table.in_use() + core.table.areas()),
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }

    /// For tests: the `nth` time from now on that an operation asks for blocks it is told that there are none; 0: never.
    /// Returns how many times the one before was still away: 0 when it has failed.
    #[doc(hidden)]
    pub fn fail_allocation(&self, nth: u64) -> u64 {
        self.core().space.fail_reservation(nth)
    }

    /// Gives the memory of free segments, and of free blocks in other segments, back to the host now; returns the bytes. Its
    /// time is not bounded; [`FileSystem::trim_step`] does the same in the background. Unmount gives back whole segments.
    /// Nothing happens if `discard` is off.
    pub fn trim(&self) -> Result<u64> {
        let core = self.core();
        let _inside = core.gate.enter();
        if core.read_only || core.unmounted.load(Ordering::Relaxed) || core.region.is_lost() {
            return Ok(0);
        }
        self.shrink_table();
        Ok(core.space.trim()? + core.space.give_back_all()?)
    }

    /// Does one step, a millisecond at most, of a round that gives memory back to the host; returns true at the end of the
    /// round. Space that is free in two rounds is given back, so blocks that are reused at once cost nothing. Front ends
    /// run a round every second, on their own thread. Then the host holds at most 1.05 times what is stored plus 8 MiB,
    /// some seconds after the last change; inodes of very many small files come on top. Nothing happens if `discard` is off.
    ///
    /// # Errors
    /// The host's. Nothing is lost by one; the next round tries again.
    pub fn trim_step(&self) -> Result<bool> {
        let core = self.core();
        let _inside = core.gate.enter_background();
        if core.read_only || core.unmounted.load(Ordering::Relaxed) || core.region.is_lost() {
            return Ok(true);
        }
        let is_over = core.space.give_back_step()?;
        if is_over {
            self.shrink_table();
        }
        Ok(is_over)
    }

    /// Gives segments of tables back that hold nothing any more.
    fn shrink_table(&self) {
        let core = self.core();
        // Reconcile has noted which segments are the inode table's, and takes none of their blocks for anything else: until
        // it is done, none of them gets another use.
        if !core.is_reconciling() {
            core.table.shrink(&core.space);
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
