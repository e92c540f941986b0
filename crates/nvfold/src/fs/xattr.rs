//! Extended attributes: short values are in the log entry, long ones in separate blocks.
//!
//! Their number and length is bounded for each inode, because a user may set any number on as many inodes as he likes,
//! and DRAM has the names of all that are cached. Longer values are read from the media ([`HeldValue`]).

use super::{Core, policy};
use crate::error::{Error, Result, errno};
use crate::inode::{HeldValue, Inode, SYMLINK_TARGET, State, value_blocks};
use crate::media::log_entry::{INLINE_VALUE_MAX, LogEntry, VALUE_MAX, XattrValue, is_symlink_target};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose, Runs};
use crate::store::placer;
use crate::words::{FileKind, InodeNumber, TimeNs, XattrChange, XattrMode};
use pmem::Flight;

/// The largest number of extended attributes of an inode (as for cgroups in Linux), and of bytes in their names and
/// values.
const XATTRS_MAX: usize = 128;

pub(crate) const XATTR_BYTES_MAX: u64 = 512 << 10;

/// A stored value that no log entry references yet. Dropping it frees its blocks.
pub(crate) struct StoredValue<'a> {
    core: &'a Core,
    value: Option<XattrValue>,
}

impl StoredValue<'_> {
    pub(crate) fn value(&self) -> &XattrValue {
        self.value.as_ref().expect("taken only by keep")
    }

    pub(crate) fn keep(mut self) -> XattrValue {
        self.value.take().expect("taken only once")
    }
}

impl Drop for StoredValue<'_> {
    fn drop(&mut self) {
        if self.value.is_none() || self.core.panics.abandons() {
            return;
        }
        self.value.iter().for_each(|value| self.core.free_value_blocks(value_blocks(value)));
    }
}

/// Changes of extended attributes whose values are stored but not yet referenced. Dropping it frees the new values.
pub(super) struct StagedXattrs<'a> {
    core: &'a Core,
    entries: Vec<LogEntry>,
    stored: Vec<StoredValue<'a>>,
    replaced: Vec<HeldValue>,
}

impl StagedXattrs<'_> {
    /// Returns the log entries to commit.
    pub(crate) fn entries(&self) -> &[LogEntry] {
        &self.entries
    }

    /// Ends the change after its commit: the inode takes over its new attributes, and the old values are freed.
    pub(crate) fn published(self, inode: &Inode, state: &State) {
        if self.entries.is_empty() {
            return;
        }
        placer::take_over(inode, state);
        self.stored.into_iter().for_each(|stored| drop(stored.keep()));
        self.replaced.iter().for_each(|value| self.core.free_value_blocks(value.blocks()));
    }
}

impl Core {
    /// Sets an extended attribute; its value has at most 65,536 bytes.
    ///
    /// # Errors
    /// EEXIST or ENODATA as `mode` demands, EINVAL, ERANGE for a long name, E2BIG for a long value, ENOSPC.
    pub(crate) fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        const DOING: &str = "set an extended attribute";
        let inode = self.inode(ino.0)?;
        inode.check_changeable(DOING)?;
        let changes = [XattrChange { name, value: Some(value) }];
        check_changes(DOING, inode.kind, &changes)?;
        let mut state = inode.write()?;
        match (mode, state.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(posix(DOING, "it exists", errno::EEXIST)),
            (XattrMode::Replace, false) => return Err(posix(DOING, "it does not exist", errno::ENODATA)),
            _ => {}
        }
        let mut flight = Flight::new();
        let staged = self.stage_xattrs(&state, &changes, self.now(), &mut flight)?;
        self.change(&inode, &mut state, staged.entries(), None, Purpose::Log, flight)?;
        staged.published(&inode, &state);
        Ok(())
    }

    /// Stores the values of changes that were checked, and makes their log entries.
    ///
    /// # Errors
    /// ENOSPC, also if the inode has too many attributes or too long ones.
    pub(super) fn stage_xattrs(
        &self,
        state: &State,
        changes: &[XattrChange<'_>],
        time: TimeNs,
        flight: &mut Flight,
    ) -> Result<StagedXattrs<'_>> {
        check_room(state, changes)?;
        let mut staged = StagedXattrs { core: self, entries: Vec::new(), stored: Vec::new(), replaced: Vec::new() };
        for XattrChange { name, value } in changes {
            let old = state.xattrs.get(*name).cloned();
            let name = name.to_vec();
            match value {
                Some(value) => {
                    let stored = self.store_value(value, flight)?;
                    staged.entries.push(LogEntry::XattrSet { name, value: stored.value().clone(), time });
                    staged.stored.push(stored);
                }
                None if old.is_some() => staged.entries.push(LogEntry::XattrRemove { name, time }),
                None => {}
            }
            staged.replaced.extend(old);
        }
        Ok(staged)
    }

    /// Stores the values again of which `leaves` says that a block has to be free.
    pub(crate) fn store_values_again(
        &self,
        inode: &Inode,
        state: &mut State,
        leaves: impl Fn(BlockNumber) -> bool,
    ) -> Result<()> {
        let is_leaving = |value: &HeldValue| value.blocks().any(&leaves);
        let leaving = state.xattrs.iter().filter(|(_, value)| is_leaving(value));
        let names: Vec<Vec<u8>> = leaving.map(|(name, _)| name.clone()).collect();
        for name in names {
            let value = state.xattrs[&name].read(&self.region);
            self.region.check()?;
            let mut flight = Flight::new();
            let changes = [XattrChange { name: &name, value: Some(&value) }];
            let staged = self.stage_xattrs(state, &changes, state.attributes.ctime, &mut flight)?;
            let attributes = Some(state.attributes);
            self.change(inode, state, staged.entries(), attributes, Purpose::Log, flight)?;
            staged.published(inode, state);
        }
        Ok(())
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA if it does not exist.
    pub(crate) fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        let absent = posix("get an extended attribute", "it does not exist", errno::ENODATA);
        state.xattrs.get(name).filter(|_| !is_internal(name)).map(|value| value.read(&self.region)).ok_or(absent)
    }

    /// Returns the names of all extended attributes, without those that no call shows.
    pub(crate) fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        Ok(state.xattrs.keys().filter(|name| !is_internal(name)).cloned().collect())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA if it does not exist.
    pub(crate) fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino.0)?;
        inode.check_changeable("remove an extended attribute")?;
        let mut state = inode.write()?;
        if name.contains(&0) || !state.xattrs.contains_key(name) {
            return Err(posix("remove an extended attribute", "it does not exist", errno::ENODATA));
        }
        let mut flight = Flight::new();
        let staged = self.stage_xattrs(&state, &[XattrChange { name, value: None }], self.now(), &mut flight)?;
        self.change(&inode, &mut state, staged.entries(), None, Purpose::Promised, flight)?;
        staged.published(&inode, &state);
        Ok(())
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// EINVAL if it is not a symlink; EIO for damage.
    pub(crate) fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        let value = state.xattrs.get(SYMLINK_TARGET).filter(|_| inode.kind == FileKind::Symlink);
        let value = value.ok_or(posix("readlink", "it is not a symbolic link", errno::EINVAL))?;
        let target = value.read(&self.region);
        if !is_symlink_target(&target) {
            let what = format!("inode {}: its target is none that a symlink can have", ino.0);
            return Err(Error::Corrupt { what, at: inode.slot });
        }
        Ok(target)
    }

    /// Stores a value for a log entry, inline or in blocks.
    pub(crate) fn store_value(&self, value: &[u8], flight: &mut Flight) -> Result<StoredValue<'_>> {
        if value.len() <= INLINE_VALUE_MAX {
            return Ok(StoredValue { core: self, value: Some(XattrValue::Inline(value.to_vec())) });
        }
        let count = (value.len() as u64).div_ceil(BLOCK_BYTES);
        let mut runs = Runs::new();
        self.space.allocate("store an extended attribute", count, Purpose::Log, &mut runs)?;
        let blocks: Vec<u64> = runs.iter().flat_map(|run| run.blocks()).map(BlockNumber::address).collect();
        for (address, part) in blocks.iter().zip(value.chunks(BLOCK_BYTES as usize)) {
            flight.add(self.region.stream(*address, part));
        }
        Ok(StoredValue { core: self, value: Some(XattrValue::Blocks { bytes: value.len() as u32, blocks }) })
    }

    fn free_value_blocks(&self, blocks: impl Iterator<Item = BlockNumber>) {
        blocks.for_each(|start| self.free(BlockRun { start, count: 1 }));
    }
}

/// Checks changes that are to be made together to an inode of this kind.
///
/// # Errors
/// EINVAL, ERANGE for a long name, E2BIG for a long value.
pub(super) fn check_changes(doing: &'static str, kind: FileKind, changes: &[XattrChange<'_>]) -> Result<()> {
    for (at, XattrChange { name, value }) in changes.iter().enumerate() {
        match name.len() {
            0 => return Err(posix(doing, "the name is empty", errno::EINVAL)),
            length if length > 255 => return Err(posix(doing, "the name is longer than 255 bytes", errno::ERANGE)),
            _ if name.contains(&0) => return Err(posix(doing, "the name has a NUL in it", errno::EINVAL)),
            _ if changes[..at].iter().any(|other| other.name == *name) => {
                return Err(posix(doing, "an extended attribute is named twice", errno::EINVAL));
            }
            _ => {}
        }
        let Some(value) = value else { continue };
        if value.len() > VALUE_MAX {
            return Err(posix(doing, "the value is longer than 65536 bytes", errno::E2BIG));
        }
        policy::check_attribute(doing, kind, name, value)?;
    }
    Ok(())
}

/// Checks that an inode has room for these changes. One that has more than that, from another nvfold, may lose some.
///
/// # Errors
/// ENOSPC.
fn check_room(state: &State, changes: &[XattrChange<'_>]) -> Result<()> {
    const DOING: &str = "set an extended attribute";
    let bytes_of = |(name, value): (&Vec<u8>, &HeldValue)| name.len() as u64 + value.bytes();
    let all = || state.xattrs.iter().filter(|(name, _)| !is_internal(name));
    let (count, bytes) = (all().count(), all().map(bytes_of).sum::<u64>());
    let (mut new_count, mut new_bytes) = (count, bytes);
    for XattrChange { name, value } in changes {
        if let Some(old) = state.xattrs.get_key_value(*name) {
            new_count -= 1;
            new_bytes -= bytes_of(old);
        }
        if let Some(value) = value {
            new_count += 1;
            new_bytes += (name.len() + value.len()) as u64;
        }
    }
    if new_count > XATTRS_MAX && new_count > count {
        return Err(posix(DOING, "an inode has at most 128 of them", errno::ENOSPC));
    }
    if new_bytes > XATTR_BYTES_MAX && new_bytes > bytes {
        return Err(posix(DOING, "those of an inode have at most 512 KiB", errno::ENOSPC));
    }
    Ok(())
}

/// True if an extended attribute belongs to nvfold: the target of a symlink, the limits of a tree.
fn is_internal(name: &[u8]) -> bool {
    name.contains(&0)
}

fn posix(doing: &'static str, why: &'static str, errno: i32) -> Error {
    Error::Posix { doing, why, errno }
}
