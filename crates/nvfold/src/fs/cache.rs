//! The inodes that are in DRAM, by their numbers.
//!
//! The problem: an inode must be one object, whoever asks for it, and asking must not serialise threads.
//!
//! The idea: a hash table in shards, each behind a lock of its own, which is also held while an inode is read from the
//! media. A full shard lets go of inodes that nobody holds.

use super::Core;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::sync::Mutex;
use hashbrown::HashMap;
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

    pub(super) fn remove(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
    }

    /// The inodes that are here now, a shard at a time.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Vec<Arc<Inode>>> {
        self.shards.iter().map(|shard| shard.lock().values().cloned().collect())
    }
}

impl Core {
    /// The inode, from the cache or the media.
    ///
    /// # Errors
    /// ENOENT when there is none of this number, EIO when it cannot be read.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        let mut shard = self.cache.shard(ino).lock();
        if let Some(inode) = shard.get(&ino) {
            return Ok(inode.clone());
        }
        let gone = || Error::NotFound { what: format!("inode {ino}") };
        let load = |slot| Inode::load(&self.region, &self.geometry, slot, ino);
        let inode = Arc::new(self.table.with_slot(ino, load).ok_or_else(gone)??.ok_or_else(gone)?);
        super::policy::take_over(&inode, &inode.peek());
        make_room(&mut shard);
        shard.insert(ino, inode.clone());
        Ok(inode)
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
