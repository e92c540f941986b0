//! Options and statistics of policy `denova`: when it shares, and how much it may take.

use crate::words::ReorderOptions;

/// When policy `denova` shares (DeNOVA V-A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DedupMode {
    /// While data is written, at the writer's expense.
    Inline,
    /// The daemon works whenever anything is queued.
    #[default]
    Immediate,
    /// The paper's (n, m): the daemon works every `interval_ms` milliseconds, on at most `entries` entries of the
    /// queue.
    Delayed {
        /// Milliseconds between two runs, at least 1.
        interval_ms: u64,
        /// Entries of the queue in a run, at least 1.
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
    /// Returns the mode that is written `inline`, `immediate` or `delayed:MS:ENTRIES`.
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

/// Options of policy `denova`. The fingerprint functions and `verify` are those of
/// [`NvDedupOptions`](crate::dedup::nv_dedup::options::NvDedupOptions); in the paper they are `weak=sha1`,
/// `strong=sha1`, `verify=strong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeNovaOptions {
    /// When it shares.
    pub mode: DedupMode,
    /// The largest percentage of one processor that the daemon takes, 1 to 100.
    pub cpu_percent: u32,
    /// Percentage of free space below which the daemon ignores its limits.
    pub guard_percent: u32,
    /// When the pm index reorders a chain.
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

/// Statistics of policy `denova`.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct DeNovaStats {
    /// When it shares.
    pub mode: DedupMode,
    /// True if the daemon is paused.
    pub paused: bool,
    /// Number of entries in the work queue.
    pub queue_entries: u64,
    /// Bytes of file data that they refer to.
    pub queue_bytes: u64,
    /// DRAM of the queue, bytes.
    pub queue_dram_bytes: u64,
    /// How long the oldest entry has waited, nanoseconds; 0 without a stopwatch.
    pub lag_ns: u64,
    /// Number of entries that the daemon has processed since mount.
    pub dequeued: u64,
    /// Bytes that it has looked at since mount.
    pub looked_at_bytes: u64,
    /// Bytes that it has shared since mount.
    pub shared_bytes: u64,
    /// Time that it has worked since mount, nanoseconds; 0 without a stopwatch.
    pub busy_ns: u64,
    /// How long entries had waited when they were processed: the upper bound of a class in nanoseconds, and the
    /// number of entries in it. Ascending, without empty classes; empty without a stopwatch.
    #[cfg_attr(feature = "serde", serde(rename = "lingered", with = "crate::dedup::serial::wait_classes"))]
    pub queue_wait_histogram: Vec<(u64, u64)>,
}

impl DeNovaStats {
    /// Returns the time within which `percent` percent of the entries left the queue: the upper bound of a class.
    /// `None` if there are no entries.
    pub fn queue_wait_ns(&self, percent: u64) -> Option<u64> {
        let entries: u64 = self.queue_wait_histogram.iter().map(|(_, entries)| entries).sum();
        let wanted = (entries * percent).div_ceil(100).max(1);
        let mut passed = 0;
        self.queue_wait_histogram.iter().find_map(|(up_to_ns, entries)| {
            passed += entries;
            (passed >= wanted).then_some(*up_to_ns)
        })
    }

    /// Returns how many bytes the daemon examines in a second of work; `None` before it has worked.
    pub fn bytes_per_busy_second(&self) -> Option<f64> {
        (self.busy_ns > 0).then(|| self.looked_at_bytes as f64 * 1e9 / self.busy_ns as f64)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_queue_wait_of_a_percentile_is_the_upper_bound_of_its_class() {
        let denova = DeNovaStats { queue_wait_histogram: vec![(10, 50), (20, 49), (40, 1)], ..DeNovaStats::default() };
        let waited = |percent| denova.queue_wait_ns(percent);
        assert_eq!((waited(0), waited(50), waited(51)), (Some(10), Some(10), Some(20)));
        assert_eq!((waited(99), waited(100)), (Some(20), Some(40)));
        assert_eq!(DeNovaStats::default().queue_wait_ns(50), None);
    }
}
