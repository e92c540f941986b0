//! What the tree promises, tested with the paper's examples. tests/src/causality.rs compares it with a naive model
//! under random operations, in `make test` and under the fuzzer.

use super::*;

const PAGE: u64 = PAGE_BYTES;

fn tree() -> RecTree {
    RecTree::default()
}

fn of(variant: Variant) -> RecTree {
    RecTree::new(TreeOptions::of(variant))
}

const ALL: [Variant; 3] = [Variant::Icid, Variant::DeleteOverlapping, Variant::KeepAll];

/// Returns (at, length, file offset) of the known parts of a range; all must come from this file.
fn known(tree: &RecTree, address: u64, length: u64, file: FileToken) -> Vec<(u64, u64, u64)> {
    let mut sources = vec![CopySource::default(); 3];
    tree.origins(address, length, &mut sources);
    assert!(sources.iter().all(|source| source.file == file));
    sources.iter().map(|source| (source.at, source.length, source.file_offset)).collect()
}

fn records(tree: &RecTree) -> u64 {
    tree.stats().records
}

// --- 4.2: the data structure -----------------------------------------------------------------------------------------

#[test]
fn three_pages_with_2_3_and_20_records_take_5_arrays() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    for (page, count) in [(1, 2), (2, 3), (3, 20)] {
        // Each copy leaves a gap, so none continues the one before.
        (0..count).for_each(|at| tree.record_read(page * PAGE + at * 100, 90, file, at * 1000));
    }
    let TreeStats { records, pages, .. } = tree.stats();
    assert_eq!((records, pages), (25, 3));
    let arrays: usize = tree.parts.iter().map(|part| part.pages.read().slots_in_use()).sum();
    // The paper counts 5 arrays for 2 + 3 + 20 records, but 20 records take 4 arrays, the last of which is the node.
    assert_eq!(arrays, 1 + 1 + 4);
}

#[test]
fn a_record_is_found_by_page_number_and_offset_in_page() {
    for variant in ALL {
        let tree = of(variant);
        let file = tree.open_file().unwrap();
        tree.record_read(7 * PAGE + 512, 100, file, 4000);
        assert_eq!(known(&tree, 7 * PAGE, PAGE, file), [(512, 100, 4000)], "{variant:?}");
        assert_eq!(known(&tree, 7 * PAGE + 550, 10, file), [(0, 10, 4038)]);
        assert_eq!(known(&tree, 7 * PAGE + 612, 1000, file), []);
        assert_eq!(known(&tree, 8 * PAGE + 512, 100, file), []);
    }
}

#[test]
fn a_copy_over_several_pages_gives_one_record_for_each_page_and_one_origin() {
    for variant in ALL {
        let tree = of(variant);
        let file = tree.open_file().unwrap();
        tree.record_read(10 * PAGE - 10, 2 * PAGE + 20, file, 5);
        assert_eq!((records(&tree), tree.stats().pages), (4, 4));
        assert_eq!(known(&tree, 0, 100 * PAGE, file), [(10 * PAGE - 10, 2 * PAGE + 20, 5)], "{variant:?}");
    }
}

// --- 4.3: what an insertion deletes ----------------------------------------------------------------------------------

/// Figure 7 (a): four records in ascending order. The figure's addresses span more than a page, so distances are
/// halved: (address - 20480) / 2 in a page.
fn figure_7(variant: Variant) -> (RecTree, FileToken) {
    let tree = of(variant);
    let file = tree.open_file().unwrap();
    for (at, address) in [20492, 22408, 24080, 25700].into_iter().enumerate() {
        tree.record_read(halved(address), 50, file, at as u64 * 10_000);
    }
    (tree, file)
}

fn halved(address: u64) -> u64 {
    20480 + (address - 20480) / 2
}

fn addresses(tree: &RecTree, file: FileToken) -> Vec<u64> {
    known(tree, 20480, PAGE, file).into_iter().map(|(at, ..)| 20480 + at).collect()
}

#[test]
fn figure_7_b_a_record_at_26000_is_appended_after_25700() {
    let (tree, file) = figure_7(Variant::Icid);
    tree.record_read(halved(26000), 50, file, 40_000);
    assert_eq!(addresses(&tree, file), [20492, 22408, 24080, 25700, 26000].map(halved));
    assert_eq!(tree.stats().deletions, 0);
}

#[test]
fn figure_7_c_a_record_at_23700_deletes_24080_25700_and_26000() {
    let (tree, file) = figure_7(Variant::Icid);
    tree.record_read(halved(26000), 50, file, 40_000);
    tree.record_read(halved(23700), 50, file, 50_000);
    assert_eq!(addresses(&tree, file), [20492, 22408, 23700].map(halved));
    assert_eq!(tree.stats().deletions, 3);
}

#[test]
fn with_the_addresses_of_figure_7_an_insertion_changes_one_of_two_pages() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    for (at, address) in [20492, 22408, 24080, 25700, 26000, 23700].into_iter().enumerate() {
        tree.record_read(address, 50, file, at as u64 * 10_000);
    }
    let found: Vec<u64> = known(&tree, 0, 1 << 20, file).into_iter().map(|(at, ..)| at).collect();
    assert_eq!(found, [20492, 22408, 23700, 25700, 26000]);
}

#[test]
fn a_record_at_the_address_of_another_replaces_it() {
    let (tree, file) = figure_7(Variant::Icid);
    tree.record_read(halved(25700), 50, file, 77_000);
    assert_eq!(known(&tree, halved(25700), 50, file), [(0, 50, 77_000)]);
    assert_eq!(records(&tree), 4);
}

#[test]
fn hundreds_of_records_of_a_page_can_be_deleted_and_recorded_again() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    for round in 0..5 {
        for at in 0..400 {
            tree.record_read(PAGE + at * 10, 9, file, round * 100_000 + at * 100);
            assert_eq!(records(&tree), at + 1);
        }
        // In the middle: what is below stays.
        tree.record_read(PAGE + 2005, 3, file, 7);
        assert_eq!(records(&tree), 202);
        assert_eq!(
            known(&tree, PAGE + 1990, 18, file),
            [(0, 9, round * 100_000 + 19_900), (10, 5, round * 100_000 + 20_000), (15, 3, 7)]
        );
    }
}

#[test]
fn a_look_up_returns_the_newer_of_overlapping_records_and_the_rest_of_the_older() {
    for variant in [Variant::Icid, Variant::KeepAll] {
        let tree = of(variant);
        let file = tree.open_file().unwrap();
        tree.record_read(PAGE, 1000, file, 0);
        tree.record_read(PAGE + 500, 100, file, 9000);
        tree.record_read(PAGE + 700, 10, file, 8000);
        let all = [(0, 500, 0), (500, 100, 9000), (600, 100, 600), (700, 10, 8000), (710, 290, 710)];
        assert_eq!(known(&tree, PAGE, PAGE, file), all, "{variant:?}");
        assert_eq!(
            known(&tree, PAGE + 550, 170, file),
            [(0, 50, 9050), (50, 100, 600), (150, 10, 8000), (160, 10, 710)]
        );
    }
}

#[test]
fn a_long_copy_keeps_the_records_of_the_buffer_after_its_target() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    // Two buffers of blocks, side by side, which share a page.
    let (first, second, length) = (PAGE + 1000, PAGE + 1000 + 4229, 4229);
    tree.record_read(second, length, file, 50_000);
    for at in 0..30 {
        tree.record_read(first, length, file, at * 100_000);
        assert_eq!(known(&tree, second, length, file), [(0, length, 50_000)]);
        assert_eq!(known(&tree, first, length, file), [(0, length, at * 100_000)]);
    }
    assert_eq!(records(&tree), 4);
    // Many records behind it stay in their order.
    (0..40).for_each(|at| tree.record_read(second + at * 50, 40, file, 900_000 + at * 60));
    tree.record_read(first, length, file, 7);
    let values: Vec<_> = (0..40).map(|at| (at * 50, 40, 900_000 + at * 60)).collect();
    assert_eq!(known(&tree, second, 2000, file), values);
    // A small copy deletes them, whatever page it begins on.
    tree.record_read(2 * PAGE - 10, 20, file, 8);
    assert_eq!(known(&tree, second, 2000, file).iter().filter(|(at, ..)| second + at < 3 * PAGE).count(), 0);
}

#[test]
fn delete_overlapping_deletes_overlapping_records_completely_and_keeps_later_ones() {
    let (tree, file) = figure_7(Variant::DeleteOverlapping);
    tree.record_read(halved(23700), 250, file, 50_000);
    assert_eq!(addresses(&tree, file), [20492, 22408, 23700, 25700].map(halved));
    assert_eq!(tree.stats().deletions, 1);
}

#[test]
fn the_variant_keep_all_deletes_no_records() {
    let (tree, file) = figure_7(Variant::KeepAll);
    tree.record_read(20480, PAGE, file, 1_000_000);
    assert_eq!((records(&tree), tree.stats().deletions), (5, 0));
    assert_eq!(known(&tree, 20480, PAGE, file), [(0, PAGE, 1_000_000)]);
}

#[test]
fn a_file_read_byte_by_byte_takes_one_record_for_each_page() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    (0..2 * PAGE).for_each(|at| tree.record_read(PAGE + at, 1, file, 100 + at));
    assert_eq!((records(&tree), tree.stats().insertions), (2, 2 * PAGE));
    assert_eq!(known(&tree, PAGE, 2 * PAGE, file), [(0, 2 * PAGE, 100)]);
}

// --- copies ----------------------------------------------------------------------------------------------------------

#[test]
fn copies_of_copies_are_traced_to_the_file() {
    for variant in ALL {
        let tree = of(variant);
        let file = tree.open_file().unwrap();
        tree.record_read(PAGE, 1000, file, 300);
        tree.record_copy(50 * PAGE + 7, PAGE + 100, 200);
        tree.record_copy(90 * PAGE, 50 * PAGE, 300);
        assert_eq!(known(&tree, 90 * PAGE, 300, file), [(7, 200, 400)], "{variant:?}");
    }
}

#[test]
fn an_overlapping_copy_is_recorded_by_the_content_before_it() {
    for shift in [1, 100, 999] {
        let tree = tree();
        let file = tree.open_file().unwrap();
        tree.record_read(PAGE, 1000, file, 0);
        tree.record_copy(PAGE + shift, PAGE, 1000);
        assert_eq!(known(&tree, PAGE + shift, 1000, file), [(0, 1000, 0)]);
        let tree = of(Variant::KeepAll);
        let file = tree.open_file().unwrap();
        tree.record_read(PAGE + shift, 1000, file, 0);
        tree.record_copy(PAGE, PAGE + shift, 1000);
        assert_eq!(known(&tree, PAGE, 1000, file), [(0, 1000, 0)]);
    }
}

#[test]
fn a_copy_to_itself_changes_nothing() {
    let (tree, file) = figure_7(Variant::Icid);
    tree.record_copy(20480, 20480, PAGE);
    assert_eq!(addresses(&tree, file), [20492, 22408, 24080, 25700].map(halved));
}

#[test]
fn a_copy_from_memory_without_records_deletes_the_last_records_that_it_covers() {
    let (tree, file) = figure_7(Variant::Icid);
    tree.record_copy(halved(24080), 1 << 30, 2000);
    assert_eq!(addresses(&tree, file), [20492, 22408].map(halved));
    // A header that is filled in afterwards costs nothing.
    tree.record_copy(20480, 1 << 30, 12);
    assert_eq!(addresses(&tree, file), [20492, 22408].map(halved));
    tree.record_copy(20480, 1 << 30, PAGE);
    assert_eq!(tree.stats(), TreeStats { lookups: tree.stats().lookups, ..tree.stats() });
    assert_eq!((records(&tree), tree.stats().pages), (0, 0));
}

// --- mapped areas ----------------------------------------------------------------------------------------------------

#[test]
fn a_copy_from_a_mapped_area_has_its_file_as_origin() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    assert!(tree.map_area(1 << 40, 10 * PAGE, file, 3 * PAGE));
    tree.record_copy(PAGE + 1, (1 << 40) + 100, 5000);
    assert_eq!(known(&tree, PAGE, 6000, file), [(1, 5000, 3 * PAGE + 100)]);
    // A write straight from the area.
    assert_eq!(known(&tree, (1 << 40) - 50, 100, file), [(50, 50, 3 * PAGE)]);
    // Half of it has been unmapped.
    tree.unmap_area((1 << 40) + PAGE, PAGE);
    assert_eq!(known(&tree, 1 << 40, 3 * PAGE, file), [(0, PAGE, 3 * PAGE), (2 * PAGE, PAGE, 5 * PAGE)]);
    tree.unmap_area(0, u64::MAX);
    assert_eq!(known(&tree, 1 << 40, 3 * PAGE, file), []);
    assert_eq!(known(&tree, PAGE, 6000, file), [], "unmapped as well");
}

#[test]
fn the_newer_of_a_copy_and_a_mapping_decides_the_origin() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    tree.map_area(PAGE, PAGE, file, 0);
    tree.record_read(PAGE + 100, 50, file, 70_000);
    assert_eq!(known(&tree, PAGE, PAGE, file), [(0, 100, 0), (100, 50, 70_000), (150, PAGE - 150, 150)]);
    tree.map_area(PAGE, PAGE, file, 8 * PAGE);
    assert_eq!(known(&tree, PAGE, PAGE, file), [(0, PAGE, 8 * PAGE)]);
}

#[test]
fn mapped_areas_are_followed_up_to_a_limit() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    let mapped = (0..5000).filter(|at| tree.map_area(2 * at * PAGE, PAGE, file, 0)).count();
    assert_eq!(mapped, 4096);
    assert_eq!(known(&tree, 0, 10 * PAGE, file).len(), 5);
    tree.forget_file(file);
    assert_eq!(known(&tree, 0, 10 * PAGE, file), []);
    let file = tree.open_file().unwrap();
    assert!(tree.map_area(2 * 4999 * PAGE, PAGE, file, 0));
}

// --- files -----------------------------------------------------------------------------------------------------------

#[test]
fn records_of_a_forgotten_file_are_invalid_at_once_even_if_its_place_is_reused() {
    for variant in ALL {
        let tree = RecTree::new(TreeOptions { files_max: 2, ..TreeOptions::of(variant) });
        let (file, other) = (tree.open_file().unwrap(), tree.open_file().unwrap());
        assert_eq!(tree.open_file(), None);
        tree.record_read(PAGE, PAGE, file, 0);
        tree.record_read(PAGE + 100, 100, other, 0);
        tree.map_area(1 << 40, PAGE, file, 0);
        tree.forget_file(file);
        tree.forget_file(file);
        let next = tree.open_file().unwrap();
        assert_eq!(next.number(), file.number());
        assert_eq!(known(&tree, PAGE, PAGE, other), [(100, 100, 0)]);
        assert_eq!(known(&tree, 1 << 40, PAGE, other), []);
        // The token is invalid in other calls, too.
        tree.record_read(9 * PAGE, PAGE, file, 0);
        assert!(!tree.map_area(1 << 41, PAGE, file, 0) && !tree.is_open(file));
        let before = records(&tree);
        tree.remove_forgotten();
        assert_eq!((before, records(&tree)), (if variant == Variant::DeleteOverlapping { 1 } else { 2 }, 1));
        assert_eq!(known(&tree, 0, 100 * PAGE, other), [(PAGE + 100, 100, 0)]);
    }
}

#[test]
fn all_records_of_a_token_are_gone_before_it_is_reused() {
    let tree = RecTree::new(TreeOptions { files_max: 1, ..TreeOptions::default() });
    let first = tree.open_file().unwrap();
    tree.record_read(PAGE, PAGE, first, 0);
    let mut file = first;
    for _ in 0..(1 << 15) {
        tree.forget_file(file);
        file = tree.open_file().unwrap();
    }
    assert_eq!(file, first);
    assert_eq!(known(&tree, PAGE, PAGE, file), []);
}

// --- bounds ----------------------------------------------------------------------------------------------------------

#[test]
fn rec_tree_memory_stays_within_its_limit_and_the_newest_pages_are_kept() {
    for (variant, bytes) in ALL.into_iter().flat_map(|variant| [(variant, 100_000), (variant, 1_000_000)]) {
        let tree = RecTree::new(TreeOptions { memory_bytes_max: bytes, ..TreeOptions::of(variant) });
        let file = tree.open_file().unwrap();
        let other = tree.stats().memory_bytes;
        for at in 0..200_000 {
            tree.record_read(at * 1000, 900, file, at * 5000);
            if at % 1000 == 0 {
                assert!(tree.stats().memory_bytes <= other + bytes as u64, "{variant:?}");
            }
        }
        let TreeStats { pages, given_up, insertions, deletions, records, .. } = tree.stats();
        assert!(pages as usize > bytes / 600 && given_up > 0, "{variant:?}: {pages} pages of {bytes} bytes");
        assert_eq!(insertions, records + deletions + given_up);
        let newest = known(&tree, 199_900 * 1000, 100_000, file);
        assert_eq!(newest.iter().map(|(_, length, _)| length).sum::<u64>(), 90_000, "{variant:?}");
    }
}

#[test]
fn a_page_that_is_looked_up_is_not_evicted() {
    let tree = RecTree::new(TreeOptions { memory_bytes_max: 64 << 10, ..TreeOptions::default() });
    let file = tree.open_file().unwrap();
    tree.record_read(PAGE, PAGE, file, 0);
    for at in 0..10_000 {
        tree.record_read((10 + at) * PAGE, PAGE, file, 0);
        assert_eq!(known(&tree, PAGE, PAGE, file), [(0, PAGE, 0)]);
    }
    assert!(tree.stats().given_up > 9000);
}

#[test]
fn a_rec_tree_without_memory_records_nothing_and_reports_it() {
    for bytes in [0, 1, 100, 2000] {
        let tree = RecTree::new(TreeOptions { memory_bytes_max: bytes, files_max: 0, ..TreeOptions::default() });
        assert_eq!(tree.open_file(), None);
        tree.record_read(PAGE, PAGE, FileToken::default(), 0);
        tree.record_copy(5, PAGE, PAGE);
        assert_eq!(records(&tree), 0);
    }
}

#[test]
fn impossible_ranges_are_truncated_and_never_overflow() {
    for variant in ALL {
        let tree = RecTree::new(TreeOptions { memory_bytes_max: 40_000, ..TreeOptions::of(variant) });
        let file = tree.open_file().unwrap();
        let numbers = [0, 1, 5, PAGE, 1 << 40, 1 << 63, (1 << 63) + 1, u64::MAX - PAGE, u64::MAX - 1, u64::MAX];
        for address in numbers {
            for length in numbers {
                for other in numbers {
                    tree.record_read(address, length, file, other);
                    tree.record_copy(address, other, length);
                    tree.try_record_copy(other, address, length);
                    tree.map_area(address, length, file, other);
                    let mut sources = Vec::new();
                    tree.origins(other, length, &mut sources);
                    assert!(sources.iter().all(|source| {
                        source.length > 0
                            && source.at.checked_add(source.length).is_some_and(|end| end <= length)
                            && source.file_offset.checked_add(source.length).is_some()
                    }));
                    assert!(sources.is_sorted_by(|a, b| a.at + a.length <= b.at), "{sources:?}");
                    tree.unmap_area(other, length / 2);
                    tree.forget_range(address, length);
                }
            }
        }
    }
}

// --- what never waits ------------------------------------------------------------------------------------------------

#[test]
fn calls_that_never_wait_drop_records_that_need_a_lock_or_memory() {
    let tree = tree();
    let file = tree.open_file().unwrap();
    assert!(!tree.try_record_read(PAGE, 100, file, 0), "nothing is reserved yet");
    tree.record_read(PAGE, 100, file, 0);
    assert!(tree.try_record_read(2 * PAGE, 100, file, 50) && tree.try_record_copy(3 * PAGE, PAGE, 100));
    assert_eq!(known(&tree, 3 * PAGE, 100, file), [(0, 100, 0)]);
    {
        let _held = tree.parts.iter().map(|part| part.pages.read()).collect::<Vec<_>>();
        assert!(!tree.try_record_copy(3 * PAGE, 2 * PAGE, 100) && !tree.try_record_read(PAGE, 9, file, 0));
    }
    {
        let _held = tree.parts.iter().map(|part| part.pages.write()).collect::<Vec<_>>();
        assert!(!tree.try_record_copy(3 * PAGE, 2 * PAGE, 100));
        assert!(tree.try_record_copy(1 << 40, 1 << 41, 100), "where there is no record there is no lock");
    }
    assert_eq!(known(&tree, 3 * PAGE, 100, file), [(0, 100, 0)]);
    assert!(tree.try_record_copy(3 * PAGE, 2 * PAGE, 100));
    assert_eq!(known(&tree, 3 * PAGE, 100, file), [(0, 100, 50)]);
}

/// LevelDB's blocks of 4 KiB hold 34 records of 100 bytes, each copied from elsewhere, and are copied as one.
#[test]
fn a_copy_of_many_records_is_recorded_without_allocating() {
    let tree = RecTree::reserved(TreeOptions::default());
    let file = tree.open_file().unwrap();
    let block_of = |length: u64| {
        tree.forget_range(0, 1 << 20);
        let count = PAGE / length;
        (0..count).for_each(|at| assert!(tree.try_record_read(PAGE + at * length, length - 1, file, at * 1000)));
        let is_whole = tree.try_record_copy(9 * PAGE + 7, PAGE, PAGE);
        (is_whole, known(&tree, 9 * PAGE + 7, PAGE, file).len() as u64 == count)
    };
    assert_eq!(block_of(119), (true, true));
    assert_eq!(block_of(64), (true, true));
    assert_eq!(block_of(32), (false, false), "more than there is room for, and it says so");
}

#[test]
fn a_reserved_tree_has_all_its_memory_and_never_asks_for_more() {
    for bytes in [0, 5000, 100_000, 5_700_000] {
        let options = TreeOptions { memory_bytes_max: bytes, ..TreeOptions::default() };
        let tree = RecTree::reserved(options);
        let file = tree.open_file().unwrap();
        let reserved = tree.budget.reserved_bytes();
        assert!(reserved <= bytes && reserved >= bytes * 9 / 10 - bytes.min(1000), "{reserved} of {bytes}");
        let inserted = (0..100_000).filter(|at| tree.try_record_read(at * 500, 400, file, at * 999)).count();
        assert!(bytes < 100_000 || inserted == 100_000, "{inserted} with {bytes} bytes");
        assert_eq!(tree.budget.reserved_bytes(), reserved);
    }
}

#[test]
fn a_look_up_of_memory_without_records_takes_no_lock() {
    let tree = tree();
    let mut sources = Vec::new();
    // The first look-up gives the thread its number.
    tree.origins(0, 1, &mut sources);
    let before = nvfold_sync::locked_instructions();
    (0..100).for_each(|at| tree.origins(at << 20, 4096, &mut sources));
    (0..100).for_each(|at| tree.record_copy(at << 20, (at + 1000) << 20, 4096));
    assert_eq!(nvfold_sync::locked_instructions(), before);
}
