//! Invariants 2 and 3 of names: each name leads to an inode of its kind, each inode has as many names as its link
//! count, and every directory leads up to the root.
//!
//! The pass over the inodes has recorded all names by their target, so nothing is read here.

use super::{DirectoryName, ROOT, Survey};
use crate::inode::Inode;
use crate::media::superblock::TREES;
use crate::words::FileKind;
use hashbrown::{HashMap, HashSet};

impl Survey<'_> {
    pub(super) fn check_names(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.check_snapshots(&names);
        self.check_limits(&names);
        for (ino, slot, why) in std::mem::take(&mut self.unreadable) {
            if ino == ROOT || names.contains_key(&ino) || !Inode::may_be_half_created(self.region, slot, ino) {
                self.plan.condemn(ino, Some(slot), why.clone());
                self.find(0, why, slot);
            } else {
                // A crash interrupted its creation: the head was written first, and the rest was not.
                self.trace(0, why, slot);
            }
        }
        for (ino, slot) in std::mem::take(&mut self.bad_targets) {
            // Until it has a name, a crash may leave it without its target.
            if names.contains_key(&ino) {
                self.find(0, format!("inode {ino}: its target is none that a symlink can have"), slot);
                self.plan.condemn(ino, Some(slot), "its target is none that a symlink can have");
            }
        }
        for (target, names) in &names {
            let Some(facts) = self.inodes.get(target) else {
                if self.bad.took(*target) {
                    continue;
                }
                if !self.plan.condemned.contains_key(target) {
                    let what =
                        format!("directory {}: a name leads to inode {target}, which is not there", names[0].directory);
                    self.find(3, what, names[0].at);
                    self.plan.condemn(*target, None, "its slot is empty");
                }
                continue;
            };
            let (kind, parent, slot) = (facts.kind, facts.parent, facts.slot);
            for name in names.iter().filter(|name| name.kind != kind) {
                self.find(
                    3,
                    format!(
                        "directory {}: inode {target} is not a {:?}, as its name records",
                        name.directory, name.kind
                    ),
                    name.at,
                );
            }
            if *target == ROOT {
                self.find(
                    3,
                    format!("directory {}: a name leads to the root directory", names[0].directory),
                    names[0].at,
                );
            } else if kind == FileKind::Directory && names.len() != 1 {
                self.find(3, format!("directory {target} has {} names", names.len()), slot);
            } else if kind == FileKind::Directory && parent != names[0].directory {
                let what = format!("directory {target} is in {}, and its own entry has {parent}", names[0].directory);
                self.find(3, what, slot);
            }
        }
        let mut inodes: Vec<u64> = self.inodes.keys().copied().collect();
        inodes.sort_unstable();
        let unfinished = self.unfinished(&names);
        self.report.unfinished = unfinished.len() as u64;
        if !unfinished.is_empty() && self.superblock_features & TREES == 0 {
            let what = "a tree is being made or removed, and the superblock does not have the feature flag of that";
            self.find(0, what.into(), 0);
        }
        let mut reachable = HashSet::from([ROOT]);
        for ino in inodes {
            let facts = &self.inodes[&ino];
            let (kind, nlink, slot) = (facts.kind, facts.nlink, facts.slot);
            let count = names.get(&ino).map_or(0, Vec::len) as u32;
            if unfinished.contains(&ino) {
                self.trace(2, format!("directory {ino} is in a tree that is being made or removed"), slot);
            } else if ino != ROOT && count == 0 && facts.names > 0 {
                self.find(3, format!("directory {ino} has no name, and is not empty"), slot);
            } else if ino != ROOT && count == 0 {
                self.trace(2, format!("inode {ino} has no name"), slot);
            } else if nlink != if kind == FileKind::Directory { 1 } else { count } {
                // No crash leaves that: names and link counts change in one commit.
                self.find(2, format!("inode {ino} has {count} names, and its link count is {nlink}"), slot);
            } else if kind == FileKind::Directory && !self.leads_to_root(ino, &mut reachable) {
                self.find(3, format!("directory {ino} cannot be reached from the root"), slot);
            }
        }
    }

    /// Returns the directories of trees that are being made or removed, which recovery frees: those that parents lead up
    /// from to a directory without a name whose link count is 0. An empty one is of no tree.
    fn unfinished(&self, names: &HashMap<u64, Vec<DirectoryName>>) -> HashSet<u64> {
        let directory = |ino: u64| self.inodes.get(&ino).filter(|facts| facts.kind == FileKind::Directory);
        let is_top = |ino: &u64| {
            *ino != ROOT && !names.contains_key(ino) && directory(*ino).is_some_and(|facts| facts.nlink == 0)
        };
        let mut leads_up: HashMap<u64, bool> = HashMap::new();
        if !self.inodes.keys().any(is_top) {
            return HashSet::new();
        }
        for ino in self.inodes.keys().copied().filter(|ino| directory(*ino).is_some()) {
            let (mut at, mut path) = (ino, HashSet::new());
            let leads = loop {
                match (leads_up.get(&at), directory(at)) {
                    (Some(leads), _) => break *leads,
                    (None, Some(_)) if is_top(&at) => {
                        path.insert(at);
                        break true;
                    }
                    (None, Some(facts)) if at != ROOT && path.insert(at) => at = facts.parent,
                    _ => break false,
                }
            };
            leads_up.extend(path.into_iter().map(|ino| (ino, leads)));
        }
        let has_place = |ino: &u64| names.contains_key(ino) || self.inodes[ino].names > 0;
        leads_up.into_iter().filter(|(ino, leads)| *leads && has_place(ino)).map(|(ino, _)| ino).collect()
    }

    /// Returns true if the parents of a directory lead to the root; `reachable` remembers directories that do.
    fn leads_to_root(&self, ino: u64, reachable: &mut HashSet<u64>) -> bool {
        let mut path = Vec::new();
        let mut at = ino;
        while !reachable.contains(&at) {
            let Some(facts) = self.inodes.get(&at).filter(|_| path.len() <= self.inodes.len()) else { return false };
            path.push(at);
            at = facts.parent;
        }
        reachable.extend(path);
        true
    }
}
