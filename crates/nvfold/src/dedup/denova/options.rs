//! How policy `denova` works and what it tells: when it shares, how much it may take, statistics.

use crate::words::ReorderOptions;

/// When policy `denova` shares (DeNOVA V-A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DedupMode {
    /// As it is written, in the way of the writer.
    Inline,
    /// The daemon works whenever anything is queued.
    #[default]
    Immediate,
    /// The daemon works every `interval_ms`, on `entries` entries of the queue at most: the paper's (n, m).
    Delayed {
        /// Milliseconds from one time to the next, 1 at least.
        interval_ms: u64,
        /// Entries of the queue, 1 at least.
        entries: u64,
    },
}

impl std::fmt::Display for DedupMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DedupMode::Inline => f.write_str("inline"),
            DedupMode::Immediate => f.write_str("immediate"),
            DedupMode::Delayed { interval_ms, entries } => write!(f, "delayed:{interval_ms}:{entries}"),
        }
    }
}

impl DedupMode {
    /// The one that is written `inline`, `immediate` or `delayed:MS:ENTRIES`.
    pub fn parse(text: &str) -> Option<DedupMode> {
        match text {
            "inline" => Some(DedupMode::Inline),
            "immediate" => Some(DedupMode::Immediate),
            _ => {
                let (interval_ms, entries) = text.strip_prefix("delayed:")?.split_once(':')?;
                let positive = |text: &str| text.parse().ok().filter(|number| *number > 0);
                Some(DedupMode::Delayed { interval_ms: positive(interval_ms)?, entries: positive(entries)? })
            }
        }
    }
}

/// How policy `denova` works. Fingerprints and what must be equal are those of [`NvDedupOptions`]; as in the paper
/// they are `weak=sha1`, `strong=sha1`, `verify=strong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeNovaOptions {
    /// When it shares.
    pub mode: DedupMode,
    /// Percent of one processor that the daemon takes at most, 1 to 100.
    pub cpu_percent: u32,
    /// Below this percentage of free space the daemon heeds no limit.
    pub guard_percent: u32,
    /// When the pm index brings a chain into order.
    pub reorder: ReorderOptions,
}

impl Default for DeNovaOptions {
    fn default() -> Self {
        DeNovaOptions {
            mode: DedupMode::default(),
            cpu_percent: 100,
            guard_percent: 5,
            reorder: ReorderOptions::default(),
        }
    }
}

/// What policy `denova` does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeNovaStats {
    /// When it shares.
    pub mode: DedupMode,
    /// The daemon was told to stop for now.
    pub paused: bool,
    /// Entries in the work queue.
    pub queue_entries: u64,
    /// Bytes of files that they stand for.
    pub queue_bytes: u64,
    /// DRAM of the queue, bytes.
    pub queue_dram_bytes: u64,
    /// How long its oldest entry has waited, ns. 0 without a stopwatch.
    pub lag_ns: u64,
    /// Entries the daemon has dealt with since mount.
    pub dequeued: u64,
    /// Bytes it has looked at since mount.
    pub looked_at_bytes: u64,
    /// Bytes it has shared since mount.
    pub shared_bytes: u64,
    /// Time it has worked since mount, ns. 0 without a stopwatch.
    pub busy_ns: u64,
    /// How long entries had waited in the queue when they were dealt with: upper bound of a class, ns, and how many
    /// of them; ascending, empty classes left out. Empty without a stopwatch.
    pub queue_wait_histogram: Vec<(u64, u64)>,
}
