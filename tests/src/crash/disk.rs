//! A device that can be reset: the guaranteed content of the media, with one crash state at a time on top.
//!
//! The problem: building each crash image anew copies the whole device for a state that differs in a few words. The
//! idea: one region is kept at the guaranteed image; a state stores its words there; afterwards exactly the lines
//! that were stored to are copied back. The region records itself, so those lines are known.

use hashbrown::HashMap;
use std::collections::BTreeMap;

use pmem::{Action, DeviceSpec, Event, FlushMode, LINE_BYTES, OpenOptions, PendingWord, Region};

const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: u64 = 8;
const PAGE_LINES: u64 = PAGE_BYTES / LINE_BYTES;

type Page = [u8; PAGE_BYTES as usize];

/// The content of a device, and its hash.
#[derive(Clone, Default)]
pub struct Image {
    /// Each page with its part of the hash; pages that were never written are absent and read as zeros.
    pages: Vec<Option<(u128, Box<Page>)>>,
    hash: u128,
}

impl Image {
    /// Returns the present content of a region.
    pub fn of(region: &Region) -> Image {
        let mut image = Image::default();
        for range in region.allocated_ranges(0, region.len_bytes()) {
            for page in range.step_by(PAGE_BYTES as usize) {
                let bytes: Page = region.read(page);
                for (at, word) in (page..).step_by(8).zip(bytes.as_chunks().0) {
                    if *word != [0; 8] {
                        image.set(at, u64::from_le_bytes(*word));
                    }
                }
            }
        }
        image
    }

    /// Makes a recorded region of `bytes` with this content; the recording is empty.
    pub fn region(&self, bytes: u64) -> Region {
        let options =
            OpenOptions { record: true, flush: FlushMode::Always, huge_pages: false, ..OpenOptions::default() };
        let region = Region::create(&DeviceSpec::Memory, bytes, &options).expect("a memory device");
        self.store_to(&region);
        region.take_recording();
        region
    }

    /// Stores this content to a region of zeros.
    pub fn store_to(&self, region: &Region) {
        for (page, bytes) in (0..).zip(&self.pages) {
            if let Some((_, bytes)) = bytes {
                let _ = region.write(page * PAGE_BYTES, &bytes[..]);
            }
        }
    }

    /// Returns a hash that identifies the image.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Returns whether the image has these bytes at an aligned `offset`.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let words = (offset..).step_by(WORD_BYTES as usize);
        words
            .zip(bytes.chunks(WORD_BYTES as usize))
            .all(|(at, word)| self.word(at).to_le_bytes()[..word.len()] == *word)
    }

    /// Returns whether a page has a byte other than zero. Whether it was ever written does not count, because the
    /// states left by a crash must not depend on the states that were tried before.
    pub fn has_page(&self, page: u64) -> bool {
        self.hash_of(page) != 0
    }

    /// Returns the aligned word at `offset`.
    pub fn word(&self, offset: u64) -> u64 {
        let Some(page) = self.page(offset / PAGE_BYTES) else { return 0 };
        let at = (offset % PAGE_BYTES) as usize;
        u64::from_le_bytes(*page[at..].first_chunk().expect("words are aligned"))
    }

    fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(page as usize)?.as_ref().map(|(_, bytes)| &**bytes)
    }

    /// Returns a page's part of the hash.
    fn hash_of(&self, page: u64) -> u128 {
        self.pages.get(page as usize).and_then(Option::as_ref).map_or(0, |(hash, _)| *hash)
    }

    fn set(&mut self, offset: u64, value: u64) {
        let page = (offset / PAGE_BYTES) as usize;
        if page >= self.pages.len() {
            self.pages.resize(page + 1, None);
        }
        let (hash, bytes) = self.pages[page].get_or_insert_with(|| (0, Box::new([0; PAGE_BYTES as usize])));
        let at = (offset % PAGE_BYTES) as usize;
        let word: &mut [u8; 8] = bytes[at..].first_chunk_mut().expect("words are aligned");
        let change = mix(offset, value).wrapping_sub(mix(offset, u64::from_le_bytes(*word)));
        *hash = hash.wrapping_add(change);
        self.hash = self.hash.wrapping_add(change);
        *word = value.to_le_bytes();
    }

    fn line(&self, line: u64) -> [u8; LINE_BYTES as usize] {
        let at = line * LINE_BYTES;
        let page = self.page(at / PAGE_BYTES);
        page.map_or([0; LINE_BYTES as usize], |page| *page[(at % PAGE_BYTES) as usize..].first_chunk().expect("a line"))
    }
}

/// Returns a word's part of the hash of an image. The hash is a sum over all words, so it is easy to update.
fn mix(offset: u64, value: u64) -> u128 {
    if value == 0 {
        return 0;
    }
    let half = |salt: u64| {
        let mut bits = (offset ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ value;
        for multiplier in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, salt | 1] {
            bits = (bits ^ bits >> 31).wrapping_mul(multiplier);
        }
        u128::from(bits ^ bits >> 29)
    };
    half(0x2545_F491_4F6C_DD1D) << 64 | half(0xD6E8_FEB8_6659_FD93)
}

/// The difference of a crash state to the guaranteed image.
#[derive(Clone, Default)]
pub(super) struct Difference {
    /// Numbers of pages that were given back: zeros.
    zeroed: Vec<u64>,
    /// Words of the other pages.
    words: Vec<(u64, u64)>,
    hash: u128,
}

/// A region, the image to which it is reset, and the log for returning to older images.
pub(super) struct Disk {
    region: Region,
    guaranteed: Image,
    /// Words of older images, in the order in which they were replaced.
    replaced: Vec<(u64, u64)>,
    touched: Lines,
    /// Pages that were zeroed since the last reset.
    zeroed: Vec<u64>,
}

/// Lines that were stored to since the region last held the guaranteed image.
#[derive(Default)]
struct Lines {
    numbers: Vec<u64>,
    /// One bit per line: set if the line is among the numbers.
    bits: Vec<u64>,
}

impl Lines {
    fn insert(&mut self, line: u64) {
        let (word, bit) = ((line / 64) as usize, 1 << (line % 64));
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        if self.bits[word] & bit == 0 {
            self.bits[word] |= bit;
            self.numbers.push(line);
        }
    }

    /// Removes and returns all lines.
    fn take(&mut self) -> Vec<u64> {
        let numbers = std::mem::take(&mut self.numbers);
        numbers.iter().for_each(|line| self.bits[(line / 64) as usize] = 0);
        numbers
    }
}

impl Disk {
    /// Makes a device of `bytes` that holds `image`.
    pub(super) fn new(image: Image, bytes: u64) -> Disk {
        let region = image.region(bytes);
        Disk { region, guaranteed: image, replaced: Vec::new(), touched: Lines::default(), zeroed: Vec::new() }
    }

    /// Returns the region: the guaranteed image with the stores since then.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the guaranteed image.
    pub(super) fn image(&self) -> &Image {
        &self.guaranteed
    }

    /// Makes words part of the guaranteed image.
    pub(super) fn settle(&mut self, words: &[PendingWord]) {
        let difference = self.difference(words.iter());
        self.advance(&difference);
    }

    /// Returns the difference that words make, stored in this order.
    pub(super) fn difference<'w>(&self, words: impl Iterator<Item = &'w PendingWord> + Clone) -> Difference {
        // Giving a page back discards the stores to it before; a store after that settles the page.
        let zeroed: Vec<u64> = words.clone().filter(|word| word.punched).map(|word| word.offset / PAGE_BYTES).collect();
        let mut values: HashMap<u64, u64> = HashMap::new();
        for word in words.filter(|word| !zeroed.contains(&(word.offset / PAGE_BYTES))) {
            let offset = word.offset / WORD_BYTES * WORD_BYTES;
            let value = values.entry(offset).or_insert_with(|| self.guaranteed.word(offset));
            let mut bytes = value.to_le_bytes();
            let at = (word.offset - offset) as usize;
            bytes[at..at + word.bytes().len()].copy_from_slice(word.bytes());
            *value = u64::from_le_bytes(bytes);
        }
        let mut words: Vec<_> = values.into_iter().filter(|(at, value)| self.guaranteed.word(*at) != *value).collect();
        words.sort_unstable();
        let hash =
            zeroed.iter().fold(self.guaranteed.hash, |hash, page| hash.wrapping_sub(self.guaranteed.hash_of(*page)));
        let hash = words.iter().fold(hash, |hash, (offset, value)| {
            hash.wrapping_sub(mix(*offset, self.guaranteed.word(*offset))).wrapping_add(mix(*offset, *value))
        });
        Difference { zeroed, words, hash }
    }

    /// Returns the words of a difference, including those of zeroed pages.
    fn words_of(&self, difference: &Difference) -> Vec<(u64, u64)> {
        let of_page = |page: &u64| (page * PAGE_BYTES..(page + 1) * PAGE_BYTES).step_by(WORD_BYTES as usize);
        let zeroed = difference.zeroed.iter().flat_map(of_page).filter(|at| self.guaranteed.word(*at) != 0);
        zeroed.map(|at| (at, 0)).chain(difference.words.iter().copied()).collect()
    }

    /// Returns the difference of a state to the image that the disk began with.
    pub(super) fn since_base(&self, state: &Difference) -> Difference {
        let mut words: BTreeMap<u64, u64> =
            self.replaced.iter().map(|(offset, _)| (*offset, self.guaranteed.word(*offset))).collect();
        words.extend(self.words_of(state));
        Difference { zeroed: Vec::new(), words: words.into_iter().collect(), hash: state.hash }
    }

    /// Returns a mark to roll back to.
    pub(super) fn mark(&self) -> usize {
        self.replaced.len()
    }

    /// Makes a difference part of the guaranteed image.
    pub(super) fn advance(&mut self, difference: &Difference) {
        self.apply(difference);
        for (offset, value) in self.words_of(difference) {
            self.replaced.push((offset, self.guaranteed.word(offset)));
            self.guaranteed.set(offset, value);
        }
        self.region.take_recording();
        self.touched.take();
        self.zeroed.clear();
    }

    /// Restores the guaranteed image of a mark.
    pub(super) fn roll_back(&mut self, mark: usize) {
        while self.replaced.len() > mark {
            let (offset, value) = self.replaced.pop().expect("longer than the mark");
            self.guaranteed.set(offset, value);
            self.touched.insert(offset / LINE_BYTES);
        }
        self.put_back();
    }

    /// Stores the words of a crash state.
    pub(super) fn apply(&mut self, difference: &Difference) {
        for page in &difference.zeroed {
            let _ = self.region.write(page * PAGE_BYTES, &[0u8; PAGE_BYTES as usize]);
        }
        self.region.take_recording();
        self.zeroed.extend(&difference.zeroed);
        for (offset, value) in &difference.words {
            let _ = self.region.store_u64(*offset, *value);
        }
        self.take_events();
    }

    /// Takes the events of the region since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let events = self.region.take_recording().events;
        for event in &events {
            match &event.action {
                Action::Store { offset, bytes, .. } | Action::Stream { offset, bytes } => {
                    let lines = offset / LINE_BYTES..(offset + bytes.len() as u64).div_ceil(LINE_BYTES);
                    lines.for_each(|line| self.touched.insert(line));
                }
                Action::Punch { offset, length } => {
                    let pages = offset / PAGE_BYTES..(offset + length) / PAGE_BYTES;
                    self.zeroed.extend(pages.filter(|page| self.guaranteed.has_page(*page)));
                }
                Action::Flush { .. } | Action::Fence | Action::SettleHoles => {}
            }
        }
        events
    }

    /// Returns the hash of the region's present content, after all its changes were taken as events.
    pub(super) fn hash_now(&self) -> u128 {
        let mut hash = self.guaranteed.hash;
        let of_zeroed = |page: &u64| page * PAGE_LINES..(page + 1) * PAGE_LINES;
        let mut lines: Vec<u64> = self.zeroed.iter().flat_map(of_zeroed).chain(self.touched.numbers.clone()).collect();
        lines.sort_unstable();
        lines.dedup();
        for line in &lines {
            let now: [u64; (LINE_BYTES / WORD_BYTES) as usize] = self.region.read(line * LINE_BYTES);
            for (offset, now) in (line * LINE_BYTES..).step_by(WORD_BYTES as usize).zip(now) {
                let before = self.guaranteed.word(offset);
                if now != before {
                    hash = hash.wrapping_sub(mix(offset, before)).wrapping_add(mix(offset, u64::from_le(now)));
                }
            }
        }
        hash
    }

    /// Resets the region to the guaranteed image.
    pub(super) fn put_back(&mut self) {
        self.take_events();
        for page in std::mem::take(&mut self.zeroed) {
            let bytes = self.guaranteed.page(page).unwrap_or(&[0; PAGE_BYTES as usize]);
            let _ = self.region.write(page * PAGE_BYTES, bytes);
        }
        for line in self.touched.take() {
            let _ = self.region.write(line * LINE_BYTES, &self.guaranteed.line(line));
        }
        self.region.take_recording();
    }
}

impl Difference {
    /// Returns the hash of the whole image with this difference.
    pub(super) fn image_hash(&self) -> u128 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Pending;

    #[test]
    fn a_simulated_disk_returns_to_any_mark_and_its_hash_follows_its_content() {
        let mut disk = Disk::new(Image::default(), 1 << 20);
        let words = |offset: u64, bytes: &[u8]| {
            let region = Image::default().region(1 << 20);
            let _ = region.write(offset, bytes);
            let mut pending = Pending::default();
            region.take_recording().events.iter().for_each(|event| drop(pending.play(event)));
            pending.words().to_vec()
        };
        disk.settle(&words(4096, &[1; 100]));
        let (mark, image) = (disk.mark(), Image::of(disk.region()));
        assert_eq!(image.hash, disk.guaranteed.hash);
        disk.settle(&words(4090, &[2; 20]));
        let later = disk.difference(words(8, &[3; 8]).iter());
        disk.apply(&later);
        assert_eq!(Image::of(disk.region()).hash, later.image_hash());
        let _ = disk.region().write(9000, &[4; 10]);
        disk.region().punch(4096, 4096).expect("memory can be given back");
        disk.take_events();
        assert_eq!(Image::of(disk.region()).hash, disk.hash_now());
        disk.put_back();
        assert_eq!(Image::of(disk.region()).hash, disk.guaranteed.hash);
        assert!(disk.region().equal(4090, &[2; 20]));
        disk.roll_back(mark);
        assert_eq!(Image::of(disk.region()).hash, image.hash);
        assert!(disk.region().equal(4096, &[1; 100]) && disk.region().equal(9000, &[0; 10]));
    }
}
