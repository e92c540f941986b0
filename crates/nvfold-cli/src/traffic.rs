//! Traffic of a device, its cost on an emulated device, and wear.
//!
//! Energy and charged time are computed from the profile and the counters, never from a clock. The lifetime is
//! computed from the segment that was opened most: each opening writes all of it once, and a cell endures a limited
//! number of writes.

use crate::size;
use nvfold::FileSystem;
use pmem::{LINE_BYTES, Profile};
use serde::{Deserialize, Serialize};

const NS_PER_YEAR: f64 = 365.25 * 24.0 * 3600.0 * 1e9;

/// Traffic of the device since it was opened.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Traffic {
    /// The profile of the emulated device.
    pub profile: String,
    pub bytes_read: u64,
    pub bytes_stored: u64,
    pub bytes_streamed: u64,
    pub lines_flushed: u64,
    pub fences: u64,
    /// Time that the profile charged, in nanoseconds.
    #[serde(default)]
    pub charged_ns: u64,
    /// Energy of the traffic, in joules; absent if the profile has no figures for it.
    #[serde(default)]
    pub joules: Option<f64>,
}

impl Traffic {
    /// Returns the traffic of a file system that this process has mounted.
    pub(crate) fn of(fs: &FileSystem) -> Traffic {
        let region = fs.region();
        let counters = region.counters();
        Traffic {
            profile: region.profile().to_string(),
            bytes_read: counters.bytes_read(),
            bytes_stored: counters.bytes_stored,
            bytes_streamed: counters.bytes_streamed,
            lines_flushed: counters.lines_flushed,
            fences: counters.fences,
            charged_ns: counters.charged_ns(),
            joules: region.profile().joules(&counters),
        }
    }

    /// Returns the number of lines that reached the media, flushed and streamed.
    pub(crate) fn lines_written(&self) -> u64 {
        self.lines_flushed + self.bytes_streamed / LINE_BYTES
    }

    /// Returns joules per gigabyte (10^9 bytes) that programs wrote, with the energy of reads; `None` if they wrote
    /// nothing.
    pub(crate) fn joules_per_gb(&self, bytes_written: u64) -> Option<f64> {
        self.joules.filter(|_| bytes_written > 0).map(|joules| joules * 1e9 / bytes_written as f64)
    }

    /// Describes the energy in one line, if it is known.
    pub(crate) fn energy_words(&self, bytes_written: u64) -> Option<String> {
        let per_gb = self.joules_per_gb(bytes_written).map_or(String::new(), |by| format!(", {by:.2} J/GB written"));
        self.joules.map(|joules| format!("{joules:.3} J{per_gb}"))
    }
}

/// How often segments were opened for packed chunks since the device was formatted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct SegmentWear {
    /// The number of segments that can hold data.
    pub segments: u64,
    pub opened: u64,
    pub opened_max: u32,
    pub opened_mean: f64,
    /// The number of writes that a cell endures, if the profile gives one.
    pub endurance_writes: Option<f64>,
    /// The part of these writes that the most worn segment has had, 0 to 1.
    pub endurance_used: Option<f64>,
    /// Years until the most worn segment has had all of them, at the average rate since the device was formatted.
    pub lifetime_years: Option<f64>,
}

impl SegmentWear {
    /// Computes the wear of a device with this profile that was formatted `age_ns` nanoseconds ago.
    pub(crate) fn new(wear: &nvfold::SegmentWear, profile: &Profile, age_ns: i64) -> SegmentWear {
        let endurance = profile.endurance_writes.filter(|writes| *writes > 0.0);
        let used = endurance.map(|writes| f64::from(wear.opened_max) / writes);
        let years = |used: f64| age_ns as f64 * (1.0 - used).max(0.0) / used / NS_PER_YEAR;
        SegmentWear {
            segments: wear.segments,
            opened: wear.opened,
            opened_max: wear.opened_max,
            opened_mean: wear.opened_mean(),
            endurance_writes: endurance,
            endurance_used: used,
            lifetime_years: used.filter(|used| *used > 0.0 && age_ns > 0).map(years),
        }
    }

    /// Describes the most worn segment and the mean in one line.
    pub(crate) fn opened_words(&self) -> String {
        let SegmentWear { segments, opened_max, opened_mean, .. } = self;
        format!("{segments}, opened {opened_max} times at most, {opened_mean:.2} on average")
    }

    /// Describes the remaining life in one line, if the profile gives the endurance of a cell.
    pub(crate) fn lifetime_words(&self) -> Option<String> {
        let writes = self.endurance_writes?;
        let used = self.endurance_used? * 100.0;
        let left = match self.lifetime_years {
            None => "nothing is worn yet".to_owned(),
            Some(years) if years < 1e6 => format!("{years:.1} years left at this pace"),
            Some(_) => "more than a million years left at this pace".to_owned(),
        };
        Some(format!("{used:.2e} % of {writes:.0e} writes used, {left}"))
    }
}

/// Formats a number of lines, and their size.
pub(crate) fn lines_words(lines: u64) -> String {
    format!("{lines} ({})", size::show(lines.saturating_mul(LINE_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_NS: i64 = NS_PER_YEAR as i64;

    fn worn(opened_max: u32, profile: &str, age_ns: i64) -> SegmentWear {
        let wear = nvfold::SegmentWear { segments: 2, opened: 2 * u64::from(opened_max), opened_max };
        SegmentWear::new(&wear, &profile.parse().unwrap(), age_ns)
    }

    #[test]
    fn the_lifetime_is_computed_from_the_most_worn_segment() {
        let pcm = worn(1_000_000, "pcm", YEAR_NS);
        assert_eq!((pcm.opened_mean, pcm.endurance_used), (1e6, Some(1e-4)));
        assert!((pcm.lifetime_years.unwrap() - 9999.0).abs() < 0.01);
        assert_eq!(pcm.lifetime_words().unwrap(), "1.00e-2 % of 1e10 writes used, 9999.0 years left at this pace");
        assert_eq!(worn(5, "nvdimm-8x", YEAR_NS).lifetime_words(), None, "nobody says what it endures");
    }

    #[test]
    fn saturated_counters_and_a_wrong_clock_give_no_impossible_figures() {
        let worn_out = worn(u32::MAX, "rram", YEAR_NS);
        assert_eq!(worn_out.lifetime_years, Some(0.0), "10^8 writes are used up");
        assert!(worn_out.endurance_used.unwrap() > 1.0 && worn_out.opened_mean == f64::from(u32::MAX));
        assert!(worn(u32::MAX, "pcm", i64::MAX).lifetime_years.unwrap().is_finite());
        for age_ns in [0, -1, i64::MIN] {
            assert_eq!(worn(7, "pcm", age_ns).lifetime_years, None, "formatted in the future");
        }
        assert_eq!(worn(7, "custom:endurance_writes=0", YEAR_NS).endurance_used, None);
        assert_eq!(worn(0, "pcm", YEAR_NS).lifetime_years, None);
    }

    #[test]
    fn energy_is_printed_with_joules_per_gigabyte_written() {
        let traffic = Traffic { joules: Some(3.0), ..Traffic::default() };
        assert_eq!(traffic.energy_words(500_000_000).unwrap(), "3.000 J, 6.00 J/GB written");
        assert_eq!(traffic.energy_words(0).unwrap(), "3.000 J");
        assert_eq!(Traffic::default().energy_words(1), None);
    }
}
