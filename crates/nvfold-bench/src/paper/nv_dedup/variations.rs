//! Figures 2, 12 and 13: one thing at a time is another - the medium, its write latency, the hash function. All at 50 %
//! duplicates.

use super::super::figure::{Chart, Figure, Kind as Drawn, Row, number};
use super::super::system::{Kind, System};
use super::Run;
use super::passes::{Cell, Passes, Pattern, cells};
use crate::Result;
use nvfold::fingerprint::StrongFunction;
use pmem::Profile;

const PERCENT: u64 = 50;
/// Blocks of the file: 64 MiB.
const FILE_BLOCKS: u64 = 16_384;

/// A disk and flash as the paper's time had them, by their sequential write bandwidth: a hard disk of 100 MB/s and a
/// SATA SSD of 250 MB/s. Nothing waits for their latency, as behind a page cache.
const SLOW_MEDIA: [(&str, &str); 2] = [("disk", "custom:write_mb_s=100"), ("flash", "custom:write_mb_s=250")];

/// Write latencies of Figure 12, nanoseconds.
const LATENCIES_NS: [f64; 4] = [400.0, 500.0, 600.0, 700.0];
/// That of the profile which they vary.
const LATENCY_NS: f64 = 600.0;

/// A file as large as fits the time of many runs; of what the fixed shares take where that is less.
fn passes<'a>(run: &Run, profile: &'a Profile, systems: &'a [System], pattern: Pattern) -> Passes<'a> {
    Passes { profile, systems, pattern, percents: &[PERCENT], file_blocks: run.file_blocks.min(FILE_BLOCKS) }
}

/// Figure 2: how much of the time goes into fingerprints.
pub fn media(run: &Run) -> Result<Vec<Figure>> {
    let settings = format!(
        "Dedup_block with MD5 writes new files at {PERCENT} % duplicates, {} requests a pass, one thread. Disk is \
         emulated as 100 MB/s and flash as 250 MB/s of sequential writes without any latency; NVM is {}.",
        run.requests, run.turn.name
    );
    let mut figure = run.turn.figure("figure-2", "Figure 2: the cost of fingerprints on three media", settings);
    let mut shares = Vec::new();
    let named = SLOW_MEDIA.map(|(name, text)| (name, text.parse().expect("a profile")));
    for (name, profile) in named.into_iter().chain([("NVM", run.turn.profile.clone())]) {
        run.turn.say(&format!("fingerprints on {name}"));
        let cell = &cells(run, passes(run, &profile, &[System::of(Kind::DedupBlock)], Pattern::Vdbench))?[0][0];
        shares.push((name, 100.0 * cell.fingerprinting));
    }
    let chart = Chart::new(
        Drawn::Stacked,
        "Figure 2: where the time goes",
        "medium",
        "% of the time",
        shares.iter().map(|(name, _)| name.to_string()),
    )
    .with("fingerprints", shares.iter().map(|(_, share)| *share))
    .with("I/O and the rest", shares.iter().map(|(_, share)| 100.0 - share));
    figure.charts.push(chart);
    figure.rows = vec![
        Row::value("fingerprints on disk", 21.0, shares[0].1, "%"),
        Row::picture("fingerprints on flash", shares[1].1, "%"),
        Row::value("fingerprints on NVM", 44.0, shares[2].1, "%"),
    ];
    figure.reading = format!(
        "MD5 takes {} % of the time on a disk and {} % on NVM: the faster the medium, the more hashing costs.",
        number(shares[0].1),
        number(shares[2].1)
    );
    Ok(vec![figure])
}

/// The profile with another write latency: the time of a fence, and that of a line in proportion.
fn with_latency(profile: &Profile, latency_ns: f64) -> Profile {
    let mut changed = profile.clone();
    changed.fence_ns = latency_ns;
    changed.write_line_ns = profile.write_line_ns * latency_ns / LATENCY_NS;
    changed
}

/// Figure 12: write latencies.
pub fn latencies(run: &Run) -> Result<Vec<Figure>> {
    let systems: Vec<System> = Kind::ALL.into_iter().map(System::of).collect();
    let mut columns: Vec<Vec<Cell>> = Vec::new();
    for latency_ns in LATENCIES_NS {
        run.turn.say(&format!("write latency {latency_ns} ns"));
        let profile = with_latency(&run.turn.profile, latency_ns);
        columns.extend(cells(run, passes(run, &profile, &systems, Pattern::Fio))?);
    }
    let settings = format!(
        "Random overwrites at {PERCENT} % duplicates, {} requests a pass, one thread. A latency is the time of a fence; \
         the time of a line is {} ns at {LATENCY_NS} ns and goes with it.",
        run.requests, run.turn.profile.write_line_ns
    );
    let mut figure = run.turn.figure("figure-12", "Figure 12: write latencies", settings);
    let x = LATENCIES_NS.iter().map(|ns| format!("{ns} ns"));
    let chart = Chart::new(Drawn::Bars, "Figure 12: write latencies", "write latency", "requests/s", x);
    let add = |chart: Chart, (at, system): (usize, &System)| {
        chart.with(&system.name, columns.iter().map(|column| column[at].rate))
    };
    figure.charts.push(systems.iter().enumerate().fold(chart, add));
    let rate = |kind: Kind, column: usize| {
        let at = systems.iter().position(|system| system.kind == kind).expect("every kind is measured");
        columns[column][at].rate
    };
    let last = LATENCIES_NS.len() - 1;
    for kind in [Kind::AsInPaper, Kind::Ours] {
        let to = |base: Kind, column: usize| rate(kind, column) / rate(base, column);
        let name = kind.name();
        figure.rows.extend([
            Row::value(format!("{name} to No_dedup at 400 ns"), 1.4, to(Kind::NoDedup, 0), "x"),
            Row::value(format!("{name} to No_dedup at 700 ns"), 1.6, to(Kind::NoDedup, last), "x"),
            Row::value(format!("{name} to Dedup_fine_grained at 400 ns"), 1.5, to(Kind::DedupFineGrained, 0), "x"),
            Row::value(format!("{name} to Dedup_fine_grained at 700 ns"), 1.3, to(Kind::DedupFineGrained, last), "x"),
            Row::picture(format!("{name} to Dedup_block at 400 ns"), to(Kind::DedupBlock, 0), "x"),
            Row::picture(format!("{name} to Dedup_block at 700 ns"), to(Kind::DedupBlock, last), "x"),
        ]);
    }
    let gain = |column| rate(Kind::Ours, column) / rate(Kind::NoDedup, column);
    figure.reading = format!(
        "From 400 to 700 ns the gain of NV-Dedup (ours) over No_dedup goes from {} to {}: the slower the medium writes, the \
         more a write saved is worth.",
        number(gain(0)),
        number(gain(last))
    );
    Ok(vec![figure])
}

/// Figure 13: strong hash functions.
pub fn hashes(run: &Run) -> Result<Vec<Figure>> {
    run.turn.say("hash functions");
    let kinds = [Kind::DedupBlock, Kind::DedupFineGrained, Kind::AsInPaper];
    let named = |kind: Kind, strong| System { strong: Some(strong), ..System::of(kind) };
    let mut systems: Vec<System> = Vec::new();
    for kind in kinds {
        systems.extend(StrongFunction::ALL.map(|strong| named(kind, strong)));
    }
    systems.push(System { strong: None, ..System::of(Kind::Ours) });
    let cells = cells(run, passes(run, &run.turn.profile, &systems, Pattern::Fio))?.remove(0);
    let settings = format!(
        "Random overwrites at {PERCENT} % duplicates, {} requests a pass, one thread, all functions in one run. Ours \
         compares bytes instead: one value, drawn beside each function.",
        run.requests
    );
    let mut figure = run.turn.figure("figure-13", "Figure 13: hash functions", settings);
    let functions = StrongFunction::ALL.len();
    let x = StrongFunction::ALL.iter().map(|function| function.name().to_string());
    let mut chart = Chart::new(Drawn::Bars, "Figure 13: hash functions", "hash function", "requests/s", x);
    for (kind, cells) in kinds.iter().zip(cells.chunks(functions)) {
        chart = chart.with(kind.name(), cells.iter().map(|cell| cell.rate));
        let slower = cells[2].rate / cells[0].rate;
        figure.rows.push(Row::picture(format!("{}: SHA-256 to MD5", kind.name()), slower, "x"));
    }
    let bytes = cells[cells.len() - 1].rate;
    figure.charts.push(chart.with("NV-Dedup (ours, bytes)", vec![bytes; functions]));
    let paper = &cells[2 * functions..3 * functions];
    let best = paper.iter().map(|cell| cell.rate).fold(0.0, f64::max);
    figure.rows.push(Row::own("NV-Dedup: bytes to the fastest hash function", bytes / best, "x"));
    figure.reading = format!(
        "NV-Dedup as in the paper runs at {} with SHA-256 of what it reaches with MD5; comparing bytes gives {} of the \
         fastest hash function. Processors with SHA instructions turn the order of MD5 and SHA around.",
        number(paper[2].rate / paper[0].rate),
        number(bytes / best)
    );
    Ok(vec![figure])
}
