//! The time of a look-up, an insertion and a copy.

use nvfold_bench::data::Random;
use nvfold_bench::samples::{median, middle_half};
use nvfold_causality::{FileToken, RecTree, TreeOptions, Variant};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Buffers of each kind; with 35 records a page they take some 2.5 MB of records, more than one level of cache.
const BLOCKS: u64 = 2048;
const BLOCK_BYTES: u64 = 4096;
/// Addresses of the kinds of buffers, far from each other and in the middle of pages.
const READ: u64 = 0x5000_0000_0810;
const BUILT: u64 = 0x5100_0000_0810;
const UNKNOWN: u64 = 0x5200_0000_0810;
/// A value of 100 bytes every 116 bytes.
const VALUE_BYTES: u64 = 100;
const ENTRY_BYTES: u64 = 116;

/// One operation in one variant.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub variant: &'static str,
    pub operation: String,
    /// Nanoseconds per operation: the median of the passes, and the width of their middle half.
    pub nanoseconds: f64,
    pub spread: f64,
}

/// Measures all operations in one variant. `scale` divides the number of buffers.
pub(super) fn measure(variant: Variant, name: &'static str, passes: u32, scale: u64) -> Vec<Row> {
    let blocks = BLOCKS / scale;
    let mut rows = Vec::new();
    let mut time = |operation: String, mut pass: Box<dyn FnMut() -> u64 + '_>| {
        let times: Vec<f64> = (0..=passes)
            .map(|_| {
                let start = Instant::now();
                let operations = pass();
                start.elapsed().as_nanos() as f64 / operations as f64
            })
            .collect();
        // The first pass warms up.
        let (nanoseconds, spread) = (median(&times[1..]), middle_half(&times[1..]));
        rows.push(Row { variant: name, operation, nanoseconds, spread });
    };
    let order = shuffled(blocks);

    // --- look-ups of 4 KiB, in random order ---
    let mut sources = Vec::new();
    let tree = RecTree::new(TreeOptions::of(variant));
    let file = tree.open_file().expect("none is open");
    for block in 0..blocks {
        tree.record_read(READ + block * BLOCK_BYTES, BLOCK_BYTES, file, 2 * block * BLOCK_BYTES);
    }
    let mut look_up = |operation: String, tree: &RecTree, place: u64, length: u64, found: usize| {
        let mut pass = || {
            for block in &order {
                tree.origins(place + block * BLOCK_BYTES, length, &mut sources);
                assert_eq!(black_box(&sources).len(), found, "{operation}");
            }
            order.len() as u64
        };
        time(operation.clone(), Box::new(&mut pass));
    };
    look_up("look-up of 4 KiB, nothing known".into(), &tree, UNKNOWN, BLOCK_BYTES, 0);
    look_up("look-up of 4 KiB that were read at once".into(), &tree, READ, BLOCK_BYTES, 1);
    look_up("look-up of 100 bytes of them".into(), &tree, READ + 300, VALUE_BYTES, 1);
    for value_bytes in [1008, 100] {
        let tree = RecTree::new(TreeOptions::of(variant));
        let file = tree.open_file().expect("none is open");
        let entry_bytes = value_bytes + 16;
        let values = BLOCK_BYTES / entry_bytes;
        for block in 0..blocks {
            for value in 0..values {
                let place = BUILT + block * BLOCK_BYTES + value * entry_bytes;
                tree.record_read(place, value_bytes, file, 7 * (block * values + value) * value_bytes);
            }
        }
        let operation = format!("look-up of 4 KiB with {values} values of {value_bytes} bytes");
        // The length is the paper's, 4 KiB; if the tree had given up pages there would be less to find.
        assert_eq!(tree.stats().given_up, 0);
        look_up(operation, &tree, BUILT, values * entry_bytes, values as usize);
    }

    // --- insertions, in ascending order as in most programs, over buffers that are reused ---
    let tree = RecTree::new(TreeOptions::of(variant));
    let file = tree.open_file().expect("none is open");
    let buffers = blocks.min(64);
    time("insertion of 100 bytes".into(), Box::new(|| ascending(buffers, |place| read(&tree, place, file))));
    let tree = RecTree::new(TreeOptions::of(variant));
    let file = tree.open_file().expect("none is open");
    time(
        "insertion of 4 KiB, over two pages".into(),
        Box::new(|| {
            (0..16 * buffers).for_each(|at| {
                tree.record_read(READ + at % buffers * BLOCK_BYTES, BLOCK_BYTES, file, at * 2 * BLOCK_BYTES);
            });
            16 * buffers
        }),
    );

    // --- copies ---
    let tree = RecTree::new(TreeOptions::of(variant));
    let file = tree.open_file().expect("none is open");
    for block in 0..buffers {
        tree.record_read(READ + block * BLOCK_BYTES, BLOCK_BYTES, file, 2 * block * BLOCK_BYTES);
    }
    let copy = |place: u64| tree.record_copy(place, READ + (place - BUILT), VALUE_BYTES);
    time("copy of 100 bytes that were read".into(), Box::new(|| ascending(buffers, copy)));
    if variant != Variant::KeepAll {
        let tree = RecTree::reserved(TreeOptions::of(variant));
        let file = tree.open_file().expect("none is open");
        for block in 0..buffers {
            tree.record_read(READ + block * BLOCK_BYTES, BLOCK_BYTES, file, 2 * block * BLOCK_BYTES);
        }
        let copy = |place: u64| assert!(tree.try_record_copy(place, READ + (place - BUILT), VALUE_BYTES));
        time("the same without waiting or allocating".into(), Box::new(|| ascending(buffers, copy)));
    }
    let copy =
        |place: u64| tree.record_copy(UNKNOWN + (1 << 30) + (place - BUILT), UNKNOWN + (place - BUILT), VALUE_BYTES);
    time("copy of 100 bytes, nothing known".into(), Box::new(|| ascending(buffers, copy)));
    rows
}

fn read(tree: &RecTree, place: u64, file: FileToken) {
    tree.record_read(place, VALUE_BYTES, file, 3 * (place - BUILT));
}

/// Calls `operation` with the address of every value of `buffers` buffers, in ascending order; returns their number.
fn ascending(buffers: u64, mut operation: impl FnMut(u64)) -> u64 {
    let values = BLOCK_BYTES / ENTRY_BYTES;
    for block in 0..buffers {
        for value in 0..values {
            operation(BUILT + block * BLOCK_BYTES + value * ENTRY_BYTES);
        }
    }
    buffers * values
}

fn shuffled(blocks: u64) -> Vec<u64> {
    let mut random = Random(5);
    let mut order: Vec<u64> = (0..blocks).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (random.next_u64() % (at as u64 + 1)) as usize);
    }
    order
}
