//! Table 5: the memory of the rec-tree while a key-value store of a given number of pairs is filled.
//!
//! It uses addresses without bytes: 32 million pairs of 116 bytes would be 3.7 GB, several times. A pair is merged
//! from one level of the store to the next, as often as there are levels, each ten times as large as the one before.
//! Each merge is as in `traces`: a block is read, its values are copied to a block buffer, and that is copied to the
//! file's buffer, which is looked up when it is full.

use nvfold_bench::data::Random;
use nvfold_causality::{RecTree, TreeStats};

const PAIR_BYTES: u64 = 116;
const VALUE_BYTES: u64 = 100;
const ENTRY_BYTES: u64 = 120;
const ENTRIES_A_BLOCK: u64 = 35;
const BLOCK_BYTES: u64 = ENTRIES_A_BLOCK * ENTRY_BYTES + 21;
const BUFFER_BYTES: u64 = 64 << 10;
/// Bytes of the first level that is merged into (LevelDB: 10 MB).
const FIRST_LEVEL_BYTES: u64 = 10 << 20;
const HEAP: u64 = 0x5555_5555_0810;
/// Inputs of a merge, and buffers that each of them cycles through. Output files have 2 MB, and each has a buffer at
/// another address.
const INPUTS: u64 = 4;
const BUFFERS: u64 = 4;
const FILE_BYTES: u64 = 2 << 20;

/// Returns the number of levels that a pair passes through in a store of `pairs` pairs.
pub(super) fn levels(pairs: u64) -> u64 {
    1 + (pairs * PAIR_BYTES).div_ceil(FIRST_LEVEL_BYTES).ilog10() as u64
}

/// Fills such a store; returns the statistics of the tree when it used most memory.
pub(super) fn fill(tree: &RecTree, pairs: u64) -> TreeStats {
    let mut random = Random(pairs);
    let mut sources = Vec::new();
    let mut most = TreeStats::default();
    let (mut buffer, mut filled) = (0, 0);
    let mut files = Vec::new();
    let mut places = [HEAP; INPUTS as usize];
    for block in 0..pairs * levels(pairs) / ENTRIES_A_BLOCK {
        // Blocks come from the inputs in turn; each input is a sequence of files.
        let input = block % INPUTS;
        if files.len() < INPUTS as usize {
            files.extend(tree.open_file());
        }
        let file_offset = block / INPUTS * BLOCK_BYTES % FILE_BYTES;
        if file_offset < BLOCK_BYTES && block >= INPUTS {
            tree.forget_file(files[input as usize]);
            files[input as usize] = tree.open_file().expect("few are open");
        }
        let Some(file) = files.get(input as usize) else { continue };
        let place = HEAP + (input * BUFFERS + block / INPUTS % BUFFERS) * 4352;
        places[input as usize] = place;
        tree.record_read(place, BLOCK_BYTES, *file, file_offset);
        let built = HEAP + (1 << 20) + block % BUFFERS * 8192;
        for entry in 0..ENTRIES_A_BLOCK {
            // A value of the last block that was read from a random input.
            let from = places[(random.next_u64() % (block.min(INPUTS - 1) + 1)) as usize];
            let at = 20 + entry * ENTRY_BYTES;
            tree.record_copy(built + at, from + at, VALUE_BYTES);
        }
        let mut copied = 0;
        while copied < BLOCK_BYTES {
            let bytes = (BLOCK_BYTES - copied).min(BUFFER_BYTES - filled);
            let out = HEAP + (2 << 20) + buffer * (BUFFER_BYTES + 32);
            tree.record_copy(out + filled, built + copied, bytes);
            (copied, filled) = (copied + bytes, filled + bytes);
            if filled == BUFFER_BYTES {
                tree.origins(out, BUFFER_BYTES, &mut sources);
                (buffer, filled) = ((buffer + 1) % BUFFERS, 0);
            }
        }
        if block % 10_000 == 0 {
            most = larger(most, tree.stats());
        }
    }
    larger(most, tree.stats())
}

fn larger(a: TreeStats, b: TreeStats) -> TreeStats {
    if a.memory_bytes > b.memory_bytes { a } else { b }
}
