//! Figures 2, 12 and 13: one parameter at a time varies (the medium, its write latency, the hash function). The share
//! of duplicates is always 50 %.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Measure, Row};
use super::super::number::number;
use super::super::spent::Spent;
use super::super::system::{Kind, System};
use super::super::workload::{BLOCK, Batch, Workload};
use super::Run;
use super::passes::{Cell, Passes, Pattern, cells};
use crate::{Result, bounds};
use nvfold::StrongFunction;
use nvfold_bench::samples::median;
use pmem::Profile;

const PERCENT: u64 = 50;
/// Blocks of the file: 64 MiB.
const FILE_BLOCKS: u64 = 16_384;

/// A disk and flash of the paper's time, by their sequential write bandwidth: a hard disk of 100 MB/s and a SATA SSD
/// of 250 MB/s. Latency is left out, as with a page cache in front.
const SLOW_MEDIA: [(&str, &str); 2] = [("disk", "custom:write_mb_s=100"), ("flash", "custom:write_mb_s=250")];

/// Why shares of the time to compute MD5 are no aims.
const PROCESSOR: &str = "it is MD5 on the paper's processor beside the paper's disk and memory";

/// Write latencies of Figure 12, relative to the profile's: 400, 500, 600 and 700 ns for the paper's 600.
const LATENCIES: [f64; 4] = [4.0 / 6.0, 5.0 / 6.0, 1.0, 7.0 / 6.0];

/// Returns passes on a file small enough for many runs, and at most as large as that of the fixed shares.
fn passes<'a>(run: &Run, profile: &'a Profile, systems: &'a [System], pattern: Pattern) -> Passes<'a> {
    let (draw, file_blocks) = (pattern.draw(), run.file_blocks.min(FILE_BLOCKS));
    Passes { profile, systems, pattern, percents: &[PERCENT], draw, file_blocks, requests: run.requests }
}

/// Figure 2: the share of the time that fingerprints take.
pub(super) fn media(run: &Run) -> Result<Vec<Figure>> {
    let settings = format!(
        "Dedup_block with MD5 writes new files at {PERCENT} % duplicates, {} requests per pass, one thread. Disk and \
         flash are emulated as sequential writes at 100 MB/s and 250 MB/s with no added latency; NVM is profile {}.",
        run.requests, run.turn.name
    );
    let mut figure = run.turn.figure("figure-2", "Figure 2: the cost of fingerprints on three media", settings);
    let mut shares = Vec::new();
    let fingerprint_us = fingerprint_us()?;
    let named = SLOW_MEDIA.map(|(name, text)| (name, text.parse().expect("a profile")));
    for (name, profile) in named.into_iter().chain([("NVM", run.turn.profile.clone())]) {
        run.turn.say(&format!("fingerprints on {name}"));
        let cell = &cells(run, passes(run, &profile, &[System::of(Kind::DedupBlock)], Pattern::Vdbench))?[0][0];
        check_share(name, fingerprint_us, cell.cost_us)?;
        shares.push((name, 100.0 * fingerprint_us / cell.cost_us));
    }
    let chart = Chart::new(
        Drawn::Stacked,
        "Figure 2: where the time goes",
        "medium",
        "% of the time",
        shares.iter().map(|(name, _)| name.to_string()),
    )
    .with("fingerprints", shares.iter().map(|(_, share)| *share))
    .with("I/O and the rest", shares.iter().map(|(_, share)| 100.0 - share))
    .with_paper(Some("fingerprints"), "disk", 21.0, 21.0)
    .with_paper(Some("fingerprints"), "NVM", 44.0, 44.0);
    figure.charts.push(chart);
    figure.rows = vec![
        Row::value("fingerprints on disk", 21.0, shares[0].1, "%").not_comparable(PROCESSOR),
        Row::picture("fingerprints on flash", shares[1].1, "%"),
        Row::value("fingerprints on NVM", 44.0, shares[2].1, "%").not_comparable(PROCESSOR),
    ];
    figure.reading = format!(
        "MD5 takes {} % of the time on a disk and {} % on NVM: the faster the medium, the larger the share of hashing.",
        number(shares[0].1),
        number(shares[2].1)
    );
    Ok(vec![figure])
}

/// Refuses a fingerprint that takes longer than the request that it is a part of.
fn check_share(medium: &str, fingerprint_us: f64, request_us: f64) -> Result<()> {
    let why = "each request computes one, and no part is longer than the whole";
    bounds::at_most(format!("MD5 of a block on {medium}"), fingerprint_us, request_us, "us", why)
}

/// Returns the cost of MD5 of a block, microseconds; every request computes one. It is measured separately, because
/// timing it inside each request would add to the request's time.
fn fingerprint_us() -> Result<f64> {
    const HASHED: usize = 2048;
    let mut batch = Batch::default();
    Workload::vdbench(0, 5).next(16, &mut batch);
    let round = || {
        let hash_all = || {
            for block in batch.data.chunks(BLOCK).cycle().take(HASHED) {
                std::hint::black_box(StrongFunction::Md5.of(block));
            }
            Ok(())
        };
        let ((), spent) = Spent::on(hash_all)?;
        Ok(spent.cost_ns / 1e3 / HASHED as f64)
    };
    let rounds = (0..5).map(|_| round()).collect::<Result<Vec<f64>>>()?;
    Ok(median(&rounds))
}

/// Returns the profile with another write latency, and its name. The latency is the time of a fence, or of a line if
/// fences take no time.
fn with_latency(profile: &Profile, factor: f64) -> (String, Profile) {
    let mut changed = profile.clone();
    changed.fence_ns = profile.fence_ns * factor;
    changed.write_line_ns = profile.write_line_ns * factor;
    let latency_ns = if profile.fence_ns > 0.0 { changed.fence_ns } else { changed.write_line_ns };
    (format!("{latency_ns:.0} ns"), changed)
}

/// Figure 12: write latencies.
pub(super) fn latencies(run: &Run) -> Result<Vec<Figure>> {
    let systems: Vec<System> = Kind::ALL.into_iter().map(System::of).collect();
    let settings = format!(
        "Random overwrites at {PERCENT} % duplicates, {} requests per pass, one thread. The write latency is the time \
         charged for a fence; the time for a cache line is scaled by the same factor.",
        run.requests
    );
    let mut figure = run.turn.figure("figure-12", "Figure 12: write latencies", settings);
    if run.turn.profile.is_native() {
        figure.reading = "Not measured.".into();
        figure.left_out.push("the profile native has no emulated latency to vary".into());
        return Ok(vec![figure]);
    }
    let varied = LATENCIES.map(|factor| with_latency(&run.turn.profile, factor));
    let mut columns: Vec<Vec<Cell>> = Vec::new();
    for (name, profile) in &varied {
        run.turn.say(&format!("write latency {name}"));
        columns.extend(cells(run, passes(run, profile, &systems, Pattern::Fio))?);
    }
    let names = varied.map(|(name, _)| name);
    let x = || names.iter().cloned();
    let cell = |kind: Kind, column: usize| -> &Cell {
        let at = systems.iter().position(|system| system.kind == kind).expect("every kind is measured");
        &columns[column][at]
    };
    // Rates by cost.
    let rate = |kind, column| 1e6 / cell(kind, column).cost_us;
    let table = |unit: &str, what: fn(&Cell) -> f64| {
        let chart = Chart::new(Drawn::Table, unit, "write latency", unit, x());
        let add =
            |chart: Chart, kind: &Kind| chart.with(kind.name(), (0..columns.len()).map(|at| what(cell(*kind, at))));
        Kind::ALL.iter().fold(chart, add)
    };
    let times = |base: Kind, kinds: &[Kind], first: f64, last: f64| {
        let unit = format!("times {}", base.name());
        let chart = Chart::new(Drawn::Bars, "Figure 12: write latencies", "write latency", &unit, x());
        let of = |kind: Kind| (0..columns.len()).map(move |column| (kind, column));
        let ratio = |(kind, column)| rate(kind, column) / rate(base, column);
        let chart = kinds.iter().fold(chart, |chart, kind| chart.with(kind.name(), of(*kind).map(ratio)));
        let name = Some(Kind::AsInPaper.name());
        chart.with_paper(name, "400 ns", first, first).with_paper(name, "700 ns", last, last)
    };
    figure.charts = vec![
        times(Kind::NoDedup, &Kind::ALL, 1.4, 1.6),
        times(Kind::DedupFineGrained, &[Kind::AsInPaper, Kind::Ours], 1.5, 1.3),
        table("cost of a request, us", |cell| cell.cost_us),
        table("requests/s by the wall clock", |cell| cell.rate),
    ];
    let last = LATENCIES.len() - 1;
    let at = |column: usize| names[column].as_str();
    for (base, papers) in
        [(Kind::NoDedup, [1.4, 1.6]), (Kind::DedupFineGrained, [1.5, 1.3]), (Kind::DedupBlock, [f64::NAN; 2])]
    {
        for (column, paper) in [0, last].into_iter().zip(papers) {
            let what = |kind: Kind| format!("{} to {} at {}", kind.name(), base.name(), at(column));
            let [ours, paper_system] =
                [Kind::Ours, Kind::AsInPaper].map(|kind| (kind, rate(kind, column) / rate(base, column)));
            if paper.is_nan() {
                figure.rows.extend([paper_system, ours].map(|(kind, ours)| Row::picture(what(kind), ours, "x")));
                continue;
            }
            let row = Row::value(what(ours.0), paper, ours.1, "x");
            let aim = row.reach(Measure::Cost);
            figure.rows.push(Row::value(what(paper_system.0), paper, paper_system.1, "x").judged_by(&aim));
            if run.turn.is_the_papers {
                figure.claim(row, aim);
            } else {
                figure.rows.push(row);
            }
        }
    }
    let gain = |column| rate(Kind::Ours, column) / rate(Kind::NoDedup, column);
    figure.reading = format!(
        "By cost, NV-Dedup (ours) is {2} times as fast as No_dedup at a write latency of {0}, and {3} times as fast at \
         {1}.",
        at(0),
        at(last),
        number(gain(0)),
        number(gain(last))
    );
    Ok(vec![figure])
}

/// Figure 13: strong hash functions.
pub(super) fn hashes(run: &Run) -> Result<Vec<Figure>> {
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
        "Random overwrites at {PERCENT} % duplicates, {} requests per pass, one thread, all functions in one run. Ours \
         compares bytes instead; its single value is drawn next to each function.",
        run.requests
    );
    let mut figure = run.turn.figure("figure-13", "Figure 13: hash functions", settings);
    let functions = StrongFunction::ALL.len();
    let x = || StrongFunction::ALL.iter().map(|function| function.name().to_string());
    let mut chart = Chart::new(Drawn::Bars, "Figure 13: hash functions", "hash function", "cost of a request, us", x());
    let unit = "requests/s by the wall clock";
    let mut rates = Chart::new(Drawn::Table, unit, "hash function", unit, x());
    for (kind, cells) in kinds.iter().zip(cells.chunks(functions)) {
        chart = chart.with(kind.name(), cells.iter().map(|cell| cell.cost_us));
        rates = rates.with(kind.name(), cells.iter().map(|cell| cell.rate));
        let slower = cells[0].cost_us / cells[2].cost_us;
        figure.rows.push(Row::picture(format!("{}: SHA-256 to MD5", kind.name()), slower, "x"));
    }
    let ours = &cells[cells.len() - 1];
    let name = "NV-Dedup (ours, bytes)";
    figure.charts = vec![chart.with(name, vec![ours.cost_us; functions]), rates.with(name, vec![ours.rate; functions])];
    let paper = &cells[2 * functions..3 * functions];
    let best = paper.iter().map(|cell| cell.cost_us).fold(f64::INFINITY, f64::min) / ours.cost_us;
    figure.rows.push(Row::own("NV-Dedup: bytes to the fastest hash function", best, "x"));
    figure.reading = format!(
        "By cost, NV-Dedup (as in the paper) is {} times as fast with SHA-256 as with MD5; comparing bytes (ours) is \
         {} times as fast as the fastest hash function. Processors with SHA instructions reverse the order of MD5 and \
         SHA.",
        number(paper[0].cost_us / paper[2].cost_us),
        number(best)
    );
    Ok(vec![figure])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_that_takes_longer_than_its_request_is_refused() {
        check_share("NVM", 6.0, 14.0).unwrap();
        let error = check_share("NVM", 15.0, 14.0).unwrap_err().to_string();
        assert!(error.contains("MD5 of a block on NVM: 15 us was measured"), "{error}");
    }
}
