//! A device in memory that gets another content again and again.
//!
//! A fuzz target wants a fresh device for each of a million inputs. Making one costs little; letting the kernel fill
//! in page after page of the inode table, which every mount reads, costs more than all the operations. So the device
//! stays, with the pages of its first inode table segment; everything else is given back before the next content is
//! written. What the file system can see of the device is the same each time.

use std::collections::BTreeMap;

use nvfold::media::superblock::Geometry;
use nvfold::media::{BLOCK_BYTES, SEGMENT_BYTES};
use pmem::{DeviceSpec, OpenOptions, Region};

static ZERO: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The content of a device: its blocks that are not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Content {
    /// What a region holds.
    pub fn of(region: &Region) -> Content {
        let mut content = Content::default();
        for range in region.allocated_ranges(0, region.len_bytes()) {
            let first = range.start / BLOCK_BYTES * BLOCK_BYTES;
            for at in (first..range.end).step_by(BLOCK_BYTES as usize) {
                content.put(at, region.bytes(at, BLOCK_BYTES));
            }
        }
        content
    }

    fn put(&mut self, at: u64, block: &[u8]) {
        if block != ZERO {
            self.blocks.insert(at, block.into());
        }
    }

    /// `len` bytes at `at`, wherever they lie.
    pub fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let byte = |at: u64| self.blocks.get(&(at / BLOCK_BYTES * BLOCK_BYTES)).map(|b| b[(at % BLOCK_BYTES) as usize]);
        (at..at + len).map(|at| byte(at).unwrap_or(0)).collect()
    }

    /// Puts `bytes` at `at`.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let block = self.blocks.entry(at / BLOCK_BYTES * BLOCK_BYTES);
            block.or_insert_with(|| vec![0; BLOCK_BYTES as usize].into())[(at % BLOCK_BYTES) as usize] = *byte;
        }
    }

    /// Everything from `len` on is gone.
    pub fn truncate(&mut self, len: u64) {
        self.blocks.retain(|at, _| *at < len);
    }
}

/// The device.
pub struct Slate {
    region: Region,
    /// The pages that stay.
    kept: std::ops::Range<u64>,
}

impl Slate {
    /// A device of `bytes` (one that could be formatted), all zero.
    pub fn new(bytes: u64) -> Slate {
        let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).expect("a memory device");
        let geometry = Geometry::of(bytes).expect("a size that can be formatted");
        Slate { region, kept: geometry.data_offset..geometry.data_offset + SEGMENT_BYTES }
    }

    /// The device with this content and no other.
    pub fn with(&self, content: &Content) -> Region {
        let region = &self.region;
        region.punch(0, self.kept.start).expect("punch");
        region.punch(self.kept.end, region.len_bytes() - self.kept.end).expect("punch");
        for at in self.kept.clone().step_by(BLOCK_BYTES as usize) {
            self.put(at, content.blocks.get(&at).map_or(&ZERO, |block| block));
        }
        for (at, block) in &content.blocks {
            self.put(*at, block);
        }
        region.clone()
    }

    fn put(&self, at: u64, block: &[u8]) {
        if self.region.bytes(at, BLOCK_BYTES) != block {
            let written = self.region.write(at, block).flush();
            let _ = self.region.fence(written);
        }
    }
}
