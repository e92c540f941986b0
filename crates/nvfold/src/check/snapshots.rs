//! Invariant 3 of snapshots: all that is below a snapshot belongs to it, and nothing else does.
//!
//! Snapshots stand in one directory, two below the root. Names are not looked at: the directory is the one from which names
//! lead into snapshots.

use super::{DirectoryName, ROOT, Survey};
use crate::media::inode::READ_ONLY_COPY;
use crate::media::superblock::TREES;
use hashbrown::HashMap;

impl Survey<'_> {
    /// Checks the flags of all inodes with names.
    pub(super) fn check_snapshots(&mut self, names: &HashMap<u64, Vec<DirectoryName>>) {
        let of_snapshots = self.inodes.values().filter(|facts| facts.is_read_only).count();
        if of_snapshots > 0 && self.superblock_features & TREES == 0 {
            self.find(0, "there is a snapshot, and the superblock does not have the feature flag of that".into(), 0);
        }
        let home = self.home(names);
        let mut wrong: Vec<(u64, u64, bool)> = Vec::new();
        for (ino, named) in names {
            let Some(facts) = self.inodes.get(ino) else { continue };
            let in_snapshot = |name: &DirectoryName| {
                let is_home = Some(name.directory) == home;
                self.inodes
                    .get(&name.directory)
                    .map(|directory| directory.is_read_only || is_home && facts.is_read_only)
            };
            // A file in a snapshot and outside of it stays what it is.
            let all: Vec<bool> = named.iter().filter_map(in_snapshot).collect();
            if !all.is_empty() && all.iter().all(|is_in| *is_in != facts.is_read_only) {
                wrong.push((*ino, facts.slot, !facts.is_read_only));
            }
        }
        wrong.sort_unstable();
        for (ino, slot, is_in_snapshot) in wrong {
            let what = if is_in_snapshot {
                "is in a snapshot, and can be changed"
            } else {
                "cannot be changed, and is in no snapshot"
            };
            self.find(3, format!("inode {ino} {what}"), slot);
            self.plan.flags.insert(slot, if is_in_snapshot { READ_ONLY_COPY } else { 0 });
        }
    }

    /// Returns the directory of the snapshots: the one two below the root from which most names lead into snapshots.
    fn home(&self, names: &HashMap<u64, Vec<DirectoryName>>) -> Option<u64> {
        let mut homes: HashMap<u64, usize> = HashMap::new();
        let tops = names.iter().filter(|(ino, _)| self.inodes.get(*ino).is_some_and(|facts| facts.is_read_only));
        for name in tops.flat_map(|(_, named)| named) {
            let Some(directory) = self.inodes.get(&name.directory).filter(|facts| !facts.is_read_only) else {
                continue;
            };
            let is_two_below = self.inodes.get(&directory.parent).is_some_and(|above| above.parent == ROOT);
            if is_two_below && name.directory != ROOT && directory.parent != ROOT {
                *homes.entry(name.directory).or_default() += 1;
            }
        }
        homes.into_iter().max_by_key(|(home, count)| (*count, *home)).map(|(home, _)| home)
    }
}
