//! Limits of trees: which tree each inode is charged to, and what the trees use.
//!
//! A directory is charged to the tree of the directory above it, unless it has limits of its own, or the limits that stand
//! above it are being set or removed. Nothing of the snapshots is charged. A file may have the number of any tree: if it had
//! names in several, it was charged where it was met last, and that name, or that tree, may be gone.

use super::{DirectoryName, ROOT, Survey};
use crate::error::{Error, Result};
use crate::fs::Core;
use crate::inode::{Body, State};
use crate::media::limits::{TREE_LIMITS, TreeLimits};
use crate::media::superblock::{LIMITS, Superblock};
use crate::mount::saved::Saved;
use crate::store::limits::{TreeUse, limits_of};
use crate::words::{FileKind, SNAPSHOTS};
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet};

/// The limited trees, as the logs have them.
#[derive(Default)]
pub(super) struct Charges {
    /// What each tree uses.
    used: BTreeMap<u16, TreeUse>,
    /// The limits that stand on directories.
    tops: BTreeMap<u64, TreeLimits>,
    /// Inodes with limits that are none: number, slot.
    damaged: Vec<(u64, u64)>,
    /// The directory that holds the snapshots.
    hidden: Option<u64>,
}

impl Charges {
    /// Records an inode.
    pub(super) fn add(&mut self, ino: u64, slot: u64, state: &State) {
        if state.attributes.tree != 0 {
            let used = self.used.entry(state.attributes.tree).or_default();
            used.logical_bytes = used.logical_bytes.saturating_add(state.mapped_bytes());
            used.inodes += 1;
        }
        if state.xattrs.contains_key(TREE_LIMITS) {
            match limits_of(state) {
                Some(limits) => drop(self.tops.insert(ino, limits)),
                None => self.damaged.push((ino, slot)),
            }
        }
    }

    /// Records a name of the root.
    pub(super) fn add_name_of_root(&mut self, name: &[u8], ino: u64) {
        if name == SNAPSHOTS[0] {
            self.hidden = Some(ino);
        }
    }

    fn is_any(&self) -> bool {
        !self.used.is_empty() || !self.tops.is_empty() || !self.damaged.is_empty()
    }

    fn is_top(&self, ino: u64, tree: u16) -> bool {
        self.tops.get(&ino).is_some_and(|limits| limits.tree == tree)
    }
}

impl Survey<'_> {
    /// Checks limits, and what directories are charged to.
    pub(super) fn check_limits(&mut self, names: &HashMap<u64, Vec<DirectoryName>>) {
        if !self.charges.is_any() {
            return;
        }
        if self.superblock_features & LIMITS == 0 {
            self.find(0, "there are limits, and the superblock does not have the feature flag of that".into(), 0);
        }
        for (ino, slot) in self.charges.damaged.clone() {
            self.find(0, format!("inode {ino}: the limits that stand on it are damaged"), slot);
        }
        let mut first: HashMap<u16, u64> = HashMap::new();
        for (ino, limits) in self.charges.tops.clone() {
            let other = *first.entry(limits.tree).or_insert(ino);
            if other == ino {
                let used = self.charges.used.entry(limits.tree).or_default();
                (used.top, used.limits) = (Some(ino), limits.limits());
                used.is_being_charged = limits.is_being_charged();
            } else {
                let slot = self.inodes.get(&ino).map_or(0, |facts| facts.slot);
                let what = format!("directories {other} and {ino} have the limits of one tree, number {}", limits.tree);
                self.find(3, what, slot);
            }
        }
        let mut wrong: Vec<(u64, String)> = Vec::new();
        for (ino, facts) in self.inodes.iter().filter(|(_, facts)| facts.kind == FileKind::Directory) {
            let Some((above, tree)) = self.tree_above(*ino, names) else { continue };
            let is_right = facts.tree == tree || self.charges.is_top(*ino, facts.tree) || self.is_being_charged(*ino);
            if !is_right {
                let what = format!(
                    "directory {ino} is charged to tree {}, and directory {above} above it to {tree}",
                    facts.tree
                );
                wrong.push((facts.slot, what));
            }
        }
        wrong.sort_unstable();
        wrong.into_iter().for_each(|(slot, what)| self.find(3, what, slot));
    }

    /// Returns the directory above one that has a name, and the tree that the one below is to be charged to.
    fn tree_above(&self, ino: u64, names: &HashMap<u64, Vec<DirectoryName>>) -> Option<(u64, u16)> {
        let above = if ino == ROOT { ROOT } else { names.get(&ino)?.first()?.directory };
        let facts = self.inodes.get(&above)?;
        let is_of_snapshots = self.charges.hidden == Some(ino) || self.inodes[&ino].is_read_only;
        Some((above, if ino == ROOT || is_of_snapshots { 0 } else { facts.tree }))
    }

    /// True if the limits that stand nearest above a directory are being set or removed.
    fn is_being_charged(&self, ino: u64) -> bool {
        let (mut at, mut path) = (ino, HashSet::new());
        while at != ROOT && path.insert(at) {
            let Some(facts) = self.inodes.get(&at) else { return false };
            at = facts.parent;
            if let Some(limits) = self.charges.tops.get(&at) {
                return limits.is_being_charged();
            }
        }
        false
    }

    /// Checks what a clean unmount has saved of limited trees.
    pub(super) fn check_saved_trees(&mut self, saved: &Saved, at: u64) {
        let counted: BTreeMap<u16, TreeUse> = self.charges.used.clone();
        let all: BTreeSet<u16> = counted.keys().chain(saved.trees.keys()).copied().collect();
        for tree in all {
            let (told, found) = (saved.trees.get(&tree), counted.get(&tree));
            if told != found {
                let what = format!("the saved state has tree {tree} as {told:?}, and the logs have it as {found:?}");
                self.find(2, what, at);
            }
        }
    }
}

/// Repair: removes limits that are damaged, or are those of another directory too, and charges what is charged wrongly to
/// the tree of the directory above.
pub(super) fn put_charges_right(core: &Core, superblock: &Superblock) -> Result<()> {
    if superblock.incompatible & LIMITS == 0 {
        return Ok(());
    }
    for ino in core.table.used() {
        let Ok(inode) = core.inode(ino) else { continue };
        let mut state = inode.write()?;
        if !state.xattrs.contains_key(TREE_LIMITS) {
            continue;
        }
        let is_whole = limits_of(&state)
            .is_some_and(|limits| core.limits.get(limits.tree).is_some_and(|used| used.top == Some(ino)));
        if !is_whole {
            let tree = state.attributes.tree;
            core.write_limits(&inode, &mut state, None, tree)?;
        }
    }
    let mut left = vec![ROOT];
    set_charge(core, ROOT, 0)?;
    while let Some(directory) = left.pop() {
        let Ok(inode) = core.inode(directory) else { continue };
        let (tree, names) = {
            let state = inode.read()?;
            let Body::Directory(names) = &state.body else { continue };
            let of = |name: &crate::inode::directory::NameSlot| (name.ino, name.kind(), name.name(&core.region));
            (state.attributes.tree, names.listed_after(0).map(of).collect::<Vec<_>>())
        };
        for (ino, kind, name) in names {
            let is_hidden = directory == ROOT && name == SNAPSHOTS[0];
            set_charge(core, ino, if is_hidden { 0 } else { tree })?;
            if kind == FileKind::Directory {
                left.push(ino);
            }
        }
    }
    Ok(())
}

/// Charges an inode to a tree, if it is a directory without limits, or a file whose tree is no more.
fn set_charge(core: &Core, ino: u64, tree: u16) -> Result<()> {
    let inode = match core.inode(ino) {
        Ok(inode) => inode,
        // What cannot be read stays as it is.
        Err(Error::Corrupt { .. } | Error::BadMemory { .. } | Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut state = inode.write()?;
    let own = state.attributes.tree;
    let keeps = match inode.kind {
        FileKind::Directory => core.limits.is_top(own, ino),
        _ => core.limits.known(own) == own,
    };
    let tree = if inode.is_read_only { 0 } else { tree };
    if keeps { Ok(()) } else { core.charge_inode(&inode, &mut state, tree) }
}
