//! Space comes back, and can be had: dead bytes are free again at every fill, and ENOSPC says that there is no room.

use crate::deext::*;
use nvfold::media::SEGMENT_BYTES;
use nvfold::*;
use std::collections::BTreeMap;

const MAX_BYTES: u64 = 200_000;
/// Blocks that are kept for operations that free space.
const KEPT_BYTES: u64 = 256 << 10;

/// Files of many lengths that come, change and go, and what they hold.
struct Churn {
    fs: FileSystem,
    random: Random,
    files: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Churn {
    fn new(fs: FileSystem) -> Churn {
        Churn { fs, random: Random(11), files: BTreeMap::new(), next: 0 }
    }

    fn any(&mut self) -> u64 {
        let nth = self.random.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(nth).unwrap()
    }

    fn remove(&mut self) {
        let at = self.any();
        self.files.remove(&at);
        self.fs.unlink(ROOT, name(at).as_bytes()).unwrap();
    }

    /// Makes a file; false if there was no room for it.
    fn make(&mut self) -> bool {
        let (at, bytes) = (self.next, 1 + self.random.below(MAX_BYTES) as usize);
        let data = if at % 2 == 0 { text(bytes, at + 1) } else { noise(bytes, at + 1) };
        let Ok(new) = self.fs.create(ROOT, name(at).as_bytes(), &NEW) else { return false };
        let written = self.fs.open(new.ino).unwrap().write_at(0, &data).is_ok();
        if written {
            self.files.insert(at, data);
            self.next += 1;
        } else {
            self.fs.unlink(ROOT, name(at).as_bytes()).unwrap();
        }
        written
    }

    /// Overwrites a part of a file, if there is room.
    fn change(&mut self) {
        let at = self.any();
        let (offset, bytes) = (self.random.below(self.files[&at].len() as u64) as usize, self.random.below(30_000));
        let part = text(1 + bytes as usize, self.next);
        if open(&self.fs, &name(at)).write_at(offset as u64, &part).is_ok() {
            let data = self.files.get_mut(&at).unwrap();
            data.resize(data.len().max(offset + part.len()), 0);
            data[offset..offset + part.len()].copy_from_slice(&part);
        }
    }

    fn assert_whole(&self) {
        self.files.iter().for_each(|(at, data)| assert!(read(&open(&self.fs, &name(*at))) == *data, "file {at}"));
    }
}

fn name(at: u64) -> String {
    format!("file {at}")
}

/// Up to a fraction of the device lives, and the rest is dead. The segment that is kept for reclamation used to be
/// filled by writers; then nothing that lived could move any more, and all that was dead stayed.
#[test]
fn what_is_dead_can_be_had_at_every_fill() {
    for percent in [50, 75, 85, 97] {
        let region = device(48, IndexKind::Dram);
        let mut churn = Churn::new(mount(&region));
        let total = churn.fs.statfs().blocks * 4096;
        for turn in 0..400 {
            if !churn.make() {
                let stats = churn.fs.stats();
                let left = stats.reclaim.dead_bytes + stats.free_bytes - KEPT_BYTES;
                assert!(left <= total / 100 * 3 + MAX_BYTES, "{percent} %, turn {turn}: ENOSPC with {stats:?}");
                churn.remove();
            }
            (turn % 3 == 0).then(|| churn.change());
            while churn.fs.stats().stored_bytes > total / 100 * percent {
                churn.remove();
            }
        }
        assert!(churn.fs.stats().reclaim.segments > 2, "{percent} %: {:?}", churn.fs.stats().reclaim);
        (0..churn.files.len() / 4).for_each(|_| churn.remove());
        let before = churn.fs.stats();
        assert!(before.reclaim.dead_bytes > 2 * SEGMENT_BYTES, "{percent} %: {before:?}");
        let Churn { fs, files, .. } = churn;
        unmount(&region, fs);
        let churn = Churn { files, ..Churn::new(mount(&region)) };
        while !churn.fs.reclaim_step(Victims::All).unwrap() {}
        let after = churn.fs.stats();
        assert!(after.reclaim.dead_bytes <= 2 * SEGMENT_BYTES, "{percent} %: {after:?}");
        assert!(after.reclaim.kept_bytes > 0, "{percent} %: {after:?}");
        churn.assert_whole();
        unmount(&region, churn.fs);
    }
}
