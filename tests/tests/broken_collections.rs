//! A collection that is broken at one place is noticed in the crash states of that collection alone. What each mistake
//! would be stands beside it; a place is a file, a function, and the number of the line among those of the function that
//! store (for `Forget` and `Early`), or that flush, stream or fence.

use nvfold_tests::crash::collection::try_broken;
use nvfold_tests::crash::mutation::Mutation::{self, DropFence, DropFlush, Early, Forget, Swap};
use nvfold_tests::crash::mutation::Place;
use nvfold_tests::crash::workload::collection_alone;
use nvfold_tests::show;

/// The mistake, file, function, number of the line, mutation.
const MISTAKES: &[(&str, &str, &str, usize, Mutation)] = &[
    ("the live bytes are not copied", "store/packed.rs", "store_packed_as", 1, Forget),
    ("the copied bytes are not flushed before the commit", "store/packed.rs", "store_packed_as", 1, DropFlush),
    ("the new chunk has no entry, and so no reference", "chunk/transaction.rs", "write_entry", 1, Forget),
    (
        "the entry of the new chunk is not flushed before the commit",
        "chunk/transaction.rs",
        "write_entry",
        1,
        DropFlush,
    ),
    ("files after the first take no reference on the new chunk", "chunk/counts.rs", "increase", 1, Forget),
    ("their references are not flushed before the commit", "chunk/counts.rs", "increase", 1, DropFlush),
    ("the fence before the commit is skipped", "chunk/transaction.rs", "end", 2, DropFence),
    ("the commit comes before the fence", "chunk/transaction.rs", "end", 2, Swap),
    ("the log entries are not written", "store/commit.rs", "stage_lines", 1, Forget),
    ("the log entries are not flushed before the commit", "store/commit.rs", "stage_lines", 1, DropFlush),
    ("a file is re-pointed before anything else is done", "store/commit.rs", "store_commit_word", 1, Early),
    ("the old block is emptied before the commit that leaves it", "chunk/counts.rs", "clear", 1, Early),
    ("references on the old block are dropped before the commit", "chunk/counts.rs", "release", 1, Early),
    ("what was left is used again before the commit is durable", "store/commit.rs", "store_commit_word", 2, DropFence),
    ("the segment of the new chunks still counts as free", "space/mod.rs", "write_entry", 1, Forget),
];

#[test]
fn a_broken_collection_is_noticed_in_its_own_crash_states() {
    let place = |file: &str, function: &str, number| Place { file: file.into(), function: function.into(), number };
    let broken =
        |(_, file, function, number, mutation): &(_, &str, &str, usize, _)| (place(file, function, *number), *mutation);
    let broken: Vec<(Place, Mutation)> = MISTAKES.iter().map(broken).collect();
    let tried = try_broken(&collection_alone(), &broken, 1);
    let mut wrong = Vec::new();
    for ((mistake, ..), tried) in MISTAKES.iter().zip(&tried.of_each) {
        if tried.noticed.is_empty() || !tried.missed.is_empty() {
            wrong.push(format!("{mistake}: noticed by {:?}, missed by {:?}", tried.noticed, tried.missed));
        }
    }
    show(&format!(
        "{} mistakes in a collection are noticed, in {} crash states",
        MISTAKES.len() - wrong.len(),
        tried.states
    ));
    let places = [tried.stores, tried.flushes].map(|places| places.iter().map(Place::to_string).collect::<Vec<_>>());
    assert!(
        wrong.is_empty(),
        "{}\nIt stores in {:?}, and flushes or fences in {:?}",
        wrong.join("\n"),
        places[0],
        places[1]
    );
}
