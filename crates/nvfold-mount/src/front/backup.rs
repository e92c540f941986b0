//! Backups of the mounted device: `backups` says what a command asks, `image` how the device is copied while it changes.

use super::{Answer, Front};
use crate::backups::{BackupRequest, Begun, Ending, Part, SILENT_FOR};
use crate::convert;
use crate::image::{Image, Patience};
use crate::memory;
use nvfold_fuse::{Caller, Errno};
use parking_lot::Mutex;
use rustix::process::{Pid, test_kill_process};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most memory for what stores overwrite meanwhile; less where memory is limited, the part below.
const KEPT_BYTES_MAX: u64 = 64 << 20;
const KEPT_PART: u64 = 64;
/// How long a store waits for the command before the backup is given up.
const STORES_WAIT: Duration = Duration::from_secs(10);

/// The backup of a mount, if one is under way. One that is taken out must be ended before another one begins.
#[derive(Default)]
pub(crate) struct Backups(Mutex<Option<Arc<Backup>>>);

struct Backup {
    id: u64,
    /// The thread that began it; 0 if it is unknown.
    command: u32,
    image: Image,
    asked: Mutex<Instant>,
    /// The last piece that was given, and its number.
    given: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Backup {
    /// Returns true if nobody will ask for the rest.
    fn is_left(&self) -> bool {
        let command = i32::try_from(self.command).ok().and_then(Pid::from_raw);
        let has_ended = command.is_some_and(|command| test_kill_process(command) == Err(rustix::io::Errno::SRCH));
        has_ended || self.asked.lock().elapsed() > SILENT_FOR
    }

    /// Returns a piece, encoded: the next one, or the last one again.
    fn piece(&self, nth: u64) -> Answer<Vec<u8>> {
        let mut given = self.given.lock();
        let next = given.as_ref().map_or(0, |(last, _)| last + 1);
        match &*given {
            Some((last, piece)) if *last == nth => return Ok(piece.clone()),
            _ if nth != next => return Err(Errno::EINVAL),
            _ => {}
        }
        let piece = Part::encode(self.image.next_piece(), self.image.left_bytes());
        *given = Some((nth, piece.clone()));
        Ok(piece)
    }
}

impl Front {
    /// Begins a backup of what programs have written up to now, for one who may manage the mount. EBUSY if another one is under way.
    pub(super) fn begin_backup(&self, who: &Caller<'_>, size: u32) -> Answer<Vec<u8>> {
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        if self.backups.0.lock().as_ref().is_some_and(|backup| !backup.is_left()) {
            return Err(Errno::EBUSY);
        }
        self.write_back_for(who)?;
        let mut current = self.backups.0.lock();
        if current.as_ref().is_some_and(|backup| !backup.is_left()) {
            return Err(Errno::EBUSY);
        }
        current.take().into_iter().for_each(|left| left.image.end());
        let kept_bytes = KEPT_BYTES_MAX.min(memory::memory_bytes() / KEPT_PART) as usize;
        let image = Image::of(&self.fs, Patience { kept_bytes, for_room: STORES_WAIT }).map_err(convert::errno)?;
        let id = RandomState::new().hash_one(Instant::now());
        let used_bytes = image.left_bytes().min(self.fs.region().allocated_bytes());
        let begun = Begun { id, device_bytes: image.device_bytes(), used_bytes };
        let (asked, given) = (Mutex::new(Instant::now()), Mutex::default());
        *current = Some(Arc::new(Backup { id, command: who.pid, image, asked, given }));
        Ok(begun.encode())
    }

    /// Answers a request about the backup that is under way, for one who may manage the mount. ESTALE if it is another one.
    pub(super) fn asked_about_backup(&self, size: u32, asked: BackupRequest) -> Answer<Vec<u8>> {
        if size == 0 {
            return Err(Errno::EINVAL);
        }
        let (BackupRequest::Next(id, _) | BackupRequest::Alive(id) | BackupRequest::End(id)) = asked;
        let backup = self.backups.0.lock().clone().filter(|backup| backup.id == id).ok_or(Errno::ESTALE)?;
        *backup.asked.lock() = Instant::now();
        match asked {
            BackupRequest::Next(_, nth) => backup.piece(nth),
            BackupRequest::Alive(_) => Ok(b"yes".to_vec()),
            BackupRequest::End(_) => {
                let mut current = self.backups.0.lock();
                current.take_if(|current| current.id == id);
                backup.image.end();
                Ok(Ending::of(backup.image.cost()).encode())
            }
        }
    }

    /// Ends a backup whose command has gone without a word.
    pub(crate) fn end_left_backup(&self) {
        let mut current = self.backups.0.lock();
        current.take_if(|backup| backup.is_left()).into_iter().for_each(|left| left.image.end());
    }
}
