//! Device profiles: emulated devices that charge time, and the figures that turn counters into energy and endurance.
//!
//! The problem: most of the papers' devices are not available. The idea: charge each thread the time that such a
//! device would take, so that it can be measured nevertheless.
//!
//! **The model** has seven figures. A thread is charged `write_line_ns` for each line that it flushes or streams,
//! `read_latency_ns` for each read that has to fetch a line, and `read_line_ns` for each line fetched. A line that
//! the thread touched lately need not be fetched: see `cache`. A fence returns `fence_ns` after the thread began to
//! write its last line, because that is the latency of a write. All threads together write no faster than
//! `write_mb_s` and read no faster than `read_mb_s`. Every access to the media goes through the model: copies, words,
//! 16-byte pairs, compare-and-exchange. A store through the cache is charged when its line is flushed.
//!
//! **The charge** depends only on what the thread does, not on the clock and not on other threads. It is the same in
//! every run, and [`Counters::charged_ns`] adds it up.
//!
//! **The wait.** The time that the host takes for an access is part of its charge, so accesses with a high charge are
//! timed: writes of [`BULK_LINES`] and more, reads that fetch, fences. The rest of the charge becomes a debt of the
//! thread. When the debt reaches [`SPIN_FROM_PS`] the thread spins until it is paid; shorter times cannot be spun
//! exactly. Threads that together ask for more than the device's bandwidth wait for one another, at copies of that
//! size. A device whose line takes a microsecond or more (pcm) is counted and never waited for: see
//! [`Profile::waits`].
//!
//! Where a paper gives a range, the profile takes the middle; a figure that no source gives is left out (0: no
//! charge, no limit). `nvfold-lab profiles` prints the measured result next to the figures of the sources
//! (docs/results/profiles).
//!
//! | profile | source | figures |
//! |---|---|---|
//! | `native` | the memory as it is | charges nothing |
//! | `nvdimm-8x` | NV-Dedup 5.2: write bandwidth 1/8 of DRAM, 300 ns reads, 600 ns writes, 9.7 us to write a 4 KiB chunk | 3200 MB/s for all threads (1/8 of two channels of DDR3-1600); 600 ns a write and 144 ns a line make the 9.7 us of one thread |
//! | `nvdimm-600` | NV-Dedup, what its Table 4 and Fig. 12 imply: 9.65 + (1 - r) 40.5 us a request of 4 KiB at a share r of duplicates, so a stored block takes some 64 times 600 ns | 600 ns a line; the rest as `nvdimm-8x` |
//! | `optane` | Izraelevitz et al. 2019, six modules interleaved: 305 ns a random read, 90 ns a write and its fence, 13.9 GB/s of writes and 39.4 GB/s of reads for all threads; one thread: DeNOVA Table IV, 39.9 us for 128 KiB | 19 ns a line written, 17 ns a line read, 288 ns before a read's first line |
//! | `pcm` | DeEXT Table II: 50 ns a byte read, 150 ns a byte written; Table I: 1 and 6 J/GB, 10^10 writes | 3200 and 9600 ns a line |
//! | `rram` | DeEXT Table I: 1.9 ns a read and 100 ns a write of its access unit, which is 64 bytes; 0.25 and 14.02 J/GB, 10^8 writes | 1.9 and 100 ns a line |
//! | `stt-ram` | NV-Dedup Table 1: reads 5-30 ns, writes 10-100 ns, 10^15 writes | 55 ns a line written, 17 ns a read |
//! | `custom:key=value,...` | you | any field of [`Profile`] by its name; the rest as `native` |

use crate::Counters;
use crate::LINE_BYTES;
use crate::{clock, thread};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread pays a debt of a microsecond by spinning; the time to read the clocks is part of the wait.
pub(crate) const SPIN_FROM_PS: i64 = 1_000_000;
/// Lines of a write from which the host's time is measured. For fewer lines, reading the clock twice would take
/// longer.
pub(crate) const BULK_LINES: u64 = 16;
/// Nanoseconds per line from which a device is too slow to be waited for.
const COUNTED_FROM_NS: f64 = 1000.0;
const PS_PER_NS: f64 = 1000.0;

/// What a device charges and consumes. Times are nanoseconds and may have fractions (to the picosecond).
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: &'static str,
    /// Nanoseconds for each line flushed or streamed.
    pub write_line_ns: f64,
    /// Megabytes (10^6 bytes) a second that all threads together can write; 0: no limit.
    pub write_mb_s: u64,
    /// Nanoseconds from the beginning of a write to the return of the fence behind it.
    pub fence_ns: f64,
    /// Nanoseconds for each read that fetches a line, before its first line.
    pub read_latency_ns: f64,
    /// Nanoseconds for each line fetched.
    pub read_line_ns: f64,
    /// Megabytes a second that all threads together can read; 0: no limit.
    pub read_mb_s: u64,
    /// Energy to write, joules per gigabyte (10^9 bytes).
    pub write_j_gb: Option<f64>,
    /// Energy to read, joules per gigabyte.
    pub read_j_gb: Option<f64>,
    /// Writes a cell endures.
    pub endurance_writes: Option<f64>,
}

const NATIVE: Profile = Profile::NATIVE;

const NAMED: [Profile; 7] = [
    NATIVE,
    Profile {
        name: "nvdimm-8x",
        write_line_ns: 144.0,
        write_mb_s: 3200,
        fence_ns: 600.0,
        read_latency_ns: 300.0,
        ..NATIVE
    },
    Profile {
        name: "nvdimm-600",
        write_line_ns: 600.0,
        write_mb_s: 3200,
        fence_ns: 600.0,
        read_latency_ns: 300.0,
        ..NATIVE
    },
    Profile {
        name: "optane",
        write_line_ns: 19.0,
        write_mb_s: 13_900,
        fence_ns: 90.0,
        read_latency_ns: 288.0,
        read_line_ns: 17.0,
        read_mb_s: 39_400,
        // DeNOVA Table I: 10^6 to 10^7.
        endurance_writes: Some(1e6),
        ..NATIVE
    },
    Profile {
        name: "pcm",
        write_line_ns: 150.0 * LINE_BYTES as f64,
        read_line_ns: 50.0 * LINE_BYTES as f64,
        write_j_gb: Some(6.0),
        read_j_gb: Some(1.0),
        endurance_writes: Some(1e10),
        ..NATIVE
    },
    Profile {
        name: "rram",
        write_line_ns: 100.0,
        read_line_ns: 1.9,
        write_j_gb: Some(14.02),
        read_j_gb: Some(0.25),
        endurance_writes: Some(1e8),
        ..NATIVE
    },
    Profile { name: "stt-ram", write_line_ns: 55.0, read_latency_ns: 17.0, endurance_writes: Some(1e15), ..NATIVE },
];

const CUSTOM: &str = "custom";

/// The error for an unknown profile or a wrong parameter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "device profile `{text}`: {why}; use one of native, nvdimm-8x, nvdimm-600, optane, pcm, rram, stt-ram, \
     custom:write_line_ns=150,fence_ns=100,..."
)]
pub struct ProfileError {
    text: String,
    why: &'static str,
}

impl Default for Profile {
    fn default() -> Self {
        NATIVE
    }
}

impl Profile {
    /// Charges nothing: the memory as it is.
    pub const NATIVE: Profile = Profile {
        name: "native",
        write_line_ns: 0.0,
        write_mb_s: 0,
        fence_ns: 0.0,
        read_latency_ns: 0.0,
        read_line_ns: 0.0,
        read_mb_s: 0,
        write_j_gb: None,
        read_j_gb: None,
        endurance_writes: None,
    };

    /// Returns all named profiles.
    pub fn all() -> [Profile; 7] {
        NAMED
    }

    /// Returns the name, or `custom` for a profile that has none. `Display` prints all parameters, in the form that
    /// `FromStr` reads.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if the profile charges no time and has no energy figures, so that the fast path can ignore it.
    pub fn is_native(&self) -> bool {
        Profile { name: NATIVE.name, endurance_writes: None, ..self.clone() } == NATIVE
    }

    /// Returns whether threads wait for the charge. A device whose line takes a microsecond or more would keep a
    /// processor busy for minutes to find what a multiplication gives, so its time is only counted.
    pub fn waits(&self) -> bool {
        self.write_line_ns < COUNTED_FROM_NS && self.read_line_ns < COUNTED_FROM_NS
    }

    /// Returns the joules that this traffic takes; `None` where no figures are known.
    pub fn joules(&self, counters: &Counters) -> Option<f64> {
        self.joules_of(counters.lines_written() * LINE_BYTES, counters.bytes_read())
    }

    /// Returns the joules to write and to read the given bytes; `None` where no figures are known.
    pub fn joules_of(&self, bytes_written: u64, bytes_read: u64) -> Option<f64> {
        Some((bytes_written as f64 * self.write_j_gb? + bytes_read as f64 * self.read_j_gb?) / 1e9)
    }

    /// Returns every parameter by its name, as text; `None` where it equals that of `native`.
    fn parameters(&self) -> [(&'static str, Option<String>); 9] {
        let whole = |value: u64| (value != 0).then(|| value.to_string());
        let real = |value: Option<f64>| value.map(|value| value.to_string());
        let time = |value: f64| real((value != 0.0).then_some(value));
        [
            ("write_line_ns", time(self.write_line_ns)),
            ("write_mb_s", whole(self.write_mb_s)),
            ("fence_ns", time(self.fence_ns)),
            ("read_latency_ns", time(self.read_latency_ns)),
            ("read_line_ns", time(self.read_line_ns)),
            ("read_mb_s", whole(self.read_mb_s)),
            ("write_j_gb", real(self.write_j_gb)),
            ("read_j_gb", real(self.read_j_gb)),
            ("endurance_writes", real(self.endurance_writes)),
        ]
    }

    fn set(&mut self, parameter: &str) -> Result<(), &'static str> {
        let (key, value) = parameter.split_once('=').ok_or("a parameter is key=value")?;
        let whole = || match value.parse::<u64>() {
            // The limit is a petabyte a second: larger values would only overflow.
            Ok(number) if number <= 1_000_000_000 => Ok(number),
            _ => Err("the value is no whole number up to 1000000000"),
        };
        let time = || match value.parse::<f64>() {
            // The limit is a second a line, slower than any device.
            Ok(ns) if (0.0..=1e9).contains(&ns) => Ok(ns),
            _ => Err("the value is no number from 0 to 1000000000"),
        };
        let real = || match value.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err("the value is no positive number"),
        };
        match key {
            "write_line_ns" => self.write_line_ns = time()?,
            "write_mb_s" => self.write_mb_s = whole()?,
            "fence_ns" => self.fence_ns = time()?,
            "read_latency_ns" => self.read_latency_ns = time()?,
            "read_line_ns" => self.read_line_ns = time()?,
            "read_mb_s" => self.read_mb_s = whole()?,
            "write_j_gb" => self.write_j_gb = real()?,
            "read_j_gb" => self.read_j_gb = real()?,
            "endurance_writes" => self.endurance_writes = real()?,
            _ => return Err("no such parameter"),
        }
        Ok(())
    }
}

/// Prints the name, or `custom:` and what differs from `native`: text that parses to the same profile.
impl fmt::Display for Profile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if NAMED.contains(self) {
            return out.pad(self.name);
        }
        let given = self.parameters().into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        out.pad(&format!("{CUSTOM}:{}", given.collect::<Vec<_>>().join(",")))
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Profile, ProfileError> {
        let wrong = |why| ProfileError { text: text.into(), why };
        let Some(parameters) = text.strip_prefix(CUSTOM).and_then(|rest| rest.strip_prefix(':')) else {
            return NAMED.into_iter().find(|profile| profile.name == text).ok_or_else(|| wrong("no such profile"));
        };
        let mut profile = Profile { name: CUSTOM, ..NATIVE };
        for parameter in parameters.split(',').filter(|parameter| !parameter.is_empty()) {
            profile.set(parameter).map_err(wrong)?;
        }
        Ok(profile)
    }
}

/// The emulated device at work: it charges threads and lets them wait.
pub(crate) struct Throttle {
    profile: Profile,
    charges: bool,
    waits: bool,
    write_line_ps: u64,
    fence_ps: u64,
    read_latency_ps: u64,
    read_line_ps: u64,
    writes: Lane,
    reads: Lane,
}

impl Throttle {
    /// Makes the device of a profile. Threads wait for its charges unless `counts_only` is set or the profile is too
    /// slow.
    pub(crate) fn new(profile: Profile, counts_only: bool) -> Throttle {
        let ps = |ns: f64| (ns * PS_PER_NS).round() as u64;
        let epoch = Instant::now();
        let (writes, reads) = (Lane::new(profile.write_mb_s, epoch), Lane::new(profile.read_mb_s, epoch));
        Throttle {
            charges: !profile.is_native(),
            waits: profile.waits() && !counts_only,
            // One thread alone writes no faster than all threads together.
            write_line_ps: ps(profile.write_line_ns).max(writes.line_ps),
            fence_ps: ps(profile.fence_ns),
            read_latency_ps: ps(profile.read_latency_ns),
            read_line_ps: ps(profile.read_line_ns).max(reads.line_ps),
            writes,
            reads,
            profile,
        }
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns whether the device charges any time.
    #[inline]
    pub(crate) fn charges(&self) -> bool {
        self.charges
    }

    /// Charges lines written by an access that began at `start`, if that is known. Returns the charge in picoseconds.
    pub(crate) fn charge_write(&self, start: Option<Instant>, lines: u64) -> u64 {
        let charged = lines * self.write_line_ps;
        thread::note_write(charged.saturating_sub(self.write_line_ps));
        self.charge(&self.writes, start, lines, charged);
        charged
    }

    /// Charges the rest of the latency of the thread's last write. Returns the charge in picoseconds.
    pub(crate) fn charge_fence(&self, start: Option<Instant>) -> u64 {
        let Some(since_ps) = thread::take_write() else { return 0 };
        let charged = self.fence_ps.saturating_sub(since_ps);
        self.charge(&self.writes, start, 0, charged);
        charged
    }

    /// Charges a read that fetched `fetched` lines, and the rest of the latency of the lines that the thread has
    /// prefetched. Returns the charge in picoseconds.
    pub(crate) fn charge_read(&self, start: Option<Instant>, fetched: u64) -> u64 {
        if !self.charges {
            return 0;
        }
        let own = if fetched > 0 { self.read_latency_ps + fetched * self.read_line_ps } else { 0 };
        let charged = own + thread::fetch_left_ps();
        if charged > 0 {
            self.charge(&self.reads, start, fetched, charged);
        }
        charged
    }

    /// Charges lines that are prefetched. Their latency passes while the thread does other things; the thread's next
    /// read is charged the rest of it. Returns the charge in picoseconds.
    pub(crate) fn charge_fetch(&self, lines: u64) -> u64 {
        if lines == 0 || !self.charges {
            return 0;
        }
        let charged = lines * self.read_line_ps;
        self.charge(&self.reads, None, lines, charged);
        thread::note_fetch(self.read_latency_ps);
        charged
    }

    /// Charges the thread. The wait is the charge without the time that the host took, plus the time in the queue
    /// behind other threads.
    fn charge(&self, lane: &Lane, start: Option<Instant>, lines: u64, charged: u64) {
        let host = start.map_or(0, |start| start.elapsed().as_nanos() as u64 * 1000);
        let left = charged.saturating_sub(host);
        thread::charge(charged, left);
        if self.waits {
            thread::owe((left + lane.behind_others(start, lines, charged)) as i64);
            wait();
        } else {
            thread::count(left);
        }
    }
}

/// Spins until the thread has paid its debt, once the debt is large enough to be spun exactly.
fn wait() {
    let owed = thread::owed_ps();
    if owed >= SPIN_FROM_PS {
        let (start, cpu) = (Instant::now(), clock::thread_cpu_ns());
        let end = start + Duration::from_nanos(owed as u64 / 1000);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        thread::note_spun(clock::thread_cpu_ns() - cpu);
        thread::owe(-(start.elapsed().as_nanos() as i64 * 1000));
    }
}

/// One direction of the device, whose bandwidth all threads share.
struct Lane {
    /// Picoseconds per line at the full bandwidth; 0: no limit.
    line_ps: u64,
    epoch: Instant,
    /// When the lane has moved all lines that were handed to it, in picoseconds after `epoch`.
    busy_until_ps: AtomicU64,
}

impl Lane {
    fn new(mb_s: u64, epoch: Instant) -> Lane {
        let line_ps = (LINE_BYTES * 1_000_000).checked_div(mb_s).unwrap_or(0);
        Lane { line_ps, epoch, busy_until_ps: AtomicU64::new(0) }
    }

    /// Queues lines behind those of other threads. Returns by how many picoseconds they take longer than the thread
    /// is charged. An access with an unknown start takes its share of the bandwidth and does not wait.
    fn behind_others(&self, start: Option<Instant>, lines: u64, charged: u64) -> u64 {
        if self.line_ps == 0 {
            return 0;
        }
        let transfer = lines * self.line_ps;
        let Some(start) = start else {
            self.busy_until_ps.fetch_add(transfer, Ordering::Relaxed);
            return 0;
        };
        let start_ps = start.saturating_duration_since(self.epoch).as_nanos() as u64 * 1000;
        let done = |busy_until: u64| busy_until.max(start_ps) + transfer;
        let update = |busy_until| Some(done(busy_until));
        let done = match self.busy_until_ps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(before) | Err(before) => done(before),
        };
        (done - start_ps).saturating_sub(charged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_survives_printing_and_parsing() {
        for profile in Profile::all() {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let text = "custom:write_line_ns=7.5,fence_ns=9,read_j_gb=0.25";
        let custom: Profile = text.parse().unwrap();
        assert_eq!((custom.write_line_ns, custom.fence_ns, custom.read_j_gb), (7.5, 9.0, Some(0.25)));
        assert!(!custom.is_native());
        assert_eq!(custom.to_string(), text);
        let changed = Profile { fence_ns: 81.0, ..NAMED[3].clone() };
        assert_eq!(changed.to_string().parse::<Profile>().unwrap().fence_ns, 81.0);
    }

    #[test]
    fn an_unknown_profile_is_refused_with_the_list_of_names() {
        let wrong = ["", "dram", "custom", "custom:speed=1", "custom:fence_ns", "custom:fence_ns=-1"];
        for text in wrong.into_iter().chain(["custom:fence_ns=x", "custom:fence_ns=1e30", "custom:read_j_gb=NaN"]) {
            let error = text.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains("nvdimm-8x"), "{error}");
        }
    }

    /// Returns the nanoseconds charged for writing lines and a fence behind them.
    fn persist_ns(name: &str, lines: u64) -> f64 {
        let throttle = Throttle::new(name.parse().unwrap(), true);
        (throttle.charge_write(None, lines) + throttle.charge_fence(None)) as f64 / 1000.0
    }

    fn read_ns(name: &str, lines: u64) -> f64 {
        Throttle::new(name.parse().unwrap(), true).charge_read(None, lines) as f64 / 1000.0
    }

    #[test]
    fn profiles_charge_the_figures_of_their_sources() {
        assert!((9_600.0..9_800.0).contains(&persist_ns("nvdimm-8x", 64)), "NV-Dedup 5.2 measured 9.7 us");
        assert_eq!((persist_ns("nvdimm-8x", 1), read_ns("nvdimm-8x", 1)), (600.0, 300.0));
        // 40.5 us a stored block, with its metadata.
        assert!((38_000.0..40_500.0).contains(&persist_ns("nvdimm-600", 64)), "NV-Dedup Table 4 and Fig. 12");
        assert_eq!((persist_ns("nvdimm-600", 1), read_ns("nvdimm-600", 1)), (600.0, 300.0));
        let large = persist_ns("optane", 2048);
        assert!((large / 39_860.0 - 1.0).abs() < 0.05, "DeNOVA Table IV: 39.86 us for 128 KiB, {large}");
        assert_eq!((persist_ns("optane", 1), read_ns("optane", 1)), (90.0, 305.0));
        assert_eq!((persist_ns("pcm", 64), read_ns("pcm", 64)), (150.0 * 4096.0, 50.0 * 4096.0));
        assert_eq!((persist_ns("rram", 1), read_ns("rram", 1), read_ns("rram", 10)), (100.0, 1.9, 19.0));
        assert_eq!(persist_ns("native", 64), 0.0);
    }

    #[test]
    fn energy_matches_the_published_figures() {
        let named = |name: &str| name.parse::<Profile>().unwrap();
        let traffic = Counters { bytes_streamed: 1 << 30, lines_read: 1 << 24, ..Counters::default() };
        let gb = (1u64 << 30) as f64 / 1e9;
        for (name, joules_a_gb) in [("pcm", 7.0), ("rram", 14.27)] {
            assert!((named(name).joules(&traffic).unwrap() - gb * joules_a_gb).abs() < 1e-9, "{name}");
        }
        assert_eq!(named("optane").joules(&traffic), None, "no source gives it");
    }

    #[test]
    fn a_fence_waits_for_earlier_writes() {
        let throttle = Throttle::new("custom:fence_ns=1000,write_line_ns=100,read_line_ns=10".parse().unwrap(), true);
        throttle.charge_write(None, 3);
        assert_eq!(throttle.charge_fence(None), 900_000, "its last line began 100 ns before it");
        throttle.charge_write(None, 3);
        throttle.charge_read(None, 5);
        assert_eq!(throttle.charge_fence(None), 850_000, "50 ns passed while the thread read");
        assert_eq!(throttle.charge_fence(None), 0, "nothing was written since");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no clock of a thread's processor time")]
    fn charged_time_is_spun_from_one_microsecond_on() {
        let throttle = Throttle::new("custom:read_line_ns=400".parse().unwrap(), false);
        let start = Instant::now();
        thread::owe(-thread::owed_ps());
        assert_eq!((throttle.charge_read(None, 1), throttle.charge_read(None, 1)), (400_000, 400_000));
        assert_eq!(thread::owed_ps(), 800_000);
        throttle.charge_read(None, 1);
        assert!(thread::owed_ps() <= 0, "what was spun too long is paid in advance");
        assert!(start.elapsed() >= Duration::from_nanos(1200));
    }

    #[test]
    fn the_time_of_the_host_for_a_large_copy_is_part_of_its_charge() {
        let throttle = Throttle::new("custom:write_line_ns=1000000".parse().unwrap(), true);
        let before = thread::unpaid_ps();
        let start = Instant::now() - Duration::from_micros(300);
        assert_eq!(throttle.charge_write(Some(start), 1), 1_000_000_000);
        assert!(thread::unpaid_ps() - before <= 700_000_000);
        let before = thread::unpaid_ps();
        throttle.charge_write(Some(Instant::now() - Duration::from_secs(1)), 1);
        assert_eq!(thread::unpaid_ps(), before, "a slow host gives nothing back");
    }

    #[test]
    fn time_of_slow_devices_is_counted_but_not_spun() {
        assert_eq!(Profile::all().map(|profile| profile.waits()), [true, true, true, true, false, true, true]);
        let start = Instant::now();
        let before = thread::unpaid_ps();
        let charged = Throttle::new("pcm".parse().unwrap(), false).charge_write(None, 10_000_000);
        assert_eq!((charged, thread::unpaid_ps() - before), (96_000_000_000_000, 96_000_000_000_000));
        assert!(start.elapsed() < Duration::from_secs(60), "96 s are not waited for");
    }

    #[test]
    fn threads_share_the_bandwidth() {
        let lane = Lane::new(64, Instant::now()); // 1000 ns a line
        assert_eq!(lane.behind_others(Some(lane.epoch), 1, 1_000_000), 0, "one alone gets all of it");
        assert_eq!(lane.behind_others(Some(lane.epoch), 1, 500_000), 1_500_000, "a second thread queues behind it");
        lane.behind_others(None, 1, 0);
        assert_eq!(lane.busy_until_ps.load(Ordering::Relaxed), 3_000_000, "small accesses take their share");
        let later = lane.epoch + Duration::from_nanos(5000);
        assert_eq!(lane.behind_others(Some(later), 1, 1_000_000), 0, "an idle device saves nothing up");
        assert_eq!(Lane::new(0, Instant::now()).behind_others(Some(later), 99, 0), 0, "no limit");
    }
}
