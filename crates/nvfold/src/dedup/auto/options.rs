//! How policy `auto` works and what it tells: options, estimates, reasons, statistics.

use crate::dedup::nv_dedup::options::Costs;
use crate::dedup::policy::Policy;

/// What policy `auto` is to save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Prefer {
    /// Time and space alike: a percent of space is worth a percent of time. Users of a deduplicating file system expect
    /// it to save space, and not to become much slower where there is little to save.
    #[default]
    Balanced,
    /// Space; of policies that store nearly as little, the fastest.
    Space,
    /// Time that a writer waits.
    Speed,
    /// Bytes that are written to the device; of policies that write nearly as few, the fastest.
    Wear,
}

impl Prefer {
    /// All of them.
    pub const ALL: [Prefer; 4] = [Prefer::Balanced, Prefer::Space, Prefer::Speed, Prefer::Wear];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Prefer::Balanced => "balanced",
            Prefer::Space => "space",
            Prefer::Speed => "speed",
            Prefer::Wear => "wear",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Prefer> {
        Prefer::ALL.into_iter().find(|prefer| prefer.name() == name)
    }
}

/// How policy `auto` works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoOptions {
    /// What it is to save.
    pub prefer: Prefer,
    /// Blocks in a sampling period of a directory, 1 at least.
    pub period: u64,
}

impl Default for AutoOptions {
    fn default() -> Self {
        AutoOptions { prefer: Prefer::default(), period: 8192 }
    }
}

/// What a policy is expected to do with a block of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Which policy.
    pub policy: Policy,
    /// Nanoseconds that its writer waits.
    pub time_ns: f64,
    /// The part of its bytes that takes space in the end.
    pub stored: f64,
    /// The part of its bytes that is written to the device.
    pub written: f64,
    /// What is compared: less is better.
    pub score: f64,
}

/// Why a policy is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No sampling period has ended yet, neither here nor on the whole device.
    Unknown,
    /// A new directory: as on the whole device.
    AsDevice,
    /// No ratio of duplicates, no compressibility and no length of requests would make another policy better by enough: no
    /// data is looked at for the sake of the choice.
    AtAnyRatio,
    /// It has the best score.
    Best,
    /// It had the best score, and another policy is better now by this part, but not by enough or not for long enough.
    Kept {
        /// The better one.
        better: Policy,
        /// By which part of its score.
        gain: f64,
    },
}

/// What policy `auto` does in a directory, or on the whole device, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Number of the directory's inode; 0: the whole device.
    pub directory: u64,
    /// The policy of new data.
    pub policy: Policy,
    /// Why that one.
    pub reason: Reason,
    /// Duplicate ratio of the last sampling period that told.
    pub ratio: Option<f64>,
    /// The part of the sampled blocks that is compressible.
    pub compressible: Option<f64>,
    /// Mean length of a request, blocks.
    pub request_blocks: f64,
    /// What the policies were expected to do when it was last compared; none while nothing is known.
    pub estimates: Vec<Estimate>,
    /// Blocks that were written there since mount, or since the directory was written to again.
    pub blocks: u64,
    /// Sampling periods that ended.
    pub periods: u64,
    /// Changes of the policy.
    pub switches: u64,
}

/// What policy `auto` does, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoStats {
    /// What it is to save.
    pub prefer: Prefer,
    /// What the model calculates with.
    pub costs: Costs,
    /// Writing a block of a long request, nanoseconds.
    pub run_write_ns: u64,
    /// The costs were measured on this device, not given.
    pub measured: bool,
    /// On the whole device.
    pub device: Chosen,
    /// In the directories that were written to most, at most [`AutoStats::DIRECTORIES_MAX`].
    pub directories: Vec<Chosen>,
}

impl AutoStats {
    /// Directories that are told of.
    pub const DIRECTORIES_MAX: usize = 8;
}
