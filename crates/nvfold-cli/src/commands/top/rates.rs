//! Computes rates per second from two reports of a mount.

use crate::report;
use crate::size;
use crate::statistics::{Statistics, SyncErrors};
use crate::traffic::SegmentWear;
use nvfold::{DeNovaStats, PolicyStats};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Instant;

/// Bytes in a line of the media.
const LINE_BYTES: u64 = pmem::LINE_BYTES;
/// The number of rates kept for the graph, more than the width of a screen.
const HISTORY: usize = 240;

/// A mount and its latest figures.
pub(super) struct Watched {
    pub dir: PathBuf,
    last: Option<(Instant, Statistics)>,
    /// `None` before the second report.
    pub figures: Option<Figures>,
    /// Bytes written and read per second, oldest first.
    pub written: VecDeque<u64>,
    pub read: VecDeque<u64>,
}

impl Watched {
    /// Starts without figures.
    pub(super) fn new(dir: PathBuf) -> Watched {
        Watched { dir, last: None, figures: None, written: VecDeque::new(), read: VecDeque::new() }
    }

    /// Adds a report.
    pub(super) fn add(&mut self, statistics: Statistics, at: Instant) {
        // A new server process starts its counters at 0.
        let before = self.last.take().filter(|(_, before)| before.pid == statistics.pid);
        if let Some((then, before)) = before {
            let figures = Figures::between(&before, &statistics, (at - then).as_secs_f64().max(1e-3));
            for (history, rate) in
                [(&mut self.written, figures.rates.written_bytes), (&mut self.read, figures.rates.read_bytes)]
            {
                history.push_back(rate as u64);
                history.drain(..history.len().saturating_sub(HISTORY));
            }
            self.figures = Some(figures);
        }
        self.last = Some((at, statistics));
    }
}

/// The activity of one mount.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub mount_point: String,
    pub device: String,
    pub device_bytes: u64,
    pub persistence: String,
    /// Syncs that failed since the mount; absent if none did.
    pub sync_errors: Option<SyncErrors>,
    /// The profile of the emulated device.
    pub profile: String,
    pub policy: String,
    /// Seconds between the two reports.
    pub seconds: f64,
    pub rates: Rates,
    pub logical_bytes: u64,
    pub stored_bytes: u64,
    pub saved_bytes: u64,
    pub free_bytes: u64,
    pub transactions: u64,
    pub requests: nvfold_mount::Requests,
    /// The work queue of policy denova.
    pub queue: Option<Queue>,
    pub index: IndexFigures,
    /// By policy; only those that look for equal blocks while data is written.
    pub policies: BTreeMap<String, PolicyFigures>,
    pub wear: Wear,
    /// Energy, if the profile gives figures for it.
    pub energy: Option<Energy>,
}

/// Rates per second between two reports.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Rates {
    pub writes: f64,
    pub written_bytes: f64,
    pub reads: f64,
    pub read_bytes: f64,
    pub changes: f64,
    pub transactions: f64,
    /// Lines that reached the media, flushed and streamed.
    pub lines_written: f64,
    pub lines_flushed: f64,
    pub fences: f64,
    /// Time that the profile charged, in seconds.
    pub charged_seconds: f64,
}

/// The queue and the dedup daemon of policy denova.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Queue {
    pub mode: String,
    pub paused: bool,
    pub entries: u64,
    pub bytes: u64,
    pub lag_seconds: f64,
    /// Bytes per second that the daemon examined, and that it shared.
    pub looked_at_bytes_per_second: f64,
    pub shared_bytes_per_second: f64,
    /// The daemon's share of one processor, in percent.
    pub busy_percent: f64,
    /// Time until the queue is empty at the present rate; `None` if it does not get shorter.
    pub eta_seconds: Option<f64>,
    /// Since mount.
    pub looked_at_bytes: u64,
    pub shared_bytes: u64,
    /// The time within which half of the entries, and 99 % of them, left the queue.
    pub waited_half_seconds: Option<f64>,
    pub waited_99_percent_seconds: Option<f64>,
}

/// The index.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct IndexFigures {
    pub kind: String,
    pub weak: String,
    pub entries: u64,
    pub dram_bytes: u64,
    pub media_bytes: u64,
    /// For a pm index: searches per second, and entries read per search.
    pub lookups_per_second: f64,
    pub reads_per_lookup: Option<f64>,
}

/// Pieces offered to a policy, and pieces that it shared.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct PolicyFigures {
    pub offered_per_second: f64,
    pub shared_per_second: f64,
    /// Since mount.
    pub offered: u64,
    pub shared: u64,
    pub collisions: u64,
}

/// Traffic to the media since mount.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Wear {
    pub lines_written: u64,
    /// How often each line of the device was written, if writes were spread evenly.
    pub writes_per_line: f64,
    /// Bytes written to the media per byte that programs wrote; `None` if they wrote nothing.
    pub amplification: Option<f64>,
    /// How often segments were opened since the device was formatted, and its remaining life.
    pub segments: Option<SegmentWear>,
}

/// Energy of the traffic, by the profile.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Energy {
    /// Since mount.
    pub joules: f64,
    /// Per gigabyte that programs wrote; `None` if they wrote nothing.
    pub joules_per_gb: Option<f64>,
    /// Joules per second.
    pub watts: f64,
}

impl Figures {
    fn between(before: &Statistics, now: &Statistics, seconds: f64) -> Figures {
        let per_second = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let space = now.space.clone().unwrap_or_default();
        let space_before = before.space.clone().unwrap_or_default();
        let (requests_before, requests) = (before.requests.unwrap_or_default(), now.requests.unwrap_or_default());
        let (media_before, media) = (Media::of(before), Media::of(now));
        let rates = Rates {
            writes: per_second(requests_before.writes, requests.writes),
            written_bytes: per_second(requests_before.bytes_written, requests.bytes_written),
            reads: per_second(requests_before.reads, requests.reads),
            read_bytes: per_second(requests_before.bytes_read, requests.bytes_read),
            changes: per_second(requests_before.changes, requests.changes),
            transactions: per_second(space_before.transactions, space.transactions),
            lines_written: per_second(media_before.lines_written, media.lines_written),
            lines_flushed: per_second(media_before.lines_flushed, media.lines_flushed),
            fences: per_second(media_before.fences, media.fences),
            charged_seconds: per_second(media_before.charged_ns, media.charged_ns) / 1e9,
        };
        let device_bytes = now.superblock.device_bytes;
        let written = requests.bytes_written;
        let policy = |pieces: &PolicyStats| {
            let before = space_before.by_policy.iter().find(|before| before.policy == pieces.policy);
            let before = before.copied().unwrap_or_default();
            let figures = PolicyFigures {
                offered_per_second: per_second(before.offered, pieces.offered),
                shared_per_second: per_second(before.shared, pieces.shared),
                offered: pieces.offered,
                shared: pieces.shared,
                collisions: pieces.collisions,
            };
            (pieces.policy.name().to_owned(), figures)
        };
        Figures {
            mount_point: now.mount_point.clone().unwrap_or_default(),
            device: now.device.clone(),
            device_bytes,
            persistence: now.persistence.clone(),
            sync_errors: now.sync_errors.clone(),
            profile: now.traffic.as_ref().map(|traffic| traffic.profile.clone()).unwrap_or_default(),
            policy: now.policy.clone().unwrap_or_default(),
            seconds,
            rates,
            logical_bytes: space.logical_bytes,
            stored_bytes: space.stored_bytes,
            saved_bytes: space.saved_bytes,
            free_bytes: space.free_bytes,
            transactions: space.transactions,
            requests,
            queue: now.denova.as_ref().map(|now| Queue::between(before.denova.as_ref(), now, seconds)),
            index: IndexFigures::between(before, now, seconds),
            policies: space.by_policy.iter().map(policy).collect(),
            wear: Wear {
                lines_written: media.lines_written,
                writes_per_line: media.lines_written as f64 / (device_bytes / LINE_BYTES).max(1) as f64,
                amplification: (written > 0).then(|| (media.lines_written * LINE_BYTES) as f64 / written as f64),
                segments: now.wear,
            },
            energy: Energy::between(before, now, seconds),
        }
    }

    /// Formats the figures for scripts and logs: name and value, one in a line.
    pub(super) fn in_lines(&self) -> String {
        let Figures { rates, index, wear, .. } = self;
        let flow = |operations: f64, bytes: f64| format!("{}/s, {}/s", count(operations), size::show(bytes as u64));
        let mut rows =
            vec![("mount", self.mount_point.clone()), ("device", self.device_words()), ("policy", self.policy.clone())];
        rows.extend(self.sync_errors.iter().map(|errors| ("syncs", errors.describe())));
        rows.extend([
            ("writes", flow(rates.writes, rates.written_bytes)),
            ("reads", flow(rates.reads, rates.read_bytes)),
            ("changes", format!("{}/s", count(rates.changes))),
            ("saved", self.saved_words()),
        ]);
        if let Some(queue) = &self.queue {
            rows.push(("mode", queue.mode_words()));
            rows.push(("queue", queue.length_words()));
            rows.push(("sharing", queue.work_words()));
        }
        rows.push(("index", index.words()));
        rows.push(("searches", index.search_words()));
        rows.push(("transactions", format!("{}/s", count(rates.transactions))));
        rows.push(("lines", self.lines_words()));
        rows.push(("wear", wear.words()));
        rows.extend(self.cost_words());
        rows.extend(self.policies.iter().map(|(name, of)| (name.as_str(), of.words())));
        report::facts(&rows)
    }

    /// Describes the device in a few words.
    pub(super) fn device_words(&self) -> String {
        let Figures { device, device_bytes, persistence, profile, .. } = self;
        format!("{device} ({}, level {persistence}, profile {profile})", size::show(*device_bytes))
    }

    /// Returns true if what is written does not become durable.
    pub(super) fn do_syncs_fail(&self) -> bool {
        self.sync_errors.as_ref().is_some_and(|errors| errors.is_failing)
    }

    /// Describes the savings by sharing.
    pub(super) fn saved_words(&self) -> String {
        let [logical, stored, saved] = [self.logical_bytes, self.stored_bytes, self.saved_bytes].map(size::show);
        let percent = report::percent(self.saved_bytes, self.logical_bytes);
        format!("{saved} ({percent}) of {logical}; stored {stored}, free {}", size::show(self.free_bytes))
    }

    /// Describes the cost of the traffic on the emulated device, and its wear, if the profile gives figures.
    pub(super) fn cost_words(&self) -> Vec<(&'static str, String)> {
        let charged = format!("{:.3} s of the device charged a second", self.rates.charged_seconds);
        let energy = self.energy.map(|energy| ("energy", format!("{}; {charged}", energy.words())));
        let segments = self.wear.segments.map(|wear| ("segments", wear.opened_words()));
        let lifetime = self.wear.segments.and_then(|wear| wear.lifetime_words()).map(|words| ("endurance", words));
        energy.into_iter().chain(segments).chain(lifetime).collect()
    }

    /// Describes the traffic to the media.
    pub(super) fn lines_words(&self) -> String {
        let Rates { lines_written, lines_flushed, fences, .. } = self.rates;
        let [written, flushed, fences] = [lines_written, lines_flushed, fences].map(count);
        format!("{written}/s written, of these {flushed}/s flushed; {fences} fences/s")
    }
}

impl Queue {
    fn between(before: Option<&DeNovaStats>, now: &DeNovaStats, seconds: f64) -> Queue {
        // A queue that was not in the last report was empty.
        let none = DeNovaStats::default();
        let before = before.unwrap_or(&none);
        let per_second = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let shrinks_by = per_second(now.queue_bytes, before.queue_bytes);
        let in_seconds = |ns: u64| ns as f64 / 1e9;
        Queue {
            mode: now.mode.to_string(),
            paused: now.paused,
            entries: now.queue_entries,
            bytes: now.queue_bytes,
            lag_seconds: in_seconds(now.lag_ns),
            looked_at_bytes_per_second: per_second(before.looked_at_bytes, now.looked_at_bytes),
            shared_bytes_per_second: per_second(before.shared_bytes, now.shared_bytes),
            busy_percent: per_second(before.busy_ns, now.busy_ns) / 1e7,
            eta_seconds: (shrinks_by > 0.0).then(|| now.queue_bytes as f64 / shrinks_by),
            looked_at_bytes: now.looked_at_bytes,
            shared_bytes: now.shared_bytes,
            waited_half_seconds: now.queue_wait_ns(50).map(in_seconds),
            waited_99_percent_seconds: now.queue_wait_ns(99).map(in_seconds),
        }
    }

    /// Describes when the policy shares.
    pub(super) fn mode_words(&self) -> String {
        format!("{}{}", self.mode, if self.paused { ", paused" } else { "" })
    }

    /// Describes the length of the queue, its lag, and when it will be empty.
    pub(super) fn length_words(&self) -> String {
        if self.entries == 0 {
            return "empty".into();
        }
        let ends = match self.eta_seconds {
            Some(seconds) => format!("empty in {}", time(seconds)),
            None => "not getting shorter".to_owned(),
        };
        let (entries, bytes, lag) = (self.entries, size::show(self.bytes), time(self.lag_seconds));
        format!("{entries} entries, {bytes}, the oldest waits {lag}; {ends}")
    }

    /// Describes the activity of the daemon.
    pub(super) fn work_words(&self) -> String {
        let looked_at = size::show(self.looked_at_bytes_per_second as u64);
        let shared = size::show(self.shared_bytes_per_second as u64);
        format!("{looked_at}/s looked at, {shared}/s shared, {:.0} % of a processor", self.busy_percent)
    }

    /// Describes the daemon's work since mount.
    pub(super) fn total_words(&self) -> String {
        let (looked_at, shared) = (size::show(self.looked_at_bytes), size::show(self.shared_bytes));
        let waited = |seconds: Option<f64>| seconds.map_or("-".into(), time);
        let (half, most) = (waited(self.waited_half_seconds), waited(self.waited_99_percent_seconds));
        format!("{looked_at} looked at, {shared} shared; half waited {half}, 99 % {most}")
    }
}

impl IndexFigures {
    fn between(before: &Statistics, now: &Statistics, seconds: f64) -> IndexFigures {
        let Some(index) = &now.index else { return IndexFigures::default() };
        let (lookups_before, reads_before) =
            before.index.as_ref().map_or((0, 0), |before| (before.lookups, before.reads));
        let lookups = index.lookups.saturating_sub(lookups_before);
        let reads = index.reads.saturating_sub(reads_before);
        IndexFigures {
            kind: index.kind.clone(),
            weak: index.weak.clone().unwrap_or_default(),
            entries: index.entries,
            dram_bytes: index.dram_bytes,
            media_bytes: index.media_bytes,
            lookups_per_second: lookups as f64 / seconds,
            reads_per_lookup: (lookups > 0).then(|| reads as f64 / lookups as f64),
        }
    }

    /// Describes the index in one line.
    pub(super) fn words(&self) -> String {
        let IndexFigures { kind, weak, entries, .. } = self;
        let dram = size::show(self.dram_bytes);
        match kind.as_str() {
            "" => "-".into(),
            "pm" => format!("pm by {weak}, {entries} entries, {} media, {dram} DRAM", size::show(self.media_bytes)),
            _ => format!("{kind}, {entries} entries, {dram} DRAM"),
        }
    }

    /// Describes the cost of searches, if it is counted.
    pub(super) fn search_words(&self) -> String {
        match (self.kind.as_str(), self.reads_per_lookup) {
            ("pm", Some(reads)) => format!("{}/s, each reads {reads:.2} entries", count(self.lookups_per_second)),
            ("pm", None) => "none".into(),
            _ => "-".into(),
        }
    }
}

impl PolicyFigures {
    /// Describes it in one line.
    pub(super) fn words(&self) -> String {
        let (offered, shared) = (count(self.offered_per_second), count(self.shared_per_second));
        let percent = report::percent(self.shared, self.offered);
        format!("{offered}/s offered, {shared}/s shared; {} of {} ({percent}) since mount", self.shared, self.offered)
    }
}

impl Wear {
    /// Describes it in one line.
    pub(super) fn words(&self) -> String {
        let written = size::show(self.lines_written * LINE_BYTES);
        let amplification = self.amplification.map_or(String::new(), |by| format!(" ({by:.2} a byte of the writes)"));
        format!("{written}{amplification}, each line {:.3} times", self.writes_per_line)
    }
}

impl Energy {
    fn between(before: &Statistics, now: &Statistics, seconds: f64) -> Option<Energy> {
        let traffic = now.traffic.as_ref()?;
        let joules = traffic.joules?;
        let joules_before = before.traffic.as_ref().and_then(|traffic| traffic.joules).unwrap_or(0.0);
        let written = now.requests.map_or(0, |requests| requests.bytes_written);
        let watts = (joules - joules_before).max(0.0) / seconds;
        Some(Energy { joules, joules_per_gb: traffic.joules_per_gb(written), watts })
    }

    /// Describes it in one line.
    pub(super) fn words(&self) -> String {
        let Energy { joules, joules_per_gb, watts } = self;
        let per_gb = joules_per_gb.map_or(String::new(), |by| format!(" ({by:.2} J/GB)"));
        format!("{joules:.2} J{per_gb}, {watts:.3} W")
    }
}

/// Counters of the device.
#[derive(Default)]
struct Media {
    lines_written: u64,
    lines_flushed: u64,
    fences: u64,
    charged_ns: u64,
}

impl Media {
    fn of(statistics: &Statistics) -> Media {
        statistics.traffic.as_ref().map_or(Media::default(), |traffic| Media {
            lines_written: traffic.lines_written(),
            lines_flushed: traffic.lines_flushed,
            fences: traffic.fences,
            charged_ns: traffic.charged_ns,
        })
    }
}

/// Formats a count in at most seven characters: `0.5`, `1234`, `12.3k`, `4.5M`.
pub(super) fn count(count: f64) -> String {
    match count {
        0.0 => "0".into(),
        count if count < 10.0 => format!("{count:.1}"),
        count if count < 1e4 => format!("{count:.0}"),
        count if count < 1e6 => format!("{:.1}k", count / 1e3),
        count if count < 1e9 => format!("{:.1}M", count / 1e6),
        count => format!("{:.1}G", count / 1e9),
    }
}

/// Formats a time: `250 us`, `12 ms`, `1.5 s`, `3 min 20 s`, `2 h 5 min`.
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        0.0 => "0 s".into(),
        seconds if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 60.0 => format!("{seconds:.1} s"),
        seconds if seconds < 3600.0 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_on_the_screen_are_short() {
        let counts =
            [(0.0, "0"), (0.25, "0.2"), (9.96, "10.0"), (1234.4, "1234"), (56_789.0, "56.8k"), (2.5e9, "2.5G")];
        for (number, text) in counts {
            assert_eq!(count(number), text);
        }
        let times = [
            (0.0, "0 s"),
            (250e-6, "250 us"),
            (0.012, "12 ms"),
            (1.54, "1.5 s"),
            (200.0, "3 min 20 s"),
            (7500.0, "2 h 5 min"),
        ];
        for (seconds, text) in times {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn top_shows_the_time_left_of_a_queue_only_while_it_shrinks() {
        let of = |queue_bytes| DeNovaStats { queue_entries: 1, queue_bytes, ..DeNovaStats::default() };
        let eta = |before: Option<&DeNovaStats>, now: &DeNovaStats| Queue::between(before, now, 2.0).eta_seconds;
        assert_eq!(eta(Some(&of(300)), &of(100)), Some(1.0), "100 bytes a second");
        assert_eq!(eta(Some(&of(100)), &of(100)), None);
        assert_eq!(eta(Some(&of(100)), &of(300)), None);
        assert_eq!(eta(None, &of(300)), None, "a queue that is new has grown");
    }
}
