//! The log of one inode: walking it and adding to it.
//!
//! The problem: most logs have one or two lines, that of a directory of a dozen names a few more, and some have
//! thousands. If each log that outgrows its slot took a page of 4 KiB, pages would be most of the space of a tree of
//! small files.
//!
//! The idea: a log consists of **parts** that grow with it: five lines in the inode's slot, then (directories only)
//! up to eight log areas of seven lines, then pages of 63. Each part has a word with the address of the first line of
//! the next part, and the kind of the part follows from that address:
//!
//! ```text
//! slot: | head | A | B | e e e e e |      area: | head | e e e e e e e |      page: | e e e ... e | next |
//!          \_ overflow ________________________/    \_ next ______________________/              \__ ...
//! first line:  512 n + 192                        512 n + 64                       4096 n
//! ```
//!
//! An area is a slot of the inode table ([`crate::media::log_area`]). If the table has no free slot, a page is used
//! instead.
//!
//! **Why areas are slots.** In measured trees (docs/results/small-files.md) a file has one log line, and a directory
//! six to twenty-two, none of them dead. So neither longer slots nor more compaction would help: most of what
//! directories took was the unused rest of a page. Blocks that are cut into eight areas would need an allocator below
//! the block, in DRAM, in the saved state, in recovery and in fsck. A slot has all of that already. The cost: an area
//! takes an inode number, and one damaged page damages the logs of up to eight inodes.
//!
//! An addition writes beyond the tail, where nothing is read; the commit word then moves the tail past it. A new part
//! is linked before the commit and cannot be reached until then, because a walk ends at the tail.

use super::FILE_BYTES_MAX;
use super::table::InodeTable;
use crate::error::{Error, Result};
use crate::media::inode::{AttributeLine, INLINE_LOG, INODE_BYTES, InodeHead, OVERFLOW_WORD};
use crate::media::log_area::{AREA_LOG, AREAS_MAX, AreaHead, NEXT_WORD};
use crate::media::log_entry::{
    COOKIE_END, ENTRY_BYTES_MAX, ExtentEntry, LINE, LogEntry, PageFooter, VALUE_BLOCKS_MAX, VALUE_MAX, XattrValue,
    check_target, is_file_name, is_xattr_name,
};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::panics::Panics;
use crate::space::{BlockRun, Purpose, Space};
use crate::words::FileKind;
use pmem::{Flight, InFlight, Pm, Region};

/// A part of a log: contiguous lines, identified by the media address of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPart(u64);

impl LogPart {
    /// Returns the part with the five lines in an inode's slot.
    fn inline(slot: u64) -> LogPart {
        LogPart(slot + INLINE_LOG)
    }

    /// Returns the slot of a log area; `None` for other parts.
    pub(crate) fn area(self) -> Option<u64> {
        (self.0 % INODE_BYTES == AREA_LOG).then(|| self.0 - AREA_LOG)
    }

    /// Returns the block of a log page; `None` for other parts.
    pub(crate) fn page(self) -> Option<BlockNumber> {
        self.0.is_multiple_of(BLOCK_BYTES).then(|| BlockNumber::containing(self.0))
    }

    /// Returns the media address after the last line.
    fn end(self) -> u64 {
        if self.page().is_some() { self.0 + ENTRY_BYTES_MAX as u64 } else { self.0.next_multiple_of(INODE_BYTES) }
    }

    /// Returns the media address of the word that points to the next part.
    fn next_word(self) -> u64 {
        match self.area() {
            Some(slot) => slot + NEXT_WORD,
            None if self.page().is_some() => self.end(),
            None => self.0 - INLINE_LOG + OVERFLOW_WORD,
        }
    }

    /// Returns what it takes on the device: media address and length in bytes.
    pub(crate) fn extent(self) -> (u64, u64) {
        match self.area() {
            Some(slot) => (slot, INODE_BYTES),
            None => (self.0, BLOCK_BYTES),
        }
    }
}

/// The location of a log, kept while its inode is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    /// First line.
    pub head: u64,
    /// First byte after the last entry.
    pub tail: u64,
    /// Its parts outside the slot, in order. The tail is in the last one, or in the slot if there is none.
    pub parts: Vec<LogPart>,
    /// Number of lines in use, including those of dead entries.
    pub lines: u64,
}

impl Log {
    /// True if `position` is a line of this log. A line of a part that once belonged to the log does not count.
    pub(crate) fn holds(&self, slot: u64, position: u64) -> bool {
        let last = self.last_part(slot);
        let is_line = |part: &LogPart| {
            let end = if *part == last { self.tail } else { part.end() };
            (part.0..end).contains(&position)
        };
        let inline = Some(LogPart::inline(slot)).filter(|inline| self.head == inline.0);
        position.is_multiple_of(LINE) && inline.iter().chain(&self.parts).any(is_line)
    }

    /// Returns the number of bytes that fit after the tail without a new part.
    pub(crate) fn room(&self, slot: u64) -> u64 {
        self.last_part(slot).end() - self.tail
    }

    /// Returns the number of bytes from `position` to the end of its part, or one line if it is in no part.
    pub(crate) fn room_at(&self, slot: u64, position: u64) -> u64 {
        let inline = LogPart::inline(slot);
        let mut parts = std::iter::once(&inline).chain(&self.parts);
        parts.find(|part| (part.0..part.end()).contains(&position)).map_or(LINE, |part| part.end() - position)
    }

    /// Returns the slots of its log areas.
    pub(crate) fn areas(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().filter_map(|part| part.area())
    }

    /// Returns its pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = BlockNumber> + '_ {
        self.parts.iter().filter_map(|part| part.page())
    }

    /// Returns the number of bytes that it takes outside the slot.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.extent().1).sum()
    }

    fn last_part(&self, slot: u64) -> LogPart {
        self.parts.last().copied().unwrap_or(LogPart::inline(slot))
    }
}

/// Returns the media address where the inline lines end. In the last slot of a table segment this is the first byte
/// of the next segment. The block there is never used as a page of this log, because the position would be ambiguous.
fn inline_end_position(slot: u64) -> u64 {
    slot + INODE_BYTES
}

/// Returns the entry at `position`, which must be a line of the log, and the entry's length in bytes. The entry is
/// `None` if it cannot be decoded.
pub(crate) fn entry_at(region: &Region, slot: u64, ino: u64, log: &Log, position: u64) -> (Option<LogEntry>, u64) {
    let mut line = [0; LINE as usize];
    region.read_into(position, &mut line);
    let length = (u64::from(line[1]) * LINE).clamp(LINE, log.room_at(slot, position));
    let decode = |lines: &[u8]| LogEntry::decode(ino, lines).ok().map(|(entry, _)| entry);
    if length == LINE {
        return (decode(&line), length);
    }
    let mut lines = vec![0; length as usize];
    region.read_into(position, &mut lines);
    (decode(&lines), length)
}

/// Reads the log that `head` commits, oldest entry first. `each` gets the position of the entry, the position after
/// it, and the entry. Every address is checked before it is followed.
///
/// # Errors
/// EIO if the log is damaged; those of `each`.
pub(crate) fn walk(
    region: &Region,
    geometry: &Geometry,
    slot: u64,
    head: &InodeHead,
    mut each: impl FnMut(u64, u64, LogEntry) -> Result<()>,
) -> Result<Log> {
    let corrupt =
        |what: &str, at: u64| Error::Corrupt { what: format!("inode {}: its log is damaged ({what})", head.ino), at };
    let mut log = Log { head: head.head, tail: head.tail(), parts: Vec::new(), lines: 0 };
    let mut part = LogPart::inline(slot);
    let mut buffer = [0u8; ENTRY_BYTES_MAX];
    // Detect a loop of parts: it returns to the part that was recorded at the last power of two (Brent).
    let mut noted = 0;
    if head.head != part.0 {
        part = enter(region, geometry, slot, head.ino, head.head).map_err(|what| corrupt(what, slot))?;
        log.parts.push(part);
    }
    loop {
        let stop = if (part.0..=part.end()).contains(&log.tail) { log.tail } else { part.end() };
        if !(stop - part.0).is_multiple_of(LINE) {
            return Err(corrupt("log tail", slot));
        }
        let lines = &mut buffer[..(stop - part.0) as usize];
        region.read_into(part.0, lines);
        let mut at = 0;
        while at < lines.len() {
            let here = part.0 + at as u64;
            let (entry, count) = LogEntry::decode(head.ino, &lines[at..]).map_err(|what| corrupt(what, here))?;
            check_entry(geometry, &entry).map_err(|what| corrupt(what, here))?;
            at += (count * LINE) as usize;
            each(here, part.0 + at as u64, entry)?;
            log.lines += count;
        }
        if stop == log.tail {
            return Ok(log);
        }
        let next = region.load_u64(part.next_word());
        let found = enter(region, geometry, slot, head.ino, next);
        let following = found.map_err(|what| corrupt(what, part.next_word()))?;
        // A part is linked together with its first entry. A tail at its first line would be an alias of the end of
        // the part before it.
        if next == log.tail {
            return Err(corrupt("log tail", slot));
        }
        if next == noted || following == part {
            return Err(corrupt("the parts of its log form a loop", part.next_word()));
        }
        log.parts.push(following);
        if log.parts.len().is_power_of_two() {
            noted = next;
        }
        part = following;
    }
}

/// Checks the values of a log entry. [`walk`] asks before an entry is used, and whoever adds one before it is written:
/// what could not be read back is never committed. It takes no lock and reads no media.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_entry(geometry: &Geometry, entry: &LogEntry) -> std::result::Result<(), &'static str> {
    match entry {
        LogEntry::Extent(entry) => check_extent(geometry, entry),
        LogEntry::Vector(entry) => {
            check_range(entry.file_offset(), entry.length(), entry.size())?;
            let holds = |address, length| geometry.holds_data(address, length);
            if entry.is_valid(holds) { Ok(()) } else { Err("extent address") }
        }
        LogEntry::Name { name, .. } if !is_file_name(name) => Err("a name that no directory can have"),
        LogEntry::Name { cookie, .. } | LogEntry::BadName { cookie, .. } => {
            if (1..COOKIE_END).contains(cookie) {
                Ok(())
            } else {
                Err("name entry")
            }
        }
        LogEntry::XattrSet { name, .. } | LogEntry::XattrRemove { name, .. } if !is_xattr_name(name) => {
            Err("name of an extended attribute")
        }
        LogEntry::XattrSet { name, value, .. } => {
            check_target(name, value)?;
            match value {
                XattrValue::Inline(value) if value.len() > VALUE_MAX => Err("xattr value"),
                XattrValue::Inline(_) => Ok(()),
                XattrValue::Blocks { bytes, blocks } => check_value_blocks(geometry, *bytes, blocks),
            }
        }
        LogEntry::XattrRemove { .. } | LogEntry::Unname { .. } | LogEntry::Skip => Ok(()),
    }
}

/// The same for a write or unmap entry.
#[inline]
fn check_extent(geometry: &Geometry, entry: &ExtentEntry) -> std::result::Result<(), &'static str> {
    if let Some(address) = entry.plain_address() {
        check_blocks(geometry, entry.file_offset, entry.length, address, entry.size)
    } else if entry.maps() {
        check_range(entry.file_offset, entry.length, entry.size)?;
        let holds = |address, length| geometry.holds_data(address, length);
        if entry.is_valid(holds) { Ok(()) } else { Err("extent address") }
    } else if entry.size > FILE_BYTES_MAX {
        Err("file size")
    } else {
        Ok(())
    }
}

/// The same for the values of a write entry that references blocks: where it begins in the file, its length, the media
/// address, and the size of the file after it.
#[inline(always)]
pub(crate) fn check_blocks(
    geometry: &Geometry,
    offset: u64,
    length: u64,
    address: u64,
    size: u64,
) -> std::result::Result<(), &'static str> {
    check_range(offset, length, size)?;
    if geometry.holds_data(address, length) { Ok(()) } else { Err("extent address") }
}

/// The same for a line of attributes.
#[inline]
pub(crate) fn check_attributes(attributes: &AttributeLine) -> std::result::Result<(), &'static str> {
    if attributes.size <= FILE_BYTES_MAX { Ok(()) } else { Err("file size in the attributes") }
}

/// Returns the error for a change of an inode's log that could not be read back.
#[cold]
pub(crate) fn refused(ino: u64, why: &str) -> Error {
    let what = format!("inode {ino}: a change of its log was refused, because it could not be read back ({why})");
    Error::Refused { what }
}

/// Checks the file range of a log entry and the file size after it.
#[inline]
fn check_range(offset: u64, length: u64, size: u64) -> std::result::Result<(), &'static str> {
    let end = offset.checked_add(length);
    // The last block of a file may extend past the largest offset.
    let is_valid = length > 0 && end.is_some_and(|end| end <= FILE_BYTES_MAX + BLOCK_BYTES) && size <= FILE_BYTES_MAX;
    if is_valid { Ok(()) } else { Err("extent length") }
}

fn check_value_blocks(geometry: &Geometry, bytes: u32, blocks: &[u64]) -> std::result::Result<(), &'static str> {
    let is_block = |address: &u64| address.is_multiple_of(BLOCK_BYTES) && geometry.holds_data(*address, BLOCK_BYTES);
    let is_whole = blocks.len() as u64 == u64::from(bytes).div_ceil(BLOCK_BYTES) && blocks.len() <= VALUE_BLOCKS_MAX;
    if is_whole && blocks.iter().all(is_block) { Ok(()) } else { Err("xattr blocks") }
}

/// Returns the part whose first line is at `first`, if it belongs to this inode's log.
fn enter(
    region: &Region,
    geometry: &Geometry,
    slot: u64,
    ino: u64,
    first: u64,
) -> std::result::Result<LogPart, &'static str> {
    let part = LogPart(first);
    let (start, bytes) = part.extent();
    if !geometry.holds_data(start, bytes) {
        return Err("log address");
    }
    if part.area().is_some() {
        let area: AreaHead = region.read(start);
        return if area.is_whole(start) && area.owner == ino { Ok(part) } else { Err("log area of another inode") };
    }
    if part.page().is_none() || first == inline_end_position(slot) {
        return Err("log page address");
    }
    let footer: PageFooter = region.read(part.end());
    if footer.belongs(first, ino) { Ok(part) } else { Err("log page of another inode") }
}

/// Returns the largest number of log areas for an inode of this kind. Only directories outgrow their slot by a few
/// lines and stay at that size. A file that outgrows it is being written, and each new part would take its writes off
/// the fast path.
pub(crate) fn areas_of(kind: FileKind) -> usize {
    if kind == FileKind::Directory { AREAS_MAX } else { 0 }
}

/// What additions to logs need.
#[derive(Clone, Copy)]
pub(crate) struct LogDevice<'a> {
    /// The device.
    pub region: &'a Region,
    /// Allocates pages.
    pub space: &'a Space,
    /// Allocates log areas.
    pub table: &'a InodeTable,
    /// Tells that an addition is dropped by a panic.
    pub panics: &'a Panics,
}

impl LogDevice<'_> {
    /// Frees parts that no log references any more.
    pub(crate) fn free(&self, parts: &[LogPart]) {
        for start in parts.iter().filter_map(|part| part.page()) {
            self.space.free(BlockRun { start, count: 1 });
        }
        self.table.free_areas(parts.iter().filter_map(|part| part.area()));
    }
}

/// Entries that were written beyond the tail of a log and are not committed yet. Dropping it without `keep` frees its
/// new parts.
pub(crate) struct Addition<'a> {
    ground: LogDevice<'a>,
    slot: u64,
    ino: u64,
    purpose: Purpose,
    /// The tail after the commit.
    pub tail: u64,
    /// The last entry. It is not in the flight, because the commit word is made from its handle once it is durable.
    newest: Option<Pm<'a, [u8], InFlight>>,
    lines: u64,
    /// The part that contains the tail.
    last: LogPart,
    /// The number of areas that the log may still get.
    areas_left: usize,
    parts: Vec<LogPart>,
}

impl<'a> Addition<'a> {
    /// Begins an addition at the tail of `log`, which may have at most `areas` areas in total.
    pub(crate) fn new(
        ground: LogDevice<'a>,
        slot: u64,
        ino: u64,
        log: &Log,
        areas: usize,
        purpose: Purpose,
    ) -> Addition<'a> {
        let (tail, last) = (log.tail, log.last_part(slot));
        // Areas come before pages.
        let areas_left = if last.page().is_some() { 0 } else { areas.saturating_sub(log.parts.len()) };
        Addition { ground, slot, ino, purpose, tail, newest: None, lines: 0, last, areas_left, parts: Vec::new() }
    }

    /// Begins an addition that starts a new chain (for compaction), in the inline lines or outside the slot.
    pub(crate) fn new_chain(
        ground: LogDevice<'a>,
        slot: u64,
        ino: u64,
        areas: usize,
        inline: bool,
        flight: &mut Flight,
    ) -> Result<Addition<'a>> {
        let log = Log { tail: slot + INLINE_LOG, ..Log::default() };
        let mut addition = Addition::new(ground, slot, ino, &log, areas, Purpose::Promised);
        if !inline {
            addition.last = addition.new_part(LINE, flight)?;
            addition.tail = addition.last.0;
        }
        Ok(addition)
    }

    /// Writes one entry, of which `lines` is the encoded form, and returns its position.
    ///
    /// # Errors
    /// ENOSPC if there is no page for a new part. [`Error::Refused`] if the entry could not be read back.
    pub(crate) fn push(&mut self, entry: &LogEntry, lines: &[u8], flight: &mut Flight) -> Result<u64> {
        debug_assert!(!lines.is_empty() && lines.len().is_multiple_of(LINE as usize));
        let checked = match entry {
            LogEntry::BadName { .. } => Err("a name that no directory can have"),
            entry => check_entry(self.ground.space.geometry(), entry),
        };
        checked.map_err(|why| refused(self.ino, why))?;
        if lines.len() > ENTRY_BYTES_MAX {
            return Err(refused(self.ino, "log entry length"));
        }
        let region = self.ground.region;
        let length = lines.len() as u64;
        if self.tail + length > self.last.end() {
            let part = self.new_part(length, flight)?;
            let left = (self.last.end() - self.tail) / LINE;
            if left > 0 {
                self.skip(left, flight);
            }
            flight.add(region.store_u64(self.last.next_word(), part.0).flush());
            (self.tail, self.last) = (part.0, part);
        }
        let position = self.tail;
        if let Some(older) = self.newest.replace(region.write(position, lines).flush()) {
            flight.add(older);
        }
        self.tail += length;
        self.lines += length / LINE;
        Ok(position)
    }

    /// Skips the last lines of a part. An earlier log of the inode may have had entries there, whose positions are still
    /// queued: they must not be taken for entries of this log ([`Log::holds`]).
    fn skip(&mut self, lines: u64, flight: &mut Flight) {
        let region = self.ground.region;
        flight.add(region.write(self.tail, &LogEntry::skip(self.ino, lines)).flush());
        for line in 1..lines {
            // Queued positions do not survive a crash, so the store need not.
            let _ = region.store_u64(self.tail + line * LINE, 0);
        }
        self.lines += lines;
    }

    /// Takes the last entry, to be fenced together with the flight that has the others. `None` if there are no
    /// entries.
    pub(crate) fn take_newest(&mut self) -> Option<Pm<'a, [u8], InFlight>> {
        self.newest.take()
    }

    /// True if it needed new parts.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Makes the addition part of `log`, after it was committed.
    pub(crate) fn keep(mut self, log: &mut Log) {
        log.tail = self.tail;
        log.lines += self.lines;
        log.parts.append(&mut self.parts);
    }

    /// Makes a part with room for an entry of `length` bytes.
    fn new_part(&mut self, length: u64, flight: &mut Flight) -> Result<LogPart> {
        let part = match self.new_area(length, flight) {
            Some(area) => area,
            None => self.new_page(flight)?,
        };
        self.parts.push(part);
        Ok(part)
    }

    fn new_area(&mut self, length: u64, flight: &mut Flight) -> Option<LogPart> {
        if self.areas_left == 0 || length > INODE_BYTES - AREA_LOG {
            self.areas_left = 0;
            return None;
        }
        let (slot, head) = self.ground.table.allocate_area(self.ino)?;
        self.areas_left -= 1;
        flight.add(self.ground.region.write(slot, &head).flush());
        Some(LogPart(slot + AREA_LOG))
    }

    fn new_page(&mut self, flight: &mut Flight) -> Result<LogPart> {
        let page = self.allocate_page()?;
        self.areas_left = 0;
        let footer = PageFooter::new(page, self.ino);
        flight.add(self.ground.region.write(page + ENTRY_BYTES_MAX as u64, &footer).flush());
        Ok(LogPart(page))
    }

    fn allocate_page(&self) -> Result<u64> {
        let space = self.ground.space;
        let block = space.allocate_one("log", self.purpose)?;
        if block.address() != inline_end_position(self.slot) {
            return Ok(block.address());
        }
        let other = space.allocate_one("log", self.purpose);
        space.free(BlockRun { start: block, count: 1 });
        Ok(other?.address())
    }
}

impl Drop for Addition<'_> {
    fn drop(&mut self) {
        if !self.parts.is_empty() && !self.ground.panics.abandons() {
            self.ground.free(&self.parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES};
    use pmem::{DeviceSpec, OpenOptions};

    /// A part of a log that was written anew has no entries of the log before where the new one skips lines.
    #[test]
    fn skipped_log_lines_contain_no_entries_of_an_earlier_log() {
        let region = Region::create(&DeviceSpec::Memory, 16 << 20, &OpenOptions::default()).unwrap();
        let geometry = Geometry::of(16 << 20).unwrap();
        let space = Space::new(region.clone(), geometry, 1, false);
        let (slot, ino) = (geometry.first_segment() * SEGMENT_BYTES, 7);
        space.adopt_table_segment(geometry.first_segment());
        let table = InodeTable::new(region.clone(), Vec::new());
        let panics = Panics::default();
        let ground = LogDevice { region: &region, space: &space, table: &table, panics: &panics };
        let encoded = |entry: LogEntry| {
            let mut lines = Vec::new();
            entry.encode(ino, &mut lines);
            (entry, lines)
        };
        let (short, short_lines) = encoded(LogEntry::Unname { cookie: 1, time: 0 });
        let value = XattrValue::Inline(vec![1; 200]);
        let (long, long_lines) = encoded(LogEntry::XattrSet { name: b"user.long".to_vec(), value, time: 0 });
        let mut flight = Flight::new();
        let mut first = Log { head: slot + INLINE_LOG, tail: slot + INLINE_LOG, ..Log::default() };
        let mut addition = Addition::new(ground, slot, ino, &first, 0, Purpose::Promised);
        let positions: Vec<u64> = (0..5).map(|_| addition.push(&short, &short_lines, &mut flight).unwrap()).collect();
        addition.take_newest().into_iter().for_each(|newest| flight.add(newest));
        addition.keep(&mut first);
        assert!(positions.iter().all(|at| entry_at(&region, slot, ino, &first, *at).0.is_some()));
        let mut addition = Addition::new_chain(ground, slot, ino, 0, true, &mut flight).unwrap();
        addition.push(&short, &short_lines, &mut flight).unwrap();
        addition.push(&long, &long_lines, &mut flight).unwrap();
        addition.take_newest().into_iter().for_each(|newest| flight.add(newest));
        let mut second = Log { head: slot + INLINE_LOG, ..Log::default() };
        addition.keep(&mut second);
        let _ = region.fence(flight);
        let is_entry = |at: &u64| second.holds(slot, *at) && entry_at(&region, slot, ino, &second, *at).0.is_some();
        let entries: Vec<bool> = positions.iter().map(is_entry).collect();
        assert_eq!(entries, [true, true, false, false, false], "the second is the one that skips");
    }

    #[test]
    fn the_block_after_the_last_inode_slot_is_not_taken_for_a_log_page() {
        let region = Region::create(&DeviceSpec::Memory, 16 << 20, &OpenOptions::default()).unwrap();
        let geometry = Geometry::of(16 << 20).unwrap();
        let space = Space::new(region.clone(), geometry, 1, false);
        let (first, ino) = (geometry.first_segment(), 4095);
        space.adopt_table_segment(first);
        let slot = (first + 1) * SEGMENT_BYTES - INODE_BYTES;
        let behind = BlockNumber((first + 1) * SEGMENT_BLOCKS);
        for block in behind.0 + 2..geometry.blocks() {
            space.mark_used(BlockNumber(block));
        }
        let mut head = InodeHead::new(slot, ino, FileKind::Regular, 0, 1, 0);
        let mut log = Log { head: head.head, tail: head.head, ..Log::default() };
        let mut flight = Flight::new();
        // Without segments the table is full, so there are no areas.
        let table = InodeTable::new(region.clone(), Vec::new());
        let panics = Panics::default();
        let ground = LogDevice { region: &region, space: &space, table: &table, panics: &panics };
        let mut addition = Addition::new(ground, slot, ino, &log, AREAS_MAX, Purpose::Promised);
        let mut lines = Vec::new();
        let entry = LogEntry::Unname { cookie: 1, time: 0 };
        entry.encode(ino, &mut lines);
        for _ in 0..20 {
            addition.push(&entry, &lines, &mut flight).unwrap();
        }
        let _ = region.fence((flight, addition.take_newest()));
        addition.keep(&mut log);
        assert_eq!(log.parts, [LogPart(behind.address() + BLOCK_BYTES)]);
        assert_eq!(space.free_blocks(), 1, "the block that cannot serve is free for others");
        head.commit = log.tail;
        head.overflow = region.load_u64(slot + OVERFLOW_WORD);
        assert_eq!(walk(&region, &geometry, slot, &head, |_, _, _| Ok(())).unwrap(), log);
    }
}
