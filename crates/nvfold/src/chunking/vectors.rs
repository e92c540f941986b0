//! Tests against the cuts of UWASL/dedup-bench, the program of the SeqCDC and VectorCDC papers: `vectors/README.md`.

use super::chunker::Chunker;
use super::cutter::Cutter;
use super::gear::Gear;
use super::lengths::PieceLengths;
use crate::fingerprint::StrongFunction;
use pmem::simd::{SlopeRule, Slopes};

/// The length of each kind of data, in bytes.
const DATA_BYTES: usize = 2 << 20;

/// The splitmix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> usize {
        (self.next() % limit) as usize
    }

    /// Returns little-endian numbers, truncated to `count` bytes.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }

    /// Returns 256 words of 2 to 9 letters in random order, with a line break after each twelfth.
    fn text(&mut self, count: usize) -> Vec<u8> {
        let mut word = || {
            let letters = 2 + self.below(8);
            (0..letters).map(|_| b'a' + self.below(26) as u8).collect::<Vec<u8>>()
        };
        let words: Vec<Vec<u8>> = (0..256).map(|_| word()).collect();
        let mut text = Vec::new();
        for number in 1.. {
            if text.len() >= count {
                break;
            }
            text.extend_from_slice(&words[self.below(256)]);
            text.push(if number % 12 == 0 { b'\n' } else { b' ' });
        }
        text.truncate(count);
        text
    }

    /// Returns stretches of up to 40,000 bytes: random, zeros, steps of 7 equal bytes that rise, text.
    fn mixed(&mut self, count: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < count {
            let (kind, length) = (self.below(4), self.below(40_000));
            data.extend(match kind {
                0 => self.bytes(length),
                1 => vec![0; length],
                2 => (0..length).map(|at| (at / 7) as u8).collect(),
                _ => self.text(length),
            });
        }
        data.truncate(count);
        data
    }
}

fn data(name: &str) -> Vec<u8> {
    match name {
        "random" => Random(1).bytes(DATA_BYTES),
        "text" => Random(2).text(DATA_BYTES),
        "mixed" => Random(3).mixed(DATA_BYTES),
        "random-7bit" => Random(4).bytes(DATA_BYTES).iter().map(|byte| byte & 0x7f).collect(),
        _ => panic!("no data is called {name}"),
    }
}

/// Returns the ends of all pieces, where `first_length` returns the length of the first piece of the rest.
fn ends(data: &[u8], mut first_length: impl FnMut(&[u8]) -> usize) -> Vec<usize> {
    let mut ends = vec![0];
    while let Some(rest) = data.get(ends[ends.len() - 1]..).filter(|rest| !rest.is_empty()) {
        ends.push(data.len() - rest.len() + first_length(rest));
    }
    ends.remove(0);
    ends
}

fn assert_cuts(name: &str, vectors: &[(&str, &str)], mut first_length: impl FnMut(&[u8]) -> usize) {
    for (kind, vector) in vectors {
        let expected: Vec<usize> = vector.split_whitespace().map(|end| end.parse().unwrap()).collect();
        assert_eq!(ends(&data(kind), &mut first_length), expected, "{name}, {kind}");
    }
}

/// Includes the vectors of a setting, by the kind of data.
macro_rules! vectors {
    ($setting:literal: $($kind:literal),*) => {
        &[$(($kind, include_str!(concat!("vectors/", $setting, "-", $kind, ".txt")))),*]
    };
}

fn published(chunker: Chunker, min: u32, average: u32, max: u32) -> impl FnMut(&[u8]) -> usize {
    let cutter = Cutter::with_lengths(chunker, PieceLengths::of(min, average, max));
    move |rest| cutter.clone().published_cut(rest)
}

#[test]
fn the_test_data_matches_the_checksum_of_the_vectors() {
    let known = [
        ("random", "babe3161daf96a5d9f127d576b868ae2"),
        ("text", "9d79cba2a11c152e5a235e8c7e717d0d"),
        ("mixed", "481fe94b1ce3caea1b2c76524736b976"),
        ("random-7bit", "14296a1d07922bf0b1960ad2cc26e955"),
    ];
    for (name, md5) in known {
        let bytes = &StrongFunction::Md5.of(&data(name))[..16];
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), md5, "{name}");
    }
}

#[test]
fn rabin_cuts_as_dedup_bench() {
    let lengths = published(Chunker::Rabin, 8192, 16384, 65536);
    assert_cuts("rabin-16k", vectors!("rabin-16k": "random", "text", "mixed"), lengths);
    let lengths = published(Chunker::Rabin, 1024, 1024 + 4096, 16384);
    assert_cuts("rabin-4k", vectors!("rabin-4k": "random", "text", "mixed"), lengths);
}

#[test]
fn ae_cuts_as_dedup_bench() {
    let lengths = published(Chunker::Ae, 1, 16384, 65536);
    assert_cuts("ae-16k", vectors!("ae-16k": "random", "text", "mixed"), lengths);
    let lengths = published(Chunker::Ae, 1, 4096, 16384);
    assert_cuts("ae-4k", vectors!("ae-4k": "random", "text", "mixed"), lengths);
}

#[test]
fn gear_cuts_as_dedup_bench() {
    let lengths = published(Chunker::Gear, 8192, 16384, 65536);
    assert_cuts("gear-16k", vectors!("gear-16k": "random", "text", "mixed"), lengths);
    let lengths = published(Chunker::Gear, 1024, 1024 + 4096, 16384);
    assert_cuts("gear-4k", vectors!("gear-4k": "random", "text", "mixed"), lengths);
}

#[test]
fn seqcdc_cuts_as_dedup_bench() {
    let lengths = published(Chunker::SeqCdc, 8192, 16384, 65536);
    assert_cuts("seqcdc-16k", vectors!("seqcdc-16k": "random", "text", "mixed"), lengths);
    let lengths = published(Chunker::SeqCdc, 1024, 4096, 16384);
    assert_cuts("seqcdc-4k", vectors!("seqcdc-4k": "random", "text", "mixed"), lengths);
}

/// Cuts with the jumps of the paper.
fn seqcdc_with_jumps(min: usize, max: usize) -> impl FnMut(&[u8]) -> usize {
    move |rest| {
        let (blind, end) = (min.min(rest.len()), max.min(rest.len()));
        let found = Slopes::after(rest[blind - 1]).find_rise(SlopeRule::new(5, 50, 512), &rest[blind..end]);
        found.map_or(end, |count| blind + count - 1)
    }
}

#[test]
fn seqcdc_with_jumps_cuts_as_dedup_bench() {
    let lengths = seqcdc_with_jumps(8192, 65536);
    assert_cuts("seqcdc-jumps-16k", vectors!("seqcdc-jumps-16k": "random", "text", "mixed"), lengths);
    let lengths = seqcdc_with_jumps(1024, 16384);
    assert_cuts("seqcdc-jumps-4k", vectors!("seqcdc-jumps-4k": "random", "text", "mixed"), lengths);
}

/// Cuts as dedup-bench does, which tests the lowest bits of the hash instead of the ones chosen in the paper.
fn fastcdc_with_lowest_bits(min: usize, average: usize, max: usize, level: u32) -> impl FnMut(&[u8]) -> usize {
    let masks = [average.ilog2() + level, average.ilog2() - level].map(|bits| (1u64 << bits) - 1);
    move |rest| {
        let (blind, center, end) = (min.min(rest.len()), average.min(rest.len()), max.min(rest.len()));
        let found = Gear::default().find_normalized((masks[0], masks[1]), center - blind, &rest[blind..end]);
        found.map_or(end, |count| blind + count - 1)
    }
}

#[test]
fn fastcdc_cuts_as_dedup_bench() {
    let lengths = fastcdc_with_lowest_bits(2048, 16384, 65536, 1);
    assert_cuts("fastcdc-16k", vectors!("fastcdc-16k": "random-7bit", "text"), lengths);
    let lengths = fastcdc_with_lowest_bits(1024, 4096, 16384, 2);
    assert_cuts("fastcdc-4k", vectors!("fastcdc-4k": "random-7bit", "text"), lengths);
}
