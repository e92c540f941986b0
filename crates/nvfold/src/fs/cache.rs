//! The inode cache: the inodes that are in DRAM, by number.
//!
//! The problem: an inode must be one object for all threads, and lookups must not serialise threads.
//!
//! The idea: a hash table in shards. Each shard has its own lock, which is also held while an inode is read from the
//! media. A full shard evicts inodes that no operation holds.

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
/// Number of inodes that a shard keeps before it evicts unused ones.
const INODES_PER_SHARD: usize = 4096;

/// Inodes by their numbers.
type InodeMap = HashMap<u64, Arc<Inode>, BuildHasherDefault<NumberHasher>>;

/// Hashes inode numbers. The file system chooses the numbers, so an attacker cannot make them collide and no random
/// seed is needed. A seed would also make instruction counts differ between processes.
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
        // Use both halves of the product: the low bits choose the bucket, the high ones the tag.
        let product = u128::from(self.0 ^ number) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// The inode cache: see the module.
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

    /// Returns the cached inodes, one shard at a time.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Vec<Arc<Inode>>> {
        self.shards.iter().map(|shard| shard.lock().values().cloned().collect())
    }
}

impl Core {
    /// Returns the inode, from the cache or the media.
    ///
    /// # Errors
    /// ENOENT if there is no inode with this number, EIO if it cannot be read.
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

/// Inodes that exist but cannot be used, because their content is unknown or their space is also used by something
/// else.
#[derive(Default)]
pub(crate) struct Damaged {
    any: AtomicBool,
    inodes: Mutex<BTreeMap<u64, u64>>,
}

impl Damaged {
    /// Marks an inode as damaged: it gives EIO from now on. `at` is the device offset of the damage in bytes.
    pub(crate) fn add(&self, ino: u64, at: u64) {
        self.inodes.lock().insert(ino, at);
        self.any.store(true, Ordering::Release);
    }

    /// Returns how many damaged inodes are known.
    pub(crate) fn count(&self) -> u64 {
        if self.any.load(Ordering::Acquire) { self.inodes.lock().len() as u64 } else { 0 }
    }

    /// True if this inode is damaged.
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
    /// Returns the inode that a name refers to. The caller holds the directory's lock, so the inode cannot have been
    /// removed: if it is missing or of another kind, it is damaged.
    ///
    /// # Errors
    /// EIO if it cannot be read.
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

    /// The same for an operation that removes the name; `None` if the inode cannot be read. The inode stays in use,
    /// with everything that it references, until fsck has decided. A directory that cannot be read keeps its name,
    /// because its content would become unreachable.
    pub(super) fn removable_inode(&self, name: &NameSlot) -> Result<Option<Arc<Inode>>> {
        match self.named_inode(name) {
            Err(Error::Corrupt { .. } | Error::BadMemory { .. }) if name.kind() != FileKind::Directory => Ok(None),
            found => found.map(Some),
        }
    }
}

/// Evicts unused inodes if a shard of the cache is full.
fn make_room(shard: &mut InodeMap) {
    if shard.len() >= INODES_PER_SHARD {
        shard.retain(|ino, inode| ino % 2 == 0 && *ino > 1 || Arc::strong_count(inode) > 1);
        if shard.len() >= INODES_PER_SHARD {
            shard.retain(|_, inode| Arc::strong_count(inode) > 1);
        }
    }
}
