//! The operations: the only room that knows names, files and dedup.
//!
//! [`FileSystem`] is about names and inodes, [`File`] about bytes. Both are thin: they check, and call
//! [`Core`], which is split by what an operation changes:
//!
//! | file | what |
//! |---|---|
//! | `names` | create, link, rename, remove |
//! | `data` | read, write, truncate, reserve, clone |
//! | `share` | sharing what is stored already, and the way back |
//! | `xattr` | extended attributes, symlink targets |
//! | `commit` | how a change becomes durable and whole |
//! | `compact` | rewriting a log |
//! | `daemon` | when what was queued is shared, in the background |
//! | `remap` | sharing what a queued entry names |
//! | `fill` | fingerprints that chunks lack, in the background |
//! | `inode` | one inode in DRAM |
//! | `gate` | keeping operations out for a moment |
//! | `calibrate` | what this device's operations cost |
//!
//! An operation that changes something passes the gate first ([`Core::mutate`]): reconcile and unmount close it.
//!
//! **Lock order**: gate; place of the filler, or of the daemon; tree lock; one directory (several under the tree lock);
//! other inodes by number; then, never held together: inode cache shard, inode table, allocator cursor, allocator search,
//! index shard, journal slot, work queue. A TX_ID generator is taken before any of these and after the inodes.
//! Readers take the inode's lock shared, and a writer keeps it to itself until its commit word is fenced. So readers see
//! only what is fenced, also where DRAM is changed earlier (`Core::publish_extent`).

mod calibrate;
mod commit;
mod compact;
mod daemon;
mod data;
mod fill;
mod gate;
pub(crate) mod inode;
mod names;
pub(crate) mod remap;
mod share;
mod xattr;

pub(crate) use commit::store_words;
pub use daemon::Daemon;
pub use share::UndedupPlan;

use crate::chunk::Chunks;
use crate::chunk::index::Index;
use crate::dedup::Policies;
use crate::error::{Error, Result, errno};
use crate::media::inode::{AttributeLine, INODES_PER_SEGMENT};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::namespace::table::InodeTable;
use crate::padded::Padded;
use crate::recovery::{self, reconcile::Reconcile};
use crate::space::{KEPT_BLOCKS, Purpose, Space};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::types::*;
use commit::Journal;
use daemon::Work;
use fill::Fill;
use gate::Gate;
use hashbrown::HashMap;
use inode::Inode;
use pmem::{Flight, Region};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const CACHE_SHARDS: usize = 64;
/// Cached inodes a shard keeps before it lets go of those nobody uses.
const CACHED_PER_SHARD: usize = 4096;

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
    core: Arc<Core>,
}

/// An open file: bytes. Keeps an unlinked inode alive until the last clone is dropped.
#[derive(Clone)]
pub struct File {
    pin: Arc<Pin>,
}

struct Pin {
    core: Arc<Core>,
    inode: Arc<Inode>,
}

impl Pin {
    fn new(core: &Arc<Core>, inode: Arc<Inode>) -> Pin {
        inode.pins.fetch_add(1, Ordering::SeqCst);
        Pin { core: core.clone(), inode }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let core = &self.core;
        if self.inode.pins.fetch_sub(1, Ordering::SeqCst) == 1 && !core.read_only {
            // Look before locking: nearly every file still has a name.
            if self.inode.state.read().attributes.nlink == 0 {
                let _inside = core.gate.enter();
                if !core.unmounted.load(Ordering::Relaxed) {
                    core.free_if_unused(&self.inode, &mut self.inode.state.write());
                }
            }
        }
    }
}

/// Inodes by their numbers.
type InodeMap = HashMap<u64, Arc<Inode>, BuildHasherDefault<NumberHasher>>;

/// Hashes inode numbers. The file system chooses them, so nobody can make them collide and no random seed is needed;
/// with one, the instructions of an operation would be others in each process.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // Both halves of the product: the low bits choose the place, the high ones the tag.
        let product = u128::from(self.0 ^ number) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// Everything behind a mount.
pub(crate) struct Core {
    pub(crate) region: Region,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    clock: Clock,
    /// For measuring costs; absent when they were given.
    stopwatch: Option<Stopwatch>,
    pub(crate) space: Space,
    pub(crate) chunks: Chunks,
    policies: Policies,
    pub(crate) table: InodeTable,
    journal: Journal,
    tree: Mutex<()>,
    cached: Vec<Mutex<InodeMap>>,
    pub(crate) mapped_bytes: Padded<AtomicU64>,
    pub(crate) data_blocks: Padded<AtomicU64>,
    unmounted: AtomicBool,
    pub(crate) gate: Gate,
    pub(crate) reconcile: Mutex<Reconcile>,
    /// Inodes below this number count in the totals and in the recount; all of them when nothing is recounted.
    pub(crate) walked: Padded<AtomicU64>,
    /// What the mount had to do.
    pub(crate) recovery: Mutex<Recovery>,
    pub(crate) fill: Fill,
    /// What policy `denova` has put off.
    pub(crate) work: Work,
}

impl Core {
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        options: &MountOptions,
        segments: Vec<u64>,
        index: Index,
    ) -> Core {
        let memory = region.level() == pmem::PersistenceLevel::Memory;
        let discard = options.discard.unwrap_or(memory);
        Core {
            space: Space::new(region.clone(), geometry, options.cores, discard),
            chunks: Chunks::new(
                region.clone(),
                geometry,
                index,
                (options.nv_dedup.weak, options.nv_dedup.strong.unwrap_or_default()),
                options.generators,
            ),
            policies: Policies::new(options),
            table: InodeTable::new(region.clone(), geometry, segments),
            journal: Journal::new(),
            tree: Mutex::new(()),
            cached: (0..CACHE_SHARDS).map(|_| Mutex::default()).collect(),
            mapped_bytes: Padded::default(),
            data_blocks: Padded::default(),
            unmounted: AtomicBool::new(false),
            gate: Gate::new(),
            reconcile: Mutex::new(Reconcile::Done),
            walked: Padded(AtomicU64::new(u64::MAX)),
            recovery: Mutex::default(),
            fill: Fill::new(),
            work: Work::new(options),
            read_only: options.read_only,
            clock: options.clock.clone(),
            stopwatch: options.stopwatch.clone().filter(|_| options.nv_dedup.costs.is_none()),
            region,
            geometry,
        }
    }

    fn now(&self) -> TimeNs {
        (self.clock)()
    }

    /// Runs an operation that changes something: inside the gate, on a file system that may be changed. One that
    /// finds too little space while that of before a crash is not known yet waits until it is, and runs again; so does
    /// one that finds too little while something waits to be shared.
    fn mutate<T>(&self, doing: &'static str, operation: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let result = {
                let _inside = self.gate.enter();
                if self.read_only || self.unmounted.load(Ordering::Relaxed) {
                    return Err(Error::ReadOnly { doing });
                }
                self.check_lost()?;
                self.answer(operation())
            };
            match result {
                Err(error @ Error::NoSpace { .. }) if self.is_reconciling() => {
                    // What cannot be reconciled leaves the space that is known, and that was not enough.
                    if self.reconcile().is_err() {
                        return Err(error);
                    }
                }
                Err(error @ Error::NoSpace { blocks_needed, .. }) if !self.work.is_done() => {
                    // What is queued may be there already. The operation fails only when nothing more can be shared.
                    if self.make_room_by_sharing(blocks_needed).is_err() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Nothing is written to a device that is lost.
    fn check_lost(&self) -> Result<()> {
        if self.region.is_lost() {
            self.region.check()?;
        }
        Ok(())
    }

    /// What an operation answers: its result, unless it has read memory that is bad or the device is lost.
    pub(crate) fn answer<T>(&self, result: Result<T>) -> Result<T> {
        self.region.check()?;
        result
    }

    /// The inode, from the cache or the media.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.get(&ino) {
            return Ok(inode.clone());
        }
        let gone = || Error::NotFound { what: format!("inode {ino}") };
        let load = |slot| Inode::load(&self.region, &self.geometry, slot, ino);
        let inode = Arc::new(self.table.with_slot(ino, load).ok_or_else(gone)??.ok_or_else(gone)?);
        make_room(&mut shard);
        shard.insert(ino, inode.clone());
        Ok(inode)
    }

    fn cache(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        make_room(&mut shard);
        shard.insert(inode.ino, inode);
    }

    fn forget(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
    }

    fn shard(&self, ino: u64) -> &Mutex<InodeMap> {
        &self.cached[ino as usize % CACHE_SHARDS]
    }

    fn account_mapped(&self, ino: u64, before: u64, after: u64) {
        if before == after || !self.is_walked(ino) {
            return;
        }
        // Two's complement: a decrease is an addition too.
        self.mapped_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino.0)?;
        let mut state = inode.write()?;
        let now = self.now();
        if let Some(size) = change.size {
            self.resize(&inode, &mut state, size, now)?;
        }
        let old = state.attributes;
        let attributes = AttributeLine {
            mode: change.mode.map_or(old.mode, |mode| mode & names::MODE_BITS),
            uid: change.uid.unwrap_or(old.uid),
            gid: change.gid.unwrap_or(old.gid),
            atime: change.atime.unwrap_or(old.atime),
            mtime: change.mtime.unwrap_or(old.mtime),
            ctime: change.ctime.unwrap_or(now),
            ..old
        };
        if change.size.is_none() || attributes != old {
            self.change(&inode, &mut state, &[], Some(attributes), Purpose::Promised, Flight::new())?;
        }
        Ok(inode.attr(&state))
    }
}

/// Lets go of inodes nobody uses when a shard of the cache is full.
fn make_room(shard: &mut InodeMap) {
    if shard.len() >= CACHED_PER_SHARD {
        shard.retain(|ino, inode| ino % 2 == 0 && *ino > 1 || Arc::strong_count(inode) > 1);
        if shard.len() >= CACHED_PER_SHARD {
            shard.retain(|_, inode| Arc::strong_count(inode) > 1);
        }
    }
}

impl FileSystem {
    /// Formats a device. Everything on it is lost. The superblock is written last, so a format that was cut
    /// off leaves no file system rather than half of one.
    ///
    /// # Errors
    /// [`Error::Format`] when the device is too small, too large or not a multiple of 4096 bytes, or holds an
    /// nvfold file system and `force` is not set.
    pub fn mkfs(region: &Region, options: &MkfsOptions) -> Result<()> {
        recovery::format(region, options)
    }

    /// Mounts a device. After an orderly unmount the DRAM state is loaded. After a crash the operations that it cut
    /// off are finished and the tables scanned; what remains to be found out - exact counts, which blocks of before
    /// the crash are free - is left to [`FileSystem::reconcile_step`], and everything can be used meanwhile.
    ///
    /// # Errors
    /// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`]; nothing is changed then.
    pub fn mount(region: Region, options: MountOptions) -> Result<FileSystem> {
        let core = Arc::new(recovery::mount(region, &options)?);
        core.calibrate();
        Ok(FileSystem { core })
    }

    /// Does a bounded part of what a mount after a crash left to do; true when nothing is left. Front ends call it in
    /// a loop on a thread of their own; without that it is done when space is needed, and by `unmount`. Operations
    /// that change something wait for the part under way (well below a millisecond, but for a file of very many
    /// extents), readers do not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when an inode cannot be read: what it names is not known, so no block of before the crash
    /// is freed and no count lowered. Everything else goes on; fsck names the inode.
    pub fn reconcile_step(&self) -> Result<bool> {
        self.core.reconcile_step()
    }

    /// Does all of it. Errors as [`FileSystem::reconcile_step`].
    pub fn reconcile(&self) -> Result<()> {
        self.core.reconcile()
    }

    /// Does a bounded part of what the policy has to do in the background: gives chunks the fingerprints that they lack.
    /// True when there is nothing to do now; new writes may change that. Front ends call it in a loop on a thread of
    /// their own.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn dedup_step(&self) -> Result<bool> {
        self.core.mutate("fill in fingerprints", || self.core.fill_step())
    }

    /// Does one step of bringing a chain of the pm index into order, if a search asked for it; true when there is
    /// nothing to do ([`ReorderOptions`]). The daemon does; searches and changes may go on between the steps.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn reorder_step(&self) -> Result<bool> {
        let step = || Ok(self.core.chunks.index.fact().is_none_or(|index| index.reorder_step()));
        self.core.mutate("reorder a chain", step)
    }

    /// Saves the DRAM state and marks the device clean. Open `File`s can still read, but those without a name, which
    /// are gone; writes through them fail with EROFS. Dropping a `FileSystem` without this leaves the device as a
    /// crash does; the next mount recovers it. A device with bad memory is left like that too.
    ///
    /// # Errors
    /// Those of [`FileSystem::reconcile_step`]: the device is as after a crash then. Those of the device.
    /// [`pmem::PmemError::Lost`] when it was lost: nothing is written then.
    pub fn unmount(self) -> Result<()> {
        let core = &self.core;
        if core.read_only || core.unmounted.load(Ordering::SeqCst) {
            return Ok(());
        }
        core.check_lost()?;
        let reconciled = core.reconcile();
        let _closed = core.gate.close();
        if core.unmounted.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        core.check_lost()?;
        reconciled?;
        if !core.region.frozen_pages().is_empty() {
            // Counts in bad memory could not follow: the next mount looks at everything.
            return Ok(core.region.sync()?);
        }
        core.free_nameless();
        core.table.shrink(&core.space);
        core.space.trim()?;
        core.answer(recovery::saved::leave_clean(core))
    }

    /// Whether it was mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only
    }

    /// The policy for new data.
    pub fn policy(&self) -> Policy {
        self.core.policies.policy
    }

    /// Policy `nv-dedup`: who chooses the method.
    pub fn method(&self) -> MethodChoice {
        self.core.policies.nv_dedup.sampling.choice()
    }

    /// Policy `nv-dedup`: who chooses the method from now on.
    pub fn set_method(&self, choice: MethodChoice) {
        self.core.policies.nv_dedup.sampling.set_choice(choice);
    }

    /// Policy `denova`: when it shares.
    pub fn dedup_mode(&self) -> DedupMode {
        self.core.policies.denova.mode()
    }

    /// Policy `denova`: when it shares from now on. What is queued stays queued.
    pub fn set_dedup_mode(&self, mode: DedupMode) {
        self.core.policies.denova.set_mode(mode);
    }

    /// Keeps the daemon from working, or lets it go on.
    pub fn pause_dedup(&self, paused: bool) {
        self.core.work.pause(paused);
    }

    /// Does a bounded part of what is queued, whatever mode and limits say, paused or not; true when the queue is
    /// empty.
    ///
    /// # Errors
    /// EROFS; those of the device.
    pub fn drain_step(&self) -> Result<bool> {
        self.core.drain_step()
    }

    /// How this device's entries are found from fingerprints.
    pub fn index_kind(&self) -> IndexKind {
        self.core.chunks.index.stats().kind
    }

    /// What makes weak fingerprints here: with a pm index the device says, else the mount.
    pub fn weak_function(&self) -> crate::fingerprint::WeakFunction {
        self.core.chunks.weak_function()
    }

    /// Which policy new data of a file gets, or of what is made in a directory, and why: see [`POLICY_ATTRIBUTE`].
    /// ENOENT.
    pub fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        self.core.answer(self.core.policy_of(ino))
    }

    /// The device.
    pub fn region(&self) -> &Region {
        &self.core.region
    }

    /// Finds a name in a directory; `.` and `..` are found too. ENOENT, ENOTDIR, ENAMETOOLONG.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        self.core.answer(self.core.lookup(parent, name))
    }

    /// What `stat` tells. ENOENT.
    pub fn getattr(&self, ino: InodeNumber) -> Result<Attr> {
        let inode = self.core.answer(self.core.inode(ino.0))?;
        let state = inode.read()?;
        Ok(inode.attr(&state))
    }

    /// Changes attributes. ENOENT, EISDIR or EINVAL for the size of what is no file, EFBIG.
    pub fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> {
        self.core.mutate("change attributes", || self.core.setattr(ino, change))
    }

    /// Makes a regular file, fifo, socket or device node. EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, ENOSPC.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        if matches!(new.kind, FileKind::Directory | FileKind::Symlink) {
            let why = "directories and symlinks have calls of their own";
            return Err(Error::Posix { doing: "create", why, errno: errno::EINVAL });
        }
        self.core.mutate("create", || self.core.create(parent, name, None, new))
    }

    /// Makes a directory; `new.kind` is ignored. Errors as `create`.
    pub fn mkdir(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> {
        let new = NewInode { kind: FileKind::Directory, ..*new };
        self.core.mutate("mkdir", || self.core.create(parent, name, None, &new))
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes, any); `new.kind` is ignored. Errors as `create`.
    pub fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> {
        self.core.mutate("symlink", || self.core.symlink(parent, name, target, new))
    }

    /// Target of a symbolic link. EINVAL when it is none.
    pub fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> {
        self.core.answer(self.core.readlink(ino))
    }

    /// Gives an inode one more name. EPERM for directories, EEXIST, EMLINK.
    pub fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> {
        self.core.mutate("link", || self.core.link(ino, parent, name))
    }

    /// Removes a name of anything but a directory. ENOENT, EISDIR.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.core.mutate("unlink", || self.core.unlink(parent, name))
    }

    /// Removes an empty directory. ENOENT, ENOTDIR, ENOTEMPTY.
    pub fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.core.mutate("rmdir", || self.core.rmdir(parent, name))
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
        self.core.mutate("rename", || self.core.rename(parent, name, new_parent, new_name, mode))
    }

    /// Calls `each` for every entry after `cookie` (0: from the start; no `.` and `..`) until it returns false.
    /// The directory is locked for readers meanwhile: `each` must not change it.
    pub fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.core.answer(self.core.readdir(dir, cookie, each))
    }

    /// The youngest cookie of a directory. A listing that stops past the one that was youngest when it began ends,
    /// even if every name it finds is renamed (which gives the name a new cookie).
    pub fn last_cookie(&self, dir: InodeNumber) -> Result<u64> {
        self.core.answer(self.core.last_cookie(dir))
    }

    /// Parent of a directory (the root's is the root).
    pub fn parent(&self, dir: InodeNumber) -> Result<InodeNumber> {
        let inode = self.core.answer(self.core.inode(dir.0))?;
        let _live = inode.read()?;
        Ok(InodeNumber(inode.parent.load(Ordering::Relaxed)))
    }

    /// Sets an extended attribute; any name without NUL, 255 bytes at most, value 65536 bytes at most.
    /// EEXIST, ENODATA by `mode`; E2BIG, ERANGE, ENOSPC.
    pub fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let doing = "set an extended attribute";
        self.core.mutate(doing, || self.core.set_xattr(ino, name, value, mode))
    }

    /// Value of an extended attribute. ENODATA.
    pub fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        self.core.answer(self.core.get_xattr(ino, name))
    }

    /// Names of all extended attributes.
    pub fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> {
        self.core.answer(self.core.list_xattr(ino))
    }

    /// Removes an extended attribute. ENODATA.
    pub fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> {
        self.core.mutate("remove an extended attribute", || self.core.remove_xattr(ino, name))
    }

    /// Opens (pins) an inode of any kind; the data calls need a regular file. ENOENT.
    pub fn open(&self, ino: InodeNumber) -> Result<File> {
        let pin = Arc::new(Pin::new(&self.core, self.core.answer(self.core.inode(ino.0))?));
        // Pinned first, looked at second: an unlink that saw no pin has set `freed` by now.
        drop(pin.inode.read()?);
        Ok(File { pin })
    }

    /// A regular file without a name (O_TMPFILE); `link` can give it one.
    pub fn tmpfile(&self, new: &NewInode) -> Result<File> {
        let new = NewInode { kind: FileKind::Regular, ..*new };
        let pinned = self.core.mutate("create", || self.core.tmpfile(&new))?;
        Ok(File { pin: Arc::new(Pin { core: self.core.clone(), inode: pinned }) })
    }

    /// Makes everything acknowledged durable. Costs nothing but at persistence level `file`, where it is an msync.
    pub fn sync(&self) -> Result<()> {
        self.core.answer(self.core.region.sync().map_err(Error::from))
    }

    /// Physical space.
    pub fn statfs(&self) -> StatFs {
        let core = &self.core;
        let free = core.space.free_blocks();
        let possible = core.table.end() + free / SEGMENT_BLOCKS * INODES_PER_SEGMENT;
        StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: core.space.total_blocks(),
            blocks_free: free,
            blocks_available: free.saturating_sub(KEPT_BLOCKS),
            inodes: possible,
            // Inodes that are made right now may use space that was not free a moment ago.
            inodes_free: possible.saturating_sub(core.table.in_use()),
            name_bytes_max: names::NAME_BYTES_MAX as u32,
        }
    }

    /// Sizes, savings and DRAM, as they are now.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let by_policy = core.policies.stats();
        let of_all = |figure: fn(&PolicyStats) -> u64| by_policy.iter().map(figure).sum();
        let data_blocks = core.data_blocks.load(Ordering::Relaxed);
        let free_bytes = core.space.free_blocks() * BLOCK_BYTES;
        // The totals may come from a saved state, which is input: fsck holds them against the logs, a mount does not.
        let stored_bytes = data_blocks.saturating_mul(BLOCK_BYTES);
        let mut stats = Stats {
            device_bytes: core.geometry.device_bytes,
            logical_bytes: core.mapped_bytes.load(Ordering::Relaxed),
            stored_bytes,
            saved_bytes: core.chunks.extra_references().saturating_mul(BLOCK_BYTES),
            // Blocks that are freed right now may have counted in both.
            metadata_bytes: core.geometry.device_bytes.saturating_sub(free_bytes.saturating_add(stored_bytes)),
            free_bytes,
            device_allocated_bytes: core.region.allocated_bytes(),
            inodes: core.table.in_use(),
            data_blocks,
            chunks: core.chunks.tracked(),
            index: core.chunks.index.stats(),
            space_dram_bytes: core.space.dram_bytes(),
            transactions: core.chunks.transactions(),
            pieces_offered: of_all(|policy| policy.offered),
            pieces_shared: of_all(|policy| policy.shared),
            weak_collisions: of_all(|policy| policy.collisions),
            by_policy,
            nv_dedup: core.policies.nv_dedup_stats(),
            denova: core.denova_stats(),
            chunks_filled: core.fill.filled(),
            recovery: core.recovery_now(),
            ..Stats::default()
        };
        for shard in &core.cached {
            let inodes: Vec<Arc<Inode>> = shard.lock().values().cloned().collect();
            stats.inodes_cached += inodes.len() as u64;
            stats.inode_dram_bytes += inodes.iter().map(|inode| inode.state.read().dram_bytes()).sum::<u64>();
        }
        stats
    }

    /// For tests: the `nth` time from now on that an operation asks for blocks it is told that there are none; 0: never.
    /// Returns how many times the one before was still away: 0 when it has failed.
    #[doc(hidden)]
    pub fn fail_allocation(&self, nth: u64) -> u64 {
        self.core.space.fail_reservation(nth)
    }

    /// Gives the memory of freed segments back to the host now; returns the bytes. Front ends call it every few
    /// seconds; unmount does too. Nothing happens when `discard` is off.
    pub fn trim(&self) -> Result<u64> {
        let core = &self.core;
        let _inside = core.gate.enter();
        if core.read_only || core.unmounted.load(Ordering::Relaxed) || core.region.is_lost() {
            return Ok(0);
        }
        core.table.shrink(&core.space);
        core.space.trim()
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

impl File {
    fn mutate<T>(&self, doing: &'static str, operation: impl Fn(&Core, &Inode) -> Result<T>) -> Result<T> {
        let Pin { core, inode } = &*self.pin;
        core.mutate(doing, || self.answer(operation(core, inode)))
    }

    /// Number of the inode.
    pub fn ino(&self) -> InodeNumber {
        InodeNumber(self.pin.inode.ino)
    }

    /// What `fstat` tells.
    pub fn attr(&self) -> Attr {
        let inode = &self.pin.inode;
        inode.attr(&inode.state.read())
    }

    /// Reads into `buffer`; returns the bytes read, fewer than asked only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.answer(self.pin.core.read(&self.pin.inode, offset, buffer))
    }

    /// Writes all of `data` atomically, or fails and changes nothing. EFBIG, ENOSPC, EROFS.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.mutate("write", |core, inode| core.write(inode, Some(offset), data)).map(drop)
    }

    /// Appends all of `data` atomically; returns the offset where it begins. Errors as `write_at`.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.mutate("write", |core, inode| core.write(inode, None, data))
    }

    /// Sets the size in bytes; growing leaves a hole. EFBIG.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.mutate("truncate", |core, inode| core.resize(inode, &mut inode.state.write(), size, core.now()))
    }

    /// Reserves, zeroes or frees a range of bytes. EINVAL when `len` is 0, EFBIG, ENOSPC.
    ///
    /// Reserved space serves the first write to it; overwriting data needs new blocks (copy on write) as ever.
    pub fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.mutate("fallocate", |core, inode| core.allocate(inode, offset, len, mode))
    }

    /// Finds the next data or hole at or after `offset`. ENXIO when `offset` is at or past the end, or no data follows.
    pub fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        self.answer(self.pin.core.seek(&self.pin.inode, offset, whence))
    }

    /// Shares any byte range of `source`: metadata only, whatever the policy. Returns the bytes cloned, fewer
    /// than `len` where the source ends. Both may be one file if the ranges do not overlap (else EINVAL).
    pub fn clone_from(&self, source: &File, source_offset: u64, offset: u64, len: u64) -> Result<u64> {
        let source = &source.pin.inode;
        self.mutate("clone", |core, inode| core.clone_range(source, source_offset, inode, offset, len))
    }

    /// Shares the blocks that begin in a range with equal ones of any file, whatever the policy: what `read_at` gives,
    /// size and times stay. Blocks without a fingerprint get one, so that others can be shared with them. In steps:
    /// what is done is done, also when it ends with an error, and done again it changes nothing. Only whole blocks
    /// can be shared; holes and reserved ranges stay.
    ///
    /// # Errors
    /// EIO when a mount after a crash cannot find out the counts. ENOSPC when the log cannot grow. EROFS.
    pub fn dedup_range(&self, offset: u64, len: u64) -> Result<Reshared> {
        self.reshare("dedup", offset, len, Core::dedup_step)
    }

    /// Gives the blocks of a range copies of their own where something else names them too: the way back from sharing.
    /// What `read_at` gives, size and times stay; a byte range that was cloned becomes whole blocks. In steps, as
    /// [`File::dedup_range`]. What is written later is placed by the policy as ever.
    ///
    /// # Errors
    /// ENOSPC; what there was space for is done. [`UndedupPlan`] tells it beforehand. EIO, EROFS.
    pub fn undedup_range(&self, offset: u64, len: u64) -> Result<Reshared> {
        self.reshare("undedup", offset, len, Core::undedup_step)
    }

    fn reshare(
        &self,
        doing: &'static str,
        offset: u64,
        len: u64,
        step: impl Fn(&Core, &Inode, u64, u64) -> Result<share::Step>,
    ) -> Result<Reshared> {
        let Pin { core, .. } = &*self.pin;
        if !core.read_only && core.is_reconciling() {
            // It goes by the counts, so they must be known.
            core.reconcile()?;
        }
        let end = offset.saturating_add(len);
        let (mut at, mut done) = (offset, Reshared::default());
        while at < end {
            let step = self.mutate(doing, |core, inode| step(core, inode, at, end))?;
            done += step.done;
            at = step.next;
        }
        Ok(done)
    }

    /// Extents from a byte on, in order, cut where the number of references changes; `most` at most, and fewer of a
    /// large file. The list goes on behind the last one; it has ended when it is empty.
    pub fn extents(&self, from: u64, most: usize) -> Result<Vec<MappedExtent>> {
        self.answer(self.pin.core.mapped_extents(&self.pin.inode, from, most))
    }

    /// Makes all acknowledged writes durable; see [`FileSystem::sync`].
    pub fn sync(&self) -> Result<()> {
        self.answer(self.pin.core.region.sync().map_err(Error::from))
    }

    fn answer<T>(&self, result: Result<T>) -> Result<T> {
        let of_inode = Error::of(|| format!("inode {}", self.pin.inode.ino));
        self.pin.core.region.check().map_err(of_inode)?;
        result
    }
}

const _: () = assert!(SEGMENT_BYTES == SEGMENT_BLOCKS * BLOCK_BYTES);
