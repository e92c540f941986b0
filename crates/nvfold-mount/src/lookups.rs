//! The inodes that the kernel knows, and those among them that have lost their last name.
//!
//! The kernel counts how often a reply told it of an inode, and sends FORGET when it drops those counts. Until then
//! it may use the inode even if its last name is gone; but the library frees such an inode when its last [`File`] is
//! dropped. So this module keeps one `File` for every inode that lost its last name while the kernel knew it.
//!
//! It also holds other facts about an inode while the kernel knows it: the directory of its name, and whether the
//! kernel may have pages of it.
//!
//! The kernel sends FORGET shortly after the last close, and the process does not wait for it. A program that removes
//! a file on a full device and then writes may be faster than that. So an operation that finds too little space waits
//! a moment for a FORGET ([`Lookups::wait_for_a_freed`]).

use nvfold::{File, InodeNumber};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const SHARDS: u64 = 64;
/// How long an operation that finds too little space waits for a nameless file to be freed. The kernel takes
/// microseconds and freeing a large file some milliseconds. The wait for a file that stays open is in vain.
const WAIT: Duration = Duration::from_millis(100);
/// The largest number of operations that wait at once: each keeps a thread of the server busy.
const WAITING_MAX: u32 = 32;

/// The kernel's knowledge of an inode.
struct Known {
    /// How many replies told the kernel of the inode, minus those that it has forgotten.
    times: u64,
    /// The directory of the name in the last such reply.
    parent: InodeNumber,
    /// True if the kernel may have pages of the inode.
    pages: bool,
    /// The directory in which it was made without a name, if it never had one.
    made_in: Option<InodeNumber>,
}

#[derive(Default)]
struct Shard {
    known: HashMap<u64, Known>,
    /// Nameless inodes, kept alive because the kernel knows them.
    nameless: HashMap<u64, File>,
}

/// Counts of files without a name.
#[derive(Default, Clone, Copy)]
struct Nameless {
    kept: u64,
    freed: u64,
    /// How many operations wait for one to be freed.
    waiting: u32,
}

/// The lookup counts of a mount; see the module.
pub(crate) struct Lookups {
    shards: Vec<Mutex<Shard>>,
    nameless: Mutex<Nameless>,
    one_freed: Condvar,
}

impl Lookups {
    /// Starts empty.
    pub(crate) fn new() -> Lookups {
        Lookups {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            nameless: Mutex::default(),
            one_freed: Condvar::new(),
        }
    }

    /// Counts a reply that tells the kernel of an inode under a name in `parent`. Must be called before the reply is
    /// sent.
    pub(crate) fn count_lookup(&self, ino: InodeNumber, parent: InodeNumber) {
        let mut shard = self.shard(ino).lock();
        let known = shard.known.entry(ino.0).or_insert(Known { times: 0, parent, pages: false, made_in: None });
        known.times += 1;
        // The name `.` stands for a file handle, whose directory is not known.
        if parent != ino {
            known.parent = parent;
        }
    }

    /// Records that the name by which the kernel knows an inode has moved to another directory.
    pub(crate) fn moved(&self, ino: InodeNumber, parent: InodeNumber) {
        if let Some(known) = self.shard(ino).lock().known.get_mut(&ino.0) {
            known.parent = parent;
        }
    }

    /// Returns the directory in which an inode had a name when the kernel last learned of it.
    pub(crate) fn parent(&self, ino: InodeNumber) -> Option<InodeNumber> {
        self.shard(ino).lock().known.get(&ino.0).map(|known| known.parent)
    }

    /// Records that an inode was made without a name in a directory (O_TMPFILE).
    pub(crate) fn made_nameless(&self, ino: InodeNumber, directory: InodeNumber) {
        if let Some(known) = self.shard(ino).lock().known.get_mut(&ino.0) {
            known.made_in = Some(directory);
        }
    }

    /// Records that an inode has got a name.
    pub(crate) fn named(&self, ino: InodeNumber) {
        if let Some(known) = self.shard(ino).lock().known.get_mut(&ino.0) {
            known.made_in = None;
        }
    }

    /// Returns the directory in which an inode was made without a name, if it never had one.
    pub(crate) fn made_in(&self, ino: InodeNumber) -> Option<InodeNumber> {
        self.shard(ino).lock().known.get(&ino.0)?.made_in
    }

    /// Records that the kernel has, or is about to get, pages of an inode. Must be called before the pages are read.
    pub(crate) fn pages_kept(&self, ino: InodeNumber) {
        if let Some(known) = self.shard(ino).lock().known.get_mut(&ino.0) {
            known.pages = true;
        }
    }

    /// Returns true if the kernel may have pages of an inode.
    pub(crate) fn may_have_pages(&self, ino: InodeNumber) -> bool {
        self.shard(ino).lock().known.get(&ino.0).is_some_and(|known| known.pages)
    }

    /// Takes `times` off the count of an inode. Returns true if the kernel no longer knows the inode.
    pub(crate) fn forget(&self, ino: InodeNumber, times: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(known) = shard.known.get_mut(&ino.0) else { return true };
        known.times = known.times.saturating_sub(times);
        let is_forgotten = known.times == 0;
        if is_forgotten {
            shard.known.remove(&ino.0);
            let nameless = shard.nameless.remove(&ino.0);
            // Dropping the file may free many blocks, so the lock is released first.
            drop(shard);
            if let Some(file) = nameless {
                drop(file);
                let mut nameless = self.nameless.lock();
                nameless.kept -= 1;
                nameless.freed += 1;
                self.one_freed.notify_all();
            }
        }
        is_forgotten
    }

    /// Records that a name of this file was removed. If it was the last one, the file lives until the kernel forgets
    /// it.
    pub(crate) fn name_removed(&self, file: File) {
        if file.attr().nlink == 0 {
            self.keep(file);
        }
    }

    /// Returns the inodes that the kernel knows.
    pub(crate) fn known(&self) -> Vec<InodeNumber> {
        let of = |shard: &Mutex<Shard>| shard.lock().known.keys().copied().map(InodeNumber).collect::<Vec<_>>();
        self.shards.iter().flat_map(of).collect()
    }

    /// Returns true if the kernel knows an inode.
    pub(crate) fn is_known(&self, ino: InodeNumber) -> bool {
        self.shard(ino).lock().known.contains_key(&ino.0)
    }

    /// Keeps a file that is about to lose its last name with its directory, until the kernel forgets it.
    pub(crate) fn keep(&self, file: File) {
        let ino = file.ino();
        let mut shard = self.shard(ino).lock();
        if shard.known.contains_key(&ino.0) && shard.nameless.insert(ino.0, file).is_none() {
            self.nameless.lock().kept += 1;
        }
    }

    /// Returns how many files without a name were freed since the mount.
    pub(crate) fn freed(&self) -> u64 {
        self.nameless.lock().freed
    }

    /// Waits briefly until more than `seen` nameless files are freed. Returns false after a timeout, if no nameless
    /// file is kept, or if too many operations wait already.
    pub(crate) fn wait_for_a_freed(&self, seen: u64) -> bool {
        let deadline = Instant::now() + WAIT;
        let mut nameless = self.nameless.lock();
        if nameless.waiting == WAITING_MAX {
            return nameless.freed != seen;
        }
        nameless.waiting += 1;
        let mut is_over = false;
        while nameless.freed == seen && nameless.kept > 0 && !is_over {
            is_over = self.one_freed.wait_until(&mut nameless, deadline).timed_out();
        }
        nameless.waiting -= 1;
        nameless.freed != seen
    }

    fn shard(&self, ino: InodeNumber) -> &Mutex<Shard> {
        &self.shards[(ino.0 % SHARDS) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{FileKind, FileSystem, MkfsOptions, MountOptions, NewInode};
    use pmem::{DeviceSpec, OpenOptions, Region};

    fn file_system() -> FileSystem {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        FileSystem::mount(region, MountOptions::default()).unwrap()
    }

    fn unlinked_file(fs: &FileSystem) -> File {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        let file = fs.open(fs.create(InodeNumber::ROOT, b"f", &new).unwrap().ino).unwrap();
        fs.unlink(InodeNumber::ROOT, b"f").unwrap();
        file
    }

    #[test]
    fn a_nameless_file_lives_until_the_kernel_forgets_it() {
        let (fs, lookups) = (file_system(), Lookups::new());
        let file = unlinked_file(&fs);
        let ino = file.ino();
        lookups.count_lookup(ino, InodeNumber::ROOT);
        lookups.count_lookup(ino, InodeNumber::ROOT);
        lookups.name_removed(file);
        assert!(!lookups.forget(ino, 1));
        assert_eq!(fs.getattr(ino).unwrap().nlink, 0, "one telling is left");
        assert!(lookups.forget(ino, 1));
        assert!(fs.getattr(ino).is_err());
    }

    #[test]
    fn a_nameless_file_unknown_to_the_kernel_is_freed_at_once() {
        let (fs, lookups) = (file_system(), Lookups::new());
        let file = unlinked_file(&fs);
        let ino = file.ino();
        lookups.name_removed(file);
        assert!(fs.getattr(ino).is_err());
    }

    #[test]
    fn an_operation_without_space_waits_only_if_a_nameless_file_is_about_to_be_freed() {
        let (fs, lookups) = (file_system(), Lookups::new());
        assert!(!lookups.wait_for_a_freed(lookups.freed()), "there is none");
        let file = unlinked_file(&fs);
        let ino = file.ino();
        lookups.count_lookup(ino, InodeNumber::ROOT);
        lookups.name_removed(file);
        let seen = lookups.freed();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lookups.wait_for_a_freed(seen));
            lookups.forget(ino, 1);
            assert!(waiter.join().unwrap());
        });
        assert!(lookups.wait_for_a_freed(seen), "it was freed before anybody waited");
        assert!(!lookups.wait_for_a_freed(lookups.freed()));
    }
}
