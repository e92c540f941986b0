//! The inode cache: the inodes that are in DRAM, by number.
//!
//! The problem: an inode must be one object for all threads, and lookups must not serialise threads.
//!
//! The idea: a hash table in shards. Each shard has its own lock, which is also held while an inode is read from the
//! media. A full shard evicts inodes that no operation holds and that were not looked up lately: a hand goes round its
//! inodes, a few at each insertion, and evicts those that were not looked up since it passed them last.
//!
//! ```text
//! order  | 65 used | 129 | 1 used | 193 held | ..      the hand clears `used`, evicts 129, passes 193
//!                    ^hand
//! ```

use super::Core;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::words::FileId;
use hashbrown::HashMap;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const SHARDS: usize = 64;

/// Number of inodes that a shard keeps before it evicts unused ones.
const INODES_PER_SHARD: usize = 4096;

/// Number of inodes that an insertion into a full shard looks at.
const LOOKS: usize = 32;

/// Number of inodes that an insertion into a full shard evicts. More than one, so that a shard that grew while its
/// inodes were held becomes smaller again.
const EVICTED: usize = 2;

/// A part of the cache. `V` is an inode, except in tests.
struct CacheShard<V> {
    cached: HashMap<u64, CachedInode<V>, BuildHasherDefault<NumberHasher>>,
    /// The numbers of the cached inodes, each once, in the order in which the hand passes them.
    order: Vec<u64>,
    /// The place in `order` where the next search for inodes to evict begins.
    hand: usize,
}

struct CachedInode<V> {
    inode: Arc<V>,
    /// Its place in `order`.
    at: usize,
    /// True if it was looked up since the hand passed it.
    is_used: bool,
}

impl<V> Default for CacheShard<V> {
    fn default() -> CacheShard<V> {
        CacheShard { cached: HashMap::default(), order: Vec::new(), hand: 0 }
    }
}

impl<V> CacheShard<V> {
    #[inline]
    fn get(&mut self, ino: u64) -> Option<&Arc<V>> {
        let cached = self.cached.get_mut(&ino)?;
        cached.is_used = true;
        Some(&cached.inode)
    }

    /// Adds an inode, or replaces it. Evicts some others first if the shard is full, but none that `stays`.
    fn insert(&mut self, ino: u64, inode: Arc<V>, stays: impl Fn(&V) -> bool) {
        if self.order.len() >= INODES_PER_SHARD {
            self.evict_some(stays);
        }
        if let Some(cached) = self.cached.get_mut(&ino) {
            cached.inode = inode;
            return;
        }
        self.cached.insert(ino, CachedInode { inode, at: self.order.len(), is_used: false });
        self.order.push(ino);
    }

    fn remove(&mut self, ino: u64) {
        let Some(removed) = self.cached.remove(&ino) else { return };
        self.order.swap_remove(removed.at);
        if let Some(moved) = self.order.get(removed.at).and_then(|moved| self.cached.get_mut(moved)) {
            moved.at = removed.at;
        }
    }

    /// Moves the hand on by a bounded number of inodes, and evicts those that are neither held nor used, and need not stay.
    fn evict_some(&mut self, stays: impl Fn(&V) -> bool) {
        let mut evicted = 0;
        for _ in 0..LOOKS {
            if evicted == EVICTED || self.order.is_empty() {
                return;
            }
            self.hand %= self.order.len();
            let ino = self.order[self.hand];
            let cached = self.cached.get_mut(&ino).expect("order has the numbers of cached inodes only");
            // Only an operation that has this shard's lock, or that holds the inode already, can hold it once more.
            let is_held = Arc::strong_count(&cached.inode) > 1;
            if std::mem::take(&mut cached.is_used) || is_held || stays(&cached.inode) {
                self.hand += 1;
            } else {
                // The last inode of the order takes its place, and is looked at next.
                self.remove(ino);
                evicted += 1;
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = &Arc<V>> {
        self.cached.values().map(|cached| &cached.inode)
    }
}

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

/// True for an inode that a panic has made unusable: read again from the media, it would be usable for some.
fn stays(inode: &Inode) -> bool {
    inode.is_cut_off()
}

/// The inode cache: see the module.
pub(crate) struct Cache {
    shards: Vec<Mutex<CacheShard<Inode>>>,
}

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: u64) -> &Mutex<CacheShard<Inode>> {
        &self.shards[ino as usize % SHARDS]
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).lock().insert(inode.ino, inode, stays);
    }

    pub(crate) fn remove(&self, ino: u64) {
        self.shard(ino).lock().remove(ino);
    }

    /// Returns the number of cached inodes.
    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().order.len() as u64).sum()
    }

    /// Returns the cached inodes, one shard at a time.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Vec<Arc<Inode>>> {
        self.shards.iter().map(|shard| shard.lock().values().cloned().collect())
    }
}

/// Inodes that exist but cannot be used, because their content is unknown or their space is also used by something
/// else.
#[derive(Default)]
pub(crate) struct DamagedInodes {
    any: AtomicBool,
    inodes: Mutex<BTreeMap<u64, u64>>,
}

impl DamagedInodes {
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
    /// Returns the inode, from the cache or the media.
    ///
    /// # Errors
    /// ENOENT if there is no inode with this number, EIO if it cannot be read.
    pub(crate) fn inode(&self, ino: u64) -> Result<Arc<Inode>> {
        let mut shard = self.cache.shard(ino).lock();
        if let Some(inode) = shard.get(ino) {
            return Ok(inode.clone());
        }
        self.damaged.check(ino)?;
        let gone = || Error::NotFound { what: format!("inode {ino}") };
        let load = |slot| Inode::load(&self.region, &self.geometry, slot, ino);
        let inode = Arc::new(self.table.with_slot(ino, load).ok_or_else(gone)??.ok_or_else(gone)?);
        self.take_attributes(&inode, &inode.peek());
        shard.insert(ino, inode.clone(), stays);
        Ok(inode)
    }

    /// Returns the inode of a file for deferred work; `None` if another file or directory has its number now.
    ///
    /// # Errors
    /// ENOENT if nothing has it; EIO for damage.
    pub(crate) fn inode_of(&self, file: FileId) -> Result<Option<Arc<Inode>>> {
        Ok(Some(self.inode(file.number)?).filter(|inode| inode.file_id() == file))
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheShard, INODES_PER_SHARD, SHARDS};
    use std::sync::Arc;

    const FULL: u64 = INODES_PER_SHARD as u64;

    /// The numbers that a shard gets: all are even or all are odd.
    fn numbers(shard: u64) -> impl Fn(u64) -> u64 {
        move |nth| shard + nth * SHARDS as u64
    }

    /// Whatever the parity of its numbers, a shard stays full and keeps what is looked up.
    #[test]
    fn a_full_shard_keeps_the_inodes_that_are_looked_up() {
        for number in [numbers(2), numbers(3)] {
            let mut shard = CacheShard::default();
            for nth in 0..3 * FULL {
                shard.insert(number(nth), Arc::new(()), |_| false);
                (0..8).take_while(|hot| *hot <= nth).for_each(|hot| assert!(shard.get(number(hot)).is_some(), "{hot}"));
                let least = (nth as usize + 1).min(INODES_PER_SHARD - 1);
                assert!((least..=INODES_PER_SHARD).contains(&shard.order.len()), "{}", shard.order.len());
            }
            let places = shard.order.iter().enumerate();
            places.for_each(|(at, ino)| assert_eq!(shard.cached[ino].at, at));
            assert_eq!(shard.cached.len(), shard.order.len());
        }
    }

    /// Inodes that are held stay, and the shard is as small as before some insertions after they are let go.
    #[test]
    fn a_cache_shard_full_of_inodes_in_use_grows_and_shrinks_again() {
        let (number, mut shard) = (numbers(1), CacheShard::default());
        let held: Vec<Arc<()>> = (0..2 * FULL).map(|_| Arc::default()).collect();
        held.iter().enumerate().for_each(|(nth, inode)| shard.insert(number(nth as u64), inode.clone(), |_| false));
        assert_eq!(shard.order.len() as u64, 2 * FULL);
        drop(held);
        (2 * FULL..4 * FULL).for_each(|nth| shard.insert(number(nth), Arc::default(), |_| false));
        assert!(shard.order.len() <= INODES_PER_SHARD, "{}", shard.order.len());
        (0..4 * FULL).for_each(|nth| shard.remove(number(nth)));
        assert!(shard.order.is_empty() && shard.cached.is_empty());
    }

    /// An inode that has to stay does, although nobody holds it or looks it up.
    #[test]
    fn a_full_shard_keeps_the_inodes_that_have_to_stay() {
        let (number, mut shard) = (numbers(1), CacheShard::default());
        (0..3 * FULL).for_each(|nth| shard.insert(number(nth), Arc::new(nth), |nth| *nth % FULL == 7));
        let kept = (0..3).filter(|round| shard.get(number(round * FULL + 7)).is_some());
        assert_eq!((kept.count(), shard.order.len() as u64 <= FULL), (3, true));
    }
}
