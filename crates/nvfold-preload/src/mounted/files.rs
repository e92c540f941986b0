//! Which files of the mount bytes in memory come from: their names in the rec-tree, and those that the server gave
//! them.
//!
//! A file is known by its inode. What the server calls it (its token) is an attribute that the kernel gives to those
//! alone who may read the file; it is asked for once, and again when the file is read from its beginning, since the
//! inode may be another file's by then. Files are never forgotten: a process follows 65,536 of them, and then no more.
//! A record of a file that is gone names an old token, which the server does not know any more.
//!
//! ```text
//! PLACES   inode, hashed -> number + 1          read without a lock
//! KNOWN    number -> inode, tokens              each under a lock that nobody waits for
//! ```

use nvfold::dedup::icid::FileToken;
use nvfold::dedup::icid::hint::{TOKEN_ATTRIBUTE, Token};
use nvfold_c::causality;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const FILES_MAX: usize = 1 << 16;
const PLACES_COUNT: usize = 2 * FILES_MAX;
/// Places where a file may be.
const WAYS: usize = 16;
/// A token is not asked for again sooner, in milliseconds.
const ASK_AGAIN_MS: u64 = 100;
/// How often a lock is tried for, before a file is not followed this time.
const TRIES: usize = 8;

#[derive(Clone, Copy)]
struct Known {
    ino: u64,
    /// Its name in the rec-tree.
    file: FileToken,
    /// `Token::NONE`: who asked may not read it.
    token: Token,
    asked_at_ms: u64,
}

impl Known {
    const NONE: Known = Known { ino: 0, file: FileToken::NONE, token: Token::NONE, asked_at_ms: 0 };

    fn followed(&self) -> Option<FileToken> {
        (self.token != Token::NONE).then_some(self.file)
    }
}

static KNOWN: [RwLock<Known>; FILES_MAX] = [const { RwLock::new(Known::NONE) }; FILES_MAX];
static PLACES: [AtomicU32; PLACES_COUNT] = [const { AtomicU32::new(0) }; PLACES_COUNT];
/// Held by the one who adds a file.
static ADDING: Mutex<()> = Mutex::new(());
static ATTRIBUTE: OnceLock<CString> = OnceLock::new();

/// The places where a file may be.
fn places(ino: u64) -> impl Iterator<Item = &'static AtomicU32> {
    let first = (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
    (0..WAYS).map(move |way| &PLACES[(first + way) % PLACES_COUNT])
}

/// What is known of a file; `None`: nothing, or somebody is just learning it.
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
    // SAFETY: memory of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// What the server calls the file of a descriptor; `Token::NONE` when it does not tell.
fn ask(fd: c_int) -> Token {
    let mut bytes = [0; 16];
    let Some(attribute) = ATTRIBUTE.get() else { return Token::NONE };
    // SAFETY: a string, and memory for the answer.
    let length = unsafe { libc::fgetxattr(fd, attribute.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    if length == bytes.len() as isize { Token::of_bytes(&bytes) } else { Token::NONE }
}

/// Before anything is followed.
pub fn prepare() {
    ATTRIBUTE.get_or_init(|| CString::new(TOKEN_ATTRIBUTE).unwrap_or_default());
}

/// The name in the rec-tree of the file that a descriptor is open on. `None`: it is not followed.
pub fn token_for(fd: c_int, ino: u64, from_its_beginning: bool) -> Option<FileToken> {
    let Some((place, known)) = find(ino) else { return add(ino, ask(fd)) };
    if from_its_beginning && now_ms() >= known.asked_at_ms + ASK_AGAIN_MS {
        let known = Known { token: ask(fd), asked_at_ms: now_ms(), ..known };
        *place.try_write()? = known;
        return known.followed();
    }
    known.followed()
}

/// The lock of the one who adds a file, if it comes free in a moment; after fork it may never.
fn try_lock_briefly() -> Option<MutexGuard<'static, ()>> {
    (0..TRIES).find_map(|_| {
        let locked = ADDING.try_lock();
        if locked.is_none() {
            std::thread::yield_now();
        }
        locked
    })
}

fn add(ino: u64, token: Token) -> Option<FileToken> {
    let _one_by_one = try_lock_briefly()?;
    if let Some((_, known)) = find(ino) {
        return known.followed();
    }
    let file = causality::follow_foreign_file()?;
    let known = Known { ino, file, token, asked_at_ms: now_ms() };
    *KNOWN.get(file.number() as usize)?.try_write()? = known;
    let free = places(ino).find(|place| place.load(Ordering::Relaxed) == 0);
    // Where there is none, another file gives way.
    free.or_else(|| places(ino).next())?.store(file.number() + 1, Ordering::Release);
    known.followed()
}

/// What the server calls a file.
pub fn token_of(file: FileToken) -> Option<Token> {
    let known = *KNOWN.get(file.number() as usize)?.try_read()?;
    (known.file == file && known.token != Token::NONE).then_some(known.token)
}
