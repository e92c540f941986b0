//! Writing the superblock, and the feature bits that an operation sets in it.
//!
//! The problem: an older nvfold must not meet structures that it cannot read. A device without such structures should
//! stay usable for it.
//!
//! The idea: an incompatible feature bit is set just before the first such structure is committed. It is durable in
//! all copies before that, so a crash leaves at worst a bit without the structure.

use super::Store;
use crate::error::{Error, Result};
use crate::media::BLOCK_BYTES;
use crate::media::superblock::{COPIES, Superblock};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use pmem::Region;

/// Feature bits that are known to be set on the media.
#[derive(Default)]
pub(super) struct Features {
    set: AtomicU64,
    /// Held while the bits change on the media.
    changing: Mutex<()>,
}

impl Store {
    /// Sets incompatible feature bits durably, before a structure is committed that needs them.
    ///
    /// # Errors
    /// EIO if no copy of the superblock can be read.
    #[inline]
    pub(crate) fn require_feature(&self, bits: u64) -> Result<()> {
        if self.features.set.load(Ordering::Acquire) & bits == bits { Ok(()) } else { self.set_feature(bits) }
    }

    #[cold]
    fn set_feature(&self, bits: u64) -> Result<()> {
        self.change_superblock(|whole| {
            if whole.iter().any(|copy| copy.incompatible & bits != bits) {
                let incompatible = whole[0].incompatible | bits;
                write_superblock(&self.region, Superblock { incompatible, ..whole[0] });
            }
            Ok(())
        })?;
        self.features.set.fetch_or(bits, Ordering::Release);
        Ok(())
    }

    /// Calls `change` with all whole copies of the superblock, at least one; the first one counts. No other change of the
    /// superblock is under way.
    ///
    /// # Errors
    /// EIO if no copy of the superblock can be read; those of `change`.
    pub(crate) fn change_superblock<T>(&self, change: impl FnOnce(&[Superblock]) -> Result<T>) -> Result<T> {
        let _changing = self.features.changing.lock();
        let read = |offset| (offset, self.region.read::<Superblock>(offset));
        // Skip copies in bad memory.
        let is_sound = |offset: u64| self.region.sound_or_forget(offset, size_of::<Superblock>() as u64);
        let copies =
            self.geometry.copies().map(read).filter(|(offset, copy)| is_sound(*offset) && copy.verify().is_ok());
        let whole: Vec<Superblock> = copies.map(|(_, copy)| copy).collect();
        if whole.is_empty() {
            let what = "superblock: no copy of it can be read any more".into();
            return Err(Error::Corrupt { what, at: COPIES[0] });
        }
        change(&whole)
    }
}

/// Writes all copies, each after the previous one is durable. Damaged copies come first: a crash may tear the copy
/// that is being written, and then only the others are left. Of the intact ones the last copy comes first, because
/// mount reads it last, and so it is never older than the others.
pub(crate) fn write_superblock(region: &Region, superblock: Superblock) {
    let Ok(geometry) = superblock.sealed().verify() else { return };
    let is_torn = |offset: &u64| region.read::<Superblock>(*offset).verify().is_err();
    let (torn, mut whole): (Vec<u64>, Vec<u64>) = geometry.copies().partition(is_torn);
    whole.sort_unstable_by_key(|offset| *offset < COPIES.len() as u64 * BLOCK_BYTES);
    // A copy in bad memory stays as it is, and the others are used. All were read just now, so bad memory is known.
    let is_sound = |offset: &u64| region.sound_or_forget(*offset, size_of::<Superblock>() as u64);
    for offset in torn.into_iter().chain(whole).filter(is_sound) {
        let written = region.write(offset, &superblock.sealed()).flush();
        let _ = region.fence(written);
    }
}
