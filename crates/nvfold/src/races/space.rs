//! Races in the allocator by itself: no block has two owners, none is lost, and none in use is given back to the
//! host.

use super::*;
use crate::space::free::FreeBlocks;
use crate::space::{BlockRun, KEPT_BLOCKS, Purpose, Runs, Space, WORDS_PER_SEGMENT};

struct Allocator {
    region: Region,
    geometry: Geometry,
    space: Space,
}

impl Allocator {
    /// Makes an allocator with `free_in_each` free blocks at the start of each of the first `segments` segments.
    fn with_free(cores: usize, segments: u64, free_in_each: u64) -> Arc<Allocator> {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        let geometry = Geometry::of(DEVICE_BYTES).unwrap();
        let space = Space::new(region.clone(), geometry, cores, true);
        for segment in geometry.first_segment()..geometry.segments() {
            let free = if segment < geometry.first_segment() + segments { free_in_each } else { 0 };
            let mut used = [!0; WORDS_PER_SEGMENT];
            used[0] <<= free;
            space.adopt_segment(segment, &used);
        }
        Arc::new(Allocator { region, geometry, space })
    }

    fn take(&self, count: u64) -> Option<Vec<BlockNumber>> {
        let mut runs = Runs::new();
        self.space.allocate("test", count, Purpose::Promised, &mut runs).ok()?;
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), count);
        Some(runs.iter().flat_map(|run| run.blocks()).collect())
    }

    fn give(&self, blocks: &[BlockNumber]) {
        blocks.iter().for_each(|block| self.space.free(BlockRun { start: *block, count: 1 }));
    }

    /// Writes to blocks, to detect blocks that have another owner or are punched.
    fn write(&self, blocks: &[BlockNumber], byte: u8) {
        for block in blocks {
            let _ = self.region.stream(block.address(), &super::block(byte));
        }
    }

    fn holds(&self, blocks: &[BlockNumber], byte: u8) -> bool {
        blocks.iter().all(|block| self.region.equal(block.address(), &super::block(byte)))
    }

    fn first(&self) -> u64 {
        self.geometry.first_segment() * SEGMENT_BLOCKS
    }
}

#[test]
fn each_of_the_last_blocks_goes_to_one_thread() {
    explore(|| {
        let allocator = Allocator::with_free(2, 1, 2);
        race([1, 2, 3].map(|byte| {
            let allocator = allocator.clone();
            task(move || {
                if let Some(blocks) = allocator.take(1) {
                    allocator.write(&blocks, byte);
                    assert!(allocator.holds(&blocks, byte));
                }
            })
        }));
        assert_eq!(allocator.space.free_blocks(), 0, "two of three were served");
    });
}

/// Three threads need at most the six blocks that exist. In whichever core's share they are counted, each thread
/// finds enough.
#[test]
fn a_free_block_in_the_share_of_another_core_is_found() {
    explore(|| {
        // A batch is one block, and four count as plenty.
        let blocks = Arc::new(FreeBlocks::new(32, 0, 2));
        assert!(blocks.take(26, 0));
        race([1, 2, 3].map(|held| {
            let blocks = blocks.clone();
            task(move || {
                assert!(blocks.take(held, 0), "there are six, for one, two and three");
                blocks.give(held);
                assert!(blocks.take(1, 0));
                blocks.give(1);
                assert!(blocks.take(1, 0));
            })
        }));
        assert_eq!(blocks.count(), 3);
        assert!(!blocks.take(4, 0) && blocks.take(3, 0) && !blocks.take(1, 0));
    });
}

#[test]
fn a_freed_block_serves_the_next_reservation() {
    explore(|| {
        let allocator = Allocator::with_free(2, 1, 2);
        let mine = allocator.take(2).unwrap();
        let (one, two, last) = (allocator.clone(), allocator.clone(), mine[1]);
        race([task(move || one.give(&[last])), task(move || two.take(1).inspect(|blocks| two.write(blocks, 2)))]);
        let free = allocator.space.free_blocks();
        assert_eq!(allocator.take(free).map_or(0, |blocks| blocks.len() as u64), free);
        assert!(allocator.take(1).is_none());
    });
}

/// Three threads use two segments: they take them over from one another, and share them.
#[test]
fn segments_pass_between_cursors_and_are_shared() {
    explore(|| {
        let allocator = Allocator::with_free(4, 2, 3);
        race([1, 2, 3].map(|byte| {
            let allocator = allocator.clone();
            task(move || {
                let mut mine = Vec::new();
                for _ in 0..2 {
                    mine.extend(allocator.take(1).expect("six blocks for three threads"));
                    allocator.write(&mine, byte);
                }
                assert!(allocator.holds(&mine, byte));
            })
        }));
        assert_eq!(allocator.space.free_blocks(), 0);
    });
}

/// One segment has some free blocks, and then becomes completely free: it is given back to the host while others
/// allocate from it.
#[test]
fn a_segment_in_use_is_not_returned_to_the_host() {
    explore(|| {
        let allocator = Allocator::with_free(4, 1, 4);
        let rest: Vec<BlockNumber> =
            (allocator.first() + 4..allocator.first() + SEGMENT_BLOCKS).map(BlockNumber).collect();
        let works = |byte: u8| {
            let allocator = allocator.clone();
            task(move || {
                for _ in 0..2 {
                    let mine = allocator.take(1).expect("four blocks for two threads");
                    allocator.write(&mine, byte);
                    assert!(allocator.holds(&mine, byte));
                    allocator.give(&mine);
                }
            })
        };
        let trims = allocator.clone();
        race([
            works(1),
            works(2),
            task(move || {
                trims.space.free(BlockRun { start: rest[0], count: rest.len() as u64 });
                trims.space.trim().unwrap();
            }),
        ]);
        assert_eq!(allocator.space.free_blocks(), SEGMENT_BLOCKS);
    });
}

/// Free blocks are punched one by one, while others allocate some of them from the same segment.
#[test]
fn a_block_in_use_is_not_punched() {
    explore(|| {
        let allocator = Allocator::with_free(2, 1, 20);
        let all = allocator.take(20).expect("all are free");
        allocator.write(&all, 9);
        allocator.give(&all);
        let works = |byte: u8| {
            let allocator = allocator.clone();
            task(move || {
                for _ in 0..2 {
                    let mine = allocator.take(2).expect("there are many");
                    allocator.write(&mine, byte);
                    assert!(allocator.holds(&mine, byte));
                    allocator.give(&mine[1..]);
                    assert!(allocator.holds(&mine[..1], byte));
                }
            })
        };
        let holes = allocator.clone();
        race([works(1), works(2), task(move || assert!(holes.space.give_back_all().is_ok()))]);
        assert_eq!(allocator.space.free_blocks(), 16);
        allocator.space.give_back_all().unwrap();
        let free: Vec<_> = all.iter().filter(|block| !allocator.space.is_used(**block)).collect();
        assert_eq!(free.len(), 16);
    });
}

/// As above, but the free segment goes to the inode table. Three cursors share two segments.
#[test]
fn a_segment_in_use_is_not_given_to_the_inode_table() {
    explore(|| {
        let allocator = Allocator::with_free(4, 1, 4);
        // The kept blocks are in another segment, so that the table may take this one.
        let kept = allocator.first() + 2 * SEGMENT_BLOCKS;
        allocator.space.free(BlockRun { start: BlockNumber(kept), count: KEPT_BLOCKS });
        let works = |byte: u8| {
            let allocator = allocator.clone();
            task(move || {
                for _ in 0..2 {
                    let mine = allocator.take(1).expect("there are the kept blocks");
                    allocator.write(&mine, byte);
                    assert!(allocator.holds(&mine, byte));
                    allocator.give(&mine);
                }
            })
        };
        let tables = allocator.clone();
        let table = task(move || {
            let start = BlockNumber(tables.first() + 4);
            tables.space.free(BlockRun { start, count: SEGMENT_BLOCKS - 4 });
            if let Ok(segment) = tables.space.allocate_segment("test") {
                let slots: Vec<BlockNumber> = (0..4).map(|at| BlockNumber(segment * SEGMENT_BLOCKS + at)).collect();
                tables.write(&slots, 9);
                assert!(tables.holds(&slots, 9));
                tables.space.free_segment(segment);
            }
        });
        race([works(1), works(2), works(3), table]);
        assert_eq!(allocator.space.free_blocks(), SEGMENT_BLOCKS + KEPT_BLOCKS);
    });
}
