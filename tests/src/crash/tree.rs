//! Everything that a mounted file system reports, to compare: names, attributes, times, contents, and the space they
//! take.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use nvfold::{Attr, FileKind, FileSystem, InodeNumber, Stats, TimeNs};

use crate::device;

/// A tree at one moment, without what the file system may choose: the sizes of directories.
pub struct Tree {
    /// By path.
    nodes: BTreeMap<Vec<u8>, Node>,
    /// `None` while not all counts are exact yet.
    space: Option<Space>,
    /// Blocks that sharing saves once the queue is empty, if that is known.
    drained: Option<u64>,
    /// Bytes that may be stored although no file references them: a crash interrupted the growth of a stream's tail.
    growth_bytes: u64,
    /// True if recovery goes on with an operation, so that it makes another tree of this one.
    goes_on: bool,
    digest: OnceLock<u64>,
}

#[derive(Clone, PartialEq, Eq)]
struct Node {
    attr: Attr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a file, or the target of a link.
    bytes: Vec<u8>,
}

/// The running totals, without free space, because compaction changes the length of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    logical_bytes: u64,
    stored_bytes: u64,
    /// What sharing saves; `None` if it is not known, because an inode is damaged.
    saved_bytes: Option<u64>,
    inodes: u64,
}

impl Space {
    /// Returns the totals of a reconciled file system.
    pub fn of(fs: &FileSystem) -> Space {
        let Stats { logical_bytes, stored_bytes, inodes, .. } = fs.stats();
        let saved_bytes = fs.usage().ok().flatten().map(|usage| usage.saved_bytes);
        Space { logical_bytes, stored_bytes, saved_bytes, inodes }
    }
}

/// A file that was replaced in the root directory, and its replacement.
pub struct Replaced {
    /// Its name; if no file had this name before, the file is new.
    pub name: Vec<u8>,
    /// Bytes of the file that now has the name.
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
        Ok(Tree {
            nodes,
            space: Some(Space::of(fs)),
            drained: None,
            growth_bytes: 0,
            goes_on: false,
            digest: OnceLock::new(),
        })
    }

    /// Returns the tree with these totals.
    pub fn with_space(self, space: Space) -> Tree {
        Tree { space: Some(space), digest: OnceLock::new(), ..self }
    }

    /// Returns the tree without its totals.
    pub fn without_space(self) -> Tree {
        Tree { space: None, digest: OnceLock::new(), ..self }
    }

    /// Returns a copy without its totals.
    pub fn copy_without_space(&self) -> Tree {
        Tree { space: None, ..self.copy_with_growth(0) }
    }

    /// Returns a copy that allows up to `growth_bytes` stored bytes that no file references.
    pub fn copy_with_growth(&self, growth_bytes: u64) -> Tree {
        let Tree { space, drained, .. } = *self;
        let goes_on = false;
        Tree { nodes: self.nodes.clone(), space, drained, growth_bytes, goes_on, digest: OnceLock::new() }
    }

    /// Returns this tree as it is when a tree was removed from `before`, and no file below has lost a name yet. A crash
    /// may leave it, but recovery does not.
    pub fn copy_before_links_go(&self, before: &Tree) -> Tree {
        let mut tree = self.copy_without_space();
        for (path, node) in &mut tree.nodes {
            let Some(before) = before.nodes.get(path).filter(|before| before.attr.ino == node.attr.ino) else {
                continue;
            };
            if node.attr.kind != FileKind::Directory {
                node.attr = before.attr;
            }
        }
        // No recovered device has so many inodes.
        let space = Space { logical_bytes: 0, stored_bytes: 0, saved_bytes: None, inodes: u64::MAX };
        Tree { goes_on: true, ..tree.with_space(space) }
    }

    /// Returns true if recovery makes another tree of this one.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Returns the tree with the blocks that sharing saves once the queue is empty.
    pub fn with_drained(self, drained: Option<u64>) -> Tree {
        Tree { drained, digest: OnceLock::new(), ..self }
    }

    /// Returns the blocks that sharing saves once the queue is empty, if that is known.
    pub fn drained(&self) -> Option<u64> {
        self.drained
    }

    /// Returns this tree after a file of the root directory was replaced, as `now` should be. Values that the file
    /// system chooses come from `now`: the number of the new inode, and the times since the replacement.
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
        Tree { nodes, space: None, drained: self.drained, growth_bytes: 0, goes_on: false, digest: OnceLock::new() }
    }

    /// Returns whether a tree is as expected in everything that is known of both.
    pub fn agrees_with(&self, expected: &Tree) -> bool {
        let space = |(here, there): (Space, Space)| {
            let growth = here.stored_bytes.saturating_sub(there.stored_bytes).min(expected.growth_bytes);
            here == Space { stored_bytes: there.stored_bytes + growth, ..there }
        };
        self.nodes == expected.nodes && self.space.zip(expected.space).is_none_or(space)
    }

    /// Returns the first few differences, for a message.
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

    /// Returns a digest that identifies the tree.
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
