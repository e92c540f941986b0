//! Bytes saved by the pieces of each chunker.

use super::corpus::{Versions, edited};
use nvfold::Chunker;
use nvfold::internals::chunking::Cutter;
use nvfold::internals::fingerprint::weak64;
use serde::Serialize;
use std::collections::HashSet;

/// Bytes on the device that a stored piece takes in addition to its own: the chunk entry and the header.
const ENTRY_BYTES: u64 = 64 + 16;
/// Mean lengths to which all packages are cut.
const MEANS: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];

/// Savings of the chunkers for the versions of one package.
#[derive(Debug, Serialize)]
pub(super) struct Savings {
    /// Name of the package.
    pub data: String,
    /// Bytes of all versions.
    pub bytes: u64,
    /// One row per chunker.
    pub rows: Vec<Row>,
}

/// The saving of one chunker.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Name of the chunker.
    pub chunker: &'static str,
    /// Pieces, including equal ones.
    pub pieces: u64,
    /// Average bytes of a piece.
    pub mean_bytes: f64,
    /// Bytes of pieces that existed already, percent of all bytes.
    pub saved_percent: f64,
    /// The same minus the entries of the stored pieces.
    pub net_percent: f64,
}

/// Cuts the versions of each package, and of generated data, with the paper's mean length.
pub(super) fn measure(versions: &[Versions], made_up_bytes: usize) -> Vec<Savings> {
    let made_up = edited(made_up_bytes);
    let each = versions.iter().chain([&made_up]).map(|package| savings(&package.name, &[package], 16 << 10));
    each.collect()
}

/// Cuts all packages as one, with each of the mean lengths, the paper's at the end; returns nothing if there are
/// none.
pub(super) fn measure_means(versions: &[Versions]) -> Vec<Savings> {
    let all: Vec<&Versions> = versions.iter().collect();
    let means = if all.is_empty() { &[][..] } else { &MEANS };
    means.iter().map(|mean| savings(&format!("all packages, {} KiB", mean >> 10), &all, *mean)).collect()
}

fn savings(name: &str, packages: &[&Versions], mean_bytes: usize) -> Savings {
    let files: Vec<&[u8]> = packages.iter().flat_map(|package| package.versions.iter().map(Vec::as_slice)).collect();
    Savings {
        data: name.into(),
        bytes: files.iter().map(|file| file.len() as u64).sum(),
        rows: Chunker::ALL.into_iter().map(|chunker| row(chunker, mean_bytes, &files)).collect(),
    }
}

fn row(chunker: Chunker, mean_bytes: usize, files: &[&[u8]]) -> Row {
    let lengths = chunker.lengths_of_mean(mean_bytes).expect("a mean that there is");
    let mut cutter = Cutter::with_lengths(chunker, lengths);
    let mut known = HashSet::new();
    let (mut count, mut bytes, mut stored) = (0u64, 0u64, 0u64);
    for file in files {
        let mut rest = *file;
        while !rest.is_empty() {
            let length = cutter.next_cut(rest).unwrap_or(rest.len());
            count += 1;
            bytes += length as u64;
            if known.insert((weak64(&rest[..length]), length)) {
                stored += length as u64;
            }
            rest = &rest[length..];
        }
        cutter.restart();
    }
    let percent = |stored: u64| 100.0 * (1.0 - stored as f64 / bytes as f64);
    Row {
        chunker: chunker.name(),
        pieces: count,
        mean_bytes: bytes as f64 / count as f64,
        saved_percent: percent(stored),
        net_percent: percent(stored + ENTRY_BYTES * known.len() as u64),
    }
}
