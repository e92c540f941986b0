//! Directories by the system call getdents64. The listing is kept with the open file, and begins with its first entries.

use crate::answer::answer;
use crate::numbers::{self, File};
use nvfold::FileKind;
use nvfold_c::caller::OutBytes;
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::listing::Listing;
use nvfold_c::status::entry_type;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Bytes of an entry before its name: inode, position behind it, length, type.
const HEAD_BYTES: usize = 19;
/// Position behind "." and "..".
const BEHIND_DOTS: u64 = 2;

/// Fills a buffer of the program with entries; returns how many bytes, 0 at the end. EINVAL if none fits.
///
/// # Safety
///
/// `buffer` has `size` bytes.
pub unsafe fn getdents64(fd: c_int, buffer: *mut c_void, size: usize) -> isize {
    answer("getdents64", || {
        let file = numbers::get(fd)?;
        // SAFETY: the caller's contract.
        let mut buffer = unsafe { OutBytes::of(buffer) };
        let mut room = Room { bytes: buffer.slice(size)?, used: 0 };
        let begun = file.listing.lock().clone();
        let listing = match begun {
            Some(listing) => listing,
            None => begin(&file, &mut room)?,
        };
        loop {
            let before = listing.tell();
            let Some(entry) = listing.next()? else { break };
            if !room.put(entry.ino.0, BEHIND_DOTS + entry.cookie, entry.kind, &entry.name) {
                listing.seek(before);
                if room.used == 0 {
                    return Err(too_small());
                }
                break;
            }
        }
        Ok(room.used as isize)
    })
}

fn too_small() -> Failure {
    Failure::invalid("no entry fits into the buffer")
}

/// Begins the listing of a directory, with "." and "..".
fn begin(file: &File, room: &mut Room<'_>) -> Outcome<Arc<Listing>> {
    if file.open.kind != FileKind::Directory {
        return Err(Failure::new(libc::ENOTDIR, "it is no directory"));
    }
    let own = file.open.file.ino();
    let parent = file.open.run(|fs| Ok(fs.parent(own)?))?;
    let fit =
        room.put(own.0, 1, FileKind::Directory, b".") && room.put(parent.0, BEHIND_DOTS, FileKind::Directory, b"..");
    if !fit {
        return Err(too_small());
    }
    let listing = Arc::new(Listing::new(&file.open.device, file.open.file.clone())?);
    *file.listing.lock() = Some(listing.clone());
    Ok(listing)
}

/// lseek to the start of a directory; `None`: it is something else.
pub fn rewind(fd: c_int, offset: libc::off_t, whence: c_int) -> Option<isize> {
    let file = numbers::get(fd).ok()?;
    let is_start = file.open.kind == FileKind::Directory && (offset, whence) == (0, libc::SEEK_SET);
    is_start.then(|| {
        *file.listing.lock() = None;
        0
    })
}

/// A buffer that entries are put into.
struct Room<'b> {
    bytes: &'b mut [u8],
    used: usize,
}

impl Room<'_> {
    /// Puts an entry behind the others; returns false if there is no room.
    fn put(&mut self, ino: u64, behind: u64, kind: FileKind, name: &[u8]) -> bool {
        let length = (HEAD_BYTES + name.len() + 1).next_multiple_of(8);
        let Some(entry) = self.bytes.get_mut(self.used..self.used + length) else { return false };
        entry.fill(0);
        entry[..8].copy_from_slice(&ino.to_ne_bytes());
        entry[8..16].copy_from_slice(&behind.to_ne_bytes());
        entry[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
        entry[18] = entry_type(kind);
        entry[HEAD_BYTES..HEAD_BYTES + name.len()].copy_from_slice(name);
        self.used += length;
        true
    }
}
