//! How policy `nv-dedup` works and what it tells: options, methods, costs, statistics.

use crate::dedup::policy::Verify;
use crate::fingerprint::{StrongFunction, WeakFunction};

/// How policy `nv-dedup` treats a piece (NV-Dedup 4.4). All but the last are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// Non_Fin: store it without a fingerprint; the background filler may add one.
    NonFin = 0,
    /// w_s_Fin: a weak fingerprint finds candidates, strong ones decide.
    WSFin = 1,
    /// Str_Fin: both fingerprints are made before anything is looked for.
    StrFin = 2,
    /// w_b_Fin, ours: a weak fingerprint finds candidates, the bytes decide, nothing else is hashed.
    WBFin = 3,
}

impl Method {
    /// All of them, by number.
    pub const ALL: [Method; 4] = [Method::NonFin, Method::WSFin, Method::StrFin, Method::WBFin];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::NonFin => "non",
            Method::WSFin => "ws",
            Method::StrFin => "str",
            Method::WBFin => "wb",
        }
    }
}

/// Who chooses the method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MethodChoice {
    /// The cost model, among all four. What Non_Fin stores is watched by its content, one content of 32.
    #[default]
    Auto,
    /// The paper's thresholds, among its three. Periods of Non_Fin and of w_s_Fin alternate.
    Paper,
    /// The user.
    Fixed(Method),
}

impl MethodChoice {
    /// All of them.
    pub const ALL: [MethodChoice; 6] = [
        MethodChoice::Auto,
        MethodChoice::Paper,
        MethodChoice::Fixed(Method::NonFin),
        MethodChoice::Fixed(Method::WSFin),
        MethodChoice::Fixed(Method::StrFin),
        MethodChoice::Fixed(Method::WBFin),
    ];

    /// Returns its name on the command line: `auto`, `paper`, or that of the method.
    pub fn name(self) -> &'static str {
        match self {
            MethodChoice::Auto => "auto",
            MethodChoice::Paper => "paper",
            MethodChoice::Fixed(method) => method.name(),
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<MethodChoice> {
        MethodChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// What one 4 KiB chunk costs on this device, nanoseconds each: the inputs of the cost model (NV-Dedup, Table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Writing it, durably (the paper's c).
    pub write_ns: u64,
    /// Its weak fingerprint (the paper's w).
    pub weak_ns: u64,
    /// Its strong fingerprint (the paper's s).
    pub strong_ns: u64,
    /// Searching the index and writing the entry (the paper's lambda).
    pub lookup_ns: u64,
    /// Comparing it with a stored one (v below; the paper has no compare).
    pub compare_ns: u64,
}

impl Costs {
    /// Those of the paper (5.2), which has no compare: MD5 and CRC-32 on a CPU of 2014, a write at 1/8 of DRAM speed.
    pub const PAPER: Costs = Costs { write_ns: 9_700, weak_ns: 800, strong_ns: 6_200, lookup_ns: 100, compare_ns: 400 };

    /// With what was measured anew.
    pub(crate) fn smoothed(&self, new: &Costs) -> Costs {
        Costs {
            write_ns: smooth(self.write_ns, new.write_ns),
            weak_ns: smooth(self.weak_ns, new.weak_ns),
            strong_ns: smooth(self.strong_ns, new.strong_ns),
            lookup_ns: smooth(self.lookup_ns, new.lookup_ns),
            compare_ns: smooth(self.compare_ns, new.compare_ns),
        }
    }
}

/// A cost with what was measured anew: a measurement that something disturbed moves it by a quarter of what it is wrong by.
pub(crate) fn smooth(old: u64, new: u64) -> u64 {
    (3 * old + new).div_ceil(4)
}

/// Duplicate ratios from which a method takes less time than storing everything; `None`: at no ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// w_s_Fin: equation 6, (w + lambda) / (c - s).
    pub w_s: Option<f64>,
    /// Str_Fin: equation 4, (s + lambda) / c.
    pub strong: Option<f64>,
    /// w_b_Fin: (w + lambda) / (c - v).
    pub w_b: Option<f64>,
}

/// How policy `nv-dedup` works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvDedupOptions {
    /// Weak fingerprints, those of policy `inline` too. What another function made counts as missing. On a device
    /// with a pm index they are what that is made of, whatever this says.
    pub weak: WeakFunction,
    /// Strong fingerprints; `None`: bytes are compared instead, so w_s_Fin and Str_Fin are w_b_Fin.
    pub strong: Option<StrongFunction>,
    /// What must be equal before a piece is shared.
    pub verify: Verify,
    /// Chunks in a sampling period, 1 at least.
    pub period: u64,
    /// Who chooses the method.
    pub method: MethodChoice,
    /// Costs to go by instead of measured ones. Without a stopwatch nothing is measured, and `None` means
    /// [`Costs::PAPER`].
    pub costs: Option<Costs>,
}

impl Default for NvDedupOptions {
    fn default() -> Self {
        NvDedupOptions {
            weak: WeakFunction::default(),
            strong: Some(StrongFunction::default()),
            verify: Verify::default(),
            period: 50_000,
            method: MethodChoice::default(),
            costs: None,
        }
    }
}

/// What policy `nv-dedup` does, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct NvDedupStats {
    /// Who chooses the method.
    pub choice: MethodChoice,
    /// The method of this sampling period.
    pub method: Method,
    /// Duplicate ratio of the last period in which pieces were looked for.
    pub ratio: Option<f64>,
    /// What the model calculates with.
    pub costs: Costs,
    /// They were measured on this device, not given.
    pub measured: bool,
    /// What follows from the costs.
    pub thresholds: Thresholds,
    /// Sampling periods that ended since mount.
    pub periods: u64,
    /// Changes of the method since mount.
    pub switches: u64,
    /// Pieces of each method since mount, by number of the method.
    pub pieces: [u64; Method::ALL.len()],
}
