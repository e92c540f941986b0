//! The log of one inode: walking it and adding to it.
//!
//! An area of the log is either the five inline lines of the inode slot or a 4 KiB page of 63 lines.
//! Each ends in a word that names the next page. A position is a media address; from the position alone
//! follow its area and its end.
//!
//! ```text
//! slot: | head | A | B | e e e e e |            page: | e e e ... e | next |
//!          \_ overflow ____________________________/              \___ next page ...
//! ```
//!
//! Adding writes beyond the tail, where nothing is read; the commit word moves the tail over it. A new
//! page is chained before that and is unreachable until then, because a walk ends at the tail.

use crate::error::{Error, Result};
use crate::media::inode::{INLINE_LOG, INODE_BYTES, InodeHead, OVERFLOW_WORD};
use crate::media::log_entry::{ENTRY_BYTES_MAX, LINE, LogEntry, PageFooter};
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Purpose, Space};
use pmem::{Flight, InFlight, Pm, Region};

/// Where a log lies, kept while its inode is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// First line.
    pub head: u64,
    /// First byte after the last entry.
    pub tail: u64,
    /// Its pages, in order.
    pub pages: Vec<u64>,
    /// Lines in use, dead ones included.
    pub lines: u64,
}

impl Log {
    /// Whether a line of it, not just of an area that was its own once, lies at `position`.
    pub fn holds(&self, slot: u64, position: u64) -> bool {
        let end = end_of_inline(slot);
        let is_before_tail = |start: u64, end: u64| !(start..=end).contains(&self.tail) || position < self.tail;
        if (slot + INLINE_LOG..end).contains(&position) {
            return self.head == slot + INLINE_LOG && is_before_tail(slot + INLINE_LOG, end);
        }
        let page = position / BLOCK_BYTES * BLOCK_BYTES;
        let footer = page + ENTRY_BYTES_MAX as u64;
        let is_line = position.is_multiple_of(LINE) && position < footer;
        is_line && is_before_tail(page, footer) && self.pages.contains(&page)
    }
}

/// Lines that lie next to one another, and the word that continues them.
struct Area {
    end: u64,
    next_word: u64,
}

impl Area {
    fn of(slot: u64, position: u64) -> Area {
        if (slot + INLINE_LOG..=end_of_inline(slot)).contains(&position) {
            Area { end: end_of_inline(slot), next_word: slot + OVERFLOW_WORD }
        } else {
            let footer = position / BLOCK_BYTES * BLOCK_BYTES + ENTRY_BYTES_MAX as u64;
            Area { end: footer, next_word: footer }
        }
    }
}

/// Where the inline lines end. In the last slot of a table segment this is the first byte of the next segment: the
/// block there is never a page of this log, so that a position always tells its area.
fn end_of_inline(slot: u64) -> u64 {
    slot + INODE_BYTES
}

/// Bytes that fit behind `tail` without a new page.
pub fn room(slot: u64, tail: u64) -> u64 {
    Area::of(slot, tail).end - tail
}

/// Reads the log that `head` commits, oldest entry first: `each` gets the position of the entry, the position
/// after it, and the entry. Every address is checked before it is followed.
pub fn walk(
    region: &Region,
    geometry: &Geometry,
    slot: u64,
    head: &InodeHead,
    mut each: impl FnMut(u64, u64, LogEntry) -> Result<()>,
) -> Result<Log> {
    let corrupt = |what: &str, at: u64| Error::Corrupt { what: format!("inode {}: {what}", head.ino), at };
    let mut log = Log { head: head.head, tail: head.tail(), pages: Vec::new(), lines: 0 };
    let mut position = head.head;
    let mut buffer = [0u8; ENTRY_BYTES_MAX];
    // A loop of pages comes back to the page noted at the last power of two (Brent).
    let mut noted = 0;
    if position != slot + INLINE_LOG {
        enter_page(region, geometry, slot, head.ino, position).map_err(|what| corrupt(what, slot))?;
        log.pages.push(position);
    }
    loop {
        let area = Area::of(slot, position);
        let stop = if (position..=area.end).contains(&log.tail) { log.tail } else { area.end };
        if !(stop - position).is_multiple_of(LINE) {
            return Err(corrupt("log tail", slot));
        }
        let lines = &mut buffer[..(stop - position) as usize];
        region.read_into(position, lines);
        let mut at = 0;
        while at < lines.len() {
            let here = position + at as u64;
            let (entry, count) = LogEntry::decode(head.ino, &lines[at..]).map_err(|what| corrupt(what, here))?;
            at += (count * LINE) as usize;
            each(here, position + at as u64, entry)?;
            log.lines += count;
        }
        if stop == log.tail {
            return Ok(log);
        }
        let next = region.load_u64(area.next_word);
        enter_page(region, geometry, slot, head.ino, next).map_err(|what| corrupt(what, area.next_word))?;
        // A page is chained with its first entry. A tail in front of it would be a second name for the place where the
        // area before it ends.
        if next == log.tail {
            return Err(corrupt("log tail", slot));
        }
        if next == noted || next == position {
            return Err(corrupt("log pages form a loop", area.next_word));
        }
        log.pages.push(next);
        if log.pages.len().is_power_of_two() {
            noted = next;
        }
        position = next;
    }
}

fn enter_page(
    region: &Region,
    geometry: &Geometry,
    slot: u64,
    ino: u64,
    page: u64,
) -> std::result::Result<(), &'static str> {
    if !page.is_multiple_of(BLOCK_BYTES) || !geometry.holds_data(page, BLOCK_BYTES) || page == end_of_inline(slot) {
        return Err("log page address");
    }
    let footer: PageFooter = region.read(page + ENTRY_BYTES_MAX as u64);
    if footer.belongs(page, ino) { Ok(()) } else { Err("log page of another inode") }
}

/// Entries written beyond the tail of a log, not yet committed. Dropped without `keep`, its new pages
/// are freed again.
pub struct Addition<'a> {
    space: &'a Space,
    region: &'a Region,
    slot: u64,
    ino: u64,
    purpose: Purpose,
    /// The tail once committed.
    pub tail: u64,
    /// The last entry. Kept out of the flight, for the commit word is made from it once it is durable.
    newest: Option<Pm<'a, [u8], InFlight>>,
    lines: u64,
    pages: Vec<u64>,
}

impl<'a> Addition<'a> {
    /// An addition of nothing yet at the tail of `log`.
    pub fn new(region: &'a Region, space: &'a Space, slot: u64, ino: u64, log: &Log, purpose: Purpose) -> Addition<'a> {
        Addition { space, region, slot, ino, purpose, tail: log.tail, newest: None, lines: 0, pages: Vec::new() }
    }

    /// An addition that begins a new chain (log compaction): in the inline lines, or in a page.
    pub fn new_chain(
        region: &'a Region,
        space: &'a Space,
        slot: u64,
        ino: u64,
        inline: bool,
        flight: &mut Flight,
    ) -> Result<Addition<'a>> {
        let purpose = Purpose::Promised;
        let (tail, newest, lines, pages) = (0, None, 0, Vec::new());
        let mut addition = Addition { space, region, slot, ino, purpose, tail, newest, lines, pages };
        addition.tail = if inline { slot + INLINE_LOG } else { addition.new_page(flight)? };
        Ok(addition)
    }

    /// Writes one encoded entry. Returns its position.
    pub fn push(&mut self, entry: &[u8], flight: &mut Flight) -> Result<u64> {
        debug_assert!(!entry.is_empty() && entry.len().is_multiple_of(LINE as usize) && entry.len() <= ENTRY_BYTES_MAX);
        let area = Area::of(self.slot, self.tail);
        if self.tail + entry.len() as u64 > area.end {
            let page = self.new_page(flight)?;
            let left = (area.end - self.tail) / LINE;
            if left > 0 {
                flight.add(self.region.write(self.tail, &LogEntry::skip(self.ino, left)).flush());
                self.lines += left;
            }
            flight.add(self.region.store_u64(area.next_word, page).flush());
            self.tail = page;
        }
        let position = self.tail;
        if let Some(older) = self.newest.replace(self.region.write(position, entry).flush()) {
            flight.add(older);
        }
        self.tail += entry.len() as u64;
        self.lines += entry.len() as u64 / LINE;
        Ok(position)
    }

    /// The last entry, to be fenced together with the flight that took the others. `None` when there are no entries.
    pub fn take_newest(&mut self) -> Option<Pm<'a, [u8], InFlight>> {
        self.newest.take()
    }

    /// Whether it needed pages.
    pub fn has_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    /// The addition is committed: it becomes part of `log`.
    pub fn keep(mut self, log: &mut Log) {
        log.tail = self.tail;
        log.lines += self.lines;
        log.pages.append(&mut self.pages);
    }

    fn new_page(&mut self, flight: &mut Flight) -> Result<u64> {
        let page = self.allocate_page()?;
        self.pages.push(page);
        let footer = PageFooter::new(page, self.ino);
        flight.add(self.region.write(page + ENTRY_BYTES_MAX as u64, &footer).flush());
        Ok(page)
    }

    fn allocate_page(&self) -> Result<u64> {
        let block = self.space.allocate_one("log", self.purpose)?;
        if block.address() != end_of_inline(self.slot) {
            return Ok(block.address());
        }
        let other = self.space.allocate_one("log", self.purpose);
        self.space.free(BlockRun { start: block, count: 1 });
        Ok(other?.address())
    }
}

impl Drop for Addition<'_> {
    fn drop(&mut self) {
        for page in &self.pages {
            self.space.free(BlockRun { start: BlockNumber::containing(*page), count: 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{SEGMENT_BLOCKS, SEGMENT_BYTES};
    use crate::words::FileKind;
    use pmem::{DeviceSpec, OpenOptions};

    #[test]
    fn the_block_behind_the_last_slot_of_a_table_segment_is_no_page_of_its_log() {
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
        let mut addition = Addition::new(&region, &space, slot, ino, &log, Purpose::Promised);
        let mut entry = Vec::new();
        LogEntry::Unname { cookie: 1, time: 0 }.encode(ino, &mut entry);
        for _ in 0..20 {
            addition.push(&entry, &mut flight).unwrap();
        }
        let _ = region.fence((flight, addition.take_newest()));
        addition.keep(&mut log);
        assert_eq!(log.pages, [behind.address() + BLOCK_BYTES]);
        assert_eq!(space.free_blocks(), 1, "the block that cannot serve is free for others");
        head.commit = log.tail;
        head.overflow = region.load_u64(slot + OVERFLOW_WORD);
        assert_eq!(walk(&region, &geometry, slot, &head, |_, _, _| Ok(())).unwrap(), log);
    }
}
