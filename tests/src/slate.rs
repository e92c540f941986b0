//! A device in memory that gets new content again and again.
//!
//! The problem: a fuzz target needs a fresh device for each of a million inputs. Making one costs little, but letting
//! the kernel allocate the pages of the inode table, which every mount reads, costs more than all the operations. The
//! idea: the device stays, with the pages of its first inode table segment. All other memory is given back before the
//! next content is written. The file system sees the same device each time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nvfold::BLOCK_BYTES;
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::superblock::Geometry;
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: usize = BLOCK_BYTES as usize;
static ZERO: [u8; BLOCK] = [0; BLOCK];

/// The content of a device. It is cheap to clone: blocks are shared until they are written, and zeros take no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
    len_bytes: u64,
}

impl Content {
    /// Makes the content of a device of `len_bytes` zeros.
    pub fn zeros(len_bytes: u64) -> Content {
        Content { blocks: BTreeMap::new(), len_bytes }
    }

    /// Returns the content of a region.
    pub fn of(region: &Region) -> Content {
        let mut content = Content::zeros(region.len_bytes());
        for range in region.allocated_ranges(0, region.len_bytes()) {
            let first = range.start / BLOCK_BYTES * BLOCK_BYTES;
            for at in (first..range.end).step_by(BLOCK) {
                let block: [u8; BLOCK] = region.read(at);
                if block != ZERO {
                    content.blocks.insert(at, Arc::new(block));
                }
            }
        }
        content
    }

    /// Returns the size of the device in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Changes the size: bytes that are cut off are lost, bytes that are added are zero.
    pub fn resize(&mut self, len_bytes: u64) {
        self.blocks.retain(|at, _| *at < len_bytes);
        self.len_bytes = len_bytes;
    }

    /// Returns `len` bytes at `at`; bytes behind the end are zeros.
    pub fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        for (block, inside, here) in pieces(at, len) {
            if let Some(block) = self.blocks.get(&block) {
                bytes[here.clone()].copy_from_slice(&block[inside..inside + here.len()]);
            }
        }
        bytes
    }

    /// Writes `bytes` at `at`; bytes behind the end are dropped.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (block, inside, here) in pieces(at, bytes.len() as u64) {
            if block < self.len_bytes {
                let block = self.blocks.entry(block).or_insert_with(|| Arc::new(ZERO));
                Arc::make_mut(block)[inside..inside + here.len()].copy_from_slice(&bytes[here]);
            }
        }
    }

    /// Returns the addresses of the blocks that are not zero.
    pub fn block_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }
}

/// Splits a range at block boundaries: address of the block, offset in it, and the part of the range in it.
fn pieces(at: u64, len: u64) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let end = at.saturating_add(len);
    let mut next = at;
    std::iter::from_fn(move || {
        let start = next;
        (start < end).then(|| {
            next = end.min((start / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let block = start / BLOCK_BYTES * BLOCK_BYTES;
            (block, (start - block) as usize, (start - at) as usize..(next - at) as usize)
        })
    })
}

/// The device.
pub struct Slate {
    region: Region,
    /// The pages that stay allocated.
    kept: Range<u64>,
}

impl Slate {
    /// Makes a device of `bytes` (a size that can be formatted), all zero.
    pub fn new(bytes: u64) -> Slate {
        let geometry = Geometry::of(bytes).expect("a size that can be formatted");
        Slate { region: blank(bytes), kept: geometry.data_offset..geometry.data_offset + SEGMENT_BYTES }
    }

    /// Returns the device with this content and no other. A content of another size gets a new device.
    pub fn with(&self, content: &Content) -> Region {
        if content.len_bytes != self.region.len_bytes() {
            let region = blank(content.len_bytes);
            content.blocks.iter().for_each(|(at, block)| put(&region, *at, block));
            return region;
        }
        let region = &self.region;
        region.punch(0, self.kept.start).expect("punch");
        region.punch(self.kept.end, region.len_bytes() - self.kept.end).expect("punch");
        for at in self.kept.clone().step_by(BLOCK) {
            put(region, at, content.blocks.get(&at).map_or(&ZERO, |block| block));
        }
        content.blocks.iter().for_each(|(at, block)| put(region, *at, block));
        region.clone()
    }
}

fn blank(bytes: u64) -> Region {
    Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).expect("a memory device")
}

fn put(region: &Region, at: u64, block: &[u8; BLOCK]) {
    if !region.equal(at, block) {
        let written = region.write(at, &block[..]).flush();
        let _ = region.fence(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_test_device_has_only_its_last_content() {
        let slate = Slate::new(16 << 20);
        for round in 1..4u8 {
            let mut content = Content::zeros(16 << 20);
            for at in [0, 4090, 30_000, (2 << 20) + 100, (4 << 20) + 8190, (16 << 20) - 10] {
                content.write(at + u64::from(round) * 4096, &[round; 100]);
            }
            assert_eq!(content.read(4090 + u64::from(round) * 4096, 100), vec![round; 100]);
            let region = slate.with(&content);
            assert_eq!(Content::of(&region), content);
            let garbage = region.write(9 << 20, &[7u8; 5000]).flush();
            let _ = region.fence(garbage);
        }
    }

    #[test]
    fn a_truncated_test_device_is_shorter_and_ends_with_its_last_block() {
        let mut content = Content::zeros(16 << 20);
        content.write((8 << 20) - 10, &[1; 20]);
        content.resize(8 << 20);
        assert_eq!(content.read((8 << 20) - 10, 20), [[1u8; 10], [0; 10]].concat());
        let region = Slate::new(16 << 20).with(&content);
        assert_eq!((region.len_bytes(), Content::of(&region)), (8 << 20, content));
    }
}
