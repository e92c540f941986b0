//! What a power cut may leave of the host's file below a device of level `file`.
//!
//! **The model.** The host writes the pages of a file (4096 bytes) to disk at any time and in any order, each page as
//! it is at that moment. It writes the file's size at some moment too. Only a completed sync settles the changes
//! before it. So for each page changed since the last sync, a power cut leaves any of the contents that the page had
//! since then, independently of all other pages. It may also mix contents within a page, sector by sector (512
//! bytes), because a disk writes only a sector as a whole.
//!
//! [`PowerCut`] plays the changes that a region has made to its file ([`Region::take_host_events`]) and lists the
//! choices of a power cut at that point; a test makes the choices.
//!
//! [`Region::take_host_events`]: crate::Region::take_host_events

use crate::BLOCK_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

const PAGE: usize = BLOCK_BYTES as usize;
const SECTOR: usize = 512;

/// One change of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// Bytes were written.
    Write {
        /// Offset in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A range was made to read as zeros.
    Clear {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The file was given another size, in bytes.
    SetLength(u64),
    /// All changes before this one are on the disk.
    Sync,
    /// A sync that failed. The host then forgets which pages it could not write, so a later sync guarantees nothing
    /// about pages that were changed before and not again.
    FailedSync,
}

type Page = Box<[u8; PAGE]>;

/// A file as it is on the disk. Absent pages are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostImage {
    /// Size in bytes.
    pub length: u64,
    pages: BTreeMap<u64, Page>,
}

impl HostImage {
    /// Reads the present content of a file.
    ///
    /// # Errors
    /// The host's.
    pub fn of(file: &mut File) -> Result<HostImage> {
        let length = file.metadata()?.len();
        let mut image = HostImage { length, pages: BTreeMap::new() };
        for page in 0..length.div_ceil(BLOCK_BYTES) {
            // A large file has many holes; seeking to the next data skips them.
            let at = page * BLOCK_BYTES;
            match rustix::fs::seek(&*file, rustix::fs::SeekFrom::Data(at)) {
                Err(rustix::io::Errno::NXIO) => break,
                Ok(data) if data >= at + BLOCK_BYTES => continue,
                _ => {}
            }
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(at))?;
            file.take(BLOCK_BYTES).read_to_end(&mut bytes)?;
            bytes.resize(PAGE, 0);
            image.set(page, bytes.try_into().expect("a page"));
        }
        Ok(image)
    }

    /// Makes a file equal to this image.
    ///
    /// # Errors
    /// The host's.
    pub fn write_to(&self, file: &File) -> Result<()> {
        file.set_len(0)?;
        file.set_len(self.length)?;
        for (page, bytes) in &self.pages {
            let end = self.length.min((page + 1) * BLOCK_BYTES);
            file.write_all_at(&bytes[..(end - page * BLOCK_BYTES) as usize], page * BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// Returns the first `length` bytes as a separate file.
    pub fn cut_to(&self, length: u64) -> HostImage {
        let mut image = self.clone();
        image.set_length(length);
        image
    }

    fn page(&self, page: u64) -> Page {
        self.pages.get(&page).cloned().unwrap_or_else(|| Box::new([0; PAGE]))
    }

    fn set(&mut self, page: u64, bytes: Page) {
        match bytes.iter().all(|byte| *byte == 0) {
            true => drop(self.pages.remove(&page)),
            false => drop(self.pages.insert(page, bytes)),
        }
    }

    fn set_length(&mut self, length: u64) {
        self.length = length;
        drop(self.pages.split_off(&length.div_ceil(BLOCK_BYTES)));
        let (last, kept) = (length / BLOCK_BYTES, (length % BLOCK_BYTES) as usize);
        if let Some(mut bytes) = self.pages.remove(&last) {
            bytes[kept..].fill(0);
            self.set(last, bytes);
        }
    }
}

/// A file that changes: its content on the disk, and the contents that the disk may have instead.
#[derive(Clone, Debug)]
pub struct PowerCut {
    disk: HostImage,
    now: HostImage,
    /// Sizes since the last sync, in order.
    lengths: Vec<u64>,
    /// Contents of pages since the last sync, in order.
    pages: BTreeMap<u64, Vec<Page>>,
    /// Pages that a failed sync made the host forget.
    forgotten: BTreeSet<u64>,
}

impl PowerCut {
    /// Starts with a file whose content is on the disk.
    pub fn new(disk: HostImage) -> PowerCut {
        PowerCut { now: disk.clone(), disk, lengths: Vec::new(), pages: BTreeMap::new(), forgotten: BTreeSet::new() }
    }

    /// Plays one change.
    pub fn play(&mut self, event: &HostEvent) {
        match event {
            HostEvent::Write { offset, bytes } => self.change(*offset, bytes.len() as u64, Some(bytes)),
            HostEvent::Clear { offset, length } => self.change(*offset, *length, None),
            HostEvent::SetLength(length) => self.set_length(*length),
            HostEvent::Sync => self.sync(),
            HostEvent::FailedSync => self.forgotten.extend(self.pages.keys()),
        }
    }

    fn sync(&mut self) {
        self.disk.set_length(self.now.length);
        self.lengths.clear();
        let forgotten = &self.forgotten;
        for (page, _) in self.pages.extract_if(.., |page, _| !forgotten.contains(page)) {
            self.disk.set(page, self.now.page(page));
        }
    }

    /// Returns the file's present content, as programs see it.
    pub fn now(&self) -> &HostImage {
        &self.now
    }

    /// Returns how many choices a power cut has now: one for each page that has changed, and one for the size if it
    /// has changed.
    pub fn choices(&self) -> usize {
        self.pages.len() + usize::from(!self.lengths.is_empty())
    }

    /// Returns what a power cut leaves. `pick` gets the number of possible contents for each choice, in order; 0 is
    /// the content on the disk, the largest number the present one. With `torn`, each sector of a page is a choice.
    pub fn leaves(&self, torn: bool, mut pick: impl FnMut(usize) -> usize) -> HostImage {
        let mut left = self.disk.clone();
        let length = match self.lengths.len() {
            0 => self.disk.length,
            changes => *[&[self.disk.length], &self.lengths[..]].concat().get(pick(changes + 1)).expect("one of them"),
        };
        let unit = if torn { SECTOR } else { PAGE };
        for (page, contents) in &self.pages {
            let mut bytes = self.disk.page(*page);
            for at in (0..PAGE).step_by(unit) {
                if let Some(content) = pick(contents.len() + 1).checked_sub(1).map(|nth| &contents[nth]) {
                    bytes[at..at + unit].copy_from_slice(&content[at..at + unit]);
                }
            }
            left.set(*page, bytes);
        }
        left.set_length(length);
        left
    }

    /// Changes a range to the given bytes, or to zeros.
    fn change(&mut self, offset: u64, length: u64, bytes: Option<&[u8]>) {
        let end = offset + length;
        for page in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let start = offset.max(page * BLOCK_BYTES);
            let stop = end.min((page + 1) * BLOCK_BYTES);
            let mut content = self.now.page(page);
            let place = &mut content[(start - page * BLOCK_BYTES) as usize..(stop - page * BLOCK_BYTES) as usize];
            match bytes {
                Some(bytes) => place.copy_from_slice(&bytes[(start - offset) as usize..(stop - offset) as usize]),
                None => place.fill(0),
            }
            self.now.set(page, content.clone());
            self.forgotten.remove(&page);
            self.pages.entry(page).or_default().push(content);
        }
        if bytes.is_some() && end > self.now.length {
            self.set_length(end);
        }
    }

    fn set_length(&mut self, length: u64) {
        let gone: Vec<u64> = self.now.pages.range(length / BLOCK_BYTES..).map(|(page, _)| *page).collect();
        self.now.set_length(length);
        for page in gone {
            self.pages.entry(page).or_default().push(self.now.page(page));
        }
        self.lengths.push(length);
    }
}
