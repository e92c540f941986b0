//! Bytes per second of each chunker, compared with reading the bytes: in processor time, because the machine may be
//! shared.

use super::corpus::{Versions, random_bytes};
use nvfold::Chunker;
use nvfold::internals::chunking::{Compressibility, Cutter, Verdict, content_defined, pieces};
use nvfold_bench::data::Random;
use nvfold_bench::samples::median;
use pmem::clock::cost_ns;
use serde::Serialize;
use std::hint::black_box;

/// Bytes that fit a second-level cache.
const CACHED_BYTES: usize = 256 << 10;
/// Bytes of a short request.
const REQUEST_BYTES: usize = 4 << 10;

/// Speeds over one kind of data.
#[derive(Debug, Serialize)]
pub(super) struct Speeds {
    /// The kind of data.
    pub data: String,
    /// The rows in turn, the fastest possible cut first: reading.
    pub rows: Vec<Row>,
}

/// The speed of one target.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// A chunker, or a baseline.
    pub name: String,
    /// Gigabytes (10^9 bytes) per second of processor time; median of the passes.
    pub gigabytes_per_second: f64,
    /// Ratio to reading the same bytes in the same run.
    pub ratio_to_reading: f64,
}

/// The work on the bytes, and its name. It returns a number so that the compiler cannot drop the computation.
type Work = (String, Box<dyn Fn(&[u8]) -> u64>);

/// Measures over random bytes in the cache, and over random and real bytes that do not fit it.
pub(super) fn measure(versions: &[Versions], bytes: usize, repeats: u32) -> Vec<Speeds> {
    let random = random_bytes(&mut Random(7), bytes);
    let cached = &random[..CACHED_BYTES.min(bytes)];
    let mut all = vec![
        speeds("random, in the cache", cached, bytes / cached.len(), repeats),
        speeds("random, in memory", &random, 1, repeats),
    ];
    let real: Vec<u8> = versions
        .iter()
        .filter_map(|package| package.versions.last())
        .flat_map(|version| &version[..version.len().min(bytes / versions.len())])
        .copied()
        .collect();
    if !real.is_empty() {
        all.push(speeds("packages, in the cache", packages_in_cache(&real), bytes / CACHED_BYTES, repeats));
        all.push(speeds("packages, in memory", &real, 1, repeats));
    }
    all
}

/// Returns the middle of the packages.
fn packages_in_cache(real: &[u8]) -> &[u8] {
    let start = real.len().saturating_sub(CACHED_BYTES) / 2;
    &real[start..real.len().min(start + CACHED_BYTES)]
}

fn speeds(name: &str, data: &[u8], rounds: usize, repeats: u32) -> Speeds {
    let all = works();
    let mut seconds = vec![Vec::new(); all.len()];
    for _ in 0..=repeats {
        for ((_, work), seconds) in all.iter().zip(&mut seconds) {
            let start = cost_ns();
            for _ in 0..rounds {
                black_box(work(black_box(data)));
            }
            seconds.push((cost_ns() - start) / 1e9);
        }
    }
    // The first pass warms up.
    let bytes = (data.len() * rounds) as f64;
    let rates: Vec<f64> = seconds.iter().map(|seconds| bytes / median(&seconds[1..]) / 1e9).collect();
    let row =
        |((name, _), rate): (Work, &f64)| Row { name, gigabytes_per_second: *rate, ratio_to_reading: rate / rates[0] };
    Speeds { data: name.into(), rows: all.into_iter().zip(&rates).map(row).collect() }
}

fn works() -> Vec<Work> {
    let mut all: Vec<Work> = vec![
        ("reading".into(), Box::new(read)),
        ("memcpy".into(), Box::new(copier())),
        ("compressible check, 4 KiB each".into(), Box::new(checks)),
        ("compressible check, a stream each 4 KiB".into(), Box::new(checks_of_streams)),
        ("the fastcdc crate".into(), Box::new(|data| content_defined(data, Chunker::FastCdc.lengths()).count() as u64)),
    ];
    for chunker in Chunker::ALL.into_iter().filter(|chunker| chunker.is_content_defined()) {
        all.push((chunker.name().into(), Box::new(move |data| pieces(chunker, data).count() as u64)));
        let name = format!("{}, 4 KiB each", chunker.name());
        all.push((name, Box::new(move |data| cut_in_requests(chunker, data))));
    }
    all
}

/// Sums every byte, in lanes that the compiler vectorises.
fn read(data: &[u8]) -> u64 {
    let mut lanes = [0u64; 16];
    for block in data.as_chunks::<128>().0 {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

/// Returns a function that copies to the same place again and again, so that no page is new.
fn copier() -> impl Fn(&[u8]) -> u64 {
    let target = std::cell::RefCell::new(Vec::new());
    move |data| {
        let mut target = target.borrow_mut();
        target.clear();
        target.extend_from_slice(data);
        black_box(&target[..]).len() as u64
    }
}

fn checks(data: &[u8]) -> u64 {
    let mut stream = Compressibility::default();
    data.chunks(REQUEST_BYTES).map(|request| u64::from(stream.check(request) == Verdict::Compressible)).sum()
}

/// Checks requests as the start of a stream, which takes a closer look; the cost of making the stream is included.
fn checks_of_streams(data: &[u8]) -> u64 {
    let is_compressible = |request: &[u8]| Compressibility::default().check(request) == Verdict::Compressible;
    data.chunks(REQUEST_BYTES).map(|request| u64::from(is_compressible(request))).sum()
}

fn cut_in_requests(chunker: Chunker, data: &[u8]) -> u64 {
    let (mut cutter, mut count) = (Cutter::new(chunker), 0);
    for mut request in data.chunks(REQUEST_BYTES) {
        while let Some(length) = cutter.next_cut(request) {
            request = &request[length..];
            count += 1;
        }
    }
    count
}
