//! Device profiles: emulated devices that charge time by spinning, so that a device we do not have can be measured,
//! and the figures from which counters give energy and endurance.
//!
//! The model has five times. A thread waits `write_line_ns` for each line it flushes or streams, `read_latency_ns` for
//! each read and `read_line_ns` for each line of it; a fence returns `fence_ns` after the thread began to write its
//! last line, for that is the latency of a write; and all threads together write no faster than `write_mb_s`. An
//! operation takes at least what it is charged; the time that the host's own memory takes is part of it, not added
//! to it. Where a paper gives a range the middle is taken; what no paper gives is left out.
//!
//! | profile | source | figures |
//! |---|---|---|
//! | `native` | the memory as it is | charges nothing |
//! | `nvdimm-8x` | NV-Dedup 5.2: write bandwidth 1/8 of DRAM, 300 ns reads, 600 ns writes, 9.7 us to write a 4 KiB chunk | 3200 MB/s for all threads (1/8 of two channels of DDR3-1600); 600 ns a write and 144 ns a line make the 9.7 us of one thread |
//! | `optane` | DeNOVA Table I: reads 150-350 ns, writes 60-100 ns, 10^6-10^7 writes; ICID Table 1: 1256 MB/s sequential read | 80 ns a fence, 250 ns a read, 51 ns a line read |
//! | `pcm` | DeEXT Table II: 50 ns a byte read, 150 ns a byte written; Table I: 1 and 6 J/GB, 10^10 writes | 3200 and 9600 ns a line |
//! | `stt-ram` | NV-Dedup Table 1: reads 5-30 ns, writes 10-100 ns, 10^15 writes | 55 ns a line written, 17 ns a read |
//! | `custom:key=value,...` | you | any field of [`Profile`] by its name; the rest as `native` |

use crate::Counters;
use crate::LINE_BYTES;
use crate::thread;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a device charges and costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: &'static str,
    /// Nanoseconds for each line flushed or streamed.
    pub write_line_ns: u64,
    /// Megabytes (10^6 bytes) a second that all threads together can write; 0: no limit.
    pub write_mb_s: u64,
    /// Nanoseconds from the beginning of a write to the return of the fence behind it.
    pub fence_ns: u64,
    /// Nanoseconds for each read, before its first line.
    pub read_latency_ns: u64,
    /// Nanoseconds for each line read.
    pub read_line_ns: u64,
    /// Energy to write, joules per gigabyte (10^9 bytes).
    pub write_j_gb: Option<f64>,
    /// Energy to read, joules per gigabyte.
    pub read_j_gb: Option<f64>,
    /// Writes a cell endures.
    pub endurance_writes: Option<f64>,
}

const NATIVE: Profile = Profile::NATIVE;

const NAMED: [Profile; 5] = [
    NATIVE,
    Profile { name: "nvdimm-8x", write_line_ns: 144, write_mb_s: 3200, fence_ns: 600, read_latency_ns: 300, ..NATIVE },
    Profile {
        name: "optane",
        fence_ns: 80,
        read_latency_ns: 250,
        read_line_ns: 51,
        endurance_writes: Some(1e6),
        ..NATIVE
    },
    Profile {
        name: "pcm",
        write_line_ns: 150 * LINE_BYTES,
        read_line_ns: 50 * LINE_BYTES,
        write_j_gb: Some(6.0),
        read_j_gb: Some(1.0),
        endurance_writes: Some(1e10),
        ..NATIVE
    },
    Profile { name: "stt-ram", write_line_ns: 55, read_latency_ns: 17, endurance_writes: Some(1e15), ..NATIVE },
];

const CUSTOM: &str = "custom";

/// A profile that does not exist, or a parameter that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "device profile `{text}`: {why}; use one of native, nvdimm-8x, optane, pcm, stt-ram, \
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
    /// The memory as it is: charges nothing.
    pub const NATIVE: Profile = Profile {
        name: "native",
        write_line_ns: 0,
        write_mb_s: 0,
        fence_ns: 0,
        read_latency_ns: 0,
        read_line_ns: 0,
        write_j_gb: None,
        read_j_gb: None,
        endurance_writes: None,
    };

    /// All named profiles.
    pub fn all() -> [Profile; 5] {
        NAMED
    }

    /// Its name; `custom` for one that has none. `Display` gives the whole of it, as `FromStr` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it charges no time and has no energy figures: the fast path needs not know it.
    pub fn is_native(&self) -> bool {
        Profile { name: NATIVE.name, endurance_writes: None, ..self.clone() } == NATIVE
    }

    /// Joules that this traffic takes; `None` where no figures are known.
    pub fn joules(&self, counters: &Counters) -> Option<f64> {
        let bytes_written = (counters.lines_written() * LINE_BYTES) as f64;
        Some((bytes_written * self.write_j_gb? + counters.bytes_read as f64 * self.read_j_gb?) / 1e9)
    }

    /// Nominal nanoseconds to write lines.
    fn write_ns(&self, lines: u64) -> u64 {
        (lines * self.write_line_ns).max(self.bandwidth_ns(lines))
    }

    fn bandwidth_ns(&self, lines: u64) -> u64 {
        (lines * LINE_BYTES * 1000).checked_div(self.write_mb_s).unwrap_or(0)
    }

    /// Every parameter by its name, as text; `None` where it is as `native`.
    fn parameters(&self) -> [(&'static str, Option<String>); 8] {
        let whole = |value: u64| (value != 0).then(|| value.to_string());
        let real = |value: Option<f64>| value.map(|value| value.to_string());
        [
            ("write_line_ns", whole(self.write_line_ns)),
            ("write_mb_s", whole(self.write_mb_s)),
            ("fence_ns", whole(self.fence_ns)),
            ("read_latency_ns", whole(self.read_latency_ns)),
            ("read_line_ns", whole(self.read_line_ns)),
            ("write_j_gb", real(self.write_j_gb)),
            ("read_j_gb", real(self.read_j_gb)),
            ("endurance_writes", real(self.endurance_writes)),
        ]
    }

    fn set(&mut self, parameter: &str) -> Result<(), &'static str> {
        let (key, value) = parameter.split_once('=').ok_or("a parameter is key=value")?;
        let whole = || match value.parse::<u64>() {
            // A second a line is slower than any device; larger values would only overflow.
            Ok(number) if number <= 1_000_000_000 => Ok(number),
            _ => Err("the value is no whole number up to 1000000000"),
        };
        let real = || match value.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => Err("the value is no positive number"),
        };
        match key {
            "write_line_ns" => self.write_line_ns = whole()?,
            "write_mb_s" => self.write_mb_s = whole()?,
            "fence_ns" => self.fence_ns = whole()?,
            "read_latency_ns" => self.read_latency_ns = whole()?,
            "read_line_ns" => self.read_line_ns = whole()?,
            "write_j_gb" => self.write_j_gb = real()?,
            "read_j_gb" => self.read_j_gb = real()?,
            "endurance_writes" => self.endurance_writes = real()?,
            _ => return Err("no such parameter"),
        }
        Ok(())
    }
}

/// The name, or `custom:` and what differs from `native`: text that parses to the same profile.
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

/// The emulated device at work: makes operations last as long as the profile says.
pub(crate) struct Throttle {
    profile: Profile,
    charges: bool,
    epoch: Instant,
    /// When the device has written all that was handed to it, nanoseconds after `epoch`.
    busy_until_ns: AtomicU64,
}

impl Throttle {
    pub(crate) fn new(profile: Profile) -> Throttle {
        Throttle { charges: !profile.is_native(), profile, epoch: Instant::now(), busy_until_ns: AtomicU64::new(0) }
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether anything takes longer than it does.
    #[inline]
    pub(crate) fn charges(&self) -> bool {
        self.charges
    }

    /// Waits for lines whose writing began at `start`. Returns the nanoseconds charged.
    pub(crate) fn write(&self, start: Instant, lines: u64) -> u64 {
        let transfer_ns = self.profile.bandwidth_ns(lines);
        let mut end = start + Duration::from_nanos(lines * self.profile.write_line_ns);
        if transfer_ns > 0 {
            end = end.max(self.epoch + Duration::from_nanos(self.reserve(start, transfer_ns)));
        }
        // The clock is looked at no more than needed: a look takes a third of a line's time.
        let now = spin_until(end);
        thread::note_write((now - Duration::from_nanos(self.profile.write_ns(1))).max(start));
        self.profile.write_ns(lines)
    }

    /// Waits for what the thread has written since its last fence. Returns the nanoseconds charged.
    pub(crate) fn fence(&self, start: Instant) -> u64 {
        let Some(written) = thread::take_write() else { return 0 };
        spin_until(written + Duration::from_nanos(self.profile.fence_ns));
        self.profile.fence_ns.saturating_sub(start.saturating_duration_since(written).as_nanos() as u64)
    }

    /// Waits for a read that began at `start`. Returns the nanoseconds charged.
    pub(crate) fn read(&self, start: Instant, lines: u64) -> u64 {
        let ns = self.profile.read_latency_ns + lines * self.profile.read_line_ns;
        spin_until(start + Duration::from_nanos(ns));
        ns
    }

    /// Queues a transfer behind those of all threads; returns when it is done, nanoseconds after `epoch`.
    fn reserve(&self, start: Instant, transfer_ns: u64) -> u64 {
        let start_ns = start.saturating_duration_since(self.epoch).as_nanos() as u64;
        let done = |busy_until: u64| busy_until.max(start_ns) + transfer_ns;
        let update = |busy_until| Some(done(busy_until));
        match self.busy_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(before) | Err(before) => done(before),
        }
    }
}

/// Keeps the CPU busy until then, as a slower device would. Returns the time it is at last.
fn spin_until(end: Instant) -> Instant {
    loop {
        let now = Instant::now();
        if now >= end {
            return now;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_parses_to_the_same_profile() {
        for profile in Profile::all() {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let text = "custom:write_line_ns=7,fence_ns=9,read_j_gb=0.25";
        let custom: Profile = text.parse().unwrap();
        assert_eq!((custom.write_line_ns, custom.fence_ns, custom.read_j_gb), (7, 9, Some(0.25)));
        assert!(!custom.is_native());
        assert_eq!(custom.to_string(), text);
        let changed = Profile { fence_ns: 81, ..NAMED[2].clone() };
        assert_eq!(changed.to_string().parse::<Profile>().unwrap().fence_ns, 81);
    }

    #[test]
    fn nonsense_is_refused_with_the_names_that_exist() {
        let wrong = ["", "dram", "custom", "custom:speed=1", "custom:fence_ns", "custom:fence_ns=-1"];
        for text in wrong.into_iter().chain(["custom:fence_ns=x", "custom:fence_ns=1e30", "custom:read_j_gb=NaN"]) {
            let error = text.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains("nvdimm-8x"), "{error}");
        }
    }

    #[test]
    fn profiles_charge_what_their_papers_say() {
        let named = |name: &str| name.parse::<Profile>().unwrap();
        let chunk_ns = |name: &str| named(name).write_ns(63) + named(name).fence_ns.max(named(name).write_ns(1));
        assert!((9_600..9_800).contains(&chunk_ns("nvdimm-8x")), "NV-Dedup 5.2 measured 9.7 us");
        assert_eq!(chunk_ns("pcm"), 150 * 4096, "DeEXT Table II");
        assert_eq!(chunk_ns("native"), 0);
        let written = Counters { bytes_streamed: 1_000_000_000, ..Counters::default() };
        assert_eq!(named("pcm").joules(&written), Some(6.0));
        assert_eq!(named("optane").joules(&written), None, "no paper gives it");
    }

    #[test]
    fn a_fence_waits_for_what_was_written_before_it() {
        let throttle = Throttle::new("custom:fence_ns=2000000".parse().unwrap());
        let written = Instant::now();
        throttle.write(written, 1);
        std::thread::sleep(Duration::from_millis(1));
        assert!(throttle.fence(Instant::now()) < 2_000_000, "some of it passed while the thread did something else");
        assert!(written.elapsed() >= Duration::from_millis(2));
        assert_eq!(throttle.fence(Instant::now()), 0, "nothing was written since");
    }

    #[test]
    fn threads_share_the_write_bandwidth() {
        let throttle = Throttle::new("custom:write_mb_s=64".parse().unwrap()); // 1000 ns a line
        let start = throttle.epoch;
        assert_eq!(throttle.reserve(start, 1000), 1000);
        assert_eq!(throttle.reserve(start, 500), 1500, "a second thread queues behind the first");
        let later = start + Duration::from_nanos(5000);
        assert_eq!(throttle.reserve(later, 100), 5100, "an idle device saves nothing up");
    }
}
