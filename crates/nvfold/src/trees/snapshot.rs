//! Snapshots: clones that nothing can change, in a directory of their own.
//!
//! A snapshot is a tree whose inodes have the flag [`READ_ONLY_COPY`]: every operation that would change one of them fails,
//! whoever asks. It stands at `.nvfold/snapshots/NAME` in the root of the device; listings of the root leave `.nvfold` out.

use super::Trees;
use super::clone::{CloneOptions, Cloned, CopyKind};
use crate::error::{Error, Result, errno};
use crate::inode::{Body, Inode};
use crate::media::inode::READ_ONLY_COPY;
use crate::media::{BLOCK_BYTES, ChunkRef};
use crate::words::{Attr, FileKind, InodeNumber, NewInode, SNAPSHOTS};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;

const DOING: &str = "use a snapshot";

/// A snapshot of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Vec<u8>,
    /// Its top. `btime` is when it was made.
    pub attr: Attr,
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Number of names in it.
    pub entries: u64,
    /// Bytes that its files map.
    pub logical_bytes: u64,
    /// Bytes of blocks and packed chunks that nothing else references: deleting it frees them.
    pub alone_bytes: u64,
}

impl Trees<'_> {
    /// Makes a snapshot of a directory.
    ///
    /// # Errors
    /// EEXIST; EINVAL for a part of a snapshot; those of [`Trees::clone_tree`].
    pub(crate) fn create_snapshot(
        self,
        name: &[u8],
        source: InodeNumber,
        options: &CloneOptions<'_>,
    ) -> Result<Cloned> {
        let home = self.snapshots_directory()?.map_or_else(|| self.make_snapshots_directory(), Ok)?;
        let hidden = self.entry(InodeNumber::ROOT, SNAPSHOTS[0])?.ino;
        if source == hidden || source == home || self.inode(source.0)?.is_read_only {
            return Err(posix("it is a part of a snapshot, or the directory of the snapshots", errno::EINVAL));
        }
        let copy = CopyKind {
            flags: READ_ONLY_COPY,
            without: (source == InodeNumber::ROOT).then_some(hidden.0),
            ..CopyKind::default()
        };
        self.copy_tree(source, home, name, options, copy)
    }

    /// Returns the snapshots, in the order in which they were made.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn snapshots(self) -> Result<Vec<Snapshot>> {
        let mut found = Vec::new();
        let Some(home) = self.snapshots_directory()? else { return Ok(found) };
        let mut names = Vec::new();
        self.readdir(home, 0, &mut |entry| {
            names.push(entry);
            true
        })?;
        for entry in names.into_iter().filter(|entry| entry.kind == FileKind::Directory) {
            // It may be deleted meanwhile.
            let Ok(inode) = self.inode(entry.ino.0) else { continue };
            if inode.is_read_only {
                found.push(Snapshot { name: entry.name, attr: inode.attr(&inode.peek()) });
            }
        }
        Ok(found)
    }

    /// Returns a snapshot.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn snapshot(self, name: &[u8]) -> Result<Snapshot> {
        let found = self.snapshots()?.into_iter().find(|snapshot| snapshot.name == name);
        found.ok_or_else(|| absent(name))
    }

    /// Deletes a snapshot: it is gone by one commit; steps free what it held.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn delete_snapshot(self, name: &[u8]) -> Result<()> {
        self.snapshot(name)?;
        let home = self.snapshots_directory()?.ok_or_else(|| absent(name))?;
        self.add_tops(self.unname_tree(home, name)?);
        Ok(())
    }

    /// Makes a directory what a snapshot is.
    ///
    /// # Errors
    /// ENOTDIR, EBUSY for the directory of the snapshots; those of [`Trees::clone_tree`].
    pub(crate) fn restore_snapshot(
        self,
        top: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
        options: &CloneOptions<'_>,
    ) -> Result<Cloned> {
        let replaces = match self.entry(parent, name) {
            Ok(_) => true,
            Err(Error::NotFound { .. }) => false,
            Err(error) => return Err(error),
        };
        self.copy_tree(top, parent, name, options, CopyKind { replaces, ..CopyKind::default() })
    }

    /// Returns what a snapshot, or another directory, holds, as far as nothing changes meanwhile. It takes memory for each
    /// chunk.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn snapshot_usage(self, top: InodeNumber) -> Result<SnapshotUsage> {
        let (mut usage, mut references) = (SnapshotUsage::default(), HashMap::<ChunkRef, u32>::new());
        let (mut directories, mut linked) = (vec![top.0], HashSet::new());
        while let Some(directory) = directories.pop() {
            let Some(inode) = self.still_there(directory)? else { continue };
            let Ok(state) = inode.read() else { continue };
            let names: Vec<(u64, FileKind)> = match &state.body {
                Body::Directory(names) => names.listed_after(0).map(|slot| (slot.ino, slot.kind())).collect(),
                Body::File(_) | Body::Other => Vec::new(),
            };
            drop(state);
            for (ino, kind) in names {
                usage.entries += 1;
                match kind {
                    // The names of a damaged device may form a loop.
                    FileKind::Directory if linked.insert(ino) => directories.push(ino),
                    FileKind::Directory => {}
                    FileKind::Regular => {
                        let Some(inode) = self.still_there(ino)? else { continue };
                        let Ok(state) = inode.read() else { continue };
                        if state.attributes.nlink < 2 || linked.insert(ino) {
                            usage.logical_bytes += state.mapped_bytes();
                            let extents = state.extents().into_iter().flat_map(|extents| extents.iter());
                            let chunks = extents.flat_map(|(_, extent)| extent.chunks());
                            chunks.for_each(|chunk| *references.entry(chunk).or_default() += 1);
                        }
                    }
                    _ => {}
                }
            }
        }
        let alone = references.into_iter().filter(|(chunk, count)| self.chunks.count(*chunk).max(1) == *count);
        usage.alone_bytes = alone.map(|(chunk, _)| self.chunk_bytes(chunk)).sum();
        Ok(usage)
    }

    /// Returns an inode that a name led to; `None` if it was removed meanwhile.
    fn still_there(self, ino: u64) -> Result<Option<Arc<Inode>>> {
        match self.inode(ino) {
            Err(Error::NotFound { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the bytes of blocks and packed chunks that only snapshots reference, as far as nothing changes meanwhile.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn only_in_snapshots(self) -> Result<u64> {
        if self.snapshots()?.is_empty() {
            return Ok(0);
        }
        let mut live: HashMap<u64, [u64; 8]> = HashMap::new();
        let mut live_bytes = 0;
        for ino in self.table.used() {
            // A number in use without an inode is a log area.
            let Ok(inode) = self.inode(ino) else { continue };
            let state = inode.peek();
            let extents = state.extents().into_iter().flat_map(|extents| extents.iter());
            for (_, extent) in extents.filter(|_| !inode.is_read_only) {
                let new = extent.chunks().filter(|chunk| is_new(*chunk, &mut live));
                live_bytes += new.map(|chunk| self.chunk_bytes(chunk)).sum::<u64>();
            }
        }
        Ok(self.stored_bytes_total().saturating_sub(live_bytes))
    }

    /// Returns the bytes that a chunk takes on the device.
    fn chunk_bytes(&self, chunk: ChunkRef) -> u64 {
        match chunk {
            ChunkRef::Block(_) => BLOCK_BYTES,
            ChunkRef::Packed(_) => self.chunks.place_of(chunk).map_or(0, |(_, stored)| stored),
        }
    }

    fn make_snapshots_directory(&self) -> Result<InodeNumber> {
        let mut at = InodeNumber::ROOT;
        for name in SNAPSHOTS {
            let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
            at = match self.core.change_by(DOING, || self.create(at, name, &new, &[])) {
                Ok(attr) => attr.ino,
                Err(Error::Exists { .. }) => self.entry(at, name)?.ino,
                Err(error) => return Err(error),
            };
        }
        Ok(at)
    }
}

fn absent(name: &[u8]) -> Error {
    Error::NotFound { what: format!("snapshot {}", String::from_utf8_lossy(name)) }
}

/// Adds a chunk to a set of chunks; false if it is there already. Packed chunks have the odd words, blocks the even ones.
fn is_new(chunk: ChunkRef, seen: &mut HashMap<u64, [u64; 8]>) -> bool {
    let (number, kind) = match chunk {
        ChunkRef::Block(block) => (block.0, 0),
        ChunkRef::Packed(chunk) => (u64::from(chunk.0), 1),
    };
    let word = &mut seen.entry(number / 512 * 2 + kind).or_default()[(number % 512 / 64) as usize];
    let is_new = *word & 1 << (number % 64) == 0;
    *word |= 1 << (number % 64);
    is_new
}

fn posix(why: &'static str, errno: i32) -> Error {
    Error::Posix { doing: DOING, why, errno }
}
