//! Races on the rec-tree: threads record, look up and forget at once. Every answer must match some sequential order
//! and reference only open files, and the tree's counts must be right afterwards.

use crate::{CopySource, FileToken, RecTree, TreeOptions, TreeStats, Variant};
use nvfold_sync::schedules::{explore, race, task};
use std::sync::{Arc, Mutex};

const PAGE: u64 = 4096;

fn tree(memory_bytes_max: usize) -> Arc<RecTree> {
    Arc::new(RecTree::new(TreeOptions { memory_bytes_max, files_max: 4, ..TreeOptions::of(Variant::Icid) }))
}

fn origins(tree: &RecTree, address: u64, length: u64) -> Vec<CopySource> {
    let mut sources = Vec::new();
    tree.origins(address, length, &mut sources);
    assert!(sources.is_sorted_by(|a, b| a.at + a.length <= b.at), "{sources:?}");
    sources
}

/// Asserts that every record is accounted for, and that a lookup of everything finds a record exactly if some remain.
fn settle(tree: &RecTree) {
    tree.remove_forgotten();
    let TreeStats { records, pages, insertions, deletions, given_up, .. } = tree.stats();
    assert_eq!(records + deletions + given_up, insertions, "{:?}", tree.stats());
    assert!(pages <= records && (pages > 0) == (records > 0));
    assert_eq!(origins(tree, 0, u64::MAX).is_empty(), records == 0);
}

#[test]
fn a_look_up_during_insertions_finds_the_old_or_the_new_record() {
    explore(|| {
        let tree = tree(1 << 20);
        let (old, new) = (tree.open_file().unwrap(), tree.open_file().unwrap());
        tree.record_read(PAGE, PAGE, old, 0);
        let (writer, copier, reader) = (tree.clone(), tree.clone(), tree.clone());
        race([
            task(move || writer.record_read(PAGE, PAGE, new, 0)),
            task(move || copier.record_copy(9 * PAGE + 100, PAGE + 100, 200)),
            task(move || {
                for (address, at, length) in [(PAGE, 0, PAGE), (9 * PAGE, 100, 200)] {
                    let found = origins(&reader, address, PAGE);
                    let is = |file| found == [CopySource { at, length, file, file_offset: at }];
                    assert!(is(old) || is(new) || (address != PAGE && found.is_empty()), "{found:?}");
                }
            }),
        ]);
        let copied = origins(&tree, 9 * PAGE + 100, 200);
        assert!(copied.len() == 1 && copied[0].length == 200);
        settle(&tree);
    });
}

#[test]
fn records_of_a_file_that_is_being_forgotten_never_lead_to_its_successor() {
    explore(|| {
        let tree = tree(1 << 20);
        let file = tree.open_file().unwrap();
        tree.record_read(PAGE, 100, file, 0);
        let (forgetter, recorder, mapper) = (tree.clone(), tree.clone(), tree.clone());
        race([
            task(move || {
                forgetter.forget_file(file);
                let next = forgetter.open_file().unwrap();
                assert!(next != file && origins(&forgetter, 0, 100 * PAGE).is_empty());
            }),
            task(move || {
                recorder.record_read(3 * PAGE, 100, file, 0);
                recorder.record_copy(5 * PAGE, PAGE, 100);
            }),
            task(move || _ = mapper.map_area(50 * PAGE, PAGE, file, 0)),
        ]);
        assert!(origins(&tree, 0, 100 * PAGE).is_empty());
        settle(&tree);
        assert_eq!(tree.stats().records, 0);
    });
}

#[test]
fn a_file_is_forgotten_once_and_its_place_is_reused_by_one_file() {
    explore(|| {
        let tree = tree(1 << 16);
        let file = tree.open_file().unwrap();
        let successors: Arc<Mutex<Vec<FileToken>>> = Arc::default();
        race([0, 1, 2].map(|_| {
            let (tree, successors) = (tree.clone(), successors.clone());
            task(move || {
                tree.forget_file(file);
                let next = tree.open_file().unwrap();
                successors.lock().unwrap().push(next);
            })
        }));
        let mut numbers: Vec<u32> = successors.lock().unwrap().iter().map(|file| file.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 3);
    });
}

#[test]
fn pages_are_evicted_during_look_ups_and_insertions_without_loss_or_double_count() {
    explore(|| {
        // A tree with a single part, which has slots for a few pages.
        let tree = tree(5000);
        let file = tree.open_file().unwrap();
        race([0, 1, 2].map(|thread| {
            let tree = tree.clone();
            task(move || {
                for at in 0..6 {
                    let address = (100 * thread + 20 * at) * PAGE;
                    tree.record_read(address, 10, file, thread * 1000 + at * 100);
                    let known = CopySource { at: 0, length: 10, file, file_offset: thread * 1000 + at * 100 };
                    let found = origins(&tree, address, 10);
                    assert!(found.is_empty() || found == [known], "{found:?}");
                    tree.try_record_copy(address + 2000, address, 10);
                }
                tree.forget_range(100 * thread * PAGE, 40 * PAGE);
            })
        }));
        settle(&tree);
    });
}

#[test]
fn areas_are_mapped_and_unmapped_during_copies_from_them() {
    explore(|| {
        let tree = tree(1 << 16);
        let file = tree.open_file().unwrap();
        tree.map_area(PAGE, PAGE, file, 0);
        let (mapper, copier) = (tree.clone(), tree.clone());
        race([
            task(move || {
                mapper.unmap_area(PAGE, PAGE);
                mapper.map_area(PAGE, PAGE, file, 8 * PAGE);
            }),
            task(move || copier.record_copy(30 * PAGE, PAGE, 100)),
        ]);
        let found = origins(&tree, 30 * PAGE, 100);
        let known = [0, 8 * PAGE].map(|file_offset| CopySource { at: 0, length: 100, file, file_offset });
        assert!(found.is_empty() || known.iter().any(|known| found == [*known]), "{found:?}");
        assert_eq!(origins(&tree, PAGE, 100), [CopySource { at: 0, length: 100, file, file_offset: 8 * PAGE }]);
        tree.unmap_area(PAGE, PAGE);
        settle(&tree);
    });
}
