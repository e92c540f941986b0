//! Writes of bytes that were copied from files: they are shared with those where they are still equal.
//!
//! Where they were copied from is known in two ways. A process says so before it writes: by an ioctl on the target, with
//! sources named by tokens, which are read as an attribute of the source (`nvfold::dedup::icid::hint`). Or nobody says
//! so, and samples of what was read or written lately tell (`nvfold::dedup::icid::anchors`). Either is a hint, and the bytes
//! are compared. What the kernel's page cache answers we do not see: of a file that was read longer ago than the samples
//! reach, and stays in the cache, copies are found only if somebody says so.

use super::{Answer, Front};
use crate::mount::convert;
use nvfold::dedup::icid::anchors::{Place, Sampled, Stretch};
use nvfold::dedup::icid::hint::{self, Hint};
use nvfold::{File, InodeNumber, Origin};
use nvfold_fuse::Errno;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What is known of the bytes of a write.
#[derive(Default)]
pub struct Causes {
    /// Ranges of it, each with the file that it was likely copied from.
    copied: Vec<(Stretch, File)>,
    /// Where the samples say that its end was copied from.
    last: Option<Stretch>,
    /// Its samples; none where nobody would look at them.
    sampled: Sampled,
}

/// What became of a write.
pub struct Written {
    /// Bytes that are shared with what they were copied from.
    shared: u64,
    took: Duration,
}

impl Causes {
    /// Writes, and shares what is equal to what it was copied from.
    pub fn write(&self, file: &File, offset: u64, data: &[u8]) -> nvfold::Result<Written> {
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

    /// Where the bytes of a write are from: as somebody said, or else as their samples tell. Sources that are gone are left
    /// out.
    pub fn causes_of(&self, file: &File, offset: u64, data: &[u8]) -> Causes {
        if !file.follows_origins() {
            return Causes::default();
        }
        let sampled = self.anchors.sample(data);
        let mut copied = self.hints.take(file.ino(), offset, data.len() as u64, Instant::now());
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

    /// Samples what a process has read.
    pub fn note_read(&self, file: &File, offset: u64, bytes: &[u8]) {
        if file.follows_origins() {
            self.anchors.note(&self.anchors.sample(bytes), place(file), offset);
        }
    }

    /// Keeps the samples of what was written.
    pub fn note_written(&self, file: &File, offset: u64, causes: &Causes, written: &Written) {
        let place = place(file);
        let Written { shared, took } = *written;
        self.anchors.looked_up(&causes.sampled, place, offset, causes.last.as_ref(), shared, took);
        self.anchors.note(&causes.sampled, place, offset);
    }
}

fn place(file: &File) -> Place {
    Place { ino: file.ino().0, generation: file.attr().generation }
}
