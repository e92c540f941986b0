//! Options and statistics of policy `nv-dedup`: methods, costs, thresholds.

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
    /// Str_Fin: both fingerprints are computed before the look-up.
    StrFin = 2,
    /// w_b_Fin, not in the paper: a weak fingerprint finds candidates, the bytes decide, nothing else is hashed.
    WBFin = 3,
}

impl Method {
    /// All methods, by number.
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

/// What chooses the method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MethodChoice {
    /// The cost model, among all four. While Non_Fin stores everything, one content in 32 is watched.
    #[default]
    Auto,
    /// The paper's thresholds, among its three methods. Periods of Non_Fin and w_s_Fin alternate.
    Paper,
    /// The user.
    Fixed(Method),
}

impl MethodChoice {
    /// All choices.
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

    /// Returns the choice with this name, if there is one.
    pub fn from_name(name: &str) -> Option<MethodChoice> {
        MethodChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// Costs of one 4 KiB chunk on this device in nanoseconds: the inputs of the cost model (NV-Dedup, Table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Costs {
    /// Writing it durably (the paper's c).
    #[cfg_attr(feature = "serde", serde(rename = "c"))]
    pub write_ns: u64,
    /// Computing its weak fingerprint (the paper's w).
    #[cfg_attr(feature = "serde", serde(rename = "w"))]
    pub weak_ns: u64,
    /// Computing its strong fingerprint (the paper's s).
    #[cfg_attr(feature = "serde", serde(rename = "s"))]
    pub strong_ns: u64,
    /// Searching the index and writing the entry (the paper's lambda).
    #[cfg_attr(feature = "serde", serde(rename = "lambda"))]
    pub lookup_ns: u64,
    /// Comparing it with a stored chunk (v in the model; the paper has no compare).
    #[cfg_attr(feature = "serde", serde(rename = "v"))]
    pub compare_ns: u64,
}

impl Costs {
    /// The paper's costs (5.2): MD5 and CRC-32 on a CPU of 2014, a write at 1/8 of DRAM speed. The compare is an
    /// estimate, because the paper has none.
    pub const PAPER: Costs = Costs { write_ns: 9_700, weak_ns: 800, strong_ns: 6_200, lookup_ns: 100, compare_ns: 400 };

    /// Returns the costs, smoothed with a new measurement.
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

/// Returns a cost, smoothed with a new measurement. A disturbed measurement moves it by a quarter of its error.
pub(crate) fn smooth(old: u64, new: u64) -> u64 {
    (3 * old + new).div_ceil(4)
}

/// Duplicate ratios above which a method takes less time than storing everything; `None` if it never does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Thresholds {
    /// Str_Fin: equation 4, (s + lambda) / c.
    #[cfg_attr(feature = "serde", serde(rename = "str", default, skip_serializing_if = "Option::is_none"))]
    pub strong: Option<f64>,
    /// w_b_Fin: (w + lambda) / (c - v).
    #[cfg_attr(feature = "serde", serde(rename = "wb", default, skip_serializing_if = "Option::is_none"))]
    pub w_b: Option<f64>,
    /// w_s_Fin: equation 6, (w + lambda) / (c - s).
    #[cfg_attr(feature = "serde", serde(rename = "ws", default, skip_serializing_if = "Option::is_none"))]
    pub w_s: Option<f64>,
}

/// Options of policy `nv-dedup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvDedupOptions {
    /// The weak function, also of policy `inline`. Fingerprints of another function count as missing. On a device
    /// with a pm index, the function of the index is used instead.
    pub weak: WeakFunction,
    /// The strong function; with `None`, bytes are compared instead, so that w_s_Fin and Str_Fin become w_b_Fin.
    pub strong: Option<StrongFunction>,
    /// What must be equal before a piece is shared.
    pub verify: Verify,
    /// Chunks in a sampling period, at least 1.
    pub period: u64,
    /// What chooses the method.
    pub method: MethodChoice,
    /// Costs to use instead of measured ones. Without a stopwatch nothing is measured, and `None` means
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

/// Statistics of policy `nv-dedup`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct NvDedupStats {
    /// What chooses the method.
    pub choice: MethodChoice,
    /// The method of the current sampling period.
    pub method: Method,
    /// Duplicate ratio of the last period that looked pieces up, 0 to 1.
    pub ratio: Option<f64>,
    /// The costs that the model uses.
    #[cfg_attr(feature = "serde", serde(rename = "costs_ns"))]
    pub costs: Costs,
    /// True if the costs were measured on this device, false if they were given.
    pub measured: bool,
    /// The thresholds that follow from the costs.
    pub thresholds: Thresholds,
    /// Number of sampling periods that ended since mount.
    pub periods: u64,
    /// Number of times that the method changed since mount.
    pub switches: u64,
    /// Number of pieces that each method handled since mount, by number of the method.
    #[cfg_attr(feature = "serde", serde(with = "crate::dedup::serial::pieces_by_method"))]
    pub pieces: [u64; Method::ALL.len()],
}
