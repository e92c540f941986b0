//! Directory streams.
//!
//! The problem: a program passes a `DIR *` that is libc's or ours, and both are opaque. The idea: the first eight
//! bytes tell them apart: ours begins with a mark, glibc's with a descriptor and a lock, which are small numbers.
//! That needs no table and no lock, so it works in a child of fork too. The listing is kept with the open file, so
//! that a stream that the program never closes does not keep the device open.
//!
//! ```text
//! position   0 at "."   1 at ".."   2 behind both   2 + c behind the entry with cookie c
//! ```

use super::opening::open_path;
use super::serve::{host, on_number, on_path};
use crate::answer::{answer, answer_or};
use crate::numbers::{self, File};
use nvfold::FileKind;
use nvfold_c::caller::OutBytes;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::listing::Listing;
use nvfold_c::paths::LastLink;
use nvfold_c::status::entry_type;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::Arc;

const MARK: u64 = 0x6e76_666f_6c64_6469;
/// Length of the longest name in bytes.
const NAME_BYTES_MAX: usize = 255;
const BEHIND_DOTS: c_long = 2;

/// A stream of ours: what `DIR *` points to.
#[repr(C)]
pub(super) struct Stream {
    mark: u64,
    fd: c_int,
    at: Mutex<At>,
}

struct At {
    /// How many of "." and ".." were returned.
    dots: c_long,
    /// The entry that `readdir` points to.
    entry: libc::dirent64,
}

/// Returns the stream if a `DIR *` is one of ours.
///
/// # Safety
///
/// It was returned by libc's opendir or by ours, and is not closed.
unsafe fn ours<'s>(stream: *mut c_void) -> Option<&'s Stream> {
    // SAFETY: glibc's and ours have at least eight bytes, aligned to eight.
    let is_ours = !stream.is_null() && unsafe { stream.cast::<u64>().read() } == MARK;
    // SAFETY: it has the mark, so `begin` made it; `closedir` removes the mark before it frees the stream.
    is_ours.then(|| unsafe { &*stream.cast::<Stream>() })
}

/// Returns whether a `DIR *` is one of ours.
///
/// # Safety
///
/// That of `ours`.
pub(super) unsafe fn is_ours(stream: *mut c_void) -> bool {
    // SAFETY: the caller's contract.
    unsafe { ours(stream) }.is_some()
}

/// Makes a stream on a number of ours, which the stream owns from then on. ENOTDIR.
fn begin(fd: c_int) -> Outcome<*mut c_void> {
    let file = numbers::get(fd)?;
    rewind(&file)?;
    // SAFETY: a structure of integers: all zeros are a value.
    let entry = unsafe { std::mem::zeroed() };
    let stream = Stream { mark: MARK, fd, at: Mutex::new(At { dots: 0, entry }) };
    Ok(Box::into_raw(Box::new(stream)).cast())
}

fn rewind(file: &File) -> Outcome<()> {
    if file.open.kind != FileKind::Directory {
        return Err(Failure::new(libc::ENOTDIR, "it is no directory"));
    }
    *file.listing.lock() = Some(Arc::new(Listing::new(&file.open.device, file.open.file.clone())?));
    Ok(())
}

fn listing(stream: &Stream) -> Outcome<(Arc<File>, Arc<Listing>)> {
    let file = numbers::get(stream.fd)?;
    let listing = file.listing.lock().clone();
    Ok((file, listing.ok_or_else(|| Failure::new(libc::EBADF, "the number is of no directory stream any more"))?))
}

/// opendir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_opendir(path: *const c_char) -> *mut c_void {
    let open = |path: &_| {
        let fd = open_path(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
        begin(fd).inspect_err(|_| drop(numbers::close(fd)))
    };
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        on_path("opendir", (libc::AT_FDCWD, path, LastLink::Follow), |_, path| host!(libc::opendir(path)).cast(), open)
    }
}

/// fdopendir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_fdopendir(fd: c_int) -> *mut c_void {
    if numbers::is_ours(fd) { answer("fdopendir", || begin(fd)) } else { host!(libc::fdopendir(fd)).cast() }
}

/// closedir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_closedir(stream: *mut c_void) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(of_ours) = (unsafe { ours(stream) }) else { return host!(libc::closedir(stream.cast())) };
    let fd = of_ours.fd;
    // SAFETY: `begin` made it with Box, and the program gives it up; the mark is removed first.
    unsafe {
        stream.cast::<u64>().write(0);
        drop(Box::from_raw(stream.cast::<Stream>()));
    }
    super::descriptors::close(fd)
}

/// dirfd(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_dirfd(stream: *mut c_void) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    match unsafe { ours(stream) } {
        Some(stream) => stream.fd,
        None => host!(libc::dirfd(stream.cast())),
    }
}

/// readdir(3): returns NULL at the end, with errno unchanged.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readdir(stream: *mut c_void) -> *mut libc::dirent64 {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(stream) = (unsafe { ours(stream) }) else { return host!(libc::readdir64(stream.cast())) };
    answer_or("readdir", ptr::null_mut(), || {
        let mut at = stream.at.lock();
        Ok(if next(stream, &mut at)? { &raw mut at.entry } else { ptr::null_mut() })
    })
}

/// readdir_r(3), which returns the error number.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readdir_r(
    stream: *mut c_void,
    entry: *mut libc::dirent64,
    result: *mut *mut libc::dirent64,
) -> c_int {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(stream) = (unsafe { ours(stream) }) else {
        return host!(libc::readdir64_r(stream.cast(), entry, result));
    };
    let read = || {
        let mut at = stream.at.lock();
        let is_there = next(stream, &mut at)?;
        // SAFETY: the program passes memory for an entry and for a pointer.
        unsafe {
            if is_there {
                entry.write(at.entry);
            }
            result.write(if is_there { entry } else { ptr::null_mut() });
        }
        Ok(0)
    };
    if answer("readdir_r", read) == 0 { 0 } else { crate::answer::errno() }
}

/// Writes the next entry to `at`; returns false at the end.
fn next(stream: &Stream, At { dots, entry }: &mut At) -> Outcome<bool> {
    let (file, listing) = listing(stream)?;
    next_of(&file, &listing, dots, entry)
}

/// As `next`, of an open directory of which so many of "." and ".." were returned.
fn next_of(file: &File, listing: &Listing, dots: &mut c_long, entry: &mut libc::dirent64) -> Outcome<bool> {
    if *dots < BEHIND_DOTS {
        let own = file.open.file.ino();
        let (name, ino): (&[u8], _) = match *dots {
            0 => (b".", own),
            _ => (b"..", file.open.run(|fs| Ok(fs.parent(own)?))?),
        };
        *dots += 1;
        put(entry, ino.0, *dots, FileKind::Directory, name);
        return Ok(true);
    }
    let Some(found) = listing.next()? else { return Ok(false) };
    put(entry, found.ino.0, BEHIND_DOTS + found.cookie as c_long, found.kind, &found.name);
    Ok(true)
}

fn put(entry: &mut libc::dirent64, ino: u64, behind: c_long, kind: FileKind, name: &[u8]) {
    let name = &name[..name.len().min(NAME_BYTES_MAX)];
    entry.d_ino = ino;
    entry.d_off = behind;
    entry.d_reclen = size_of::<libc::dirent64>() as u16;
    entry.d_type = entry_type(kind);
    entry.d_name.iter_mut().zip(name.iter().chain([&0])).for_each(|(to, from)| *to = *from as c_char);
}

/// telldir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_telldir(stream: *mut c_void) -> c_long {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(stream) = (unsafe { ours(stream) }) else { return host!(libc::telldir(stream.cast())) };
    answer("telldir", || {
        let at = stream.at.lock();
        Ok(at.dots + if at.dots < BEHIND_DOTS { 0 } else { listing(stream)?.1.tell() as c_long })
    })
}

/// seekdir(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_seekdir(stream: *mut c_void, position: c_long) {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(stream) = (unsafe { ours(stream) }) else { return host!(libc::seekdir(stream.cast(), position)) };
    answer("seekdir", || {
        let mut at = stream.at.lock();
        at.dots = position.clamp(0, BEHIND_DOTS);
        listing(stream)?.1.seek((position - BEHIND_DOTS).max(0) as u64);
        Ok(0)
    });
}

/// rewinddir(3): the new listing includes entries made since.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_rewinddir(stream: *mut c_void) {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    let Some(stream) = (unsafe { ours(stream) }) else { return host!(libc::rewinddir(stream.cast())) };
    answer("rewinddir", || {
        stream.at.lock().dots = 0;
        rewind(&*numbers::get(stream.fd)?)?;
        Ok(0)
    });
}

/// Offset of the name in the kernel's record of an entry.
const NAME_AT: usize = 19;

/// Puts an entry at the beginning of `room` as getdents64 does; returns how many bytes it takes, or `None` if it does
/// not fit.
fn record(room: &mut [u8], entry: &libc::dirent64) -> Option<usize> {
    // SAFETY: `put` has ended the name with NUL.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes_with_nul();
    let length = (NAME_AT + name.len()).next_multiple_of(8);
    let room = room.get_mut(..length)?;
    room.fill(0);
    room[..8].copy_from_slice(&entry.d_ino.to_ne_bytes());
    room[8..16].copy_from_slice(&entry.d_off.to_ne_bytes());
    room[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
    room[18] = entry.d_type;
    room[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
    Some(length)
}

/// Fills `room` with the next entries of a directory. Its position says how many of "." and ".." were returned.
fn records(file: &File, room: &mut [u8]) -> Outcome<usize> {
    // SAFETY: a structure of integers: all zeros are a value.
    let mut entry: libc::dirent64 = unsafe { std::mem::zeroed() };
    let mut used = 0;
    file.open.read_at_position(|start| {
        if start == 0 {
            rewind(file)?;
        }
        let listing = file.listing.lock().clone();
        let listing = listing.ok_or_else(|| Failure::new(libc::ENOTDIR, "it is no directory"))?;
        let mut dots = start as c_long;
        loop {
            let before = listing.tell();
            if !next_of(file, &listing, &mut dots, &mut entry)? {
                break;
            }
            match record(&mut room[used..], &entry) {
                Some(length) => used += length,
                None => {
                    match entry.d_off {
                        behind @ 0..=BEHIND_DOTS => dots = behind - 1,
                        _ => listing.seek(before),
                    }
                    break;
                }
            }
        }
        Ok((dots - start as c_long) as usize)
    })?;
    if used == 0 && entry.d_reclen != 0 {
        return Err(Failure::invalid("the buffer is too small for an entry"));
    }
    Ok(used)
}

/// getdents64(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getdents64(fd: c_int, buffer: *mut c_void, length: usize) -> isize {
    let from_host = || host!(getdents64(fd, buffer, length));
    on_number("getdents64", fd, from_host, |file| {
        // SAFETY: the buffer is an argument of the program's call, so it lives during the call.
        let mut buffer = unsafe { OutBytes::of(buffer) };
        records(file, buffer.slice(length)?).map(|used| used as isize)
    })
}

/// getdirentries(3): also tells where the entries begin.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_getdirentries(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    base: *mut libc::off_t,
) -> isize {
    let start = numbers::get(fd).ok().and_then(|file| Some(file.listing.lock().as_ref()?.tell()));
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    unsafe {
        let answer = nvfold_preload_getdents64(fd, buffer, length);
        if answer > 0 && !base.is_null() {
            base.write(start.unwrap_or(0) as libc::off_t);
        }
        answer
    }
}

unsafe extern "C" {
    fn getdents64(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
}
