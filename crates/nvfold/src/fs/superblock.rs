//! Writing the superblock, and the feature bits that an operation sets in it.
//!
//! The problem: an older nvfold must not meet structures that it cannot read, and a device that never gets any of them
//! should stay one that it can use.
//!
//! The idea: an incompatible feature bit is set just before the first such structure is committed. It is durable in all
//! copies before, so a crash leaves a bit without the structure at worst.

use super::Core;
use crate::error::{Error, Result};
use crate::media::BLOCK_BYTES;
use crate::media::superblock::{COPIES, Superblock};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use pmem::Region;

/// Feature bits that are known to be set.
#[derive(Default)]
pub(super) struct Features {
    set: AtomicU64,
    /// Held while they change on the media.
    changing: Mutex<()>,
}

impl Core {
    /// Makes sure that incompatible feature bits are set, durably, before something is committed that needs them.
    ///
    /// # Errors
    /// EIO when no copy of the superblock can be read.
    #[inline]
    pub(super) fn require_feature(&self, bits: u64) -> Result<()> {
        if self.features.set.load(Ordering::Acquire) & bits == bits { Ok(()) } else { self.set_feature(bits) }
    }

    #[cold]
    fn set_feature(&self, bits: u64) -> Result<()> {
        let _changing = self.features.changing.lock();
        let read = |offset| (offset, self.region.read::<Superblock>(offset));
        // A copy in bad memory is none.
        let is_sound = |offset: u64| self.region.sound_or_forget(offset, size_of::<Superblock>() as u64);
        let copies =
            self.geometry.copies().map(read).filter(|(offset, copy)| is_sound(*offset) && copy.verify().is_ok());
        let mut whole = copies.map(|(_, copy)| copy);
        let Some(superblock) = whole.next() else {
            let what = "superblock: no copy of it can be read any more".into();
            return Err(Error::Corrupt { what, at: COPIES[0] });
        };
        if superblock.incompatible & bits != bits || whole.any(|copy| copy.incompatible & bits != bits) {
            let incompatible = superblock.incompatible | bits;
            write_superblock(&self.region, Superblock { incompatible, ..superblock });
        }
        self.features.set.fetch_or(bits, Ordering::Release);
        Ok(())
    }
}

/// Writes all copies, each after the one before is durable. Those that are not whole come first: a crash may tear the
/// copy that is being written, and then the others are all there is. Of whole ones the last one comes first: it is read
/// last, and never older than the others.
pub(crate) fn write_superblock(region: &Region, superblock: Superblock) {
    let Ok(geometry) = superblock.sealed().verify() else { return };
    let is_torn = |offset: &u64| region.read::<Superblock>(*offset).verify().is_err();
    let (torn, mut whole): (Vec<u64>, Vec<u64>) = geometry.copies().partition(is_torn);
    whole.sort_unstable_by_key(|offset| *offset < COPIES.len() as u64 * BLOCK_BYTES);
    // A copy in bad memory stays as it is: the others serve. All were read just now, so it is known.
    let is_sound = |offset: &u64| region.sound_or_forget(*offset, size_of::<Superblock>() as u64);
    for offset in torn.into_iter().chain(whole).filter(is_sound) {
        let written = region.write(offset, &superblock.sealed()).flush();
        let _ = region.fence(written);
    }
}
