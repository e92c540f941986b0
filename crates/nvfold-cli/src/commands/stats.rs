//! `nvfold stats`: shows every counter, and the DRAM that the file system needs for each stored block.

use crate::device::DeviceOptions;
use crate::failure::Outcome;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::{Index, Statistics};
use crate::text::counted;
use crate::traffic::{SegmentWear, Traffic, lines_words};
use clap::Args;
use nvfold::{AutoStats, Chosen, Costs, DeNovaStats, Method, NvDedupStats, OriginStats, ReclaimStats, Usage};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show what every byte of the device is for, all counters, and the DRAM used per stored block
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold stats /tmp/fold")]
pub(crate) struct Stats {
    /// Device or mount point
    #[arg(value_name = "DEVICE|DIR")]
    target: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    statistics: Statistics,
    dram: Dram,
}

/// DRAM per stored data block, in bytes; `None` if nothing is stored, or the file system is not mounted.
#[derive(Serialize)]
struct Dram {
    index_bytes_per_block: Option<f64>,
    index_and_allocator_bytes_per_block: Option<f64>,
    /// All of the server's own memory, with caches and code.
    process_bytes_per_block: Option<f64>,
}

/// Runs the command.
pub(crate) fn run(stats: &Stats, output: &Output) -> Outcome<u8> {
    let statistics = Statistics::with_usage(&stats.target, &stats.device_options)?;
    let space = statistics.known_space()?.clone();
    let served = statistics.mount_point.is_some();
    let per_block = |bytes: u64| (served && space.data_blocks > 0).then(|| bytes as f64 / space.data_blocks as f64);
    let dram = Dram {
        index_bytes_per_block: per_block(space.index.dram_bytes),
        index_and_allocator_bytes_per_block: per_block(space.index.dram_bytes + space.space_dram_bytes),
        process_bytes_per_block: statistics.process.as_ref().and_then(|process| per_block(process.anonymous_bytes)),
    };
    let report = Report { statistics, dram };
    report::emit(output.json, "stats", &report, || describe(&report, &space))?;
    Ok(0)
}

/// Describes the choices of policy auto, and the reasons.
fn describe_auto(auto: &AutoStats) -> Vec<(&'static str, String)> {
    let of = |chosen: &Chosen| {
        let percent = |part: Option<f64>| part.map_or("unknown".to_owned(), |part| format!("{:.1} %", part * 100.0));
        let estimates: Vec<String> = chosen
            .estimates
            .iter()
            .map(|of| format!("{} {:.0} ns and {:.1} % stored", of.policy.name(), of.time_ns, of.stored * 100.0))
            .collect();
        format!(
            "{} ({}); duplicates {}, requests of {:.1} blocks, {} switches in {} periods{}{}",
            chosen.policy.name(),
            chosen.reason,
            percent(chosen.ratio),
            chosen.request_blocks,
            chosen.switches,
            chosen.periods,
            if estimates.is_empty() { "" } else { "; " },
            estimates.join(", "),
        )
    };
    let Costs { write_ns: c, weak_ns: w, lookup_ns: lambda, compare_ns: v, .. } = auto.costs;
    let whence = if auto.measured { "measured" } else { "given" };
    let costs = format!(
        "c {c}, {} in a long request, w {w}, lambda {lambda}, v {v} ns a block, {whence}; prefers {}",
        auto.run_write_ns,
        auto.prefer.name()
    );
    let mut rows = vec![("auto, costs", costs), ("auto, whole device", of(&auto.device))];
    let named = |chosen: &Chosen| ("auto, a directory", format!("inode {}: {}", chosen.directory, of(chosen)));
    // The others do as the whole device does.
    rows.extend(auto.directories.iter().filter(|chosen| chosen.periods > 0).map(named));
    rows
}

/// Describes the cost model of policy nv-dedup.
fn describe_model(model: &NvDedupStats) -> Vec<(&'static str, String)> {
    let percent = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0));
    let Costs { write_ns: c, weak_ns: w, strong_ns: s, lookup_ns: lambda, compare_ns: v } = model.costs;
    let source = if model.measured { "measured" } else { "given" };
    let pieces = Method::ALL.map(|method| format!("{} {}", method.name(), model.pieces[method as usize]));
    vec![
        ("method", format!("{} (chosen by {})", model.method.name(), model.choice.name())),
        ("duplicate ratio", percent(model.ratio)),
        ("cost of a write, c", format!("{c} ns ({source})")),
        ("of a weak fingerprint, w", format!("{w} ns")),
        ("of a strong fingerprint, s", format!("{s} ns")),
        ("of a lookup and an insertion, lambda", format!("{lambda} ns")),
        ("of a compare, v", format!("{v} ns")),
        ("ws pays from", percent(model.thresholds.w_s)),
        ("str pays from", percent(model.thresholds.strong)),
        ("wb pays from", percent(model.thresholds.w_b)),
        ("sampling periods", model.periods.to_string()),
        ("switches of the method", model.switches.to_string()),
        ("pieces by method", pieces.join(", ")),
    ]
}

/// Describes the queue and the dedup daemon of policy denova.
fn describe_queue(denova: &DeNovaStats) -> Vec<(&'static str, String)> {
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let waited = |percent| denova.queue_wait_ns(percent).map_or("-".into(), |ns| format!("up to {}", seconds(ns)));
    let rate = denova.bytes_per_busy_second().map_or("-".into(), |rate| format!("{}/s", size::show(rate as u64)));
    vec![
        ("mode", format!("{}{}", denova.mode, if denova.paused { ", paused" } else { "" })),
        ("queue", format!("{} entries, {}", denova.queue_entries, size::show(denova.queue_bytes))),
        ("queue, lag", seconds(denova.lag_ns)),
        ("queue, DRAM", format!("{} ({})", size::show(denova.queue_dram_bytes), denova.queue_dram_bytes)),
        ("daemon, entries processed", denova.dequeued.to_string()),
        ("daemon, read", format!("{} ({})", size::show(denova.looked_at_bytes), denova.looked_at_bytes)),
        ("daemon, shared", format!("{} ({})", size::show(denova.shared_bytes), denova.shared_bytes)),
        ("daemon, busy", format!("{}, {rate}", seconds(denova.busy_ns))),
        ("queue wait, median", waited(50)),
        ("queue wait, 99th percentile", waited(99)),
    ]
}

/// Describes the index, and the cost of searches in a pm index.
fn describe_index(index: &Index, device_bytes: u64) -> Vec<(&'static str, String)> {
    let mut rows = vec![("index", index.describe(device_bytes))];
    if let Some(reads) = index.reads_per_lookup() {
        rows.push(("index, searches", format!("{}, each of which read {reads:.2} entries", index.lookups)));
        rows.push(("index, chains reordered", index.reordered.to_string()));
    }
    rows
}

/// Describes the traffic of the device, and its cost if the profile gives one.
fn describe_traffic(traffic: &Traffic, bytes_written: u64) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("device profile", traffic.profile.clone()),
        ("bytes stored", with_bytes(traffic.bytes_stored)),
        ("bytes streamed", with_bytes(traffic.bytes_streamed)),
        ("lines flushed", traffic.lines_flushed.to_string()),
        ("lines written", lines_words(traffic.lines_written())),
        ("fences", traffic.fences.to_string()),
    ];
    if traffic.charged_ns > 0 {
        rows.push(("time charged", format!("{:.6} s", traffic.charged_ns as f64 / 1e9)));
    }
    rows.extend(traffic.energy_words(bytes_written).map(|words| ("energy", words)));
    rows
}

/// Describes the wear of the device.
fn describe_wear(wear: &SegmentWear) -> Vec<(&'static str, String)> {
    let lifetime = wear.lifetime_words().map(|words| ("wear, endurance", words));
    [("wear, segments", wear.opened_words())].into_iter().chain(lifetime).collect()
}

/// Describes the cost and the gain of emptying packed segments.
fn reclaimed_words(reclaim: &ReclaimStats) -> String {
    let ReclaimStats { segments, moved_bytes: moved, freed_bytes: freed, .. } = *reclaim;
    let ratio = moved as f64 / freed.max(1) as f64;
    format!("{} from {segments} segments, {ratio:.2} bytes moved per byte freed", size::show(freed))
}

/// Describes the savings by chunks that were replaced by smaller ones.
pub(crate) fn collected_words(chunks: u64, bytes: u64) -> String {
    let chunks = counted(chunks, "partly used chunk", "partly used chunks");
    format!("{} freed from {chunks}", size::show(bytes))
}

/// Lists the number of requests of each kind, the most frequent first.
fn kinds_words(by_kind: &BTreeMap<String, u64>) -> String {
    let mut kinds: Vec<(&String, &u64)> = by_kind.iter().collect();
    kinds.sort_by_key(|(_, count)| Reverse(**count));
    let words: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!("{}: {}", by_kind.values().sum::<u64>(), words.join(", "))
}

/// Describes the results for bytes with known origins.
fn origin_words(origins: &OriginStats) -> String {
    let OriginStats { requests: writes, offered_bytes, shared_bytes, shared_extents, .. } = *origins;
    let (shared, offered) = (size::show(shared_bytes), size::show(offered_bytes));
    format!("{shared} of {offered} with a known origin, in {writes} writes and {shared_extents} extents")
}

/// Describes what the stored bytes are for: stored + saved + compressed away = logical + dead + padding. Without
/// the usage, what is dead and padding is subtracted from what is saved.
fn usage_rows(space: &nvfold::Stats, usage: Option<&Usage>) -> Vec<(&'static str, String)> {
    let Some(usage) = usage else {
        return vec![
            ("saved by sharing, less dead bytes", with_bytes(space.saved_bytes)),
            ("saved by compression", with_bytes(space.compressed_away_bytes)),
            ("logical", with_bytes(space.logical_bytes)),
        ];
    };
    vec![
        ("saved by sharing", with_bytes(usage.saved_bytes)),
        ("saved by compression", with_bytes(usage.compressed_away_bytes)),
        ("logical", with_bytes(usage.logical_bytes)),
        ("dead: stored, and in no file", with_bytes(usage.dead_bytes)),
        ("padding: after the ends of files", with_bytes(usage.padding_bytes)),
    ]
}

/// Describes the memory of the server, or of this process where nothing is mounted, part by part.
fn memory_rows(space: &nvfold::Stats, statistics: &Statistics) -> Vec<(&'static str, String)> {
    let parts = [
        ("memory, index", space.index.dram_bytes),
        ("memory, allocator", space.space_dram_bytes),
        ("memory, used bits of tables", space.tables_dram_bytes),
        ("memory, cached inodes", space.inode_dram_bytes),
        ("memory, open streams", space.streams_dram_bytes),
        ("memory, work queue", statistics.denova.as_ref().map_or(0, |denova| denova.queue_dram_bytes)),
    ];
    let known = parts.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut rows: Vec<_> = parts.into_iter().map(|(part, bytes)| (part, with_bytes(bytes))).collect();
    if let Some(process) = &statistics.process {
        rows.push(("memory, threads, buffers, the rest", with_bytes(process.anonymous_bytes.saturating_sub(known))));
        rows.push(("memory, all of the process", with_bytes(process.anonymous_bytes)));
    }
    rows
}

fn with_bytes(bytes: u64) -> String {
    format!("{} ({bytes})", size::show(bytes))
}

fn describe(report: &Report, space: &nvfold::Stats) -> String {
    let per_block = |figure: Option<f64>| figure.map_or("-".into(), |bytes| format!("{bytes:.2} B"));
    let mut rows = vec![
        ("device size", with_bytes(space.device_bytes)),
        ("free", with_bytes(space.free_bytes)),
        ("metadata", with_bytes(space.metadata_bytes)),
        ("reserved for tables", with_bytes(space.reserved_bytes)),
        ("packed segments, beside live chunks", with_bytes(space.packed_rest_bytes)),
        ("stored", with_bytes(space.stored_bytes)),
        ("allocated on the host", with_bytes(space.device_allocated_bytes)),
        ("inodes", space.inodes.to_string()),
        ("data blocks", space.data_blocks.to_string()),
        ("chunks", space.chunks.to_string()),
        ("index entries", space.index.entries.to_string()),
        ("inodes cached", space.inodes_cached.to_string()),
        ("DRAM per stored block, index", per_block(report.dram.index_bytes_per_block)),
        ("DRAM per stored block, index + allocator", per_block(report.dram.index_and_allocator_bytes_per_block)),
        ("DRAM per stored block, whole process", per_block(report.dram.process_bytes_per_block)),
        ("pieces offered", space.pieces_offered.to_string()),
        ("pieces shared", space.pieces_shared.to_string()),
        ("weak collisions", space.weak_collisions.to_string()),
        ("fingerprints filled in", space.chunks_filled.to_string()),
        ("dedup transactions", space.transactions.to_string()),
        ("dead bytes of packed chunks", with_bytes(space.reclaim.dead_bytes)),
        ("reclaimed", reclaimed_words(&space.reclaim)),
        ("collected", collected_words(space.reclaim.collected_chunks, space.reclaim.collected_bytes)),
        ("skipped in the background", space.skipped.count.to_string()),
    ];
    rows.splice(6..6, usage_rows(space, report.statistics.usage.as_ref()));
    rows.extend(memory_rows(space, &report.statistics));
    rows.extend(report.statistics.memory_limit.iter().map(|limit| ("memory limit", limit.describe())));
    rows.extend(report.statistics.sync_errors.iter().map(|errors| ("syncs", errors.describe())));
    rows.extend(space.skipped.last_error.iter().map(|error| ("skipped last", error.clone())));
    rows.extend(report.statistics.snapshots.iter().filter(|held| held.count > 0).map(|held| {
        let count = counted(held.count, "snapshot", "snapshots");
        ("held only by snapshots", format!("{} in {count}", with_bytes(held.only_bytes)))
    }));
    if space.removing != nvfold::Removing::default() {
        let nvfold::Removing { directories, files } = space.removing;
        let words =
            format!("{}, {}", counted(directories, "directory", "directories"), counted(files, "file", "files"));
        rows.push(("removed trees, still to be freed", words));
    }
    if space.refused.count > 0 {
        rows.push(("refused, because of a mistake in nvfold", space.refused.count.to_string()));
    }
    rows.extend(space.refused.last_error.iter().map(|error| ("refused last", error.clone())));
    if space.panicked.count > 0 {
        rows.push(("ended by a panic, in the background", space.panicked.count.to_string()));
    }
    rows.extend(space.panicked.last.iter().map(|what| ("ended last", what.clone())));
    rows.extend(report.statistics.index.iter().flat_map(|index| describe_index(index, space.device_bytes)));
    rows.extend(report.statistics.nv_dedup.iter().flat_map(describe_model));
    rows.extend(report.statistics.auto.iter().flat_map(describe_auto));
    rows.extend(report.statistics.denova.iter().flat_map(describe_queue));
    let origins = report.statistics.origins.as_ref().filter(|origins| origins.requests > 0);
    rows.extend(origins.map(|origins| ("shared by origin", origin_words(origins))));
    if let Some(requests) = &report.statistics.requests {
        rows.push(("reads", format!("{}, {}", requests.reads, with_bytes(requests.bytes_read))));
        rows.push(("writes", format!("{}, {}", requests.writes, with_bytes(requests.bytes_written))));
        rows.push(("changes of names and attributes", requests.changes.to_string()));
        let by_ring = report.statistics.transport.as_deref() == Some("ring");
        rows.push(("requests come by", if by_ring { "io_uring" } else { "/dev/fuse" }.into()));
        rows.push(("requests of the kernel", kinds_words(&report.statistics.requests_by_kind)));
    }
    if let Some(process) = &report.statistics.process {
        rows.push(("process, resident", with_bytes(process.resident_bytes)));
    }
    if let Some(traffic) = &report.statistics.traffic {
        let bytes_written = report.statistics.requests.map_or(0, |requests| requests.bytes_written);
        rows.extend(describe_traffic(traffic, bytes_written));
    }
    rows.extend(report.statistics.wear.iter().flat_map(describe_wear));
    report::facts(&rows)
}
