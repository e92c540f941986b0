//! What the device was asked to do, what that cost on an emulated one, and how worn it is.
//!
//! Energy and charged time follow from the profile and the counters, never from a clock. Lifetime follows from the
//! segment that was opened most: each opening writes all of it once, and a cell endures so many writes.

use crate::size;
use nvfold::FileSystem;
use pmem::{LINE_BYTES, Profile};
use serde::{Deserialize, Serialize};

const NS_PER_YEAR: f64 = 365.25 * 24.0 * 3600.0 * 1e9;

/// What the device was asked to do since it was opened.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Traffic {
    /// The emulated device.
    pub profile: String,
    pub bytes_read: u64,
    pub bytes_stored: u64,
    pub bytes_streamed: u64,
    pub lines_flushed: u64,
    pub fences: u64,
    /// Time that the profile charged, nanoseconds.
    #[serde(default)]
    pub charged_ns: u64,
    /// Energy that the traffic took, where the profile says what it takes.
    #[serde(default)]
    pub joules: Option<f64>,
}

impl Traffic {
    /// Of a file system that this process has mounted.
    pub fn of(fs: &FileSystem) -> Traffic {
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

    /// Lines that reached the media: flushed ones and streamed ones.
    pub fn lines_written(&self) -> u64 {
        self.lines_flushed + self.bytes_streamed / LINE_BYTES
    }

    /// Joules for each gigabyte (10^9 bytes) that programs wrote, reads included; `None` when they wrote nothing.
    pub fn joules_per_gb(&self, bytes_written: u64) -> Option<f64> {
        self.joules.filter(|_| bytes_written > 0).map(|joules| joules * 1e9 / bytes_written as f64)
    }

    /// Energy in one line, where it is known.
    pub fn energy_words(&self, bytes_written: u64) -> Option<String> {
        let per_gb = self.joules_per_gb(bytes_written).map_or(String::new(), |by| format!(", {by:.2} J/GB written"));
        self.joules.map(|joules| format!("{joules:.3} J{per_gb}"))
    }
}

/// How often the segments of the device were opened for packed chunks since it was formatted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SegmentWear {
    /// Segments that data may lie in.
    pub segments: u64,
    pub opened: u64,
    pub opened_max: u32,
    pub opened_mean: f64,
    /// Writes that a cell endures, where the profile says so.
    pub endurance_writes: Option<f64>,
    /// Part of these that the most worn segment had, 0 to 1.
    pub endurance_used: Option<f64>,
    /// Until the most worn segment has had all of them, if it goes on as since the device was formatted, years.
    pub lifetime_years: Option<f64>,
}

impl SegmentWear {
    /// Of a device with this profile that was formatted so many nanoseconds ago.
    pub fn new(wear: &nvfold::SegmentWear, profile: &Profile, age_ns: i64) -> SegmentWear {
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
    pub fn opened_words(&self) -> String {
        let SegmentWear { segments, opened_max, opened_mean, .. } = self;
        format!("{segments}, opened {opened_max} times at most, {opened_mean:.2} on average")
    }

    /// Likewise, what is left, where the profile says what a cell endures.
    pub fn lifetime_words(&self) -> Option<String> {
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

/// Lines in all, and as bytes.
pub fn lines_words(lines: u64) -> String {
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
    fn lifetime_is_what_the_most_worn_segment_has_left() {
        let pcm = worn(1_000_000, "pcm", YEAR_NS);
        assert_eq!((pcm.opened_mean, pcm.endurance_used), (1e6, Some(1e-4)));
        assert!((pcm.lifetime_years.unwrap() - 9999.0).abs() < 0.01);
        assert_eq!(pcm.lifetime_words().unwrap(), "1.00e-2 % of 1e10 writes used, 9999.0 years left at this pace");
        assert_eq!(worn(5, "nvdimm-8x", YEAR_NS).lifetime_words(), None, "nobody says what it endures");
    }

    #[test]
    fn counters_at_their_end_and_a_clock_that_was_wrong_give_no_nonsense() {
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
    fn energy_is_told_beside_what_programs_wrote() {
        let traffic = Traffic { joules: Some(3.0), ..Traffic::default() };
        assert_eq!(traffic.energy_words(500_000_000).unwrap(), "3.000 J, 6.00 J/GB written");
        assert_eq!(traffic.energy_words(0).unwrap(), "3.000 J");
        assert_eq!(Traffic::default().energy_words(1), None);
    }
}
