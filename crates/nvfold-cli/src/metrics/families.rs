//! The metrics: their names, by the conventions of Prometheus, and where their values come from.
//!
//! Every sample has the labels `device` and `mountpoint`. The values of other labels come from fixed lists (operations,
//! errors, events, policies, parts of memory), but for the paths of limited trees, of which there are 64 at most.

use super::Scraped;
use super::figures::{Figures, Tree};
use crate::statistics::Statistics;
use nvfold::{DeNovaStats, Stats};
use nvfold_mount::Latency;
use prometheus_client::registry::Unit;
use std::iter;

/// Metrics of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub unit: Option<Unit>,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
    Info,
}

#[derive(Debug)]
pub(super) struct Sample {
    pub labels: Labels,
    pub value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    /// The bounds of the buckets, and what each holds alone.
    Histogram {
        sum: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
    Info(Labels),
}

pub(super) type Labels = Vec<(&'static str, String)>;

/// A mount with the labels of its samples.
pub(super) struct Mounted<'s> {
    labels: Labels,
    figures: Option<&'s Figures>,
}

impl<'s> Mounted<'s> {
    pub(super) fn of(scraped: &'s Scraped) -> Mounted<'s> {
        let labels = vec![("device", scraped.device.clone()), ("mountpoint", scraped.mount_point.clone())];
        Mounted { labels, figures: scraped.figures.as_ref() }
    }

    fn sample(&self, more: &[(&'static str, &str)], value: Value) -> Sample {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        Sample { labels: self.labels.iter().cloned().chain(more).collect(), value }
    }
}

/// Returns all families; one without samples is one of which nothing is known.
pub(super) fn all(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let mut families = vec![up(mounted), build(mounted), policy(mounted)];
    families.extend(of_statistics(mounted));
    families.extend(of_space(mounted));
    families.extend(of_policies(mounted));
    families.extend(of_queue(mounted));
    families.extend(of_memory(mounted));
    families.extend(of_requests(mounted));
    families.extend(of_trees(mounted));
    families
}

/// One value of a mount, by labels.
type Values<'f> = Vec<(Vec<(&'static str, &'f str)>, Value)>;

/// Makes a family of what a function finds in the figures of each mount.
fn family<'f>(
    mounted: &[Mounted<'f>],
    (name, help, unit, kind): (&'static str, &'static str, Option<Unit>, Kind),
    values: impl Fn(&'f Figures) -> Values<'f>,
) -> Family {
    let of = |one: &Mounted<'f>| -> Vec<Sample> {
        let all = one.figures.map(&values).unwrap_or_default();
        all.into_iter().map(|(labels, value)| one.sample(&labels, value)).collect()
    };
    Family { name, help, unit, kind, samples: mounted.iter().flat_map(of).collect() }
}

/// One value without labels, if it is known.
fn one<'f>(value: Option<Value>) -> Values<'f> {
    value.into_iter().map(|value| (Vec::new(), value)).collect()
}

fn whole(value: u64) -> Option<Value> {
    Some(Value::Whole(value))
}

fn seconds(ns: u64) -> Value {
    Value::Real(ns as f64 / 1e9)
}

fn flag(is: bool) -> Option<Value> {
    whole(u64::from(is))
}

fn up(mounted: &[Mounted<'_>]) -> Family {
    let samples = mounted.iter().map(|one| one.sample(&[], Value::Whole(u64::from(one.figures.is_some()))));
    let help = "Whether the server of the mount answers";
    Family { name: "up", help, unit: None, kind: Kind::Gauge, samples: samples.collect() }
}

fn build(mounted: &[Mounted<'_>]) -> Family {
    let described = ("build", "The version that reads the figures", None, Kind::Info);
    family(mounted, described, |_| one(Some(Value::Info(vec![("version", env!("CARGO_PKG_VERSION").to_owned())]))))
}

fn policy(mounted: &[Mounted<'_>]) -> Family {
    let described = ("mount", "How the mount stores new data, and what it promises", None, Kind::Info);
    family(mounted, described, |figures| {
        let Statistics { policy, compress, share, transport, persistence, superblock, .. } = &figures.statistics;
        let known = |text: &Option<String>| text.clone().unwrap_or_default();
        one(Some(Value::Info(vec![
            ("policy", known(policy)),
            ("compress", known(compress)),
            ("share", known(share)),
            ("persistence", persistence.clone()),
            ("transport", known(transport)),
            ("uuid", superblock.uuid.clone()),
        ])))
    })
}

/// What is known of every mount, also by users who may not see its figures.
fn of_statistics(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let gauge = |name, help, unit, value: fn(&Statistics) -> Option<Value>| {
        family(mounted, (name, help, unit, Kind::Gauge), move |figures| one(value(&figures.statistics)))
    };
    vec![
        gauge("device_size", "Size of the device", Some(Unit::Bytes), |of| whole(of.superblock.device_bytes)),
        gauge("read_only", "Whether the device is opened read-only", None, |of| flag(of.read_only)),
        gauge("created_timestamp", "When the device was formatted", Some(Unit::Seconds), |of| {
            Some(Value::Real(of.superblock.created_ns as f64 / 1e9))
        }),
        gauge("sync_failing", "Whether the last sync of the disk below the device failed", None, |of| {
            flag(of.sync_errors.as_ref().is_some_and(|errors| errors.is_failing))
        }),
        family(
            mounted,
            ("sync_errors", "Syncs of the disk below the device that failed", None, Kind::Counter),
            |figures| one(whole(figures.statistics.sync_errors.as_ref().map_or(0, |errors| errors.count))),
        ),
        family(mounted, ("read_write_mounts", "Mounts of the device for writing", None, Kind::Counter), |figures| {
            one(whole(figures.statistics.superblock.read_write_mounts))
        }),
    ]
}

fn of_space(mounted: &[Mounted<'_>]) -> Vec<Family> {
    const BYTES: [(&str, &str, fn(&Stats) -> u64); 13] = [
        ("logical", "Bytes that files reference: without sharing and compression, this would be stored", |of| {
            of.logical_bytes
        }),
        ("stored", "Bytes of data blocks and packed chunks in use", |of| of.stored_bytes),
        ("saved", "Bytes saved by sharing, less what is stored and in no file", |of| of.saved_bytes),
        ("compressed_away", "Bytes saved by compression", |of| of.compressed_away_bytes),
        ("metadata", "Bytes of logs, attributes and tables in use", |of| of.metadata_bytes),
        ("reserved", "Bytes set aside when the device was formatted, and not in use", |of| of.reserved_bytes),
        ("packed_rest", "Bytes of packed segments beside live chunks", |of| of.packed_rest_bytes),
        ("packed_dead", "Bytes of packed segments that reclamation can free", |of| of.reclaim.dead_bytes),
        ("free", "Free bytes", |of| of.free_bytes),
        ("available", "Free bytes that writers can use", |of| of.available_bytes),
        ("host_allocated", "Host memory or disk that the device takes", |of| of.device_allocated_bytes),
        ("index_dram", "DRAM of the index", |of| of.index.dram_bytes),
        ("index_media", "Space of the index on the device, without the chunk table", |of| of.index.media_bytes),
    ];
    const NUMBERS: [(&str, &str, fn(&Stats) -> u64); 9] = [
        ("inodes", "Inodes in use", |of| of.inodes),
        ("inodes_free", "Inodes that could still be created", |of| of.inodes_free),
        ("inodes_cached", "Inodes cached in DRAM", |of| of.inodes_cached),
        ("data_blocks", "Data blocks of 4 KiB in use", |of| of.data_blocks),
        ("chunks", "Chunk entries in use", |of| of.chunks),
        ("index_entries", "Entries of the index", |of| of.index.entries),
        ("removing_directories", "Directories of removed trees that are still to be freed", |of| {
            of.removing.directories
        }),
        ("removing_files", "Files of removed trees that are still to be freed", |of| of.removing.files),
        ("segment_opened_max", "How often the most worn segment was opened for packed chunks", |of| {
            u64::from(of.wear.opened_max)
        }),
    ];
    const COUNTS: [(&str, &str, fn(&Stats) -> u64); 11] = [
        ("skipped", "Items that background work skipped because they could not be read", |of| of.skipped.count),
        ("refused_changes", "Changes refused because of a mistake in nvfold", |of| of.refused.count),
        ("panics", "Panics in work beside the requests", |of| of.panicked.count),
        ("fingerprints_filled", "Missing fingerprints computed in the background", |of| of.chunks_filled),
        ("dedup_transactions", "Dedup transactions since the device was formatted", |of| of.transactions),
        ("segments_opened", "Segments opened for packed chunks since the device was formatted", |of| of.wear.opened),
        ("reclaimed_segments", "Packed segments that were emptied", |of| of.reclaim.segments),
        ("collected_chunks", "Partly used chunks that were replaced by smaller ones", |of| of.reclaim.collected_chunks),
        ("origin_writes", "Writes whose data has a known origin", |of| of.origins.requests),
        ("index_lookups", "Searches of an index on the device", |of| of.index.lookups),
        ("index_reads", "Entries that these searches read", |of| of.index.reads),
    ];
    const BYTE_COUNTS: [(&str, &str, fn(&Stats) -> u64); 5] = [
        ("reclaim_moved", "Bytes that reclamation moved", |of| of.reclaim.moved_bytes),
        ("reclaim_freed", "Bytes that reclamation freed", |of| of.reclaim.freed_bytes),
        ("collected", "Bytes saved by replacing partly used chunks", |of| of.reclaim.collected_bytes),
        ("origin_offered", "Bytes written with a known origin", |of| of.origins.offered_bytes),
        ("origin_shared", "Bytes of them that are shared with their origin", |of| of.origins.shared_bytes),
    ];
    let all = |rows: &'static [(&'static str, &'static str, fn(&Stats) -> u64)], unit: Option<Unit>, kind| {
        rows.iter().map(move |(name, help, value)| {
            family(mounted, (name, help, unit.clone(), kind), |of| one(space_of(of).map(|of| Value::Whole(value(of)))))
        })
    };
    all(&BYTES, Some(Unit::Bytes), Kind::Gauge)
        .chain(all(&NUMBERS, None, Kind::Gauge))
        .chain(all(&COUNTS, None, Kind::Counter))
        .chain(all(&BYTE_COUNTS, Some(Unit::Bytes), Kind::Counter))
        .collect()
}

fn space_of(figures: &Figures) -> Option<&Stats> {
    figures.statistics.space.as_ref()
}

fn of_policies(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let pieces = |name, help, figure: fn(&nvfold::PolicyStats) -> u64| {
        family(mounted, (name, help, None, Kind::Counter), move |figures| {
            let policies = space_of(figures).map(|space| &space.by_policy[..]).unwrap_or_default();
            policies.iter().map(|of| (vec![("policy", of.policy.name())], Value::Whole(figure(of)))).collect()
        })
    };
    let choices = |figures: &Figures| {
        let Statistics { auto, nv_dedup, .. } = &figures.statistics;
        let auto = auto.as_ref().map(|auto| ("auto", auto.device.switches, auto.device.periods, auto.device.ratio));
        let nv_dedup = nv_dedup.as_ref().map(|of| ("nv-dedup", of.switches, of.periods, of.ratio));
        auto.into_iter().chain(nv_dedup)
    };
    vec![
        pieces("pieces_offered", "Pieces of data that a policy looked for", |of| of.offered),
        pieces("pieces_shared", "Pieces of data that a policy shared", |of| of.shared),
        pieces("weak_collisions", "Pieces whose weak fingerprint matched and whose bytes did not", |of| of.collisions),
        family(
            mounted,
            ("policy_switches", "Switches of what a policy that chooses has chosen", None, Kind::Counter),
            move |of| choices(of).map(|(name, count, _, _)| (vec![("policy", name)], Value::Whole(count))).collect(),
        ),
        family(
            mounted,
            ("policy_periods", "Sampling periods of a policy that chooses", None, Kind::Counter),
            move |of| choices(of).map(|(name, _, count, _)| (vec![("policy", name)], Value::Whole(count))).collect(),
        ),
        family(
            mounted,
            ("duplicate", "Part of the sampled data that was stored already", Some(Unit::Ratios), Kind::Gauge),
            move |of| {
                let known = choices(of).filter_map(|(name, _, _, ratio)| Some((name, ratio?)));
                known.map(|(name, ratio)| (vec![("policy", name)], Value::Real(ratio))).collect()
            },
        ),
    ]
}

/// The queue and the daemon of policy denova.
fn of_queue(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let of = |described, value: fn(&DeNovaStats) -> Value| {
        family(mounted, described, move |figures| one(figures.statistics.denova.as_ref().map(value)))
    };
    let (bytes, time) = (Some(Unit::Bytes), Some(Unit::Seconds));
    vec![
        of(("queue_entries", "Entries of the work queue", None, Kind::Gauge), |of| Value::Whole(of.queue_entries)),
        of(("queue", "Bytes of file data in the work queue", bytes.clone(), Kind::Gauge), |of| {
            Value::Whole(of.queue_bytes)
        }),
        of(("queue_lag", "How long the oldest entry of the work queue has waited", time.clone(), Kind::Gauge), |of| {
            seconds(of.lag_ns)
        }),
        of(("daemon_paused", "Whether the dedup daemon is paused", None, Kind::Gauge), |of| {
            Value::Whole(u64::from(of.paused))
        }),
        of(("daemon_processed", "Entries that the dedup daemon has processed", None, Kind::Counter), |of| {
            Value::Whole(of.dequeued)
        }),
        of(("daemon_read", "Bytes that the dedup daemon has looked at", bytes.clone(), Kind::Counter), |of| {
            Value::Whole(of.looked_at_bytes)
        }),
        of(("daemon_shared", "Bytes that the dedup daemon has shared", bytes, Kind::Counter), |of| {
            Value::Whole(of.shared_bytes)
        }),
        of(("daemon_busy", "Time that the dedup daemon has worked", time, Kind::Counter), |of| seconds(of.busy_ns)),
    ]
}

fn of_memory(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let bytes = || Some(Unit::Bytes);
    let of = |name, help, value: fn(&Statistics) -> Option<u64>| {
        let described = (name, help, bytes(), Kind::Gauge);
        family(mounted, described, move |figures| one(value(&figures.statistics).map(Value::Whole)))
    };
    let parts = family(mounted, ("memory", "DRAM of the server, by part", bytes(), Kind::Gauge), |figures| {
        let Some(space) = space_of(figures) else { return Vec::new() };
        let queue = figures.statistics.denova.as_ref().map_or(0, |denova| denova.queue_dram_bytes);
        let parts = [
            ("index", space.index.dram_bytes),
            ("allocator", space.space_dram_bytes),
            ("tables", space.tables_dram_bytes),
            ("streams", space.streams_dram_bytes),
            ("queue", queue),
        ];
        parts.into_iter().map(|(part, bytes)| (vec![("part", part)], Value::Whole(bytes))).collect()
    });
    let traffic = |name, help, unit, value: fn(&crate::traffic::Traffic) -> Value| {
        family(mounted, (name, help, unit, Kind::Counter), move |figures| {
            one(figures.statistics.traffic.as_ref().map(value))
        })
    };
    vec![
        parts,
        of("process_anonymous_memory", "Memory of the server's own: heap and stacks", |of| {
            Some(of.process.as_ref()?.anonymous_bytes)
        }),
        of("process_resident_memory", "Resident memory of the server, with pages of the device", |of| {
            Some(of.process.as_ref()?.resident_bytes)
        }),
        of("memory_limit", "The tightest memory limit of the server, if the device is in memory", |of| {
            Some(of.memory_limit.as_ref()?.limit_bytes)
        }),
        of("memory_limit_room", "What the device may still take within that limit", |of| {
            Some(of.memory_limit.as_ref()?.room_bytes)
        }),
        traffic("media_stored", "Bytes stored on the device", bytes(), |of| Value::Whole(of.bytes_stored)),
        traffic("media_streamed", "Bytes stored past the CPU's cache", bytes(), |of| Value::Whole(of.bytes_streamed)),
        traffic("media_read", "Bytes read from the device", bytes(), |of| Value::Whole(of.bytes_read)),
        traffic("media_lines_flushed", "Cache lines flushed to the device", None, |of| Value::Whole(of.lines_flushed)),
        traffic("media_fences", "Fences", None, |of| Value::Whole(of.fences)),
    ]
}

fn of_requests(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let served = |name, help, unit, value: fn(&nvfold_mount::Requests) -> u64| {
        family(mounted, (name, help, unit, Kind::Counter), move |figures| {
            one(figures.statistics.requests.as_ref().map(|of| Value::Whole(value(of))))
        })
    };
    let by_name = |described, of: for<'f> fn(&'f Figures) -> Vec<(&'static str, &'f str, u64)>| {
        family(mounted, described, move |figures| {
            of(figures).into_iter().map(|(label, name, count)| (vec![(label, name)], Value::Whole(count))).collect()
        })
    };
    vec![
        family(
            mounted,
            (
                "request_duration",
                "Time from the arrival of a request in the server to its answer",
                Some(Unit::Seconds),
                Kind::Histogram,
            ),
            |of| of.latencies.iter().map(|(name, of)| (vec![("operation", name.as_str())], histogram(of))).collect(),
        ),
        family(mounted, ("requests", "Requests of the kernel that were answered", None, Kind::Counter), |figures| {
            let outcomes = |of: &Latency| [("ok", of.requests() - of.failed.min(of.requests())), ("error", of.failed)];
            let of = |(name, latency)| {
                let name: &String = name;
                outcomes(latency).map(|(outcome, count)| {
                    (vec![("operation", name.as_str()), ("outcome", outcome)], Value::Whole(count))
                })
            };
            figures.latencies.iter().flat_map(of).collect()
        }),
        by_name(("request_errors", "Requests that were answered with an error", None, Kind::Counter), |figures| {
            figures.errors.iter().map(|(name, count)| ("error", name.as_str(), *count)).collect()
        }),
        by_name(("events", "Events that operators were told of", None, Kind::Counter), |figures| {
            figures.events.iter().map(|(name, count)| ("event", name.as_str(), *count)).collect()
        }),
        served("read", "Bytes that read requests of the kernel got", Some(Unit::Bytes), |of| of.bytes_read),
        served("written", "Bytes of write requests of the kernel", Some(Unit::Bytes), |of| of.bytes_written),
        served("changes", "Changes of names and attributes", None, |of| of.changes),
        family(
            mounted,
            ("mount_duration", "How long mounting the device took", Some(Unit::Seconds), Kind::Gauge),
            |of| one(of.scan_ns.map(seconds)),
        ),
        family(
            mounted,
            (
                "reconcile_duration",
                "How long it took after the mount until counts were exact, after a crash",
                Some(Unit::Seconds),
                Kind::Gauge,
            ),
            |of| one(of.reconcile_ns.map(seconds)),
        ),
        family(mounted, ("reconciled", "Part of recovery that is done", Some(Unit::Ratios), Kind::Gauge), |figures| {
            let recovery = figures.statistics.recovery.as_ref();
            one(recovery.map(|recovery| Value::Real(recovery.percent as f64 / 100.0)))
        }),
        family(mounted, ("unreadable_inodes", "Inodes that are damaged and give EIO", None, Kind::Gauge), |figures| {
            one(figures.statistics.recovery.as_ref().map(|recovery| Value::Whole(recovery.found.unreadable)))
        }),
    ]
}

fn histogram(of: &Latency) -> Value {
    let bounds = Latency::bounds_ns().map(|ns| ns as f64 / 1e9).chain(iter::once(f64::INFINITY));
    let buckets = bounds.zip(of.by_class.iter().copied()).collect();
    Value::Histogram { sum: of.total_ns as f64 / 1e9, count: of.requests(), buckets }
}

fn of_trees(mounted: &[Mounted<'_>]) -> Vec<Family> {
    let of = |name, help, unit: Option<Unit>, value: fn(&Tree) -> Option<Value>| {
        family(mounted, (name, help, unit, Kind::Gauge), move |figures| {
            let known =
                figures.trees.iter().filter_map(|tree| Some((vec![("tree", tree.path.as_str())], value(tree)?)));
            known.collect()
        })
    };
    let bytes = || Some(Unit::Bytes);
    vec![
        of("tree_logical", "Bytes that the files of a limited tree hold", bytes(), |of| whole(of.logical_bytes)),
        of("tree_limit", "The most bytes that they may hold", bytes(), |of| of.limit_bytes.map(Value::Whole)),
        of("tree_inodes", "Inodes of a limited tree", None, |of| whole(of.inodes)),
        of("tree_limit_inodes", "The most inodes that it may have", None, |of| of.limit_inodes.map(Value::Whole)),
        of("tree_expiry_timestamp", "When a tree is removed", Some(Unit::Seconds), |of| {
            of.expires_ns.map(|ns| Value::Real(ns as f64 / 1e9))
        }),
        family(mounted, ("limited_trees", "Trees with limits", None, Kind::Gauge), |of| {
            one(of.trees_count.map(Value::Whole))
        }),
        family(mounted, ("snapshots", "Snapshots", None, Kind::Gauge), |of| one(of.snapshots_count.map(Value::Whole))),
    ]
}
