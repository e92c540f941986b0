//! Writes of which somebody said where their bytes are from: they are shared with that where they are still equal to it.
//!
//! Hints come by an ioctl on the target, before the bytes; sources are named by tokens, which are read as an attribute
//! of the source. See `nvfold::dedup::icid::hint`.

use super::{Answer, Front};
use crate::mount::convert;
use crate::mount::hints::Copied;
use fuser::Errno;
use nvfold::dedup::icid::hint::{self, Hint};
use nvfold::{File, InodeNumber, Origin};
use std::collections::HashMap;
use std::time::Instant;

/// A range of a write, and the file that it was copied from, as somebody says.
pub struct CopiedFrom {
    copied: Copied,
    source: File,
}

impl Front {
    /// What names a file as a source.
    pub fn token(&self, ino: InodeNumber) -> Answer<Vec<u8>> {
        let attr = self.fs.getattr(ino).map_err(convert::errno)?;
        let token = self.hints.token(&attr).ok_or(Errno::ENODATA)?;
        Ok(token.to_bytes().to_vec())
    }

    /// Keeps the hint that an ioctl passes, if the policy of its target looks at any: EOPNOTSUPP tells the process that it
    /// need not give more of this file.
    pub fn take_hint(&self, target: InodeNumber, request: u32, passed: &[u8]) -> Answer<()> {
        if !hint::is_request(request) {
            return Err(Errno::ENOTTY);
        }
        let hint = Hint::decode(passed).ok_or(Errno::EINVAL)?;
        let file = self.fs.open(target).map_err(convert::errno)?;
        if !file.follows_origins() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.hints.tell(target, &hint, Instant::now(), |ino| self.fs.getattr(ino).ok());
        Ok(())
    }

    /// Where the bytes of a write are from, as far as somebody said so. Sources that are gone are left out.
    pub fn origins_of(&self, file: &File, offset: u64, data: &[u8]) -> Vec<CopiedFrom> {
        let copied = self.hints.take(file.ino(), offset, data.len() as u64, Instant::now());
        let mut sources = HashMap::new();
        let with_source = |copied: Copied| {
            let wanted = copied.source;
            let open = || self.fs.open(wanted.ino).ok().filter(|file| file.attr().generation == wanted.generation);
            let source = sources.entry(wanted.ino).or_insert_with(open).clone()?;
            Some(CopiedFrom { copied, source })
        };
        copied.into_iter().filter_map(with_source).collect()
    }

    /// Writes, and shares what is still equal to what it was copied from.
    pub fn write_from(&self, file: &File, offset: u64, data: &[u8], origins: &[CopiedFrom]) -> nvfold::Result<()> {
        if origins.is_empty() {
            return file.write_at(offset, data);
        }
        let origins: Vec<Origin<'_>> = origins.iter().map(CopiedFrom::origin).collect();
        file.write_at_from(offset, data, &origins).map(drop)
    }
}

impl CopiedFrom {
    fn origin(&self) -> Origin<'_> {
        let Copied { at, length, source_offset, .. } = self.copied;
        Origin { at, length, source: &self.source, source_offset }
    }
}
