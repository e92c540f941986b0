//! What differs between two trees. Extents that are equal are equal bytes, so files that share their data are not read.

use super::Trees;
use crate::error::Result;
use crate::inode::Inode;
use crate::inode::extents::Extent;
use crate::media::limits::TREE_LIMITS;
use crate::words::{Attr, DirEntry, FileKind, InodeNumber};
use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes that are compared at a time.
const COMPARED_BYTES: u64 = 64 << 10;

/// The extents of two files that one step compares.
const EXTENTS_STEP: usize = 4096;

/// How a name of one tree differs from that of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// It is of another kind.
    Kind,
    /// The bytes of the file, or the target of the symlink, differ.
    Content,
    /// Mode, owner, device number or extended attributes differ, or the times of a file whose content is equal.
    Attributes,
}

impl Trees<'_> {
    /// Calls `each` for every path at which two directories differ, in the order of names, until it returns false. Below
    /// a name that only one of them has, nothing is listed.
    ///
    /// # Errors
    /// ENOTDIR, ENOENT; EIO if bytes that have to be compared cannot be read.
    pub(crate) fn diff(
        self,
        one: InodeNumber,
        other: InodeNumber,
        each: &mut dyn FnMut(&[u8], Difference) -> bool,
    ) -> Result<()> {
        let mut unseen = vec![(Vec::new(), one, other)];
        while let Some((path, one, other)) = unseen.pop() {
            let (mut of_one, mut of_other) = (self.names_of(one)?, self.names_of(other)?);
            let mut names: Vec<Vec<u8>> = of_one.keys().chain(of_other.keys()).cloned().collect();
            names.sort_unstable();
            names.dedup();
            let mut directories = Vec::new();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { [&path[..], &name].join(&b'/') };
                let difference = match (of_one.remove(&name), of_other.remove(&name)) {
                    (Some(one), Some(other)) => {
                        let difference = self.difference(&one, &other)?;
                        if one.kind == FileKind::Directory && other.kind == FileKind::Directory {
                            directories.push((path.clone(), one.ino, other.ino));
                        }
                        difference
                    }
                    (Some(_), None) => Some(Difference::Removed),
                    (None, _) => Some(Difference::Added),
                };
                if difference.is_some_and(|difference| !each(&path, difference)) {
                    return Ok(());
                }
            }
            unseen.extend(directories.into_iter().rev());
        }
        Ok(())
    }

    /// Returns ranges from `from` on in which two files may map other bytes, at most `most`, and where to go on.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn unshared_ranges(
        self,
        (one, other): (InodeNumber, InodeNumber),
        from: u64,
        most: usize,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        let (one, other) = (self.inode(one.0)?, self.inode(other.0)?);
        let size = |inode: &Inode| -> Result<u64> { Ok(inode.attr(&*inode.read()?).size) };
        let size = size(&one)?.max(size(&other)?);
        if from >= size {
            return Ok((Vec::new(), size));
        }
        let (mut ranges, mut next) = self.apart(&one, &other, from, size)?;
        if ranges.len() > most {
            ranges.truncate(most);
            next = ranges.last().map_or(from, |last| last.end);
        }
        Ok((ranges, next))
    }

    fn names_of(&self, directory: InodeNumber) -> Result<BTreeMap<Vec<u8>, DirEntry>> {
        let mut names = BTreeMap::new();
        self.readdir(directory, 0, &mut |entry| {
            names.insert(entry.name.clone(), entry);
            true
        })?;
        Ok(names)
    }

    fn difference(&self, one: &DirEntry, other: &DirEntry) -> Result<Option<Difference>> {
        if one.ino == other.ino {
            return Ok(None);
        }
        if one.kind != other.kind {
            return Ok(Some(Difference::Kind));
        }
        let (one, other) = (self.inode(one.ino.0)?, self.inode(other.ino.0)?);
        let (of_one, of_other) = (one.attr(&*one.read()?), other.attr(&*other.read()?));
        let is_equal = match one.kind {
            FileKind::Regular => of_one.size == of_other.size && self.have_equal_bytes(&one, &other, of_one.size)?,
            FileKind::Symlink => self.readlink(of_one.ino)? == self.readlink(of_other.ino)?,
            _ => true,
        };
        if !is_equal {
            return Ok(Some(Difference::Content));
        }
        let are_equal = self.have_equal_attributes((&one, &of_one), (&other, &of_other))?;
        Ok((!are_equal).then_some(Difference::Attributes))
    }

    /// True if two files have equal attributes and share all their bytes. False also if their bytes would have to be read,
    /// or if one of them has so many extents that comparing these takes more than a step.
    ///
    /// # Errors
    /// ENOENT, EIO.
    pub(crate) fn are_equal_unread(self, one: InodeNumber, other: InodeNumber) -> Result<bool> {
        let (one, other) = (self.inode(one.0)?, self.inode(other.0)?);
        let (of_one, of_other) = (one.attr(&*one.read()?), other.attr(&*other.read()?));
        if one.kind != FileKind::Regular || other.kind != FileKind::Regular || of_one.size != of_other.size {
            return Ok(false);
        }
        let (apart, end) = self.apart(&one, &other, 0, of_one.size)?;
        let share_all = apart.is_empty() && end == of_one.size;
        Ok(share_all && self.have_equal_attributes((&one, &of_one), (&other, &of_other))?)
    }

    fn have_equal_attributes(&self, one: (&Inode, &Attr), other: (&Inode, &Attr)) -> Result<bool> {
        let xattrs = |inode: &Inode| -> Result<_> {
            let mut all = inode.read()?.read_xattrs(&self.region);
            // Limits belong to the place, not to what is in it.
            all.retain(|(name, _)| name != TREE_LIMITS);
            Ok(all)
        };
        Ok(attributes(one.1) == attributes(other.1) && xattrs(one.0)? == xattrs(other.0)?)
    }

    /// Compares two files of this size; reads only what they do not share.
    fn have_equal_bytes(&self, one: &Inode, other: &Inode, size: u64) -> Result<bool> {
        let mut at = 0;
        while at < size {
            let (apart, next) = self.apart(one, other, at, size)?;
            for range in apart {
                for start in range.clone().step_by(COMPARED_BYTES as usize) {
                    let length = COMPARED_BYTES.min(range.end - start) as usize;
                    let (mut of_one, mut of_other) = (vec![0; length], vec![0; length]);
                    let read = (self.read(one, start, &mut of_one)?, self.read(other, start, &mut of_other)?);
                    self.region.check()?;
                    if read.0 != read.1 || of_one != of_other {
                        return Ok(false);
                    }
                }
            }
            at = next;
        }
        Ok(true)
    }

    /// Returns ranges from `from` on in which two files may map other bytes, and where to go on.
    fn apart(&self, one: &Inode, other: &Inode, from: u64, size: u64) -> Result<(Vec<Range<u64>>, u64)> {
        let some = |inode: &Inode| -> Result<Vec<(u64, Extent)>> {
            let state = inode.read()?;
            let extents = state.extents().into_iter().flat_map(|extents| extents.within(from, size));
            Ok(extents.filter(|(_, extent)| !extent.unwritten).take(EXTENTS_STEP).collect())
        };
        let (of_one, of_other) = (some(one)?, some(other)?);
        let end_of = |extents: &[(u64, Extent)]| match extents.last() {
            Some((offset, last)) if extents.len() == EXTENTS_STEP => offset + last.length,
            _ => size,
        };
        let end = end_of(&of_one).min(end_of(&of_other));
        let mut apart: Vec<Range<u64>> = Vec::new();
        let mut at = from;
        let (mut one, mut other) = (of_one.iter().peekable(), of_other.iter().peekable());
        while at < end {
            while one.next_if(|(offset, extent)| offset + extent.length <= at).is_some() {}
            while other.next_if(|(offset, extent)| offset + extent.length <= at).is_some() {}
            let (of_one, one_end) = piece(one.peek().copied(), at, end);
            let (of_other, other_end) = piece(other.peek().copied(), at, end);
            let next = one_end.min(other_end);
            if of_one != of_other {
                match apart.last_mut() {
                    Some(last) if last.end == at => last.end = next,
                    _ => apart.push(at..next),
                }
            }
            at = next;
        }
        Ok((apart, end))
    }
}

/// Returns where the bytes from `at` on are, `None` for a hole, and where that ends.
fn piece(next: Option<&(u64, Extent)>, at: u64, end: u64) -> (Option<crate::media::Location>, u64) {
    match next {
        Some((offset, extent)) if *offset <= at => {
            (Some(extent.location.plus(at - offset)), (offset + extent.length).min(end))
        }
        Some((offset, _)) => (None, (*offset).min(end)),
        None => (None, end),
    }
}

/// Returns the attributes that make a difference.
fn attributes(attr: &Attr) -> (u32, u32, u32, u32, i64) {
    let mtime = if attr.kind == FileKind::Directory { 0 } else { attr.mtime };
    (attr.mode, attr.uid, attr.gid, attr.rdev, mtime)
}
