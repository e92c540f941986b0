//! Extended attributes: short values in the log entry, long ones in blocks of their own.

use super::Core;
use super::policy;
use crate::dedup::policy::POLICY_ATTRIBUTE;
use crate::error::{Error, Result, errno};
use crate::inode::{SYMLINK_TARGET, value_blocks};
use crate::media::log_entry::{INLINE_VALUE_MAX, LogEntry, VALUE_MAX, XattrValue};
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose, Runs};
use crate::words::{InodeNumber, XattrMode};
use pmem::Flight;

/// A value that is stored and not yet named; dropped, its blocks are freed.
pub(super) struct StoredValue<'a> {
    core: &'a Core,
    value: Option<XattrValue>,
}

impl StoredValue<'_> {
    pub(super) fn value(&self) -> &XattrValue {
        self.value.as_ref().expect("taken only by keep")
    }

    pub(super) fn keep(mut self) -> XattrValue {
        self.value.take().expect("taken only once")
    }
}

impl Drop for StoredValue<'_> {
    fn drop(&mut self) {
        self.value.iter().for_each(|value| self.core.free_value(value));
    }
}

fn posix(doing: &'static str, why: &'static str, errno: i32) -> Error {
    Error::Posix { doing, why, errno }
}

impl Core {
    pub(crate) fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        const DOING: &str = "set an extended attribute";
        match name.len() {
            0 => return Err(posix(DOING, "the name is empty", errno::EINVAL)),
            length if length > 255 => return Err(posix(DOING, "the name is longer than 255 bytes", errno::ERANGE)),
            _ if name.contains(&0) => return Err(posix(DOING, "the name has a NUL in it", errno::EINVAL)),
            _ => {}
        }
        if value.len() > VALUE_MAX {
            return Err(posix(DOING, "the value is longer than 65536 bytes", errno::E2BIG));
        }
        let inode = self.inode(ino.0)?;
        if name == POLICY_ATTRIBUTE {
            policy::check_attribute(DOING, inode.kind, value)?;
        }
        let mut state = inode.write()?;
        match (mode, state.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(posix(DOING, "it exists", errno::EEXIST)),
            (XattrMode::Replace, false) => return Err(posix(DOING, "it does not exist", errno::ENODATA)),
            _ => {}
        }
        let mut flight = Flight::new();
        let stored = self.store_value(value, &mut flight)?;
        let old = state.xattrs.get(name).cloned();
        let entry = LogEntry::XattrSet { name: name.to_vec(), value: stored.value().clone(), time: self.now() };
        self.change(&inode, &mut state, &[entry], None, Purpose::Log, flight)?;
        policy::take_over(&inode, &state);
        stored.keep();
        old.iter().for_each(|value| self.free_value(value));
        Ok(())
    }

    pub(crate) fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        let absent = posix("get an extended attribute", "it does not exist", errno::ENODATA);
        state.xattrs.get(name).map(|value| self.read_value(value)).ok_or(absent)
    }

    pub(crate) fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        Ok(state.xattrs.keys().filter(|name| *name != SYMLINK_TARGET).cloned().collect())
    }

    pub(crate) fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino.0)?;
        let mut state = inode.write()?;
        let Some(old) = state.xattrs.get(name).cloned().filter(|_| !name.contains(&0)) else {
            return Err(posix("remove an extended attribute", "it does not exist", errno::ENODATA));
        };
        let entry = LogEntry::XattrRemove { name: name.to_vec(), time: self.now() };
        self.change(&inode, &mut state, &[entry], None, Purpose::Promised, Flight::new())?;
        policy::take_over(&inode, &state);
        self.free_value(&old);
        Ok(())
    }

    pub(crate) fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> {
        let inode = self.inode(ino.0)?;
        let state = inode.read()?;
        let no_link = posix("readlink", "it is not a symbolic link", errno::EINVAL);
        state.xattrs.get(SYMLINK_TARGET).map(|value| self.read_value(value)).ok_or(no_link)
    }

    /// Stores a value where a log entry can name it.
    pub(super) fn store_value(&self, value: &[u8], flight: &mut Flight) -> Result<StoredValue<'_>> {
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

    fn read_value(&self, value: &XattrValue) -> Vec<u8> {
        match value {
            XattrValue::Inline(value) => value.clone(),
            XattrValue::Blocks { bytes, blocks } => {
                let mut value = vec![0; *bytes as usize];
                for (address, part) in blocks.iter().zip(value.chunks_mut(BLOCK_BYTES as usize)) {
                    self.region.read_into(*address, part);
                }
                value
            }
        }
    }

    fn free_value(&self, value: &XattrValue) {
        value_blocks(value).for_each(|start| self.free(BlockRun { start, count: 1 }));
    }
}
