//! From counts to an answer: what is saved, and how large tables and device become.

use super::sample::Distinct;
use super::survey::{Failure, PathCounts, Survey};
use crate::size;
use nvfold::media::chunk_entry::ChunkEntry;
use nvfold::media::inode::INODE_BYTES;
use nvfold::media::superblock::Geometry;
use nvfold::media::{BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BYTES};
use serde_json::{Value, json};
use std::fmt::{self, Write};
use std::path::PathBuf;

/// DRAM of the index per chunk, bytes: an 8-byte slot at the highest and the lowest load of its table.
const INDEX_BYTES_PER_CHUNK: (u64, u64) = (8, 12);

/// Advice for a device leaves this much of its content free (one part in so many): a log-structured file
/// system that is nearly full places badly.
const SLACK: u64 = 10;

/// Device sizes are advised in steps of this many bytes.
const DEVICE_STEP: u64 = 16 << 20;

/// What one way of cutting finds in one path or in all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Savings {
    /// Pieces there are.
    pub pieces: u64,
    /// Bytes they take when everything is stored.
    pub bytes: u64,
    /// Pieces left when equal ones are shared.
    pub distinct: Distinct,
}

impl Savings {
    fn new(pieces: u64, bytes: u64, distinct: Distinct) -> Savings {
        // An estimate may come out a little above what is there; the truth cannot.
        let distinct = Distinct { pieces: distinct.pieces.min(pieces), bytes: distinct.bytes.min(bytes), ..distinct };
        Savings { pieces, bytes, distinct }
    }

    /// Bytes that need not be stored.
    pub fn saved_bytes(&self) -> u64 {
        self.bytes - self.distinct.bytes
    }

    /// Saved part of all bytes, 0 to 100.
    pub fn saved_percent(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { 100.0 * self.saved_bytes() as f64 / self.bytes as f64 }
    }

    fn to_json(self) -> Value {
        json!({
            "pieces": self.pieces,
            "bytes": self.bytes,
            "distinct_pieces": self.distinct.pieces,
            "distinct_bytes": self.distinct.bytes,
            "distinct_bytes_error_95": self.distinct.bytes_error,
            "saved_bytes": self.saved_bytes(),
            "saved_percent": self.saved_percent(),
        })
    }
}

/// Counts and savings of one path, or of all.
#[derive(Debug)]
pub struct Part {
    /// What is there.
    pub counts: PathCounts,
    /// By 4 KiB blocks.
    pub blocks: Savings,
    /// By content-defined pieces.
    pub pieces: Savings,
}

impl Part {
    fn new(counts: PathCounts, blocks: Distinct, pieces: Distinct) -> Part {
        Part {
            blocks: Savings::new(counts.blocks, counts.blocks * BLOCK_BYTES, blocks),
            pieces: Savings::new(counts.pieces, counts.data_bytes, pieces),
            counts,
        }
    }

    fn to_json(&self) -> Value {
        let counts = &self.counts;
        json!({
            "files": counts.files,
            "directories": counts.directories,
            "others": counts.others,
            "hard_links": counts.hard_links,
            "file_bytes": counts.file_bytes,
            "hole_bytes": counts.hole_bytes,
            "data_bytes": counts.data_bytes,
            "zero_bytes": counts.zero_bytes,
            "blocks_4k": self.blocks.to_json(),
            "content_defined": self.pieces.to_json(),
        })
    }
}

/// What an nvfold device that holds all of it needs.
#[derive(Debug, PartialEq)]
pub struct Needs {
    /// Chunk entries in use: one a distinct block.
    pub chunk_entries: u64,
    /// Bytes of those entries on the device.
    pub chunk_table_bytes: u64,
    /// DRAM of the index while mounted, lowest and highest.
    pub index_dram_bytes: (u64, u64),
    /// Bytes of inodes, names and logs.
    pub metadata_bytes: u64,
    /// Size of device to make; `None` when it is larger than a device can be.
    pub device_bytes: Option<u64>,
}

impl Needs {
    fn new(total: &Part) -> Needs {
        let counts = &total.counts;
        let distinct = &total.blocks.distinct;
        let inodes = (counts.files + counts.directories + counts.others) * INODE_BYTES;
        // At worst every block is an extent of its own, and each log ends in a page that is hardly used.
        let logs = counts.blocks * 64 + (counts.long_files + counts.directories) * BLOCK_BYTES;
        let metadata_bytes = inodes.next_multiple_of(SEGMENT_BYTES) + counts.name_bytes + logs;
        let content = distinct.bytes + distinct.bytes_error + metadata_bytes;
        Needs {
            chunk_entries: distinct.pieces,
            chunk_table_bytes: distinct.pieces * size_of::<ChunkEntry>() as u64,
            index_dram_bytes: (distinct.pieces * INDEX_BYTES_PER_CHUNK.0, distinct.pieces * INDEX_BYTES_PER_CHUNK.1),
            metadata_bytes,
            device_bytes: device_for(content + content / SLACK),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "chunk_entries": self.chunk_entries,
            "chunk_table_bytes": self.chunk_table_bytes,
            "index_dram_bytes_low": self.index_dram_bytes.0,
            "index_dram_bytes_high": self.index_dram_bytes.1,
            "metadata_bytes": self.metadata_bytes,
            "device_bytes": self.device_bytes,
        })
    }
}

/// The smallest advisable device with `content_bytes` outside its tables.
pub(super) fn device_for(content_bytes: u64) -> Option<u64> {
    let entry_bytes = size_of::<ChunkEntry>() as u64;
    let mut device_bytes =
        (content_bytes + content_bytes / BLOCK_BYTES * entry_bytes + DEVICE_BYTES_MIN).next_multiple_of(DEVICE_STEP);
    while device_bytes <= DEVICE_BYTES_MAX {
        let geometry = Geometry::of(device_bytes)?;
        if device_bytes - geometry.data_offset >= content_bytes {
            return Some(device_bytes);
        }
        device_bytes += DEVICE_STEP;
    }
    None
}

/// The whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The paths, each alone.
    pub by_path: Vec<(PathBuf, Part)>,
    /// All paths together.
    pub total: Part,
    /// One fingerprint in this many was followed: 4 KiB blocks, content-defined pieces.
    pub one_in: (u64, u64),
    /// What a device needs.
    pub needs: Needs,
    /// The first files that could not be read.
    pub failures: Vec<Failure>,
    /// All of them.
    pub failure_count: u64,
    /// Hard-linked inodes that were counted once a name for want of memory.
    pub links_forgotten: u64,
}

impl Answer {
    /// From a finished survey of `paths`.
    pub fn new(paths: &[PathBuf], survey: Survey<'_>) -> Answer {
        let mut all = PathCounts::default();
        let mut by_path = Vec::new();
        for (group, (path, counts)) in paths.iter().zip(&survey.by_path).enumerate() {
            all.add(counts);
            let group = group as u32;
            let part = Part::new(counts.clone(), survey.blocks.within(group), survey.pieces.within(group));
            by_path.push((path.clone(), part));
        }
        let total = Part::new(all, survey.blocks.overall(), survey.pieces.overall());
        Answer {
            by_path,
            one_in: (survey.blocks.one_in(), survey.pieces.one_in()),
            needs: Needs::new(&total),
            total,
            failures: survey.failures,
            failure_count: survey.failure_count,
            links_forgotten: survey.links_forgotten,
        }
    }

    /// Bytes saved only because a block or piece of one path is also in another.
    pub fn saved_across(&self) -> (u64, u64) {
        let alone = |savings: fn(&Part) -> &Savings| -> u64 {
            self.by_path.iter().map(|(_, part)| savings(part).saved_bytes()).sum()
        };
        (
            self.total.blocks.saved_bytes().saturating_sub(alone(|part| &part.blocks)),
            self.total.pieces.saved_bytes().saturating_sub(alone(|part| &part.pieces)),
        )
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let by_path: Vec<Value> = self
            .by_path
            .iter()
            .map(|(path, part)| {
                let mut value = part.to_json();
                value["path"] = json!(path.to_string_lossy());
                value
            })
            .collect();
        let failure =
            |failure: &Failure| json!({"path": failure.path.to_string_lossy(), "error": failure.error.to_string()});
        let (blocks_across, pieces_across) = self.saved_across();
        json!({
            "paths": by_path,
            "total": self.total.to_json(),
            "saved_across_paths": {"blocks_4k": blocks_across, "content_defined": pieces_across},
            "sampling": {
                "is_estimate": self.one_in != (1, 1),
                "blocks_4k_one_in": self.one_in.0,
                "content_defined_one_in": self.one_in.1,
            },
            "device": self.needs.to_json(),
            "errors": {
                "count": self.failure_count,
                "first": self.failures.iter().map(failure).collect::<Vec<_>>(),
            },
            "hard_links_forgotten": self.links_forgotten,
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let written = [Answer::write_savings, Answer::write_sampling, Answer::write_needs];
        written.iter().for_each(|write| write(self, &mut out).expect("a String takes everything"));
        out.trim_end().to_owned()
    }

    fn write_savings(&self, out: &mut String) -> fmt::Result {
        for (path, part) in &self.by_path {
            write_part(out, &path.to_string_lossy(), part)?;
        }
        if self.by_path.len() > 1 {
            write_part(out, "all together", &self.total)?;
            let (blocks, pieces) = self.saved_across();
            let (blocks, pieces) = (size::show(blocks), size::show(pieces));
            writeln!(out, "  saved only across paths: {blocks} by 4 KiB blocks, {pieces} by content-defined pieces")?;
        }
        Ok(())
    }

    fn write_sampling(&self, out: &mut String) -> fmt::Result {
        for (name, one_in, savings) in [
            ("4 KiB blocks", self.one_in.0, &self.total.blocks),
            ("content-defined pieces", self.one_in.1, &self.total.pieces),
        ] {
            if one_in > 1 {
                let error = size::show(savings.distinct.bytes_error);
                writeln!(
                    out,
                    "Estimate: one in {one_in} {name} was followed; saved bytes are right within {error} \
                     19 times in 20. More --memory makes it exact."
                )?;
            }
        }
        if self.links_forgotten > 0 {
            let forgotten = self.links_forgotten;
            writeln!(
                out,
                "{forgotten} hard-linked files did not fit in memory: each of their names counts as a file."
            )?;
        }
        Ok(())
    }

    fn write_needs(&self, out: &mut String) -> fmt::Result {
        let needs = &self.needs;
        writeln!(out)?;
        writeln!(out, "An nvfold device for all of it (4 KiB blocks shared):")?;
        let (low, high) = needs.index_dram_bytes;
        let device = match needs.device_bytes {
            Some(bytes) => format!("{} (mkfs --size {}M)", size::show(bytes), bytes >> 20),
            None => format!("more than the {} a device can have", size::show(DEVICE_BYTES_MAX)),
        };
        let rows = [
            ("data", size::show(self.total.blocks.distinct.bytes)),
            ("inodes, names, logs", format!("up to {}", size::show(needs.metadata_bytes))),
            (
                "chunk entries",
                format!("{}, {} on the device", needs.chunk_entries, size::show(needs.chunk_table_bytes)),
            ),
            ("index in DRAM", format!("{} to {} while mounted", size::show(low), size::show(high))),
            ("device size", device),
        ];
        for (name, value) in rows {
            writeln!(out, "  {name:<21}{value}")?;
        }
        Ok(())
    }
}

fn write_part(out: &mut String, name: &str, part: &Part) -> fmt::Result {
    let counts = &part.counts;
    writeln!(
        out,
        "{name}: {} files in {} directories, {} of data",
        counts.files,
        counts.directories,
        size::show(counts.data_bytes)
    )?;
    writeln!(out, "  {:<22}{:>12}{:>12}{:>14}{:>8}", "cut into", "pieces", "distinct", "saved", "")?;
    for (name, savings) in [("4 KiB blocks", &part.blocks), ("content-defined pieces", &part.pieces)] {
        writeln!(
            out,
            "  {name:<22}{:>12}{:>12}{:>14}{:>6.1} %",
            savings.pieces,
            savings.distinct.pieces,
            size::show(savings.saved_bytes()),
            savings.saved_percent()
        )?;
    }
    writeln!(
        out,
        "  beside: {} in blocks of zeros, {} in holes, {} further hard links, {} links and special files",
        size::show(counts.zero_bytes),
        size::show(counts.hole_bytes),
        counts.hard_links,
        counts.others
    )
}
