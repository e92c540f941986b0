//! Device profiles: emulated devices that charge time by spinning, so that a device we do not have can be
//! measured, and figures that follow from counters: energy and endurance.
//!
//! | profile | from | line written | fence | line read | energy write/read | endurance |
//! |---|---|---|---|---|---|---|
//! | `native` | the memory as it is | 0 | 0 | 0 | - | - |
//! | `nvdimm-8x` | NV-Dedup 5.2: 1/8 of DRAM's write bandwidth, 600 ns write, 300 ns read latency; 4 KiB in 9.7 us | 138 | 600 | 5 | - | - |
//! | `optane` | DeNOVA Table I, ICID: 60-90 ns writes, about 2 GB/s a thread, 150-350 ns reads | 28 | 90 | 10 | 14.02/0.25 J/GB | 10^6 |
//! | `pcm` | DeEXT Table 1: 50 ns read, 150 ns write | 150 | 150 | 50 | 6/1 J/GB | 10^8 |
//! | `stt-ram` | DeNOVA Table I: 5-30 ns read, 10-100 ns write | 10 | 50 | 2 | - | 10^15 |
//! | `custom:...` | `custom:write_line_ns=N,fence_ns=N,read_line_ns=N,write_j_gb=X,read_j_gb=X` | N | N | N | X/X | - |

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What a device charges.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: String,
    /// Nanoseconds for each line flushed or streamed.
    pub write_line_ns: u64,
    /// Nanoseconds for each fence that waits for lines.
    pub fence_ns: u64,
    /// Nanoseconds for each line read.
    pub read_line_ns: u64,
    /// Energy to write, joules per gigabyte (10^9 bytes).
    pub write_j_gb: f64,
    /// Energy to read, joules per gigabyte.
    pub read_j_gb: f64,
    /// Writes a cell endures; 0: not known.
    pub endurance_writes: f64,
}

/// A profile name or parameter that does not exist.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("device profile `{0}`: {1}; one of native, nvdimm-8x, optane, pcm, stt-ram, custom:write_line_ns=N,...")]
pub struct ProfileError(String, &'static str);

impl Default for Profile {
    fn default() -> Self {
        Profile::new("native", [0, 0, 0], [0.0, 0.0], 0.0)
    }
}

impl Profile {
    fn new(name: &str, [write_line_ns, fence_ns, read_line_ns]: [u64; 3], energy: [f64; 2], endurance: f64) -> Profile {
        let [write_j_gb, read_j_gb] = energy;
        Profile {
            name: name.into(),
            write_line_ns,
            fence_ns,
            read_line_ns,
            write_j_gb,
            read_j_gb,
            endurance_writes: endurance,
        }
    }

    /// All named profiles.
    pub fn all() -> [Profile; 5] {
        [
            Profile::default(),
            Profile::new("nvdimm-8x", [138, 600, 5], [0.0, 0.0], 0.0),
            Profile::new("optane", [28, 90, 10], [14.02, 0.25], 1e6),
            Profile::new("pcm", [150, 150, 50], [6.0, 1.0], 1e8),
            Profile::new("stt-ram", [10, 50, 2], [0.0, 0.0], 1e15),
        ]
    }

    /// Its name, as `FromStr` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it charges nothing.
    pub fn is_native(&self) -> bool {
        self.write_line_ns == 0 && self.fence_ns == 0 && self.read_line_ns == 0
    }

    /// Joules that this traffic takes.
    pub fn joules(&self, counters: &crate::Counters) -> f64 {
        let written = counters.lines_written() as f64 * 64.0;
        (written * self.write_j_gb + counters.bytes_read as f64 * self.read_j_gb) / 1e9
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Profile, ProfileError> {
        let Some(parameters) = text.strip_prefix("custom:") else {
            let named = Profile::all().into_iter().find(|profile| profile.name == text);
            return named.ok_or_else(|| ProfileError(text.into(), "no such profile"));
        };
        let mut profile = Profile { name: text.into(), ..Profile::default() };
        for parameter in parameters.split(',') {
            let wrong = || ProfileError(parameter.into(), "not a parameter with a number");
            let (key, value) = parameter.split_once('=').ok_or_else(wrong)?;
            let number: f64 = value.parse().ok().filter(|number| *number >= 0.0 && *number < 1e9).ok_or_else(wrong)?;
            match key {
                "write_line_ns" => profile.write_line_ns = number as u64,
                "fence_ns" => profile.fence_ns = number as u64,
                "read_line_ns" => profile.read_line_ns = number as u64,
                "write_j_gb" => profile.write_j_gb = number,
                "read_j_gb" => profile.read_j_gb = number,
                _ => return Err(wrong()),
            }
        }
        Ok(profile)
    }
}

/// Keeps the CPU busy for `ns` nanoseconds, as a slower device would.
pub(crate) fn spin(ns: u64) {
    let end = Instant::now() + Duration::from_nanos(ns);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_themselves_and_nonsense_is_refused() {
        for profile in Profile::all() {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let custom: Profile = "custom:write_line_ns=7,fence_ns=9".parse().unwrap();
        assert_eq!((custom.write_line_ns, custom.fence_ns, custom.is_native()), (7, 9, false));
        for wrong in ["", "dram", "custom:", "custom:speed=1", "custom:fence_ns=-1", "custom:fence_ns=x"] {
            assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
        }
    }
}
