//! The rec-tree compared with a model naive enough to be right: a list of records per page, and a search through all
//! of them for each byte that is looked up.
//!
//! Bytes become operations as in `model/script.rs`: records of eight bytes; dropping one drops one operation. The
//! first byte selects a variant, and whether there is enough memory.
//!
//! ```text
//! | variant, memory | operation  place place  place place  length  file  offset | ...
//! ```
//!
//! With enough memory the tree must answer exactly as the model. Without, and for absurd lengths, the answer must be
//! sorted, without overlaps, merged as far as possible, within the range, and must name only recorded bytes of open
//! files. A compare decides about the rest, so nothing else could do harm.

use nvfold_causality::{CopySource, FileToken, PAGE_BYTES, RecTree, TreeOptions, Variant};
use std::collections::BTreeMap;

/// Bytes before the first record.
pub const HEAD_BYTES: usize = 1;
/// Bytes of one operation.
pub const RECORD_BYTES: usize = 8;
/// Number of kinds of operations that the first byte of a record selects.
pub const KINDS: u8 = 12;
/// Number of cases that the head selects: each variant, with enough memory and without.
pub const HEADS: u8 = 6;
/// Operations that are run; more are ignored.
const OPS_MAX: usize = 200;

const FILES: usize = 4;
/// Addresses: around the ends of pages and of groups of pages, and at the end of the address space.
const PLACES: [u64; 8] =
    [0x1000, 0x1_0000_0000, 0x1_0000_8000, 0x7fff_fff0_0ff0, 0x7fff_fff1_0000, 0xf000, 0, u64::MAX - 0x5000];
/// Lengths that no real program uses.
const ABSURD: [u64; 5] = [1 << 20, 1 << 32, 1 << 63, u64::MAX - 5000, u64::MAX];

/// Runs one sequence.
///
/// # Panics
/// If an answer of the tree is wrong.
pub fn run(bytes: &[u8]) {
    let (head, records) = bytes.split_at(HEAD_BYTES.min(bytes.len()));
    let head = head.first().copied().unwrap_or(0) % HEADS;
    let variant = [Variant::Icid, Variant::DeleteOverlapping, Variant::KeepAll][head as usize % 3];
    let mut pair = Pair::new(variant, head < 3);
    for record in records.as_chunks::<RECORD_BYTES>().0.iter().take(OPS_MAX) {
        pair.apply(record);
    }
    for place in PLACES {
        pair.compare(place.saturating_sub(100), 0x6000);
    }
    pair.compare_absurd();
}

#[derive(Clone, Copy)]
struct Record {
    file: FileToken,
    page_offset: u64,
    length: u64,
    file_offset: u64,
}

impl Record {
    fn end(&self) -> u64 {
        self.page_offset + self.length
    }
}

#[derive(Clone, Copy)]
struct Area {
    start: u64,
    end: u64,
    file: FileToken,
    file_offset: u64,
}

/// The origin of a byte.
type Byte = Option<(FileToken, u64)>;

/// The model.
struct Naive {
    variant: Variant,
    /// The records of each page, the oldest first.
    pages: BTreeMap<u64, Vec<Record>>,
    /// The areas, the oldest first.
    areas: Vec<Area>,
}

impl Naive {
    fn insert(&mut self, address: u64, length: u64, file: FileToken, file_offset: u64) {
        for (page, from, to, start) in pages_of(address, address.saturating_add(length)) {
            let new =
                Record { file, page_offset: from, length: to - from, file_offset: file_offset + (start - address) };
            let records = self.pages.entry(page).or_default();
            match self.variant {
                // The end of a long copy deletes the records that it overlaps; newer records on top of those stay.
                Variant::Icid
                    if length >= PAGE_BYTES
                        && start != address
                        && start + (to - from) == address.saturating_add(length)
                        && records.last().is_some_and(|last| last.page_offset >= new.end()) =>
                {
                    records.retain(|old| old.page_offset >= new.end());
                    records.insert(0, new);
                    continue;
                }
                Variant::Icid => {
                    records.retain(|old| old.page_offset < new.page_offset);
                    // A record that continues the last one makes it longer.
                    if let Some(last) = records.last_mut()
                        && last.end() == new.page_offset
                        && last.file == new.file
                        && last.file_offset + last.length == new.file_offset
                    {
                        last.length += new.length;
                        continue;
                    }
                }
                Variant::DeleteOverlapping => {
                    records.retain(|old| old.end() <= new.page_offset || new.end() <= old.page_offset);
                }
                Variant::KeepAll => {}
            }
            records.push(new);
        }
    }

    /// Drops the last records as long as they lie within the range whose origin is no longer known.
    fn drop_last(&mut self, address: u64, end: u64, whole_pages: bool) {
        for (page, from, to, _) in pages_of(address, end) {
            let Some(records) = self.pages.get_mut(&page) else { continue };
            if whole_pages && (from, to) == (0, PAGE_BYTES) {
                records.clear();
            }
            while records.last().is_some_and(|last| from <= last.page_offset && last.end() <= to) {
                records.pop();
            }
        }
    }

    /// Returns the origin of each byte of a range: from the newest record that has it, else from the newest area.
    fn bytes(&self, address: u64, end: u64, is_open: impl Fn(FileToken) -> bool) -> Vec<Byte> {
        let mut bytes = Vec::new();
        for (page, from, to, start) in pages_of(address, end) {
            let records = self.pages.get(&page).map_or(&[][..], Vec::as_slice);
            for at in from..to {
                let has = |record: &&Record| record.page_offset <= at && at < record.end();
                let record = records.iter().rev().find(has).map(|record| {
                    let offset = record.file_offset + (at - record.page_offset);
                    (record.file, offset)
                });
                // The bytes of a forgotten file have no origin, and what was recorded there before is gone.
                let record = record.filter(|(file, _)| is_open(*file));
                let address = start + (at - from);
                let area = self.areas.iter().rev().find(|area| area.start <= address && address < area.end);
                let area = area.map(|area| (area.file, area.file_offset + (address - area.start)));
                bytes.push(record.or(area).filter(|(file, _)| is_open(*file)));
            }
        }
        bytes
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let part = |area: &Area, from: u64, to: u64| {
            let (from, to) = (area.start.max(from), area.end.min(to));
            (from < to).then(|| Area {
                start: from,
                end: to,
                file_offset: area.file_offset + (from - area.start),
                ..*area
            })
        };
        if start < end {
            let parts = |area: &Area| [part(area, 0, start), part(area, end, u64::MAX)].into_iter().flatten();
            self.areas = self.areas.iter().flat_map(parts).collect();
        }
    }
}

/// Returns the pages of a range: number, begin and end of the range in the page, and the address of the begin.
fn pages_of(address: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let mut start = address;
    std::iter::from_fn(move || {
        let (page, from) = (start / PAGE_BYTES, start % PAGE_BYTES);
        let to =
            PAGE_BYTES.min(from.checked_add(end.checked_sub(start).filter(|left| *left > 0)?).unwrap_or(PAGE_BYTES));
        let page_start = start;
        start += to - from;
        Some((page, from, to, page_start))
    })
}

/// The tree and the model.
struct Pair {
    tree: RecTree,
    naive: Naive,
    /// Whether there is enough memory for everything.
    is_exact: bool,
    files: [FileToken; FILES],
    /// Parts of files that were read, mapped or copied: file, first byte, end.
    recorded: Vec<(FileToken, u64, u64)>,
}

impl Pair {
    fn new(variant: Variant, is_exact: bool) -> Pair {
        // The smaller tree has two parts, and memory for some 500 records that do not share an array.
        let memory_bytes_max = if is_exact { 8 << 20 } else { 160 << 10 };
        let tree = RecTree::new(TreeOptions { memory_bytes_max, files_max: FILES as u32, ..TreeOptions::of(variant) });
        let files = std::array::from_fn(|_| tree.open_file().expect("as many as may be"));
        let naive = Naive { variant, pages: BTreeMap::new(), areas: Vec::new() };
        Pair { tree, naive, is_exact, files, recorded: Vec::new() }
    }

    fn apply(&mut self, record: &[u8; RECORD_BYTES]) {
        let [kind, high, low, other_high, other_low, length, file, extra] = *record;
        let place = |high: u8, low: u8| {
            PLACES[high as usize % PLACES.len()].saturating_add(u64::from(high >> 3) * 512 + u64::from(low) * 3)
        };
        let (address, other) = (place(high, low), place(other_high, other_low));
        let length = match length {
            0..=200 => u64::from(length) * 5,
            201..=250 => u64::from(length - 200) * 400,
            _ if self.is_exact => PAGE_BYTES,
            _ => ABSURD[length as usize % ABSURD.len()],
        };
        let slot = file as usize % FILES;
        let file = self.files[slot];
        let file_offset = match extra {
            0..=250 => u64::from(extra) * 1000,
            _ => u64::MAX - u64::from(255 - extra) * 1000,
        };
        match kind % KINDS {
            // As a program that assembles small pieces.
            2 => {
                let piece = 1 + length % 100;
                let stride = piece + u64::from(record[6] >> 4);
                for at in 0..1 + u64::from(extra % 48) {
                    let offset = at * (stride + 1);
                    self.recorded.push((file, offset, offset + piece));
                    self.tree.record_read(address.saturating_add(at * stride), piece, file, offset);
                    if self.is_exact {
                        self.naive.insert(address.saturating_add(at * stride), piece, file, offset);
                    }
                }
            }
            0..=1 => {
                let length = length.min(u64::MAX - file_offset);
                self.recorded.push((file, file_offset, file_offset + length));
                self.tree.record_read(address, length, file, file_offset);
                if self.is_exact {
                    self.naive.insert(address, length, file, file_offset);
                }
            }
            3..=6 => {
                self.tree.record_copy(address, other, length);
                if self.is_exact {
                    self.copy(address, other, length);
                }
            }
            7 => {
                self.tree.forget_file(file);
                let new = self.tree.open_file().expect("there is a place again");
                assert!(
                    new != file && new.number() == file.number() && self.tree.is_open(new) && !self.tree.is_open(file)
                );
                self.files[slot] = new;
                if extra % 2 == 1 {
                    self.tree.remove_forgotten();
                    self.remove_forgotten();
                }
            }
            8 => {
                let length = length.min(u64::MAX - file_offset);
                let end = address.saturating_add(length);
                self.recorded.push((file, file_offset, file_offset + length));
                assert_eq!(self.tree.map_area(address, length, file, file_offset), address < end);
                self.naive.drop_last(address, self.cut(address, end), true);
                self.naive.unmap(address, end);
                if address < end {
                    self.naive.areas.push(Area { start: address, end, file, file_offset });
                }
            }
            9 => {
                self.tree.unmap_area(address, length);
                self.naive.unmap(address, address.saturating_add(length));
                self.naive.drop_last(address, self.cut(address, address.saturating_add(length)), true);
            }
            10 => {
                self.tree.forget_range(address, length);
                self.naive.drop_last(address, self.cut(address, address.saturating_add(length)), true);
            }
            // What a try may drop is unknown unless it reports that it dropped nothing, so tries run only where
            // answers are not compared exactly.
            _ if self.is_exact => {}
            _ if extra % 2 == 0 => _ = self.tree.try_record_copy(address, other, length),
            _ => _ = self.tree.try_record_read(address, length.min(u64::MAX - file_offset), file, 0),
        }
        if kind % KINDS == 11 {
            self.recorded.push((file, 0, length.min(u64::MAX - file_offset)));
        }
        self.compare(address, length.min(20_000));
        self.compare(address & !0xfff, 0x1000);
        self.compare(other, 5000);
    }

    /// Shortens absurd ranges, which the model does not walk and is not compared on.
    fn cut(&self, address: u64, end: u64) -> u64 {
        if self.is_exact { end } else { address.saturating_add(1 << 20).min(end) }
    }

    fn copy(&mut self, destination: u64, source: u64, length: u64) {
        let length = length.min(u64::MAX - source).min(u64::MAX - destination);
        if destination == source {
            return;
        }
        let sources = merged(&self.naive.bytes(source, source + length, |file| self.tree.is_open(file)));
        let mut known = 0;
        let end = CopySource { at: length, ..CopySource::default() };
        for part in sources.iter().chain([&end]) {
            if self.naive.variant != Variant::KeepAll {
                // A part without origin lies in several groups of pages, which makes no difference.
                self.naive.drop_last(destination + known, destination + part.at, false);
            }
            known = part.at + part.length;
        }
        for part in sources {
            self.naive.insert(destination + part.at, part.length, part.file, part.file_offset);
        }
    }

    fn remove_forgotten(&mut self) {
        let tree = &self.tree;
        self.naive.pages.values_mut().for_each(|records| records.retain(|record| tree.is_open(record.file)));
    }

    fn compare(&self, address: u64, length: u64) {
        let mut sources = Vec::new();
        self.tree.origins(address, length, &mut sources);
        self.judge(length, &sources);
        if self.is_exact {
            let end = address.saturating_add(length);
            let known = merged(&self.naive.bytes(address, end, |file| self.tree.is_open(file)));
            assert_eq!(sources, known, "{length} bytes at {address:#x}");
        }
    }

    fn compare_absurd(&self) {
        let mut sources = Vec::new();
        for (address, length) in [(0, u64::MAX), (5, 1 << 63), (1 << 63, 1 << 63)] {
            self.tree.origins(address, length, &mut sources);
            self.judge(length, &sources);
        }
    }

    /// Checks the conditions on every answer.
    fn judge(&self, length: u64, sources: &[CopySource]) {
        for part in sources {
            assert!(part.length > 0 && part.at.checked_add(part.length).is_some_and(|end| end <= length), "{part:?}");
            assert!(self.tree.is_open(part.file), "{part:?} is of a forgotten file");
            let mut known: Vec<_> = self.recorded.iter().filter(|(file, ..)| *file == part.file).collect();
            known.sort_unstable_by_key(|(_, first, _)| *first);
            let mut reached = part.file_offset;
            for (_, first, end) in known {
                if *first <= reached {
                    reached = reached.max(*end);
                }
            }
            assert!(reached >= part.file_offset + part.length, "{part:?} was never recorded");
        }
        for (part, next) in sources.iter().zip(sources.iter().skip(1)) {
            assert!(part.at + part.length <= next.at, "{part:?} and {next:?} overlap");
            let is_one = part.at + part.length == next.at
                && part.file == next.file
                && part.file_offset + part.length == next.file_offset;
            assert!(!is_one, "{part:?} and {next:?} are one");
        }
    }
}

/// Returns bytes as parts that are as long as possible.
fn merged(bytes: &[Byte]) -> Vec<CopySource> {
    let mut parts: Vec<CopySource> = Vec::new();
    for (at, byte) in (0..).zip(bytes) {
        let Some((file, file_offset)) = *byte else { continue };
        match parts.last_mut() {
            Some(last)
                if last.at + last.length == at
                    && last.file == file
                    && last.file_offset + last.length == file_offset =>
            {
                last.length += 1;
            }
            _ => parts.push(CopySource { at, length: 1, file, file_offset }),
        }
    }
    parts
}
