//! The device at a moment between two operations: for copies of it that are made while it is used.
//!
//! The problem: whoever reads a device while operations store to it sees half of some of them.
//!
//! The idea: what is on the device between two operations is what a crash at this moment would leave. Its next mount
//! recovers it, with all that was acknowledged. So a caller that notes this moment, and from then on keeps what stores are
//! about to overwrite ([`Region::keep_before_stores`]), can copy the device as it was then, and take its time.

use super::FileSystem;
use crate::error::Result;
use crate::fs::Core;
use crate::media::SEGMENT_BLOCKS;
use pmem::Region;

/// A device between two operations; see [`FileSystem::at_rest`].
pub struct AtRest<'f> {
    core: &'f Core,
}

impl FileSystem {
    /// Calls `look` while no operation is under way. All operations that change something wait until it has returned, so it
    /// must be short, and must not call the file system.
    ///
    /// # Errors
    /// EIO if the device is lost.
    pub fn at_rest<T>(&self, look: impl FnOnce(&AtRest<'_>) -> T) -> Result<T> {
        let core = self.core();
        let _closed = core.freeze_lock.close();
        core.check_lost()?;
        Ok(look(&AtRest { core }))
    }
}

impl AtRest<'_> {
    /// Returns the device.
    pub fn region(&self) -> &Region {
        &self.core.region
    }

    /// Returns one bit for each block of the device, the first one in bit 0: clear if nobody needs what the block holds,
    /// because it is free. There may be more bits than blocks.
    pub fn used_blocks(&self) -> Vec<u64> {
        let geometry = &self.core.geometry;
        let words_of = |segments: u64| (segments * SEGMENT_BLOCKS / 64) as usize;
        let (first, segments) = (geometry.first_segment(), geometry.segments());
        if self.core.read_only {
            // Nothing is allocated on such a mount, so what is free need not be known.
            return vec![!0; words_of(segments)];
        }
        let tables = std::iter::repeat_n(!0, words_of(first));
        tables.chain((first..segments).flat_map(|segment| self.core.space.used_in(segment))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BLOCK_BYTES;
    use crate::words::{FileKind, InodeNumber};
    use crate::{MkfsOptions, MountOptions, NewInode, Policy};
    use pmem::{DeviceSpec, OpenOptions};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    fn mounted(policy: Policy) -> FileSystem {
        let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        FileSystem::mount(region, MountOptions { policy, ..MountOptions::default() }).unwrap()
    }

    /// Ends the other threads of a test when it is over, also by a panic.
    struct Ending<'e>(&'e AtomicBool);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Copies the used blocks of a device to a new one.
    fn copy_of(rest: &AtRest<'_>) -> Region {
        let (region, used) = (rest.region(), rest.used_blocks());
        let copy = Region::create(&DeviceSpec::Memory, region.len_bytes(), &OpenOptions::default()).unwrap();
        let blocks = (0..region.len_bytes() / BLOCK_BYTES).filter(|at| used[(at / 64) as usize] >> (at % 64) & 1 != 0);
        for at in blocks.map(|block| block * BLOCK_BYTES) {
            let _ = copy.fence(copy.stream(at, &region.to_vec(at, BLOCK_BYTES)));
        }
        copy
    }

    fn number_in(fs: &FileSystem, name: &[u8]) -> u64 {
        let file = fs.open(fs.lookup(InodeNumber::ROOT, name).unwrap().ino).unwrap();
        let mut bytes = [0; 8];
        file.read_at(0, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// A writer writes the same number to two files, one after the other, beside the work in the background. Each copy has
    /// what was acknowledged before it was made, and no second file that is ahead of the first one.
    #[test]
    fn a_copy_of_the_used_blocks_at_rest_recovers_to_all_that_was_acknowledged() {
        for policy in Policy::ALL {
            let (fs, done) = (mounted(policy), Arc::new(AtomicU64::new(0)));
            let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
            let [one, two] = [&b"one"[..], b"two"]
                .map(|name| fs.open(fs.create(InodeNumber::ROOT, name, &new).unwrap().ino).unwrap());
            let ends = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 1..u64::MAX {
                        let bytes = number.to_le_bytes().repeat(1000);
                        one.write_at(0, &bytes).unwrap();
                        two.write_at(0, &bytes).unwrap();
                        done.store(number, Ordering::SeqCst);
                        if ends.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                });
                scope.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        let _ = (fs.fill_step().unwrap(), fs.drain_step().unwrap(), fs.trim_step().unwrap());
                    }
                });
                let _ending = Ending(&ends);
                for _ in 0..10 {
                    let acknowledged = done.load(Ordering::SeqCst);
                    let copy = fs.at_rest(copy_of).unwrap();
                    let copied = FileSystem::mount(copy, MountOptions::default()).unwrap();
                    let numbers = [&b"one"[..], b"two"].map(|name| number_in(&copied, name));
                    copied.unmount().unwrap();
                    assert!(
                        numbers[1] >= acknowledged && numbers[0] >= numbers[1],
                        "{policy:?}: {acknowledged} {numbers:?}"
                    );
                }
            });
        }
    }

    #[test]
    fn nothing_is_stored_while_a_device_is_at_rest() {
        for policy in Policy::ALL {
            let (fs, stores) = (mounted(policy), Arc::new(AtomicU64::new(0)));
            let counted = stores.clone();
            fs.region().keep_before_stores(Some(Arc::new(move |_, _, _| {
                counted.fetch_add(1, Ordering::SeqCst);
                true
            })));
            let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
            let ends = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &new).unwrap().ino).unwrap();
                        file.write_at(0, &[7; 100_000]).unwrap();
                        fs.unlink(InodeNumber::ROOT, b"file").unwrap();
                    }
                });
                scope.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        let _ = (fs.fill_step().unwrap(), fs.drain_step().unwrap(), fs.trim_step().unwrap());
                    }
                });
                let _ending = Ending(&ends);
                let count = || stores.load(Ordering::SeqCst);
                for _ in 0..100 {
                    let stored = fs.at_rest(|_| {
                        let before = count();
                        (0..100).for_each(|_| thread::yield_now());
                        count() - before
                    });
                    assert_eq!(stored.unwrap(), 0, "{policy:?}");
                }
            });
        }
    }
}
