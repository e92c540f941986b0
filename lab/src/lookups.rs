//! `nvfold-lab lookups`: the cost of finding a chunk by its fingerprint in DeEXT's red-black tree (III-B), and in the two
//! indexes that replace it.
//!
//! The problem: the paper keeps the fingerprints of each dedupe file in a red-black tree, and nvfold does not; a
//! measurement must decide which is better. The idea: put the same random fingerprints into all of them. Look up
//! those that are present and as many others, in random order, in turn. A look-up ends when all 20 bytes of the
//! fingerprint have been compared: the tree has them in its nodes, nvfold in the chunk entry that its index leads to.

use crate::experiment::{Common, Head, Publish};
use crate::{Doing, Result};
use clap::Args;
use nvfold::custom_policy::ChunkRef;
use nvfold::internals::chunk::dram::DramIndex;
use nvfold::internals::chunk::entries::Entries;
use nvfold::internals::chunk::fact::Fact;
use nvfold::internals::fingerprint::Strong;
use nvfold::internals::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use nvfold::internals::media::direct::{DIRECT_BYTES, index_segments};
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::{BLOCK_BYTES, ReorderOptions, StrongFunction, WeakFunction};
use nvfold_bench::data::Random;
use nvfold_bench::samples::median;
use pmem::{DeviceSpec, OpenOptions, Region};
use rbtree::RBTree;
use serde::Serialize;
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const WEAK: WeakFunction = WeakFunction::Xxh3;
const STRONG: StrongFunction = StrongFunction::Md5Salted;
/// Bytes of a node of the tree: colour, three pointers, fingerprint and value.
const NODE_BYTES: f64 = 64.0;

/// What to measure with.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Numbers of chunks in the index
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [100_000, 1_000_000, 4_000_000],
        value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    chunks: Vec<u64>,
    /// Number of passes; the report gives their median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    rows: Vec<Row>,
}

impl Publish for Report {
    const PAGE: &'static str = "lookups.md";

    fn head(&self) -> &Head {
        &self.head
    }

    fn page(&self) -> String {
        page(self)
    }

    fn table(&self) -> String {
        table(self)
    }
}

/// One index, filled with a number of chunks.
#[derive(Debug, Serialize)]
struct Row {
    index: &'static str,
    chunks: u64,
    /// Median nanoseconds per look-up, and the median ratio to the tree in the same pass.
    present_ns: f64,
    absent_ns: f64,
    present_ratio: f64,
    absent_ratio: f64,
    /// Bytes of the index alone. Chunk entries do not count, because every policy has them.
    dram_bytes_each: f64,
    device_bytes_each: f64,
}

/// Measures, and prints the report.
///
/// # Errors
/// If there is no memory, or if a file of `--out` cannot be written.
pub(crate) fn run(options: &Options, json: bool) -> Result<()> {
    let (sizes, repeats) =
        if options.common.smoke { (vec![2000], 2) } else { (options.chunks.clone(), options.repeats) };
    let mut rows = Vec::new();
    for chunks in sizes {
        rows.extend(Indexes::with(chunks)?.measure(repeats));
    }
    let report = Report { head: Head::new("lookups", 1), rows };
    options.common.publish(&report, json)
}

/// All indexes, filled with the same fingerprints.
struct Indexes {
    region: Region,
    geometry: Geometry,
    tree: RBTree<Strong, u64>,
    dram: DramIndex,
    fact: Fact,
    present: Vec<Strong>,
    absent: Vec<Strong>,
}

impl Indexes {
    fn with(chunks: u64) -> Result<Indexes> {
        // One block per chunk, and the device bytes of the tables.
        let data = (chunks * BLOCK_BYTES).next_multiple_of(SEGMENT_BYTES);
        let bytes = data + data / 32 + 16 * SEGMENT_BYTES;
        let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default())
            .map_err(nvfold::Error::from)
            .doing("make a device in memory")?;
        let geometry = Geometry::of(bytes).expect("it is large enough");
        let entries = Arc::new(Entries::new(geometry));
        let first = geometry.first_segment();
        let segments: Vec<u64> = (first..first + index_segments(geometry.blocks())).collect();
        let first_block = (first + segments.len() as u64) * SEGMENT_BYTES / BLOCK_BYTES;
        let fact = Fact::new(region.clone(), &geometry, entries.clone(), WEAK, segments, ReorderOptions::default());
        let mut indexes = Indexes {
            region,
            geometry,
            tree: RBTree::new(),
            dram: DramIndex::new(entries),
            fact,
            present: fingerprints(chunks, 1),
            absent: fingerprints(chunks, 2),
        };
        for (block, strong) in (first_block..).map(BlockNumber).zip(&indexes.present) {
            let count = CountWord { tag: tag::ADD, tx: 0, count: 1, update_count: 0 };
            let entry =
                ChunkEntry::for_block(block, count).with_weak(WEAK, weak_of(strong)).with_strong(STRONG, *strong);
            let entry = ChunkEntry { delete_pointer: indexes.fact.chain_of(weak_of(strong)) as u32, ..entry };
            let _ = indexes.region.fence(indexes.region.write(geometry.chunk_entry_offset(block), &entry).flush());
            indexes.dram.insert(weak_of(strong), block.into());
            indexes.fact.insert(weak_of(strong), block.into());
            indexes.tree.insert(*strong, block.0);
        }
        // Look-ups are not in the order of insertion.
        let mut random = Random(3);
        for at in (1..indexes.present.len()).rev() {
            indexes.present.swap(at, (random.next_u64() % (at as u64 + 1)) as usize);
        }
        Ok(indexes)
    }

    fn measure(&self, repeats: u32) -> [Row; 3] {
        let chunks = self.present.len();
        let in_tree = |strong: &Strong| self.tree.get(strong).copied();
        let in_dram = |strong: &Strong| {
            self.dram.find(weak_of(strong), ChunkRef::NONE, |chunk| self.has(*chunk, strong)).map(number)
        };
        let in_fact = |strong: &Strong| {
            self.fact.find(weak_of(strong), ChunkRef::NONE, |chunk| self.has(*chunk, strong)).map(number)
        };
        let mut times: [[Vec<f64>; 2]; 3] = Default::default();
        for _ in 0..=repeats {
            for (at, asked) in [&self.present, &self.absent].into_iter().enumerate() {
                let found = chunks * usize::from(at == 0);
                times[0][at].push(pass("the tree", asked, found, in_tree));
                times[1][at].push(pass("the dram index", asked, found, in_dram));
                times[2][at].push(pass("FACT", asked, found, in_fact));
            }
        }
        // The first pass warms up.
        times.iter_mut().flatten().for_each(|times| _ = times.remove(0));
        let ratio = |of: usize, at: usize| {
            let ratios: Vec<f64> = times[of][at].iter().zip(&times[0][at]).map(|(own, tree)| own / tree).collect();
            median(&ratios)
        };
        let device_bytes = (self.fact.chains() * DIRECT_BYTES) as f64 / chunks as f64;
        let row = |of: usize, index, dram_bytes_each, device_bytes_each| Row {
            index,
            chunks: chunks as u64,
            present_ns: median(&times[of][0]),
            absent_ns: median(&times[of][1]),
            present_ratio: ratio(of, 0),
            absent_ratio: ratio(of, 1),
            dram_bytes_each,
            device_bytes_each,
        };
        [
            row(0, "red-black tree", NODE_BYTES, 0.0),
            row(1, "dram", self.dram.dram_bytes() as f64 / chunks as f64, 0.0),
            row(2, "pm (FACT)", 0.0, device_bytes),
        ]
    }

    /// Returns whether all bytes of a fingerprint equal those in the entry of a chunk.
    fn has(&self, chunk: ChunkRef, strong: &Strong) -> bool {
        let ChunkRef::Block(block) = chunk else { return false };
        let entry: ChunkEntry = self.region.read(self.geometry.chunk_entry_offset(block));
        entry.strong(STRONG).as_ref() == Some(strong)
    }
}

/// Returns the nanoseconds per look-up of all fingerprints in `asked`, of which `found` must be present.
fn pass(name: &str, asked: &[Strong], found: usize, find: impl Fn(&Strong) -> Option<u64>) -> f64 {
    let start = Instant::now();
    let answers = asked.iter().filter(|strong| black_box(find(strong)).is_some()).count();
    let nanoseconds = start.elapsed().as_nanos() as f64 / asked.len() as f64;
    assert_eq!(answers, found, "{name} found a wrong number of fingerprints");
    nanoseconds
}

fn fingerprints(count: u64, seed: u64) -> Vec<Strong> {
    let mut random = Random(seed << 32);
    let mut one = || {
        let mut strong = Strong::default();
        strong.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.next_u64().to_le_bytes()[..part.len()]));
        strong
    };
    (0..count).map(|_| one()).collect()
}

/// Returns a weak fingerprint as random as the strong one.
fn weak_of(strong: &Strong) -> u32 {
    u32::from_le_bytes(*strong.first_chunk().expect("20 bytes"))
}

fn number(chunk: ChunkRef) -> u64 {
    chunk.block().map_or(0, |block| block.0)
}

fn table(report: &Report) -> String {
    let mut text = String::from(
        "| index | chunks | present, ns | ratio | absent, ns | ratio | DRAM bytes per chunk | device bytes per chunk |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in &report.rows {
        let Row { index, chunks, present_ns, absent_ns, present_ratio, absent_ratio, .. } = row;
        writeln!(
            text,
            "| {index} | {chunks} | {present_ns:.0} | {present_ratio:.2} | {absent_ns:.0} | {absent_ratio:.2} | {:.1} | {:.1} |",
            row.dram_bytes_each, row.device_bytes_each
        )
        .expect("a string takes all");
    }
    text
}

fn page(report: &Report) -> String {
    let command = report.head.marked_heading();
    format!(
        "# Look-ups by fingerprint\n\n\
         The cost of finding a chunk by its fingerprint, in DeEXT's red-black tree (III-B) and in the two indexes that\n\
         replace it in nvfold. Fingerprints are random, have 20 bytes, and are looked up in random order. Times are\n\
         medians; ratios are to the tree in the same pass. A look-up ends when the whole fingerprint has been compared.\n\
         For that, nvfold reads the chunk entry ({ENTRY_BYTES} bytes). Entries are not counted in the size of an index, because\n\
         every policy has them.\n\n{}\n\
         Figures: [lookups.json](lookups.json) ({command}).\n",
        table(report)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_finds_present_chunks_and_no_others() {
        let rows = Indexes::with(3000).unwrap().measure(1);
        assert!(rows.iter().all(|row| row.present_ns > 0.0 && row.absent_ns > 0.0));
        assert!(rows[1].dram_bytes_each > 8.0 && rows[2].device_bytes_each > 8.0, "{rows:?}");
    }
}
