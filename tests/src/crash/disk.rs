//! A device that can be put back: the media as far as they are guaranteed, and one crash at a time on top.
//!
//! Building each crash image anew would copy the whole device for a state that differs in a few words. Instead one
//! region is kept at the guaranteed image; a state stores its words there; and afterwards exactly the lines that
//! anybody stored to are copied back. The region records itself, so what was stored is known.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pmem::{Action, DeviceSpec, Event, FlushMode, LINE_BYTES, OpenOptions, PendingWord, Region};

const PAGE_BYTES: u64 = 4096;
const WORD_BYTES: u64 = 8;

/// The content of a device, pages of zeros left out, and its hash.
#[derive(Clone, Default)]
pub struct Image {
    pages: HashMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
    hash: u128,
}

impl Image {
    /// What a region holds now.
    pub fn of(region: &Region) -> Image {
        let mut image = Image::default();
        for page in 0..region.len_bytes() / PAGE_BYTES {
            let bytes = region.bytes(page * PAGE_BYTES, PAGE_BYTES);
            for (at, word) in bytes.chunks_exact(WORD_BYTES as usize).enumerate().filter(|(_, word)| **word != [0; 8]) {
                let value = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                image.set(page * PAGE_BYTES + at as u64 * WORD_BYTES, value);
            }
        }
        image
    }

    /// A recorded region of `bytes` with this content, nothing of it in the recording.
    pub fn region(&self, bytes: u64) -> Region {
        let options =
            OpenOptions { record: true, flush: FlushMode::Always, huge_pages: false, ..OpenOptions::default() };
        let region = Region::create(&DeviceSpec::Memory, bytes, &options).expect("a memory device");
        for (page, bytes) in &self.pages {
            let _ = region.write(page * PAGE_BYTES, &bytes[..]);
        }
        region.take_recording();
        region
    }

    /// Whether it has these bytes at an aligned `offset`.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let words = (offset..).step_by(WORD_BYTES as usize);
        words
            .zip(bytes.chunks(WORD_BYTES as usize))
            .all(|(at, word)| self.word(at).to_le_bytes()[..word.len()] == *word)
    }

    /// The aligned word at `offset`.
    pub fn word(&self, offset: u64) -> u64 {
        let Some(page) = self.pages.get(&(offset / PAGE_BYTES)) else { return 0 };
        let at = (offset % PAGE_BYTES) as usize;
        u64::from_le_bytes(*page[at..].first_chunk().expect("words are aligned"))
    }

    fn set(&mut self, offset: u64, value: u64) {
        self.hash = self.hash.wrapping_sub(mix(offset, self.word(offset))).wrapping_add(mix(offset, value));
        let page = self.pages.entry(offset / PAGE_BYTES).or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
        let at = (offset % PAGE_BYTES) as usize;
        page[at..at + WORD_BYTES as usize].copy_from_slice(&value.to_le_bytes());
    }

    fn line(&self, line: u64) -> [u8; LINE_BYTES as usize] {
        let at = line * LINE_BYTES;
        let page = self.pages.get(&(at / PAGE_BYTES));
        page.map_or([0; LINE_BYTES as usize], |page| *page[(at % PAGE_BYTES) as usize..].first_chunk().expect("a line"))
    }
}

/// What a word adds to the hash of an image: a sum over all words, so that it follows each change of one.
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

/// The words in which a crash state differs from the guaranteed image.
#[derive(Clone, Default)]
pub struct Difference {
    words: Vec<(u64, u64)>,
    hash: u128,
}

/// A region, the image it is put back to, and the way back to older images.
pub struct Disk {
    region: Region,
    guaranteed: Image,
    /// Words of older images, in the order in which they were replaced.
    replaced: Vec<(u64, u64)>,
    /// Lines that were stored to since the region last held the guaranteed image.
    touched: BTreeSet<u64>,
}

impl Disk {
    /// A device of `bytes` that holds `image`.
    pub fn new(image: Image, bytes: u64) -> Disk {
        let region = image.region(bytes);
        Disk { region, guaranteed: image, replaced: Vec::new(), touched: BTreeSet::new() }
    }

    /// The region, at the guaranteed image but for what was stored since.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The guaranteed image.
    pub fn image(&self) -> &Image {
        &self.guaranteed
    }

    /// Words became guaranteed.
    pub fn settle(&mut self, words: &[PendingWord]) {
        let difference = self.difference(words.iter());
        self.advance(&difference);
    }

    /// The difference that words make, stored in this order.
    pub fn difference<'w>(&self, words: impl Iterator<Item = &'w PendingWord>) -> Difference {
        let mut values: HashMap<u64, u64> = HashMap::new();
        for word in words {
            let offset = word.offset / WORD_BYTES * WORD_BYTES;
            let value = values.entry(offset).or_insert_with(|| self.guaranteed.word(offset));
            let mut bytes = value.to_le_bytes();
            let at = (word.offset - offset) as usize;
            bytes[at..at + word.bytes().len()].copy_from_slice(word.bytes());
            *value = u64::from_le_bytes(bytes);
        }
        let mut words: Vec<_> = values.into_iter().filter(|(at, value)| self.guaranteed.word(*at) != *value).collect();
        words.sort_unstable();
        let hash = words.iter().fold(self.guaranteed.hash, |hash, (offset, value)| {
            hash.wrapping_sub(mix(*offset, self.guaranteed.word(*offset))).wrapping_add(mix(*offset, *value))
        });
        Difference { words, hash }
    }

    /// The difference of a state to the image that the disk began with.
    pub fn since_base(&self, state: &Difference) -> Difference {
        let mut words: BTreeMap<u64, u64> =
            self.replaced.iter().map(|(offset, _)| (*offset, self.guaranteed.word(*offset))).collect();
        words.extend(state.words.iter().copied());
        Difference { words: words.into_iter().collect(), hash: state.hash }
    }

    /// A place to roll back to.
    pub fn mark(&self) -> usize {
        self.replaced.len()
    }

    /// Makes a difference part of the guaranteed image.
    pub fn advance(&mut self, difference: &Difference) {
        for (offset, value) in &difference.words {
            self.replaced.push((*offset, self.guaranteed.word(*offset)));
            self.guaranteed.set(*offset, *value);
        }
        self.apply(difference);
        self.region.take_recording();
        self.touched.clear();
    }

    /// Makes the guaranteed image what it was at a mark.
    pub fn roll_back(&mut self, mark: usize) {
        while self.replaced.len() > mark {
            let (offset, value) = self.replaced.pop().expect("longer than the mark");
            self.guaranteed.set(offset, value);
            self.touched.insert(offset / LINE_BYTES);
        }
        self.put_back();
    }

    /// Stores the words of a crash state.
    pub fn apply(&mut self, difference: &Difference) {
        for (offset, value) in &difference.words {
            let _ = self.region.store_u64(*offset, *value);
        }
        self.take_events();
    }

    /// What was done to the region since this was last asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        let events = self.region.take_recording().events;
        for event in &events {
            if let Action::Store { offset, bytes, .. } | Action::Stream { offset, bytes } = &event.action {
                self.touched.extend(offset / LINE_BYTES..(offset + bytes.len() as u64).div_ceil(LINE_BYTES));
            }
        }
        events
    }

    /// Puts the region back to the guaranteed image.
    pub fn put_back(&mut self) {
        self.take_events();
        for line in std::mem::take(&mut self.touched) {
            let _ = self.region.write(line * LINE_BYTES, &self.guaranteed.line(line));
        }
        self.region.take_recording();
    }
}

impl Difference {
    /// Hash of the whole image with this difference.
    pub fn image_hash(&self) -> u128 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Pending;

    #[test]
    fn a_disk_goes_back_to_any_mark_and_its_hash_follows_its_content() {
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
        disk.put_back();
        assert_eq!(Image::of(disk.region()).hash, disk.guaranteed.hash);
        assert!(disk.region().equal(4090, &[2; 20]));
        disk.roll_back(mark);
        assert_eq!(Image::of(disk.region()).hash, image.hash);
        assert!(disk.region().equal(4096, &[1; 100]) && disk.region().equal(9000, &[0; 10]));
    }
}
