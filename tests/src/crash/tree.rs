//! All that a mounted file system tells, to compare: names, attributes, times, contents, and the space they take.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use nvfold::{Attr, FileKind, FileSystem, InodeNumber, Stats, TimeNs};

use crate::device;

/// A tree at one moment. Left out is what the file system may choose: the sizes of directories.
pub struct Tree {
    /// By path.
    nodes: BTreeMap<Vec<u8>, Node>,
    /// Not known while not all counts are exact yet.
    space: Option<Space>,
    /// Blocks that sharing saves once nothing is queued any more, where that is known.
    drained: Option<u64>,
    /// Bytes that may be stored and that no file names: a crash caught the tail of a stream while it grew.
    growth_bytes: u64,
    digest: OnceLock<u64>,
}

#[derive(Clone, PartialEq, Eq)]
struct Node {
    attr: Attr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a file, or the target of a link.
    bytes: Vec<u8>,
}

/// What the running totals say. What is free is not among them: a log has another length after compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    logical_bytes: u64,
    stored_bytes: u64,
    saved_bytes: u64,
    inodes: u64,
}

impl Space {
    /// Of a file system that is reconciled.
    pub fn of(fs: &FileSystem) -> Space {
        let Stats { logical_bytes, stored_bytes, saved_bytes, inodes, .. } = fs.stats();
        Space { logical_bytes, stored_bytes, saved_bytes, inodes }
    }
}

/// A file that was replaced in the root directory, and what replaced it.
pub struct Replaced {
    /// Its name; a file of this name is new if there was none.
    pub name: Vec<u8>,
    /// Bytes of the file that has the name now.
    pub bytes: Vec<u8>,
    /// Times from this one on are those of the replacement.
    pub since: TimeNs,
}

impl Tree {
    /// Reads everything.
    ///
    /// # Errors
    /// What could not be read.
    pub fn of(fs: &FileSystem) -> Result<Tree, String> {
        let mut nodes = BTreeMap::new();
        let root = fs.getattr(InodeNumber::ROOT).map_err(|error| format!("the root: {error}"))?;
        collect(fs, Vec::new(), root, &mut nodes)?;
        Ok(Tree { nodes, space: Some(Space::of(fs)), drained: None, growth_bytes: 0, digest: OnceLock::new() })
    }

    /// The tree with these totals.
    pub fn with_space(self, space: Space) -> Tree {
        Tree { space: Some(space), digest: OnceLock::new(), ..self }
    }

    /// The tree without what is said of its space.
    pub fn without_space(self) -> Tree {
        Tree { space: None, digest: OnceLock::new(), ..self }
    }

    /// A copy of it without what is said of its space.
    pub fn copy_without_space(&self) -> Tree {
        Tree { space: None, ..self.copy_with_growth(0) }
    }

    /// A copy of it, with up to so many bytes stored that no file names.
    pub fn copy_with_growth(&self, growth_bytes: u64) -> Tree {
        let Tree { space, drained, .. } = *self;
        Tree { nodes: self.nodes.clone(), space, drained, growth_bytes, digest: OnceLock::new() }
    }

    /// The tree with what sharing saves once nothing is queued.
    pub fn with_drained(self, drained: Option<u64>) -> Tree {
        Tree { drained, digest: OnceLock::new(), ..self }
    }

    /// What sharing saves once nothing is queued, if it is known.
    pub fn drained(&self) -> Option<u64> {
        self.drained
    }

    /// This tree after a file of the root directory was replaced, as `now` should be. What the file system chooses
    /// itself is taken from `now`: the number of the new inode, and times that are not of before.
    pub fn with_replaced(&self, replaced: &Replaced, now: &Tree) -> Tree {
        let Replaced { name, bytes, since } = replaced;
        let path = [b"/", &name[..]].concat();
        let time_of = |now: TimeNs, before: TimeNs| if now >= *since { now } else { before };
        let mut nodes = self.nodes.clone();
        let old = nodes.remove(&path);
        for (path, node) in &mut nodes {
            let Some(Node { attr: now, .. }) = now.nodes.get(path) else { continue };
            if path.is_empty() {
                node.attr.mtime = time_of(now.mtime, node.attr.mtime);
                node.attr.ctime = time_of(now.ctime, node.attr.ctime);
            } else if old.as_ref().is_some_and(|old| old.attr.ino == node.attr.ino) {
                node.attr.nlink -= 1;
                node.attr.ctime = time_of(now.ctime, node.attr.ctime);
            }
        }
        if let Some(Node { attr: now, .. }) = now.nodes.get(&path) {
            let time = |now| time_of(now, 0);
            let new = device::regular();
            let attr = Attr {
                kind: new.kind,
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: 1,
                rdev: new.rdev,
                size: bytes.len() as u64,
                atime: time(now.atime),
                mtime: time(now.mtime),
                ctime: time(now.ctime),
                btime: time(now.btime),
                ..*now
            };
            nodes.insert(path, Node { attr, xattrs: BTreeMap::new(), bytes: bytes.clone() });
        }
        Tree { nodes, space: None, drained: self.drained, growth_bytes: 0, digest: OnceLock::new() }
    }

    /// Whether a tree is as expected in all that is known of both.
    pub fn agrees_with(&self, expected: &Tree) -> bool {
        let space = |(here, there): (Space, Space)| {
            let growth = here.stored_bytes.saturating_sub(there.stored_bytes).min(expected.growth_bytes);
            here == Space { stored_bytes: there.stored_bytes + growth, ..there }
        };
        self.nodes == expected.nodes && self.space.zip(expected.space).is_none_or(space)
    }

    /// The first few differences, for a message.
    pub fn differences(&self, expected: &Tree) -> String {
        let mut text = String::new();
        let paths = self.nodes.keys().chain(expected.nodes.keys().filter(|path| !self.nodes.contains_key(*path)));
        for path in paths {
            let name = path.escape_ascii();
            match (self.nodes.get(path), expected.nodes.get(path)) {
                (None, _) => writeln!(text, "  {name} is not there"),
                (_, None) => writeln!(text, "  {name} should not be there"),
                (Some(here), Some(there)) if here == there => Ok(()),
                (Some(here), Some(there)) => writeln!(text, "  {name}: {}", here.differences(there)),
            }
            .expect("a string takes everything");
        }
        if let (Some(here), Some(there)) = (self.space, expected.space)
            && here != there
        {
            writeln!(text, "  {here:?}\n  expected {there:?}").expect("a string takes everything");
        }
        text
    }

    /// Tells trees apart.
    pub fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            for (path, node) in &self.nodes {
                (path, &node.xattrs, &node.bytes, format!("{:?}", node.attr)).hash(&mut hasher);
            }
            format!("{:?} {:?} {}", self.space, self.drained, self.growth_bytes).hash(&mut hasher);
            hasher.finish()
        })
    }
}

impl Node {
    fn differences(&self, expected: &Node) -> String {
        let mut text = String::new();
        if self.attr != expected.attr {
            write!(text, "{:?}, expected {:?}; ", self.attr, expected.attr).expect("a string takes everything");
        }
        if self.xattrs != expected.xattrs {
            write!(text, "other extended attributes; ").expect("a string takes everything");
        }
        if self.bytes != expected.bytes {
            let at = self.bytes.iter().zip(&expected.bytes).position(|(here, there)| here != there);
            let (here, there) = (self.bytes.len(), expected.bytes.len());
            write!(text, "other bytes ({here} for {there}, first at {at:?})").expect("a string takes everything");
        }
        text
    }
}

fn collect(fs: &FileSystem, path: Vec<u8>, attr: Attr, nodes: &mut BTreeMap<Vec<u8>, Node>) -> Result<(), String> {
    let failed = |error: nvfold::Error| format!("{}: {error}", path.escape_ascii());
    let mut node = Node { attr, xattrs: BTreeMap::new(), bytes: Vec::new() };
    for name in fs.list_xattr(attr.ino).map_err(failed)? {
        let value = fs.get_xattr(attr.ino, &name).map_err(failed)?;
        node.xattrs.insert(name, value);
    }
    match attr.kind {
        FileKind::Regular => {
            node.bytes = vec![0xEE; attr.size as usize + 1];
            let read = fs.open(attr.ino).and_then(|file| file.read_at(0, &mut node.bytes)).map_err(failed)?;
            node.bytes.truncate(read);
        }
        FileKind::Symlink => node.bytes = fs.readlink(attr.ino).map_err(failed)?,
        FileKind::Directory => {
            (node.attr.size, node.attr.blocks) = (0, 0);
            let mut names = Vec::new();
            let mut note = |entry: nvfold::DirEntry| {
                names.push((entry.name, entry.kind, entry.ino));
                true
            };
            fs.readdir(attr.ino, 0, &mut note).map_err(failed)?;
            for (name, kind, ino) in names {
                let child = fs.lookup(attr.ino, &name).map_err(failed)?;
                let path = [&path[..], b"/", &name].concat();
                if child.kind != kind || child.ino != ino || nodes.contains_key(&path) {
                    return Err(format!("{}: the directory lists it otherwise than it is", path.escape_ascii()));
                }
                collect(fs, path, child, nodes)?;
            }
        }
        _ => {}
    }
    nodes.insert(path, node);
    Ok(())
}
