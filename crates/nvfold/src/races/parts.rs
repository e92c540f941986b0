//! Races in counts, index and inode table by themselves; some tests are so small that they run under every schedule.

use super::*;
use crate::Generators;
use crate::chunk::dram::DramIndex;
use crate::chunk::entries::Entries;
use crate::chunk::index::Index;
use crate::chunk::labels::Labels;
use crate::chunk::reference::Reference;
use crate::chunk::{Chunks, Released};
use crate::fingerprint::{Fingerprint, StrongFunction, WeakFunction};
use crate::inode::table::{InodeTable, TablePart, exact_parts};
use crate::media::ChunkRef;
use crate::media::inode::INODES_PER_SEGMENT;
use crate::space::{Purpose, Space};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use pmem::Flight;

const WEAK: u32 = 0x1234_5678;

struct Table {
    chunks: Chunks,
    block: BlockNumber,
    region: Region,
}

impl Table {
    /// Makes a chunk table in which one block has `count` references and, unless that is 0, is in the index.
    fn with(count: u32) -> Arc<Table> {
        Table::with_generators(count, Generators::PerCore)
    }

    fn with_generators(count: u32, generators: Generators) -> Arc<Table> {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        let geometry = Geometry::of(DEVICE_BYTES).unwrap();
        let functions = (WeakFunction::Xxh3.into(), StrongFunction::Blake3);
        let entries = Arc::new(Entries::new(geometry));
        let index = (entries.clone(), Index::Dram(Box::new(DramIndex::new(entries))));
        let chunks = Chunks::new(region.clone(), geometry, index, functions, generators);
        let block = BlockNumber(geometry.first_segment() * SEGMENT_BLOCKS);
        if count > 0 {
            let mut tx = chunks.begin();
            tx.add(block, count, &Fingerprint { weak: Some(WEAK), strong: None });
            chunks.index.insert(WEAK, block.into());
            let _ = tx.end(Flight::new());
        }
        Arc::new(Table { chunks, block, region })
    }

    fn release(&self) -> Released {
        let mut flight = Flight::new();
        let released = self.chunks.release(self.block, &mut flight);
        let _ = self.region.fence(flight);
        released
    }

    fn share(&self) -> bool {
        let mut tx = self.chunks.begin();
        let shared = tx.share_candidate(WEAK, ChunkRef::NONE);
        let _ = tx.end(Flight::new());
        shared.map(Reference::take).is_some()
    }
}

/// One thread releases the last reference while another shares the block: the share happens first, or it fails.
#[test]
fn taking_and_dropping_the_last_reference_exclude_each_other() {
    explore(|| {
        let table = Table::with(1);
        let freed = Arc::new(AtomicU64::new(0));
        let (one, two, freed_by_one, freed_by_two) = (table.clone(), table.clone(), freed.clone(), freed.clone());
        race([
            task(move || {
                if one.release() == Released::Free {
                    freed_by_one.fetch_add(1, Ordering::SeqCst);
                }
            }),
            task(move || {
                if two.share() && two.release() == Released::Free {
                    freed_by_two.fetch_add(1, Ordering::SeqCst);
                }
            }),
        ]);
        assert_eq!(freed.load(Ordering::SeqCst), 1, "freed by one of them");
        assert!(table.chunks.entry(table.block).is_empty());
        assert_eq!((table.chunks.extra_references(), table.chunks.index.stats().entries), (0, 0));
    });
}

/// Two threads find a block, but only one of them can have the generator. The other one leaves the index, waits and
/// searches again, while the last reference that was there is dropped.
#[test]
fn a_search_that_waits_for_a_generator_takes_what_is_there_then() {
    explore(|| {
        let table = Table::with_generators(1, Generators::Global);
        let shared = Arc::new(AtomicU64::new(0));
        let share = |table: Arc<Table>, shared: Arc<AtomicU64>| {
            task(move || _ = shared.fetch_add(u64::from(table.share()), Ordering::SeqCst))
        };
        let last = table.clone();
        race([
            share(table.clone(), shared.clone()),
            share(table.clone(), shared.clone()),
            task(move || _ = last.release()),
        ]);
        let (count, shared) = (table.chunks.entry(table.block).count, shared.load(Ordering::SeqCst));
        assert_eq!(u64::from(count), shared);
        assert_eq!(table.chunks.index.stats().entries, u64::from(shared > 0));
    });
}

/// An unshared block without a chunk entry, but with a label.
struct Private {
    table: Arc<Table>,
    /// Content of the block; 0 while it is being written.
    content: Arc<AtomicU64>,
}

impl Private {
    fn new() -> Private {
        let table = Table::with(0);
        table.chunks.index.insert(WEAK, table.block.into());
        Private { table, content: Arc::new(AtomicU64::new(1)) }
    }

    /// Returns a task in which the owner releases the block. If it is then free, the next owner writes it, and gives
    /// it a label that matches both fingerprints.
    fn drop_and_use_again(&self) -> Task {
        let (table, content) = (self.table.clone(), self.content.clone());
        task(move || {
            if table.release() == Released::Free {
                content.store(0, Ordering::SeqCst);
                content.store(2, Ordering::SeqCst);
                table.chunks.index.insert(WEAK ^ 1 << 20, table.block.into());
            }
        })
    }

    /// Returns a task that finds the block by the first fingerprint, compares it, and releases it again.
    fn find(&self) -> Task {
        let (table, content) = (self.table.clone(), self.content.clone());
        task(move || {
            if table.share() {
                let seen = content.load(Ordering::SeqCst);
                assert_ne!(seen, 0, "a reference on a block that is being written");
                assert_eq!(content.load(Ordering::SeqCst), seen, "it changes under a reference");
                let _ = table.release();
            }
        })
    }
}

/// The owner of a labelled block releases it while another thread finds it. The finder's block is neither freed nor
/// reused.
#[test]
fn finding_and_freeing_a_private_block_exclude_each_other() {
    explore(|| {
        let private = Private::new();
        race([private.drop_and_use_again(), private.find()]);
        let table = &private.table;
        let uses = private.content.load(Ordering::SeqCst);
        // Either the owner freed it and it was reused, or the finder freed it and it has no reference.
        let in_use = uses == 2;
        assert_eq!(table.chunks.index.stats().entries, u64::from(in_use));
        assert_eq!(table.chunks.extra_references(), 0);
        assert!(table.chunks.entry(table.block).count <= u32::from(in_use));
    });
}

#[test]
fn a_private_block_is_found_by_two_threads_while_it_is_dropped() {
    explore(|| {
        let private = Private::new();
        race([private.drop_and_use_again(), private.find(), private.find()]);
        assert_eq!(private.table.chunks.extra_references(), 0);
    });
}

/// One thread shares the block by cloning its owner's file, and another by finding it.
#[test]
fn a_private_block_is_cloned_and_found() {
    explore(|| {
        let private = Private::new();
        let table = private.table.clone();
        let clone = task(move || {
            let mut tx = table.chunks.begin();
            tx.share(table.block).unwrap().take();
            let _ = tx.end(Flight::new());
        });
        race([clone, private.find()]);
        let entry = private.table.chunks.entry(private.table.block);
        assert_eq!((entry.count, private.table.chunks.extra_references()), (2, 1));
    });
}

/// The daemon of policy `denova` counts a block that another policy has stored, while another thread finds it.
#[test]
fn a_private_block_gets_a_count_while_it_is_found() {
    explore(|| {
        let private = Private::new();
        let table = private.table.clone();
        let count = task(move || {
            let mut tx = table.chunks.begin();
            tx.count_one(table.block);
            let _ = tx.end(Flight::new());
        });
        race([count, private.find()]);
        let entry = private.table.chunks.entry(private.table.block);
        assert_eq!((entry.count, private.table.chunks.extra_references()), (1, 0));
    });
}

/// Several clones of one private block: its owner's reference is counted exactly once.
#[test]
fn a_private_block_is_shared_twice_at_once() {
    explore(|| {
        let table = Table::with(0);
        race([0, 1, 2].map(|_| {
            let table = table.clone();
            task(move || {
                let mut tx = table.chunks.begin();
                tx.share(table.block).unwrap().take();
                let _ = tx.end(Flight::new());
            })
        }));
        let entry = table.chunks.entry(table.block);
        assert_eq!((entry.count, entry.address()), (4, table.block.address()));
        assert_eq!(table.chunks.extra_references(), 3);
    });
}

/// One block is added and another removed while a third thread searches for the fingerprint of both.
#[test]
fn a_search_finds_a_fingerprint_while_its_blocks_are_added_and_removed() {
    explore(|| {
        let table = Table::with(1);
        let other = ChunkRef::Block(BlockNumber(table.block.0 + 1));
        let (one, two, three) = (table.clone(), table.clone(), table.clone());
        race([
            task(move || one.chunks.index.insert(WEAK, other)),
            task(move || two.chunks.index.remove(WEAK, two.block.into())),
            task(move || {
                let found = three.chunks.index.find(WEAK, ChunkRef::NONE, |_| true);
                assert!([Some(three.block.into()), Some(other), None].contains(&found));
            }),
        ]);
        let found = |after| table.chunks.index.find(WEAK, after, |_| true);
        assert_eq!((found(ChunkRef::NONE), found(other)), (Some(other), None));
    });
}

/// A label and a count without the data they describe: so few steps that all schedules are run. Either a reference is
/// taken under the label, or the label is removed and no reference is taken.
#[test]
fn removing_a_label_and_taking_a_reference_exclude_each_other() {
    let schedules = exhaust(|| {
        let (labels, lock) = (Arc::new(Labels::new(8)), Arc::new(Mutex::new(())));
        let count = Arc::new(AtomicU64::new(1));
        let block = BlockNumber(3);
        labels.put(block, WEAK);
        let of_owner = (labels.clone(), count.clone(), lock.clone());
        let of_finder = (labels.clone(), count.clone(), lock);
        let (is_free, is_taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (frees, takes) = (is_free.clone(), is_taken.clone());
        race([
            task(move || {
                let (labels, count, lock) = of_owner;
                let off = {
                    let _nobody_takes_a_reference = lock.lock();
                    labels.take_off(block)
                };
                match count.load(Ordering::SeqCst) {
                    1 => frees.store(1, Ordering::SeqCst),
                    _ => labels.put_back(block, off),
                }
            }),
            task(move || {
                let (labels, count, lock) = of_finder;
                let _its_owner_cannot_drop_it = lock.lock();
                if labels.fits(block, WEAK) {
                    count.fetch_add(1, Ordering::SeqCst);
                    takes.store(1, Ordering::SeqCst);
                }
            }),
        ]);
        assert_eq!(is_free.load(Ordering::SeqCst) + is_taken.load(Ordering::SeqCst), 1);
        assert_eq!(labels.has(block), is_taken.load(Ordering::SeqCst) == 1);
    });
    println!("{schedules} schedules");
}

/// Each number has at most one user, while the table grows and shrinks: at its end, and before a part that stays.
#[test]
fn an_inode_number_is_never_given_out_twice() {
    for stays in [None, Some(2)] {
        explore(move || take_numbers_while_a_part_goes(stays));
    }
}

/// All slots of part 0 but one are in use, and all of the part that stays.
fn take_numbers_while_a_part_goes(stays: Option<u64>) {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    let space = Arc::new(Space::new(region.clone(), geometry, 2, true));
    let first = geometry.first_segment();
    let mut parts = vec![Some(TablePart { segment: first, absent_before: 0 })];
    if let Some(stays) = stays {
        parts.resize(stays as usize, None);
        parts.push(Some(TablePart { segment: first + 1, absent_before: stays as u16 - 1 }));
    }
    for (ordinal, part) in exact_parts(&parts) {
        space.adopt_table_segment(part.segment);
        space.write_table_part(part.segment, ordinal, part.absent_before);
    }
    let table = Arc::new(InodeTable::new(region.clone(), parts.clone()));
    let words = (INODES_PER_SEGMENT / 64) as usize;
    let mut used = vec![0; parts.len() * words];
    parts
        .iter()
        .zip(used.chunks_mut(words))
        .filter(|(part, _)| part.is_some())
        .for_each(|(_, used)| used.fill(u64::MAX));
    used[words - 1] >>= 1;
    table.adopt(&used, 0);
    let (end, in_use) = (table.end(), table.in_use());
    let taken = Arc::new(AtomicU64::new(0));
    let works = || {
        let (table, space, taken) = (table.clone(), space.clone(), taken.clone());
        task(move || {
            let ino = table.allocate(&space).unwrap();
            assert!(table.slot(ino).is_some(), "a number in use has a slot");
            let mine = 1 << (ino + 1 - INODES_PER_SEGMENT);
            assert_eq!(taken.fetch_or(mine, Ordering::SeqCst) & mine, 0, "{ino} was given out twice");
            taken.fetch_and(!mine, Ordering::SeqCst);
            table.free(ino);
        })
    };
    let (shrinks, its_space) = (table.clone(), space.clone());
    race([works(), works(), task(move || shrinks.shrink(&its_space, || true))]);
    table.shrink(&space, || true);
    assert_eq!((table.end(), table.in_use()), (end, in_use));
    let segments = parts.iter().flatten().count() as u64;
    assert_eq!(space.free_blocks(), space.total_blocks() - segments * SEGMENT_BLOCKS);
    assert_eq!(table_parts(&geometry, &read_entries(&region, &geometry)).unwrap(), parts, "gaps are told of");
    assert!(space.allocate_one("test", Purpose::Data).is_ok());
}
