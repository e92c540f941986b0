//! Writes of bytes that were copied from files: they are shared with the source where the two are still equal.
//!
//! The source becomes known in two ways. A process may name it before the write, by an ioctl on the target; the ioctl
//! carries tokens, which are read as an attribute of each source (`nvfold_causality::hint`). Without a hint,
//! samples of recently read and written data find it (`nvfold_causality::anchors`). Either is only a hint: the
//! bytes are compared.
//!
//! The server does not see reads that the kernel's page cache answers. So copies of a file that stays in the cache,
//! and was read longer ago than the samples reach, are found only by hints.

use super::{Answer, Front};
use crate::hints::{Copied, Readable};
use crate::{acl, convert};
use nvfold::{File, InodeNumber, Origin, errno};
use nvfold_causality::anchors::{Sampled, SampledFile, Stretch};
use nvfold_causality::hint::{self, Hint};
use nvfold_fuse::{Caller, Errno};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The likely sources of a write.
#[derive(Default)]
pub(crate) struct Causes {
    /// Ranges of the write, each with the file from which it was likely copied.
    copied: Vec<(Stretch, File)>,
    /// The range from which, by the samples, the end of the write was copied.
    last: Option<Stretch>,
    /// The samples of the write; empty if the policy ignores origins.
    sampled: Sampled,
}

/// The result of a write.
pub(crate) struct Written {
    /// Bytes that are shared with their source.
    shared: u64,
    took: Duration,
}

impl Causes {
    /// Writes, and shares the bytes that are equal to their source.
    pub(crate) fn write(&self, file: &File, offset: u64, data: &[u8]) -> nvfold::Result<Written> {
        let began = Instant::now();
        let shared = self.write_from(file, offset, data)?;
        Ok(Written { shared, took: began.elapsed() })
    }

    fn write_from(&self, file: &File, offset: u64, data: &[u8]) -> nvfold::Result<u64> {
        if self.copied.is_empty() {
            return file.write_at(offset, data).map(|()| 0);
        }
        let origins = self.copied.iter().map(|(copied, source)| {
            let Stretch { at, length, source_offset, .. } = *copied;
            Origin { at, length, source, source_offset }
        });
        file.write_at_from(offset, data, &origins.collect::<Vec<_>>())
    }
}

impl Front {
    /// Returns the token that names a file as a source in hints; ENODATA if it is not a regular file, or if nobody knows
    /// whose token it would be.
    pub(crate) fn token(&self, who: &Caller, ino: InodeNumber) -> Answer<Vec<u8>> {
        if !who.is_known() {
            return Err(Errno::ENODATA);
        }
        let source = self.readable(who.uid, ino).map_err(convert::errno)?;
        let token = self.hints.token(&source, Instant::now()).ok_or(Errno::ENODATA)?;
        Ok(token.to_bytes().to_vec())
    }

    /// Returns a file with what lets a user read it, if anything does.
    fn readable(&self, user: u32, ino: InodeNumber) -> nvfold::Result<Readable> {
        let attr = self.fs.getattr(ino)?;
        let acl = match self.fs.get_xattr(ino, acl::ACCESS) {
            Err(error) if error.errno() == errno::ENODATA => Vec::new(),
            acl => acl?,
        };
        Ok(Readable { user, attr, acl })
    }

    /// Keeps the hint that an ioctl passes. EOPNOTSUPP if the policy of the target ignores hints, or if nobody
    /// knows who gives it; the process then gives no more hints for this file.
    pub(crate) fn take_hint(&self, who: &Caller, target: InodeNumber, request: u32, passed: &[u8]) -> Answer<()> {
        if !hint::is_request(request) {
            return Err(Errno::ENOTTY);
        }
        let hint = Hint::decode(passed).ok_or(Errno::EINVAL)?;
        let file = self.fs.open(target).map_err(convert::errno)?;
        if !file.follows_origins() || !who.is_known() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.hints.tell(target, &hint, Instant::now(), |ino| self.readable(who.uid, ino).ok());
        Ok(())
    }

    /// Finds the likely sources of a write: by hints if there are any, else by samples. Leaves out sources that no
    /// longer exist.
    pub(crate) fn causes_of(&self, file: &File, offset: u64, data: &[u8]) -> Causes {
        if !file.follows_origins() {
            return Causes::default();
        }
        let sampled = self.anchors.sample(data);
        let mut copied = self.hinted(file.ino(), offset, data.len() as u64);
        let mut last = None;
        if copied.is_empty() {
            let stretches = self.anchors.find(&sampled, place(file), offset);
            last = stretches.last().copied();
            copied = stretches;
        }
        let mut sources = HashMap::new();
        let with_source = |copied: Stretch| {
            let wanted = copied.source;
            let open = || self.fs.open(InodeNumber(wanted.ino)).ok().filter(|file| place(file) == wanted);
            let source = sources.entry(wanted.ino).or_insert_with(open).clone()?;
            Some((copied, source))
        };
        Causes { copied: copied.into_iter().filter_map(with_source).collect(), last, sampled }
    }

    /// Takes the hints about a write. Leaves out sources that the sender of the hint could no longer name.
    fn hinted(&self, target: InodeNumber, offset: u64, length: u64) -> Vec<Stretch> {
        let taken = self.hints.take(target, offset, length, Instant::now());
        let mut grants = HashMap::new();
        let holds = |copied: &Copied| {
            let (user, ino) = (copied.grant.user, copied.stretch.source.ino);
            let now = || self.readable(user, InodeNumber(ino)).ok().map(|source| self.hints.grant(&source));
            *grants.entry((user, ino)).or_insert_with(now) == Some(copied.grant)
        };
        taken.into_iter().filter(holds).map(|copied| copied.stretch).collect()
    }

    /// Remembers samples of data that a process has read.
    pub(crate) fn note_read(&self, file: &File, offset: u64, bytes: &[u8]) {
        if file.follows_origins() {
            self.anchors.note(&self.anchors.sample(bytes), place(file), offset);
        }
    }

    /// Remembers the samples of a finished write.
    pub(crate) fn note_written(&self, file: &File, offset: u64, causes: &Causes, written: &Written) {
        let place = place(file);
        let Written { shared, took } = *written;
        self.anchors.looked_up(&causes.sampled, place, offset, causes.last.as_ref(), shared, took);
        self.anchors.note(&causes.sampled, place, offset);
    }
}

fn place(file: &File) -> SampledFile {
    SampledFile { ino: file.ino().0, generation: file.attr().generation }
}
