//! The inode cache: the inodes that are in DRAM, by number.
//!
//! The problem: an inode must be one object for all threads, and asking must not serialise threads.
//!
//! The idea: a hash table in shards, each with its own lock, which is also held while an inode is read from the media. A
//! full shard evicts inodes that no operation holds.

use super::Core;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::inode::directory::NameSlot;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::words::FileKind;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const SHARDS: usize = 64;
/// Inodes that a shard keeps before it lets go of those nobody uses.
const INODES_PER_SHARD: usize = 4096;

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

/// See the module.
pub(crate) struct Cache {
    shards: Vec<Mutex<InodeMap>>,
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: u64) -> &Mutex<InodeMap> {
        &self.shards[ino as usize % SHARDS]
    }

    pub(super) fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        make_room(&mut shard);
        shard.insert(inode.ino, inode);
    }

    pub(crate) fn remove(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
    }

    /// The inodes that are here now, a shard at a time.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Vec<Arc<Inode>>> {
        self.shards.iter().map(|shard| shard.lock().values().cloned().collect())
    }
}

impl Core {
    /// Returns the inode, from the cache or the media.
    ///
    /// # Errors
    /// ENOENT when there is none of this number, EIO when it cannot be read.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        let mut shard = self.cache.shard(ino).lock();
        if let Some(inode) = shard.get(&ino) {
            return Ok(inode.clone());
        }
        self.damaged.check(ino)?;
        let gone = || Error::NotFound { what: format!("inode {ino}") };
        let load = |slot| Inode::load(&self.region, &self.geometry, slot, ino);
        let inode = Arc::new(self.table.with_slot(ino, load).ok_or_else(gone)??.ok_or_else(gone)?);
        super::policy::take_over(&inode, &inode.peek());
        make_room(&mut shard);
        shard.insert(ino, inode.clone());
        Ok(inode)
    }
}

/// Inodes that are there and cannot be used: what they name is not known, or is used for something else too.
#[derive(Default)]
pub(crate) struct Damaged {
    any: AtomicBool,
    inodes: Mutex<BTreeMap<u64, u64>>,
}

impl Damaged {
    /// EIO for this one from now on; `at`: where it is damaged, device offset in bytes.
    pub(crate) fn add(&self, ino: u64, at: u64) {
        self.inodes.lock().insert(ino, at);
        self.any.store(true, Ordering::Release);
    }

    /// How many are known.
    pub(crate) fn count(&self) -> u64 {
        if self.any.load(Ordering::Acquire) { self.inodes.lock().len() as u64 } else { 0 }
    }

    /// Whether this one is.
    pub(crate) fn contains(&self, ino: u64) -> bool {
        self.check(ino).is_err()
    }

    fn check(&self, ino: u64) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.inodes.lock().get(&ino) {
            Some(at) => Err(Error::Corrupt { what: format!("inode {ino}: it is damaged"), at: *at }),
            None => Ok(()),
        }
    }
}

impl Core {
    /// The inode that a name leads to. The caller has its directory locked: what the name leads to cannot be gone, so
    /// when it is not there, or is something else, it is damaged.
    ///
    /// # Errors
    /// EIO when it cannot be read.
    #[inline]
    pub(super) fn named_inode(&self, name: &NameSlot) -> Result<Arc<Inode>> {
        match self.inode(name.ino) {
            Ok(inode) if inode.kind == name.kind() => Ok(inode),
            found => Err(self.damaged_inode_error(name, found)),
        }
    }

    #[cold]
    #[inline(never)]
    fn damaged_inode_error(&self, name: &NameSlot, found: Result<Arc<Inode>>) -> Error {
        let at = self.table.slot(name.ino).unwrap_or(self.geometry.segment_table_offset);
        let what = |what| Error::Corrupt { what: format!("inode {}: {what}", name.ino), at };
        let error = match found {
            Ok(_) => what("it is not of the kind that its name says"),
            Err(Error::NotFound { .. }) => what("a name leads to it, and its slot is damaged"),
            Err(error) => error,
        };
        if matches!(error, Error::Corrupt { .. } | Error::BadMemory { .. }) {
            self.damaged.add(name.ino, at);
        }
        error
    }

    /// The same, for an operation that takes the name away: `None` for what cannot be read. It stays in use, with all
    /// that it names, until fsck has decided. A directory that cannot be read keeps its name: what is in it would lose
    /// the way that leads to it.
    pub(super) fn removable_inode(&self, name: &NameSlot) -> Result<Option<Arc<Inode>>> {
        match self.named_inode(name) {
            Err(Error::Corrupt { .. } | Error::BadMemory { .. }) if name.kind() != FileKind::Directory => Ok(None),
            found => found.map(Some),
        }
    }
}

/// Lets go of inodes nobody uses when a shard of the cache is full.
fn make_room(shard: &mut InodeMap) {
    if shard.len() >= INODES_PER_SHARD {
        shard.retain(|ino, inode| ino % 2 == 0 && *ino > 1 || Arc::strong_count(inode) > 1);
        if shard.len() >= INODES_PER_SHARD {
            shard.retain(|_, inode| Arc::strong_count(inode) > 1);
        }
    }
}
