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
use pmem::{Flight, Region};

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

/// Lines that lie next to one another, and the word that continues them.
struct Area {
    end: u64,
    next_word: u64,
}

impl Area {
    fn of(slot: u64, position: u64) -> Area {
        if (slot + INLINE_LOG..=slot + INODE_BYTES).contains(&position) {
            Area { end: slot + INODE_BYTES, next_word: slot + OVERFLOW_WORD }
        } else {
            let footer = position / BLOCK_BYTES * BLOCK_BYTES + ENTRY_BYTES_MAX as u64;
            Area { end: footer, next_word: footer }
        }
    }
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
    if position != slot + INLINE_LOG {
        enter_page(region, geometry, head.ino, position).map_err(|what| corrupt(what, slot))?;
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
        enter_page(region, geometry, head.ino, next).map_err(|what| corrupt(what, area.next_word))?;
        if log.pages.len() as u64 > geometry.blocks() {
            return Err(corrupt("log pages form a loop", area.next_word));
        }
        log.pages.push(next);
        position = next;
    }
}

fn enter_page(region: &Region, geometry: &Geometry, ino: u64, page: u64) -> std::result::Result<(), &'static str> {
    if !page.is_multiple_of(BLOCK_BYTES) || !geometry.holds_data(page, BLOCK_BYTES) {
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
    lines: u64,
    pages: Vec<u64>,
}

impl<'a> Addition<'a> {
    /// An addition of nothing yet at the tail of `log`.
    pub fn new(region: &'a Region, space: &'a Space, slot: u64, ino: u64, log: &Log, purpose: Purpose) -> Addition<'a> {
        Addition { space, region, slot, ino, purpose, tail: log.tail, lines: 0, pages: Vec::new() }
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
        let mut addition = Addition { space, region, slot, ino, purpose, tail: 0, lines: 0, pages: Vec::new() };
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
        flight.add(self.region.write(position, entry).flush());
        self.tail += entry.len() as u64;
        self.lines += entry.len() as u64 / LINE;
        Ok(position)
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
        let page = self.space.allocate_one("log", self.purpose)?.address();
        self.pages.push(page);
        let footer = PageFooter::new(page, self.ino);
        flight.add(self.region.write(page + ENTRY_BYTES_MAX as u64, &footer).flush());
        Ok(page)
    }
}

impl Drop for Addition<'_> {
    fn drop(&mut self) {
        for page in &self.pages {
            self.space.free(BlockRun { start: BlockNumber::containing(*page), count: 1 });
        }
    }
}
