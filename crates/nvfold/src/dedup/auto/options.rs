//! Options of policy `auto` and what it reports: estimates, reasons, statistics.

use crate::dedup::nv_dedup::options::Costs;
use crate::dedup::policy::Policy;
use std::fmt::{self, Display};

/// What policy `auto` optimises for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefer {
    /// Time and space equally: a percent of space is worth a percent of time. On memory, where storing a copy is fast,
    /// copies are then often stored.
    Balanced,
    /// Space, which is what users of a deduplicating file system expect. Among policies that store nearly as little, the
    /// fastest wins.
    #[default]
    Space,
    /// The time that a writer waits.
    Speed,
    /// Bytes written to the device. Among policies that write nearly as few, the fastest wins.
    Wear,
}

impl Prefer {
    /// All preferences.
    pub const ALL: [Prefer; 4] = [Prefer::Balanced, Prefer::Space, Prefer::Speed, Prefer::Wear];

    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Prefer::Balanced => "balanced",
            Prefer::Space => "space",
            Prefer::Speed => "speed",
            Prefer::Wear => "wear",
        }
    }

    /// Returns the preference with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Prefer> {
        Prefer::ALL.into_iter().find(|prefer| prefer.name() == name)
    }
}

/// Options of policy `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoOptions {
    /// What it optimises for.
    pub prefer: Prefer,
    /// Length of a directory's sampling period in blocks, at least 1.
    pub period: u64,
}

impl Default for AutoOptions {
    fn default() -> Self {
        AutoOptions { prefer: Prefer::default(), period: 8192 }
    }
}

/// The expected cost and saving of a policy for a block of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct PolicyEstimate {
    /// The policy.
    pub policy: Policy,
    /// Time that the writer waits, nanoseconds.
    pub time_ns: f64,
    /// The part of the block's bytes that takes space in the end, 0 to 1.
    pub stored: f64,
    /// The part of the block's bytes that is written to the device, 0 to 1.
    pub written: f64,
    /// The number by which policies are compared; less is better.
    pub score: f64,
}

/// Why a policy was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No sampling period has ended yet, neither here nor on the whole device.
    Unknown,
    /// The directory is new and follows the whole device.
    AsDevice,
    /// No duplicate ratio, compressibility or request length would make another policy better by the margin. So no
    /// data is looked at for the sake of the choice.
    AtAnyRatio,
    /// It has the best score.
    Best,
    /// It had the best score. Another policy is better now by `gain`, but not by enough or not for long enough.
    Kept {
        /// The better policy.
        better: Policy,
        /// By which part of the score it is better, 0 to 1.
        gain: f64,
    },
}

impl Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unknown => out.write_str("nothing is known yet"),
            Reason::AsDevice => out.write_str("as on the whole device"),
            Reason::AtAnyRatio => out.write_str("the best whatever is written"),
            Reason::Best => out.write_str("the best"),
            Reason::Kept { better, gain } => {
                write!(out, "kept, though {} is better by {:.1} %", better.name(), gain * 100.0)
            }
        }
    }
}

impl Reason {
    /// Returns the reason that is written so.
    #[cfg(feature = "serde")]
    pub(crate) fn parse(text: &str) -> Option<Reason> {
        let without_figures = [Reason::Unknown, Reason::AsDevice, Reason::AtAnyRatio, Reason::Best];
        without_figures.into_iter().find(|reason| reason.to_string() == text).or_else(|| {
            let (better, percent) =
                text.strip_prefix("kept, though ")?.strip_suffix(" %")?.split_once(" is better by ")?;
            let (better, percent) = (Policy::named(better.as_bytes())?, percent.parse::<f64>().ok()?);
            Some(Reason::Kept { better, gain: percent / 100.0 })
        })
    }
}

/// The choice of policy `auto` in a directory or on the whole device, and the reason.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Chosen {
    /// The directory's inode number; 0 stands for the whole device.
    pub directory: u64,
    /// The policy of new data.
    pub policy: Policy,
    /// Why it was chosen.
    #[cfg_attr(feature = "serde", serde(rename = "why"))]
    pub reason: Reason,
    /// Duplicate ratio of the last sampling period that saw enough data to tell it, 0 to 1.
    pub ratio: Option<f64>,
    /// The part of the sampled blocks that is compressible, 0 to 1.
    pub compressible: Option<f64>,
    /// Mean length of a request in blocks.
    pub request_blocks: f64,
    /// The estimates at the last comparison; empty while nothing is known.
    pub estimates: Vec<PolicyEstimate>,
    /// Blocks written there since mount, or since the directory was last added to the table.
    pub blocks: u64,
    /// Number of sampling periods that ended.
    pub periods: u64,
    /// Number of times that the policy changed.
    pub switches: u64,
}

/// Statistics of policy `auto`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct AutoStats {
    /// What it optimises for.
    pub prefer: Prefer,
    /// The costs that the model uses.
    #[cfg_attr(feature = "serde", serde(rename = "costs_ns"))]
    pub costs: Costs,
    /// Time to write a block of a long request, nanoseconds.
    pub run_write_ns: u64,
    /// True if the costs were measured on this device, false if they were given.
    pub measured: bool,
    /// The choice for the whole device.
    #[cfg_attr(feature = "serde", serde(rename = "chosen"))]
    pub device: Chosen,
    /// The choices for the directories that were written to most, at most [`AutoStats::DIRECTORIES_MAX`].
    pub directories: Vec<Chosen>,
}

impl AutoStats {
    /// The largest number of directories in a report.
    pub const DIRECTORIES_MAX: usize = 8;
}
