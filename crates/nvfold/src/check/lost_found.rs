//! Names after a repair: removes names that cannot be right, and gives inodes without a name one in `lost+found`.
//!
//! The problem: a directory that was given up takes all its names with it, but the inodes below it are whole.
//!
//! The idea: walk down from the root as a user would. A directory that is met a second time, or an inode that is not
//! what its name says, loses that name. Whatever is not met at all is moved to `/lost+found` under its number,
//! directories first, with everything in them.

use super::{Moved, ROOT};
use crate::error::{Error, Result};
use crate::fs::Core;
use crate::inode::Body;
use crate::media::log_entry::is_file_name;
use crate::words::{FileKind, InodeNumber, NewInode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

struct NameSeen {
    cookie: u64,
    name: Vec<u8>,
    ino: u64,
    kind: FileKind,
}

struct Tree<'c> {
    core: &'c Core,
    kinds: BTreeMap<u64, FileKind>,
    /// Names in each directory.
    names: BTreeMap<u64, Vec<NameSeen>>,
    reached: BTreeSet<u64>,
    links: BTreeMap<u64, u32>,
    lost_found: Option<u64>,
    moved: Vec<Moved>,
}

/// Corrects names, parents and link counts. `nameless` are the inodes that reconcile found without a name. Returns
/// the inodes that got a name in `lost+found`.
pub(super) fn put_names_right(core: &Core, nameless: &[u64]) -> Result<Vec<Moved>> {
    let mut tree = Tree::read(core)?;
    tree.drop_impossible_names()?;
    core.set_parent(ROOT, ROOT)?;
    tree.walk_directory_tree(ROOT)?;
    tree.save_directories()?;
    tree.save_files(nameless)?;
    for (ino, links) in &tree.links {
        core.set_link_count(*ino, *links)?;
    }
    Ok(tree.moved)
}

impl Tree<'_> {
    fn read(core: &Core) -> Result<Tree<'_>> {
        let mut tree = Tree {
            core,
            kinds: BTreeMap::new(),
            names: BTreeMap::new(),
            reached: BTreeSet::new(),
            links: BTreeMap::new(),
            lost_found: None,
            moved: Vec::new(),
        };
        for ino in core.table.used() {
            match core.inode(ino) {
                Ok(inode) => {
                    tree.kinds.insert(ino, inode.kind);
                    if let Body::Directory(directory) = &inode.peek().body {
                        let name = |slot: &crate::inode::directory::NameSlot| NameSeen {
                            cookie: slot.cookie,
                            name: slot.name(&core.region),
                            ino: slot.ino,
                            kind: slot.kind(),
                        };
                        tree.names.insert(ino, directory.after(0).map(name).collect());
                    }
                }
                // An inode in bad memory stays as it is.
                Err(Error::Corrupt { .. } | Error::BadMemory { .. } | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tree)
    }

    /// Removes names that cannot be right. This comes first, before new inodes can reuse their numbers.
    fn drop_impossible_names(&mut self) -> Result<()> {
        for (directory, names) in &mut self.names {
            let mut seen = BTreeSet::new();
            let mut dropped = Vec::new();
            names.retain(|name| {
                let is_there =
                    self.kinds.get(&name.ino) == Some(&name.kind) || is_unreadable(self.core, &self.kinds, name);
                let is_there = is_there && name.ino != ROOT;
                let is_right = is_file_name(&name.name) && is_there && seen.insert(name.name.clone());
                if !is_right {
                    dropped.push(name.cookie);
                }
                is_right
            });
            dropped.into_iter().try_for_each(|cookie| self.core.remove_dangling_name(*directory, cookie))?;
        }
        Ok(())
    }

    /// Walks the tree of names below a directory.
    fn walk_directory_tree(&mut self, top: u64) -> Result<()> {
        let mut queue = VecDeque::from([top]);
        self.reached.insert(top);
        while let Some(directory) = queue.pop_front() {
            for name in self.names.remove(&directory).unwrap_or_default() {
                if name.kind != FileKind::Directory {
                    self.reached.insert(name.ino);
                    *self.links.entry(name.ino).or_insert(0) += 1;
                } else if self.reached.insert(name.ino) {
                    self.core.set_parent(name.ino, directory)?;
                    queue.push_back(name.ino);
                } else {
                    self.core.remove_dangling_name(directory, name.cookie)?;
                }
            }
        }
        Ok(())
    }

    /// Saves directories that the root does not lead to: first those without a parent among them, then those in a
    /// cycle.
    fn save_directories(&mut self) -> Result<()> {
        loop {
            let lost: Vec<u64> = self.names.keys().copied().filter(|ino| !self.reached.contains(ino)).collect();
            let is_named = |ino: &u64| self.names.values().flatten().any(|name| name.ino == *ino);
            let Some(top) = lost.iter().find(|ino| !is_named(ino)).or(lost.first()).copied() else { return Ok(()) };
            let is_gone = self.core.inode(top)?.peek().attributes.nlink == 0;
            if is_gone && self.names[&top].is_empty() {
                self.names.remove(&top);
                self.core.free_nameless_inode(top)?;
            } else {
                self.save(top)?;
                self.walk_directory_tree(top)?;
            }
        }
    }

    fn save_files(&mut self, nameless: &[u64]) -> Result<()> {
        let lost = |ino: &&u64| {
            !self.reached.contains(ino) && self.kinds.get(ino).is_some_and(|kind| *kind != FileKind::Directory)
        };
        let lost: BTreeSet<u64> = nameless.iter().chain(self.kinds.keys()).filter(lost).copied().collect();
        for ino in lost {
            if self.core.inode(ino)?.peek().attributes.nlink == 0 {
                self.core.free_nameless_inode(ino)?;
            } else {
                self.save(ino)?;
                self.links.insert(ino, 1);
            }
        }
        Ok(())
    }

    /// Gives an inode a name in `lost+found`.
    fn save(&mut self, ino: u64) -> Result<()> {
        let directory = match self.lost_found {
            Some(directory) => directory,
            None => self.make_lost_found()?,
        };
        let is_root = directory == ROOT;
        for attempt in 0.. {
            let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
            let name = format!("{}#{ino}{suffix}", if is_root { "lost+found-" } else { "" });
            match self.core.adopt(directory, ino, name.as_bytes()) {
                Err(Error::Exists { .. }) => {}
                adopted => {
                    adopted?;
                    let path = if is_root { format!("/{name}") } else { format!("/lost+found/{name}") };
                    self.moved.push(Moved { ino, path });
                    return Ok(());
                }
            }
        }
        unreachable!("some name is free")
    }

    /// Returns the directory `lost+found`, made if necessary; the root if there is no room for it.
    fn make_lost_found(&mut self) -> Result<u64> {
        let (root, name) = (InodeNumber::ROOT, b"lost+found");
        let new = NewInode { kind: FileKind::Directory, mode: 0o700, uid: 0, gid: 0, rdev: 0 };
        let found = match self.core.lookup(root, name) {
            Ok(found) => found.ino.0,
            Err(Error::NotFound { .. }) => match self.core.create(root, name, &new, &[]) {
                Ok(made) => made.ino.0,
                Err(Error::NoSpace { .. } | Error::OverLimit { .. }) => ROOT,
                Err(error) => return Err(error),
            },
            Err(_) => ROOT,
        };
        let is_directory = self.core.inode(found)?.kind == FileKind::Directory && !self.names.contains_key(&found);
        self.lost_found = Some(if is_directory { found } else { ROOT });
        Ok(self.lost_found.unwrap_or(ROOT))
    }
}

/// Returns true if a name leads to an inode in unreadable memory; such an inode keeps its names.
fn is_unreadable(core: &Core, kinds: &BTreeMap<u64, FileKind>, name: &NameSeen) -> bool {
    let is_inode = || core.table.is_used(name.ino) && core.table.area(name.ino).is_none();
    name.ino != 0 && !kinds.contains_key(&name.ino) && is_inode()
}
