//! The undo file: a copy of every line that a repair overwrites, and the function that restores them.
//!
//! The problem: a repair decides what to give up, and may decide wrongly, but there is rarely room for a copy of the
//! whole device.
//!
//! The idea: a line is appended to a file before the first store to it, so at every moment the file holds everything
//! that has changed. Restoring it gives the original device, bit by bit.
//!
//! ```text
//! header   magic, device's uuid, size, mount epoch               checksum      64 bytes
//! record   offset, length, checksum | the bytes                  lines next to one another, as many as a store touches
//! ...
//! end      offset !0                                             checksum of all records' checksums
//! ```
//!
//! An interrupted repair leaves no end record. The superblock then says that a repair is under way, and the last
//! record may be incomplete: the store that it belongs to was not done. In any other case, a file without an end was
//! truncated, and is refused.

use crate::error::{Error, Result};
use crate::media::superblock::{STATE_REPAIR, Superblock};
use crate::mount;
use crate::store::write_superblock;
use hashbrown::HashSet;
use nvfold_sync::Mutex;
use pmem::{Flight, Region};
use std::io;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"NVFUNDO\x01";
const END: u64 = u64::MAX;
const LINE: u64 = 64;

/// Writes an undo file.
pub trait UndoFile: Send {
    /// Appends bytes. They must be durable when it returns, because the lines they are a copy of are overwritten
    /// next.
    ///
    /// # Errors
    /// Errors of the file; the repair then ends before it overwrites anything that was not kept.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    uuid: [u8; 16],
    device_bytes: u64,
    mount_epoch: u64,
    spare: [u8; 20],
    check: u32,
}

const _: () = assert!(size_of::<Header>() == 64);

impl Header {
    fn sealed(mut self) -> Header {
        self.check = crc32c::crc32c(&self.as_bytes()[..60]);
        self
    }
}

/// Head of a record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UndoRecord {
    offset: u64,
    length: u32,
    check: u32,
}

const _: () = assert!(size_of::<UndoRecord>() == 16);

impl UndoRecord {
    fn of(offset: u64, bytes: &[u8]) -> UndoRecord {
        let length = bytes.len() as u32;
        UndoRecord { offset, length, check: checksum(offset, length, bytes) }
    }
}

fn checksum(offset: u64, length: u32, bytes: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), &length.to_le_bytes());
    crc32c::crc32c_append(head, bytes)
}

/// Keeps copies of the lines that a repair overwrites.
struct Keeping {
    file: Box<dyn UndoFile>,
    kept: HashSet<u64>,
    /// CRC-32C of the checksums of all records so far.
    checks: u32,
    failed: Option<io::Error>,
}

impl Keeping {
    /// Writes the header of the file.
    fn begin(mut file: Box<dyn UndoFile>, superblock: &Superblock) -> io::Result<Keeping> {
        let Superblock { uuid, device_bytes, mount_epoch, .. } = *superblock;
        let header = Header { magic: MAGIC, uuid, device_bytes, mount_epoch, spare: [0; 20], check: 0 }.sealed();
        file.append(header.as_bytes())?;
        Ok(Keeping { file, kept: HashSet::new(), checks: 0, failed: None })
    }

    /// Keeps the lines of a range that were not kept before. Returns false if this fails.
    fn keep(&mut self, region: &Region, offset: u64, length: u64) -> bool {
        let end = (offset + length).div_ceil(LINE);
        let mut line = offset / LINE;
        while line < end && self.failed.is_none() {
            let first = line;
            while line < end && self.kept.insert(line) {
                line += 1;
            }
            if line > first {
                self.append_lines(region, first * LINE, line * LINE);
            } else {
                line += 1;
            }
        }
        self.failed.is_none()
    }

    fn append_lines(&mut self, region: &Region, start: u64, end: u64) {
        const AT_ONCE: u64 = 1 << 20;
        for at in (start..end).step_by(AT_ONCE as usize) {
            let mut bytes = vec![0; (end - at).min(AT_ONCE) as usize];
            region.read_into(at, &mut bytes);
            let record = UndoRecord::of(at, &bytes);
            self.checks = crc32c::crc32c_append(self.checks, &record.check.to_le_bytes());
            let whole = [record.as_bytes(), &bytes].concat();
            if let Err(error) = self.file.append(&whole) {
                self.failed = Some(error);
                return;
            }
        }
    }

    /// Returns why a copy could not be kept, if one failed.
    fn failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Writes the end record: the repair is done.
    fn end(&mut self) -> io::Result<()> {
        let record = UndoRecord { offset: END, length: 0, check: checksum(END, 0, &self.checks.to_le_bytes()) };
        self.file.append(record.as_bytes())
    }
}

/// An undo file that was read.
struct Undo<'f> {
    header: Header,
    records: Vec<(u64, &'f [u8])>,
    /// True if the end record is there: the repair was done.
    is_ended: bool,
}

fn refused(why: impl Into<String>) -> Error {
    Error::Undo { why: why.into() }
}

impl Undo<'_> {
    fn read(file: &[u8]) -> Result<Undo<'_>> {
        let (header, mut rest) = Header::read_from_prefix(file).map_err(|_| refused("it is shorter than its head"))?;
        if header.magic != MAGIC {
            return Err(refused("this is not an undo file"));
        }
        if header.sealed().check != header.check {
            return Err(refused("its head is damaged"));
        }
        let mut undo = Undo { header, records: Vec::new(), is_ended: false };
        let mut checks = 0;
        while let Ok((record, bytes)) = UndoRecord::read_from_prefix(rest) {
            let at = file.len() - rest.len();
            let damaged = || refused(format!("the record at byte {at} is damaged"));
            if record.offset == END {
                let is_whole = record.check == checksum(END, 0, &u32::to_le_bytes(checks));
                if !is_whole || !bytes.is_empty() {
                    return Err(damaged());
                }
                undo.is_ended = true;
                return Ok(undo);
            }
            // The file was cut off or is damaged; the state of the device tells whether a cut-off file is possible.
            let Some(content) = bytes.get(..record.length as usize) else { break };
            let fits =
                record.offset.checked_add(u64::from(record.length)).is_some_and(|end| end <= header.device_bytes);
            if !fits || record.check != checksum(record.offset, record.length, content) {
                return Err(damaged());
            }
            checks = crc32c::crc32c_append(checks, &record.check.to_le_bytes());
            undo.records.push((record.offset, content));
            rest = &bytes[record.length as usize..];
        }
        Ok(undo)
    }
}

/// Restores what a repair overwrote; `file` is the content of its undo file. Returns the number of bytes. Nothing is
/// written before the whole file was found to be valid and to belong to this device in its present state. If it is
/// interrupted, it can be repeated.
///
/// # Errors
/// [`Error::Undo`] if the file is damaged, truncated, of another device, or older than later changes of the device;
/// errors of reading the superblock.
pub fn restore(region: &Region, file: &[u8]) -> Result<u64> {
    let undo = Undo::read(file)?;
    let (superblock, geometry) = mount::read_superblock(region)?;
    mount::require_known_features(&superblock)?;
    let Header { uuid, device_bytes, mount_epoch, .. } = undo.header;
    if uuid != superblock.uuid || device_bytes != superblock.device_bytes {
        return Err(refused("it belongs to another device"));
    }
    let is_superblock = |offset: u64| geometry.copies().any(|copy| offset / 4096 == copy / 4096);
    let differs = |(offset, bytes): &(u64, &[u8])| !region.equal(*offset, bytes);
    let other_than_superblocks = || undo.records.iter().filter(|(offset, _)| !is_superblock(*offset));
    let is_put_back = !other_than_superblocks().any(differs);
    // A repair counts as a mount: the difference is 0 before it began, and 1 afterwards.
    let mounts_since = superblock.mount_epoch.wrapping_sub(mount_epoch);
    if mounts_since > 1 {
        return Err(refused("the device was mounted since then, or repaired again (undo that repair first)"));
    }
    if !undo.is_ended && superblock.state != STATE_REPAIR && !(mounts_since == 0 && is_put_back) {
        return Err(refused("it was truncated: its end is missing, and the repair was not interrupted"));
    }
    if !undo.records.iter().any(differs) {
        return Ok(0);
    }
    if superblock.state != STATE_REPAIR && mounts_since == 1 {
        // The repair was complete, so all copies were kept. The device must not be mounted until everything is
        // restored.
        write_superblock(region, Superblock { state: STATE_REPAIR, ..superblock });
    }
    let mut flight = Flight::new();
    other_than_superblocks().for_each(|(offset, bytes)| flight.add(region.write(*offset, *bytes).flush()));
    let _ = region.fence(flight);
    region.sync()?;
    for (offset, bytes) in undo.records.iter().filter(|(offset, _)| is_superblock(*offset)) {
        let _ = region.fence(region.write(*offset, *bytes).flush());
    }
    region.sync()?;
    region.check()?;
    Ok(undo.records.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

/// Runs `repair`, and keeps a copy of everything it overwrites in `file`.
pub(super) fn keeping<T>(
    region: &Region,
    superblock: &Superblock,
    file: Box<dyn UndoFile>,
    repair: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let kept = |error: io::Error| refused(format!("nothing more was changed, for it cannot be written: {error}"));
    let keeping = Arc::new(Mutex::new(Keeping::begin(file, superblock).map_err(kept)?));
    let keeper = keeping.clone();
    region.keep_before_stores(Some(Arc::new(move |region: &Region, offset, length| {
        keeper.lock().keep(region, offset, length)
    })));
    let guard = Stop(region);
    let repaired = repair();
    drop(guard);
    let mut keeping = keeping.lock();
    if let Some(error) = keeping.failure() {
        return Err(kept(error));
    }
    let done = repaired?;
    keeping.end().map_err(kept)?;
    Ok(done)
}

/// Stops keeping copies when it is dropped, however the repair ends.
struct Stop<'r>(&'r Region);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.keep_before_stores(None);
    }
}
