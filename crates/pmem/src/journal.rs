//! The journal of level `file`: it stores the pages of a sync after the end of the device, so that a power cut
//! leaves all of them or none.
//!
//! The problem: the host writes the pages of a file to disk in any order. A power cut could interrupt a sync that
//! wrote its pages in place half-way, and leave a state that the device never had.
//!
//! The idea: a sync first writes its pages to one of two slots after the device, and waits for the disk **once**.
//! Only then does it write them in place, and it does not wait for that. The next sync uses the other slot and waits
//! for the whole file, so it waits for these pages too before it completes. Opening a device puts the pages of each
//! intact slot in place once more, the older slot first.
//!
//! ```text
//! 0                      D                 D + SLOT_BYTES     D + 2 SLOT_BYTES
//! | the device, D bytes  | slot 0          | slot 1           | 1 byte |
//!
//! a slot: | header, 64 bytes | record of each page, 16 bytes | ... to a multiple of 4096 | the pages, 4096 bytes each |
//!
//! header   0 magic "nvfoldJ1"   8 u64 bytes of the device   16 u64 number of the sync   24 u64 records
//!         32 u32 CRC of the records   36 u32 CRC of bytes 0..36   40 zeros
//! record   0 u64 number of the page   8 u32 CRC of its bytes   12 u32 0: its bytes are here
//!                                                                     1: a hole   2: zeros that keep their disk
//! ```
//!
//! **Why that is enough.** Let sync `n` be the last that returned; its slot is on the disk, intact. The other slot
//! holds sync `n - 1`, or sync `n + 1`, or something torn, which its checksums show. All pages of `n - 1` reached
//! their places before `n` returned. So each page on the disk that neither `n` nor an intact `n + 1` holds is as `n`
//! left it, and the pages that they hold are put in place from them, one after the other. Putting a sync in place twice has the
//! same effect as once.
//!
//! **The length of the file** says whether there is a journal: a device is a multiple of 4096 bytes, and a device
//! with a journal is one byte longer than such a multiple. The slots have a fixed size, so the length alone gives
//! `D`, without any data that could be torn. The slots are sparse: only their first parts take disk. An unmount cuts
//! the journal off.
//!
//! **Room.** A sync must never find the disk full, because what it brings there was accepted. So both slots have their
//! disk reserved for as many pages as a sync may have ([`Journal::make_room`]), before these pages are stored to.
//!
//! After a failed write or a failed wait it is unknown which pages the disk has. The slot of the last good sync is
//! intact, so the next sync begins by putting that slot in place again.

use crate::BLOCK_BYTES;
use crate::host_file::HostFile;
use rustix::io::{Errno, Result};

const PAGE: usize = BLOCK_BYTES as usize;
const MAGIC: [u8; 8] = *b"nvfoldJ1";
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;
/// Maximum number of pages in one sync: 256 MiB.
pub(crate) const PAGES_MAX: usize = 65536;
/// A journal has room for this many pages, 2 MiB, before it has more.
pub(crate) const PAGES_MIN: usize = 512;
/// On a full disk a new journal may have so little room. It had more before the device was unmounted, but the host may
/// have used some of that for its own tables meanwhile.
pub(crate) const PAGES_LEAST: usize = 64;
/// Bytes for one sync.
const SLOT_BYTES: u64 = BLOCK_BYTES + (PAGES_MAX * (RECORD_BYTES + PAGE)) as u64;
/// Bytes by which a file with a journal is longer than its device.
const JOURNAL_BYTES: u64 = 2 * SLOT_BYTES + 1;
/// Pages that are copied, written and read together.
const BATCH_PAGES: usize = 256;

/// A page of a sync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Page {
    pub(crate) number: u64,
    /// Whether it shall take no disk, if it is zeros.
    pub(crate) is_hole: bool,
}

/// Copies the bytes of pages into a buffer, one behind the other.
pub(crate) type CopyPages<'c> = dyn FnMut(&[Page], &mut [u8]) -> Result<()> + 'c;

/// The journal of one device.
pub(crate) struct Journal {
    file: HostFile,
    device_bytes: u64,
    /// Number of the last sync that returned.
    number: u64,
    /// That sync, while its slot exists.
    last: Option<Sync>,
    /// Whether its pages were written in place. False after any error, because it is unknown what the disk did then.
    is_placed: bool,
    /// Whether the file has its slots.
    is_there: bool,
    /// For how many pages each slot has its disk reserved.
    room: usize,
    /// Whether the host can reserve disk, as far as it was asked.
    reserves: bool,
}

/// Returns the bytes of the device in a file of `file_bytes`, or `None` if the file has no journal.
pub(crate) fn device_bytes_of(file_bytes: u64) -> Option<u64> {
    let device_bytes = file_bytes.checked_sub(JOURNAL_BYTES)?;
    (device_bytes > 0 && device_bytes.is_multiple_of(BLOCK_BYTES)).then_some(device_bytes)
}

/// Puts in place, durably, the syncs that a power cut or a killed process left in the journal, and cuts the journal
/// off. It must run before the device is used.
///
/// # Errors
/// The disk's. The call can then be repeated from the beginning.
pub(crate) fn replay(file: &HostFile, device_bytes: u64) -> Result<()> {
    let syncs = whole_syncs(file, device_bytes)?;
    syncs.iter().try_for_each(|sync| sync.put_in_place(file))?;
    file.sync()?;
    cut_off(file, device_bytes, syncs.last().map_or(0, |last| last.number))?;
    file.sync()
}

/// Cuts off the journal whose last sync, `number`, is in place, durably. The slot of the previous sync is cleared
/// first: without the last slot it would take the device back to that older state. A sync must follow.
fn cut_off(file: &HostFile, device_bytes: u64, number: u64) -> Result<()> {
    file.clear(slot_at(device_bytes, number + 1), BLOCK_BYTES)?;
    file.sync()?;
    file.set_length(device_bytes)
}

/// Returns the offset of the slot of a sync in the file.
fn slot_at(device_bytes: u64, number: u64) -> u64 {
    device_bytes + number % 2 * SLOT_BYTES
}

/// Replays the journal of a device that may only be read: gives the pages to `put`, by their numbers, instead of
/// writing them.
///
/// # Errors
/// The disk's.
pub(crate) fn replay_into(file: &HostFile, device_bytes: u64, put: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
    for sync in whole_syncs(file, device_bytes)? {
        sync.for_each_run(file, &mut |run| {
            match run {
                Run::Bytes(first, bytes) => {
                    (first..).zip(bytes.chunks(PAGE)).for_each(|(page, bytes)| put(page, bytes))
                }
                Run::Zeros(first, pages) | Run::Hole(first, pages) => {
                    (first..first + pages).for_each(|page| put(page, &[0; PAGE]));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the intact slots behind a device, the older first. A slot that was never used, or that a power cut tore,
/// is not one.
fn whole_syncs(file: &HostFile, device_bytes: u64) -> Result<Vec<Sync>> {
    let mut syncs = Vec::new();
    for slot in 0..2 {
        syncs.extend(Sync::read(file, device_bytes, slot)?);
    }
    syncs.sort_by_key(|sync| sync.number);
    Ok(syncs)
}

impl Journal {
    /// Makes the journal of a device without one.
    pub(crate) fn new(file: HostFile, device_bytes: u64) -> Journal {
        Journal { file, device_bytes, number: 0, last: None, is_placed: true, is_there: false, room: 0, reserves: true }
    }

    /// Returns the bytes that the file must have; if it has fewer, another process has truncated it.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.device_bytes + if self.is_there { JOURNAL_BYTES } else { 0 }
    }

    /// Returns how many pages a sync may have, so that it finds its disk reserved.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Returns whether the host can reserve disk; true until it was asked.
    pub(crate) fn reserves(&self) -> bool {
        self.reserves
    }

    /// Makes room for syncs of `pages` pages. On a host that cannot reserve disk there is always room.
    ///
    /// # Errors
    /// The disk's: ENOSPC if it has no room for both slots. The journal then has the room that it had.
    pub(crate) fn make_room(&mut self, pages: usize) -> Result<()> {
        if pages <= self.room {
            return Ok(());
        }
        if pages > PAGES_MAX {
            return Err(Errno::NOSPC);
        }
        if !self.is_there {
            self.file.set_length(self.device_bytes + JOURNAL_BYTES)?;
            self.is_there = true;
        }
        let slots = [0, 1].map(|slot| slot_at(self.device_bytes, slot));
        match slots.iter().try_for_each(|slot| self.file.reserve(*slot, slot_bytes(pages))) {
            Ok(()) => self.room = pages,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => (self.room, self.reserves) = (PAGES_MAX, false),
            Err(errno) => {
                // No sync has used what lies behind the room of before.
                let before = if self.room == 0 { 0 } else { slot_bytes(self.room) };
                slots.iter().for_each(|slot| self.file.give_back(*slot + before, slot_bytes(pages) - before));
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Makes room for syncs of [`PAGES_MIN`] pages, or of fewer on a full disk, but for `pages` pages and
    /// [`PAGES_LEAST`] at least.
    ///
    /// # Errors
    /// As [`Journal::make_room`].
    pub(crate) fn make_some_room(&mut self, pages: usize) -> Result<()> {
        let least = pages.max(PAGES_LEAST);
        let mut wanted = pages.max(PAGES_MIN);
        while wanted > least && self.room < least {
            match self.make_room(wanted) {
                Err(Errno::NOSPC | Errno::DQUOT) => wanted = (wanted / 2).max(least),
                made => return made,
            }
        }
        self.make_room(least)
    }

    /// Makes pages durable, all or none. `pages` are in order.
    ///
    /// # Errors
    /// The disk's, and those of `copy`. It is then unknown whether the pages are durable, and the next sync must
    /// contain each of them, with its content of then or later. ENOSPC if there are more than [`PAGES_MAX`].
    pub(crate) fn sync(&mut self, pages: &[Page], copy: &mut CopyPages<'_>) -> Result<()> {
        self.make_some_room(pages.len())?;
        self.write_last_slot_in_place()?;
        let written = self.write(pages, copy);
        if written.is_err() {
            self.is_placed = false;
        }
        let sync = written?;
        self.number = sync.number;
        self.last = Some(sync);
        self.is_placed = false;
        self.write_last_slot_in_place()
    }

    /// Puts all pages in place, durably, and cuts the journal off, for now.
    ///
    /// # Errors
    /// The disk's. Nothing is lost: the journal stays for the next sync or the next open.
    pub(crate) fn close(&mut self) -> Result<()> {
        if !self.is_there {
            return Ok(());
        }
        self.write_last_slot_in_place()?;
        self.file.sync().inspect_err(|_| self.is_placed = false)?;
        self.last = None;
        cut_off(&self.file, self.device_bytes, self.number)?;
        (self.is_there, self.room) = (false, 0);
        self.file.sync()
    }

    /// Gives the device in front of the journal another length, durably. The next sync makes the journal anew.
    ///
    /// # Errors
    /// The disk's. The device has its old length then.
    pub(crate) fn set_device_bytes(&mut self, device_bytes: u64) -> Result<()> {
        self.close()?;
        self.file.set_length(device_bytes)?;
        let synced = self.file.sync();
        if synced.is_err() {
            // The first error is returned. A file that stays longer does no harm.
            let _ = self.file.set_length(self.device_bytes);
        }
        synced?;
        self.device_bytes = device_bytes;
        Ok(())
    }

    /// Puts all pages in place, durably, and gives the disk of the slots back, except for [`PAGES_MIN`] pages, which no
    /// other program can take meanwhile.
    ///
    /// # Errors
    /// The disk's. Nothing is lost.
    pub(crate) fn shrink(&mut self) -> Result<()> {
        if self.room <= PAGES_MIN {
            return Ok(());
        }
        self.write_last_slot_in_place()?;
        self.file.sync().inspect_err(|_| self.is_placed = false)?;
        self.last = None;
        // As in `cut_off`: the older slot goes first.
        let slots = [self.number + 1, self.number].map(|number| slot_at(self.device_bytes, number));
        for slot in slots {
            self.file.write_zeros(slot, BLOCK_BYTES)?;
            self.file.sync()?;
        }
        let (kept, had) = (slot_bytes(PAGES_MIN), slot_bytes(self.room));
        slots.iter().for_each(|slot| self.file.give_back(*slot + kept, had - kept));
        self.room = if self.reserves { PAGES_MIN } else { self.room };
        Ok(())
    }

    fn write_last_slot_in_place(&mut self) -> Result<()> {
        if let Some(last) = self.last.as_ref().filter(|_| !self.is_placed) {
            last.put_in_place(&self.file)?;
        }
        self.is_placed = true;
        Ok(())
    }

    /// Writes the next sync to its slot, and waits for the whole file.
    fn write(&mut self, pages: &[Page], copy: &mut CopyPages<'_>) -> Result<Sync> {
        let number = self.number + 1;
        let slot_at = slot_at(self.device_bytes, number);
        let data_at = slot_at + head_bytes(pages.len());
        let mut sync = Sync { number, records: Vec::with_capacity(pages.len()), data_at };
        let mut buffer = vec![0; BATCH_PAGES.min(pages.len()) * PAGE];
        let mut at = data_at;
        for batch in pages.chunks(BATCH_PAGES) {
            let bytes = &mut buffer[..batch.len() * PAGE];
            copy(batch, bytes)?;
            let packed = sync.add(batch, bytes);
            self.file.write_at(at, &bytes[..packed])?;
            at += packed as u64;
        }
        self.file.write_at(slot_at, &sync.head(self.device_bytes))?;
        self.file.sync()?;
        Ok(sync)
    }
}

/// One page of a sync.
struct Record {
    page: u64,
    crc: u32,
    content: Content,
}

/// What a page of a sync holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The bytes that its slot holds.
    Bytes = 0,
    /// Zeros that shall take no disk.
    Hole = 1,
    /// Zeros in a place that will be stored to: they keep their disk.
    Zeros = 2,
}

impl Content {
    fn of(number: u32) -> Content {
        match number {
            0 => Content::Bytes,
            2 => Content::Zeros,
            _ => Content::Hole,
        }
    }
}

/// The pages of one sync in its slot, which is intact.
struct Sync {
    number: u64,
    records: Vec<Record>,
    /// Where the bytes of its pages begin.
    data_at: u64,
}

/// Pages that are neighbours on the device.
enum Run<'b> {
    /// The first page, and the bytes of all.
    Bytes(u64, &'b [u8]),
    /// The first page, and how many.
    Zeros(u64, u64),
    /// The first page, and how many.
    Hole(u64, u64),
}

impl Sync {
    /// Adds the pages of a batch. It packs the bytes of the pages that are not zeros at the front of `bytes`, and
    /// returns how many bytes those are.
    fn add(&mut self, batch: &[Page], bytes: &mut [u8]) -> usize {
        let mut packed = 0;
        for (at, page) in batch.iter().enumerate() {
            let content = at * PAGE..(at + 1) * PAGE;
            let kind = match (is_zeros(&bytes[content.clone()]), page.is_hole) {
                (false, _) => Content::Bytes,
                (true, false) => Content::Zeros,
                (true, true) => Content::Hole,
            };
            let crc = if kind == Content::Bytes { crc32c::crc32c(&bytes[content.clone()]) } else { 0 };
            self.records.push(Record { page: page.number, crc, content: kind });
            if kind == Content::Bytes {
                bytes.copy_within(content, packed);
                packed += PAGE;
            }
        }
        packed
    }

    /// Returns header and records as they lie in the slot.
    fn head(&self, device_bytes: u64) -> Vec<u8> {
        let mut head = vec![0; HEADER_BYTES];
        for record in &self.records {
            head.extend(record.page.to_le_bytes());
            head.extend(record.crc.to_le_bytes());
            head.extend((record.content as u32).to_le_bytes());
        }
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&device_bytes.to_le_bytes());
        head[16..24].copy_from_slice(&self.number.to_le_bytes());
        head[24..32].copy_from_slice(&(self.records.len() as u64).to_le_bytes());
        let records_crc = crc32c::crc32c(&head[HEADER_BYTES..]);
        head[32..36].copy_from_slice(&records_crc.to_le_bytes());
        let header_crc = crc32c::crc32c(&head[..36]);
        head[36..40].copy_from_slice(&header_crc.to_le_bytes());
        head
    }

    /// Returns the sync in a slot, or `None` if the slot is not intact.
    fn read(file: &HostFile, device_bytes: u64, slot: u64) -> Result<Option<Sync>> {
        let slot_at = slot_at(device_bytes, slot);
        let mut header = [0; HEADER_BYTES];
        file.read_at(slot_at, &mut header)?;
        let (number, count) = (word_at(&header, 16), word_at(&header, 24));
        let is_header = header[..8] == MAGIC
            && half_at(&header, 36) == crc32c::crc32c(&header[..36])
            && word_at(&header, 8) == device_bytes
            && number % 2 == slot
            && count <= PAGES_MAX as u64;
        if !is_header {
            return Ok(None);
        }
        let mut bytes = vec![0; count as usize * RECORD_BYTES];
        file.read_at(slot_at + HEADER_BYTES as u64, &mut bytes)?;
        let records = bytes.as_chunks::<RECORD_BYTES>().0.iter().map(|record| Record {
            page: word_at(record, 0),
            crc: half_at(record, 8),
            content: Content::of(half_at(record, 12)),
        });
        let sync = Sync { number, records: records.collect(), data_at: slot_at + head_bytes(count as usize) };
        let is_ours = |record: &Record| record.page < device_bytes / BLOCK_BYTES;
        if crc32c::crc32c(&bytes) != half_at(&header, 32) || !sync.records.iter().all(is_ours) {
            return Ok(None);
        }
        match sync.for_each_run(file, &mut |_| Ok(())) {
            Ok(()) => Ok(Some(sync)),
            Err(Errno::BADMSG) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn put_in_place(&self, file: &HostFile) -> Result<()> {
        self.for_each_run(file, &mut |run| match run {
            Run::Bytes(first, bytes) => file.write_at(first * BLOCK_BYTES, bytes),
            Run::Zeros(first, pages) => file.write_zeros(first * BLOCK_BYTES, pages * BLOCK_BYTES),
            Run::Hole(first, pages) => file.clear(first * BLOCK_BYTES, pages * BLOCK_BYTES),
        })
    }

    /// Calls `work` for the pages of the sync, in order, neighbours together, with their bytes from the slot. Returns
    /// EBADMSG if the bytes do not match their checksums.
    fn for_each_run(&self, file: &HostFile, work: &mut dyn FnMut(Run<'_>) -> Result<()>) -> Result<()> {
        let mut buffer = Vec::new();
        let mut at = self.data_at;
        for like in self.records.chunk_by(|one, next| one.content == next.content) {
            let kind = like[0].content;
            if kind != Content::Bytes {
                let run = if kind == Content::Hole { Run::Hole } else { Run::Zeros };
                like.chunk_by(is_next).try_for_each(|pages| work(run(pages[0].page, pages.len() as u64)))?;
                continue;
            }
            for batch in like.chunks(BATCH_PAGES) {
                buffer.resize(batch.len() * PAGE, 0);
                file.read_at(at, &mut buffer)?;
                at += buffer.len() as u64;
                let pages = batch.iter().zip(buffer.chunks(PAGE));
                if pages.clone().any(|(record, bytes)| record.crc != crc32c::crc32c(bytes)) {
                    return Err(Errno::BADMSG);
                }
                let mut rest = &buffer[..];
                for run in batch.chunk_by(is_next) {
                    let (bytes, behind) = rest.split_at(run.len() * PAGE);
                    work(Run::Bytes(run[0].page, bytes))?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }
}

fn is_next(one: &Record, next: &Record) -> bool {
    one.page + 1 == next.page
}

/// Returns the bytes of header and records, up to the first page.
fn head_bytes(records: usize) -> u64 {
    ((HEADER_BYTES + records * RECORD_BYTES) as u64).next_multiple_of(BLOCK_BYTES)
}

/// Returns the bytes of a slot that a sync of so many pages takes.
pub(crate) fn slot_bytes(pages: usize) -> u64 {
    head_bytes(pages) + pages as u64 * BLOCK_BYTES
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

fn half_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |half| u32::from_le_bytes(*half))
}

const _: () = assert!(SLOT_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(HEADER_BYTES + PAGES_MAX * RECORD_BYTES <= SLOT_BYTES as usize - PAGES_MAX * PAGE);
