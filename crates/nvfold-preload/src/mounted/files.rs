//! The files of the mount that bytes in memory come from: their numbers in the rec-tree, and their tokens from the
//! server.
//!
//! A file is identified by its inode. The server's name for it (its token) is an extended attribute that the kernel
//! returns only to a process that may read the file. It is read again when the file is read from its beginning, because
//! the inode may then belong to another file, and before it expires. Files are never forgotten: a process follows at most
//! 65,536 of them. A record of a deleted file has an old token, which the server no longer knows.
//!
//! ```text
//! PLACES   inode, hashed -> number + 1          read without a lock
//! KNOWN    number -> inode, tokens              each under a lock that no thread waits for
//! ```

use nvfold_c::causality;
use nvfold_causality::FileToken;
use nvfold_causality::hint::{SourceToken, TOKEN_ATTRIBUTE, TOKEN_VALID_S};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const FILES_MAX: usize = 1 << 16;
const PLACES_COUNT: usize = 2 * FILES_MAX;
/// Places where a file may be.
const WAYS: usize = 16;
/// Minimum time between two reads of a token, in milliseconds.
const ASK_AGAIN_MS: u64 = 100;
/// How long a token is surely valid, and after which time it no longer is, in milliseconds.
const VALID_MS: u64 = 1000 * TOKEN_VALID_S / 2;
const EXPIRED_MS: u64 = 1000 * TOKEN_VALID_S;
/// Attempts to take a lock before a file is not followed this time.
const TRIES: usize = 8;

#[derive(Clone, Copy)]
struct Known {
    ino: u64,
    /// The number of the file in the rec-tree.
    file: FileToken,
    /// `SourceToken::NONE`: the process that asked may not read the file.
    token: SourceToken,
    asked_at_ms: u64,
}

impl Known {
    const NONE: Known = Known { ino: 0, file: FileToken::NONE, token: SourceToken::NONE, asked_at_ms: 0 };

    fn followed(&self) -> Option<FileToken> {
        (self.token != SourceToken::NONE).then_some(self.file)
    }
}

static KNOWN: [RwLock<Known>; FILES_MAX] = [const { RwLock::new(Known::NONE) }; FILES_MAX];
static PLACES: [AtomicU32; PLACES_COUNT] = [const { AtomicU32::new(0) }; PLACES_COUNT];
/// Held by the thread that adds a file.
static ADDING: Mutex<()> = Mutex::new(());
static ATTRIBUTE: OnceLock<CString> = OnceLock::new();

/// Returns the places where a file may be.
fn places(ino: u64) -> impl Iterator<Item = &'static AtomicU32> {
    let first = (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
    (0..WAYS).map(move |way| &PLACES[(first + way) % PLACES_COUNT])
}

/// Returns the record of a file; `None` if there is none, or if another thread is updating it.
fn find(ino: u64) -> Option<(&'static RwLock<Known>, Known)> {
    for place in places(ino) {
        let number = place.load(Ordering::Acquire).checked_sub(1)? as usize;
        let known = KNOWN.get(number)?;
        match known.try_read() {
            Some(found) if found.ino == ino => return Some((known, *found)),
            _ => {}
        }
    }
    None
}

fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Reads the server's token for the file of a descriptor; `SourceToken::NONE` if the server gives none.
fn ask(fd: c_int) -> SourceToken {
    let mut bytes = [0; 16];
    let Some(attribute) = ATTRIBUTE.get() else { return SourceToken::NONE };
    // SAFETY: a C string, and memory for the answer.
    let length = unsafe { libc::fgetxattr(fd, attribute.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    if length == bytes.len() as isize { SourceToken::of_bytes(&bytes) } else { SourceToken::NONE }
}

/// Prepares the module before any file is followed.
pub(super) fn prepare() {
    ATTRIBUTE.get_or_init(|| CString::new(TOKEN_ATTRIBUTE).unwrap_or_default());
}

/// Returns the rec-tree's token for the file that a descriptor is open on. `None`: the file is not followed.
pub(super) fn token_for(fd: c_int, ino: u64, from_its_beginning: bool) -> Option<FileToken> {
    let Some((place, known)) = find(ino) else { return add(ino, ask(fd)) };
    let age_ms = now_ms().saturating_sub(known.asked_at_ms);
    if age_ms >= VALID_MS || from_its_beginning && age_ms >= ASK_AGAIN_MS {
        let known = Known { token: ask(fd), asked_at_ms: now_ms(), ..known };
        *place.try_write()? = known;
        return known.followed();
    }
    known.followed()
}

/// Takes the lock for adding a file, if it comes free in a moment; after fork it may never come free.
fn try_lock_briefly() -> Option<MutexGuard<'static, ()>> {
    (0..TRIES).find_map(|_| {
        let locked = ADDING.try_lock();
        if locked.is_none() {
            std::thread::yield_now();
        }
        locked
    })
}

fn add(ino: u64, token: SourceToken) -> Option<FileToken> {
    let _one_by_one = try_lock_briefly()?;
    if let Some((_, known)) = find(ino) {
        return known.followed();
    }
    let file = causality::follow_foreign_file()?;
    let known = Known { ino, file, token, asked_at_ms: now_ms() };
    *KNOWN.get(file.number() as usize)?.try_write()? = known;
    let free = places(ino).find(|place| place.load(Ordering::Relaxed) == 0);
    // If no place is free, another file is replaced.
    free.or_else(|| places(ino).next())?.store(file.number() + 1, Ordering::Release);
    known.followed()
}

/// Returns the server's token for a file, if it may still be valid.
pub(super) fn token_of(file: FileToken) -> Option<SourceToken> {
    let known = *KNOWN.get(file.number() as usize)?.try_read()?;
    let is_valid = known.token != SourceToken::NONE && now_ms().saturating_sub(known.asked_at_ms) < EXPIRED_MS;
    (known.file == file && is_valid).then_some(known.token)
}
