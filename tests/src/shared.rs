//! What sharing saves, counted from the references of files, without the file system's own totals.

use std::collections::HashSet;

use nvfold::{FileKind, FileSystem, InodeNumber, Result};

const BLOCK: u64 = 4096;

/// Whole blocks that files reference, and their offsets.
///
/// Parts of blocks are left out: if a part of one of two equal blocks was cloned, the order in which the two are met
/// decides which one stays. Reserved blocks are left out too.
#[derive(Default)]
pub struct Named {
    /// Number of references to whole blocks.
    pub names: u64,
    /// Device offsets of the blocks.
    pub blocks: HashSet<u64>,
}

impl Named {
    /// Counts the references of all files.
    ///
    /// # Errors
    /// What could not be read.
    pub fn of(fs: &FileSystem) -> Result<Named> {
        let mut named = Named::default();
        let mut directories = vec![InodeNumber::ROOT];
        while let Some(directory) = directories.pop() {
            let mut entries = Vec::new();
            fs.readdir(directory, 0, &mut |entry| {
                entries.push(entry);
                true
            })?;
            for entry in entries {
                match entry.kind {
                    FileKind::Directory => directories.push(entry.ino),
                    FileKind::Regular => named.add(fs, entry.ino)?,
                    _ => {}
                }
            }
        }
        Ok(named)
    }

    /// Returns the references that need no block of their own, because another reference shares it.
    pub fn saved(&self) -> u64 {
        self.names - self.blocks.len() as u64
    }

    /// Returns the number of duplicate blocks: what is left to share.
    pub fn stored_twice(&self, fs: &FileSystem) -> usize {
        let content = |block: &u64| fs.region().to_vec(*block, BLOCK);
        self.blocks.len() - self.blocks.iter().map(content).collect::<HashSet<_>>().len()
    }

    fn add(&mut self, fs: &FileSystem, ino: InodeNumber) -> Result<()> {
        const AT_ONCE: usize = 1000;
        let file = fs.open(ino)?;
        let mut from = 0;
        loop {
            let extents = file.extents(from, AT_ONCE)?;
            let Some(last) = extents.last() else { return Ok(()) };
            from = last.offset + last.length;
            for extent in extents.iter().filter(|extent| !extent.unwritten) {
                let skipped = extent.offset.next_multiple_of(BLOCK) - extent.offset;
                let first = extent.address + skipped;
                if first.is_multiple_of(BLOCK) {
                    let whole = extent.length.saturating_sub(skipped) / BLOCK;
                    self.names += whole;
                    self.blocks.extend((0..whole).map(|number| first + number * BLOCK));
                }
            }
        }
    }
}
