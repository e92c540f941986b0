//! The compressible check compared with lz4, which defines what is compressible.
//!
//! A piece of 16 KiB is compressible if lz4 saves an eighth of it. Less does not pay: the space of a packed chunk is
//! allocated as a whole, and reading it takes a decompression. The reference is lz4 because it finds repeats, as a
//! chunker does, and because no other compressor is fast enough for memory.

use crate::Result;
use nvfold::internals::chunking::{Compressibility, Verdict};
use pmem::clock::cost_ns;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The length of DeEXT's pieces.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces of a file that are checked, spread over the file.
const PIECES_OF_FILE: u64 = 20;
/// Shorter pieces say little about either.
const LEAST_BYTES: usize = 1 << 10;
/// Number of kinds of files with their own row.
const KINDS: usize = 16;
/// Least number of pieces of a kind with its own row.
const PIECES_OF_KIND: u64 = 100;

/// The accuracy of the check.
#[derive(Debug, Default, Serialize)]
pub(super) struct Check {
    /// Files read.
    pub files: u64,
    /// Each piece by itself, as the first of a stream.
    pub alone: Confusion,
    /// Pieces of a file one after the other.
    pub in_stream: Confusion,
    /// `alone`, by the ending of the file's name: those with the most pieces.
    pub kinds: Vec<(String, Confusion)>,
    /// Nanoseconds of lz4 for 4 KiB of these pieces.
    pub lz4_ns_per_4k: f64,
}

/// Verdicts of the check compared with the result of lz4.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Confusion {
    /// Compressible, and judged so.
    pub compressible: u64,
    /// Compressible, but judged incompressible.
    pub missed: u64,
    /// Incompressible, and judged so.
    pub incompressible: u64,
    /// Incompressible, but judged compressible.
    pub false_alarms: u64,
    /// Bytes that lz4 saves in all compressible pieces.
    pub lz4_saves: u64,
    /// The part of these in pieces that were missed.
    pub lz4_saves_missed: u64,
}

impl Confusion {
    /// Returns the number of pieces.
    pub(super) fn pieces(&self) -> u64 {
        self.compressible + self.missed + self.incompressible + self.false_alarms
    }

    fn add(&mut self, verdict: Verdict, lz4_saves: Option<u64>) {
        match (lz4_saves, verdict) {
            (Some(_), Verdict::Compressible) => self.compressible += 1,
            (Some(_), Verdict::Incompressible) => self.missed += 1,
            (None, Verdict::Incompressible) => self.incompressible += 1,
            (None, Verdict::Compressible) => self.false_alarms += 1,
        }
        self.lz4_saves += lz4_saves.unwrap_or(0);
        if verdict == Verdict::Incompressible {
            self.lz4_saves_missed += lz4_saves.unwrap_or(0);
        }
    }
}

/// Checks pieces of all files; returns `None` if there are none. Unreadable files are skipped.
pub(super) fn measure(files: &[PathBuf]) -> Result<Option<Check>> {
    let mut check = Check::default();
    let mut kinds: BTreeMap<String, Confusion> = BTreeMap::new();
    let (mut lz4_ns, mut lz4_bytes) = (0.0, 0);
    for file in files {
        let pieces = pieces_of(file);
        check.files += u64::from(!pieces.is_empty());
        let mut stream = Compressibility::default();
        let kind = kinds.entry(kind_of(file)).or_default();
        for piece in &pieces {
            let start = cost_ns();
            let compressed = black_box(lz4_flex::block::compress(piece)).len();
            lz4_ns += cost_ns() - start;
            lz4_bytes += piece.len();
            let saves = piece.len().saturating_sub(compressed);
            let saves = (saves >= piece.len() / 8).then_some(saves as u64);
            let alone = Compressibility::default().check(piece);
            check.alone.add(alone, saves);
            kind.add(alone, saves);
            check.in_stream.add(stream.check(piece), saves);
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().filter(|(_, kind)| kind.pieces() >= PIECES_OF_KIND).collect();
    kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.pieces()));
    kinds.truncate(KINDS);
    check.kinds = kinds;
    check.lz4_ns_per_4k = lz4_ns / lz4_bytes as f64 * 4096.0;
    Ok((check.files > 0).then_some(check))
}

fn pieces_of(path: &Path) -> Vec<Vec<u8>> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let count = bytes.div_ceil(PIECE_BYTES as u64);
    let step = count.div_ceil(PIECES_OF_FILE).max(1);
    let mut pieces = Vec::new();
    for number in (0..count).step_by(step as usize) {
        let mut piece = vec![0; PIECE_BYTES];
        // A short read is the end of the file, or of its readable part.
        let length = file.read_at(&mut piece, number * PIECE_BYTES as u64).unwrap_or(0);
        piece.truncate(length);
        if length >= LEAST_BYTES {
            pieces.push(piece);
        }
    }
    pieces
}

/// Returns the ending of the name without a version number, which files of libraries have after it.
fn kind_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_word = |part: &&str| part.chars().any(|letter| letter.is_ascii_alphabetic()) && part.len() <= 8;
    match name.split('.').skip(1).filter(is_word).last() {
        Some(ending) => format!(".{ending}"),
        None => "none".into(),
    }
}
