//! Between the memory of the program and files: reading, writing and copying, and noting where bytes came from.
#![forbid(unsafe_code)]

use crate::caller::{self, CIovecs, InBytes, OutBytes, TRANSFER_BYTES_MAX};
use crate::causality::{self, Followed, Sources};
use crate::failure::{Failure, Outcome};
use crate::files::{Open, Target, offset};
use crate::mapping::Mappings;
use std::ffi::{c_int, c_void};
use std::iter;
use std::sync::Arc;

/// What a device of `icid.h` is opened with, unless its options say otherwise.
pub const DEFAULT_OPTIONS: &[u8] = b"policy=icid";

/// What `map` has mapped.
static MAPPINGS: Mappings<Option<Arc<Followed>>> = Mappings::new();

/// Where a read takes its bytes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The position, which moves behind them.
    Position,
    /// This offset.
    Offset(u64),
}

/// Lets `read` read where `source` says.
fn read_from(open: &Open, source: Source, read: impl FnOnce(u64) -> Outcome<usize>) -> Outcome<(u64, usize)> {
    match source {
        Source::Position => open.read_at_position(read),
        Source::Offset(offset) => Ok((offset, read(offset)?)),
    }
}

/// Does what `read` and `pread` do.
pub fn read(open: &Open, source: Source, buffer: &mut OutBytes<'_>, length: usize) -> Outcome<isize> {
    open.check_reads()?;
    buffer.check(length)?;
    let length = length.min(TRANSFER_BYTES_MAX);
    let (offset, read) = read_from(open, source, |offset| {
        let length = open.readable(offset, length)?;
        open.read_at(offset, buffer.slice(length)?)
    })?;
    causality::note_read(buffer.address(), read, open.followed.as_deref(), offset);
    Ok(read as isize)
}

/// `readv` and `preadv`: one read, so that it sees a write completely or not at all.
pub fn read_vector(open: &Open, source: Source, buffers: &CIovecs<'_>, count: c_int) -> Outcome<isize> {
    open.check_reads()?;
    let mut buffers = buffers.look(count)?;
    let length = buffers.total().min(TRANSFER_BYTES_MAX);
    let (offset, read) = read_from(open, source, |offset| {
        let length = open.readable(offset, length)?;
        let mut bytes = caller::room(length)?;
        bytes.resize(length, 0);
        let read = open.read_at(offset, &mut bytes)?;
        buffers.scatter(&bytes[..read]);
        Ok(read)
    })?;
    let mut done = 0;
    for (address, length) in buffers.ranges() {
        let length = length.min(read - done);
        causality::note_read(address, length, open.followed.as_deref(), offset + done as u64);
        done += length;
    }
    Ok(read as isize)
}

/// Does what `write` and `pwrite` do.
pub fn write(open: &Open, target: Target, buffer: &InBytes<'_>, length: usize) -> Outcome<isize> {
    open.check_writes()?;
    buffer.slice(length)?;
    let length = length.min(TRANSFER_BYTES_MAX);
    if length > 0 {
        let sources = Sources::of(open.device.follows_origins, iter::once((buffer.address(), length)));
        open.write(target, buffer.slice(length)?, &sources.origins())?;
    }
    Ok(length as isize)
}

/// `writev` and `pwritev`: one write, so it is atomic too.
pub fn write_vector(open: &Open, target: Target, buffers: &CIovecs<'_>, count: c_int) -> Outcome<isize> {
    open.check_writes()?;
    let buffers = buffers.look(count)?;
    let bytes = buffers.gather(TRANSFER_BYTES_MAX)?;
    if !bytes.is_empty() {
        let sources = Sources::of(open.device.follows_origins, buffers.ranges());
        open.write(target, &bytes, &sources.origins())?;
    }
    Ok(bytes.len() as isize)
}

/// Does what `memcpy` and `memmove` do.
pub fn copy(target: &mut OutBytes<'_>, source: &InBytes<'_>, length: usize) -> Outcome<()> {
    caller::copy(target, source, length)?;
    causality::note_copy(target.address(), source.address(), length);
    Ok(())
}

/// Does what `mmap` does.
pub fn map(open: &Open, length: usize, prot: c_int, flags: c_int, at: libc::off_t) -> Outcome<*mut c_void> {
    open.check_reads().map_err(|failure| match failure.errno {
        libc::EBADF => Failure { errno: libc::EACCES, ..failure },
        _ => failure,
    })?;
    let followed = Followed::new(open.device.follows_origins, &open.file);
    let start = MAPPINGS.map((length, prot, flags, at), followed.clone(), |offset, memory| {
        let length = open.readable(offset, memory.len())?;
        open.read_at(offset, &mut memory[..length]).map(drop)
    })?;
    match followed {
        Some(followed) => causality::note_map(start.addr(), length, &followed, offset(at)?),
        None => causality::note_read(start.addr(), length, None, 0),
    }
    // Who closes the device says so first and looks at the mappings then.
    if open.device.is_closing() {
        leave(open.device.handle);
    }
    Ok(start)
}

/// Does what `munmap` does.
pub fn unmap(start: *mut c_void, length: usize) -> Outcome<()> {
    MAPPINGS.unmap(start, length, |bytes| causality::note_unmap(start.addr(), bytes))
}

/// Whether `unmap` may have anything to give back. Takes no lock.
pub fn has_mappings() -> bool {
    MAPPINGS.is_used()
}

/// A device is closed: mappings of its files stay, as memory that comes from nowhere.
pub fn leave(device: usize) {
    causality::leave(device);
    let mut left = Vec::new();
    MAPPINGS.change_files(|file| {
        if file.as_ref().is_some_and(|file| file.device == device) {
            left.push(file.take());
        }
    });
    // Without the lock of the mappings: forgetting a file takes others.
    drop(left);
}
