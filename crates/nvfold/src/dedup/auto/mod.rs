//! Policy `auto`: chooses, for each directory, the policy that suits its data on this device now.
//!
//! The problem: which policy is best depends on the medium and on the workload, and the papers disagree: inline
//! deduplication pays on slow media (NV-Dedup), offline on fast ones (DeNOVA), packing where data is compressible
//! (DeEXT). Users do not know which case they have, and workloads change.
//!
//! The idea: `auto` does not place data itself, it only chooses. When `fs` asks for the policy of a file, `auto`
//! returns the concrete policy that is chosen for the directory in which the file was created. The existing policies
//! store all data, so data stays correct and shareable however often the choice changes. The choice follows from
//! measured costs and from what the last sampling period saw.
//!
//! ```text
//! fs: a write            -> of(directory)        the directory's lane of the chosen policy
//!     request            -> Observed             counts what is offered and what is shared; `off` watches some
//!     request_done       -> Directory            at the end of a period: ratio, estimates, choice with hysteresis
//! ```
//!
//! The table of directories has room for [`PLACES`]. Files of other directories use the choice of the whole device,
//! which is observed in the same way. A new directory starts with the choice of the whole device.
//!
//! | file | what |
//! |---|---|
//! | [`options`] | options, estimates, reasons, statistics |
//! | [`model`] | what each policy would cost and save: the formulae |
//! | `choice` | when to change the policy: hysteresis |
//! | `outlook` | which data must be looked at, and when observations refute the choice |
//! | `seen`, `observe` | what is observed, and how it is counted |
//! | `directory` | sampling periods |
//! | `common` | measured costs, and what the device allows |

mod choice;
mod common;
mod directory;
pub(crate) mod model;
mod observe;
pub(crate) mod options;
mod outlook;
mod seen;

use super::deext::DeExt;
use super::denova::DeNova;
use super::inline::Inline;
use super::policy::Policy;
use super::{Dedup, PolicyDevice};
use crate::compression::Compression;
use crate::words::Stopwatch;
use common::Common;
use directory::ObservedDirectory;
use nvfold_sync::atomic::AtomicU64;
use nvfold_sync::atomic::Ordering;
use observe::{Observed, ObservedOff, Unwatched};
use options::{AutoOptions, AutoStats, Chosen};
use std::sync::{Arc, OnceLock};

/// The number of directories in the table.
const PLACES: usize = 64;
/// The number of places in which a directory may be: the table is set-associative.
const WAYS: usize = 4;
/// The concrete policies that can be chosen.
const LANES: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::DeNova, Policy::DeExt];

/// Holds the policies that `auto` chooses from.
#[derive(Clone)]
pub(super) struct Concrete {
    pub(super) inline: Arc<Inline>,
    pub(super) denova: Arc<DeNova>,
    pub(super) deext: Arc<DeExt>,
}

/// A directory and its lanes: one observed policy for each of [`LANES`], and what takes the place of the first where
/// nothing needs to be observed.
struct DirectoryLanes {
    directory: Arc<ObservedDirectory>,
    lanes: [Observed; LANES.len()],
    unwatched: Unwatched,
}

/// Policy `auto` of one mount; see the module.
pub(super) struct Auto {
    common: Arc<Common>,
    concrete: Concrete,
    device: DirectoryLanes,
    /// The table of directories; created when the first file of a directory is written.
    table: OnceLock<Box<[DirectoryLanes]>>,
    /// The value of [`Common::changes`] when the table was last searched for idle directories.
    aged_at: AtomicU64,
}

impl DirectoryLanes {
    fn new(directory: ObservedDirectory, concrete: &Concrete) -> DirectoryLanes {
        let directory = Arc::new(directory);
        let lanes = LANES.map(|policy| {
            let inner: Arc<dyn Dedup> = match policy {
                Policy::Inline => concrete.inline.clone(),
                Policy::DeNova => concrete.denova.clone(),
                Policy::DeExt => concrete.deext.clone(),
                _ => Arc::new(ObservedOff { inline: concrete.inline.clone(), directory: directory.clone() }),
            };
            Observed { inner, directory: directory.clone(), cuts: policy == Policy::DeExt }
        });
        let unwatched = Unwatched { inline: concrete.inline.clone(), directory: directory.clone() };
        DirectoryLanes { directory, lanes, unwatched }
    }

    fn chosen(&self) -> &dyn Dedup {
        let policy = self.directory.policy();
        if policy == Policy::Off && !self.directory.observes() {
            return &self.unwatched;
        }
        let lane = LANES.iter().position(|of| *of == policy).unwrap_or(0);
        &self.lanes[lane]
    }
}

impl Auto {
    /// Creates the policy for a mount. `given` replaces the measured costs.
    pub(super) fn new(
        options: AutoOptions,
        given: Option<super::nv_dedup::options::Costs>,
        stopwatch: Option<Stopwatch>,
        concrete: Concrete,
        compression: Compression,
    ) -> Auto {
        let common = Arc::new(Common::new(options, given, stopwatch, concrete.denova.clone(), compression));
        let device = DirectoryLanes::new(ObservedDirectory::of_device(common.clone()), &concrete);
        Auto { common, concrete, device, table: OnceLock::new(), aged_at: AtomicU64::new(0) }
    }

    /// Returns the concrete policy for new data of files in the directory with this inode number; 0 means the whole
    /// device.
    pub(super) fn of(&self, directory: u64) -> &dyn Dedup {
        match directory {
            0 => self.device.chosen(),
            directory => self.place_of(directory).chosen(),
        }
    }

    /// Returns the name of the policy that [`Auto::of`] would return, without adding the directory to the table.
    pub(super) fn policy_of(&self, directory: u64) -> Policy {
        let places = self.table.get().into_iter().flatten();
        let place =
            places.into_iter().find(|place| directory > 0 && place.directory.ino.load(Ordering::Relaxed) == directory);
        place.unwrap_or(&self.device).directory.policy()
    }

    /// Returns the place of a directory and adds it to the table if it is new. Without a free place, returns that of
    /// the whole device.
    fn place_of(&self, directory: u64) -> &DirectoryLanes {
        let table = self.table.get_or_init(|| {
            let free = || ObservedDirectory::free(&self.device.directory, self.common.clone());
            (0..PLACES).map(|_| DirectoryLanes::new(free(), &self.concrete)).collect()
        });
        let sets = PLACES / WAYS;
        let set = (directory.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % sets;
        let places = &table[set * WAYS..(set + 1) * WAYS];
        let is_its = |place: &&DirectoryLanes| place.directory.ino.load(Ordering::Relaxed) == directory;
        if let Some(place) = places.iter().find(is_its) {
            return place;
        }
        self.age();
        for place in places {
            let taken = place.directory.ino.compare_exchange(0, directory, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => {
                    place.directory.adopt();
                    return place;
                }
                Err(other) if other == directory => return place,
                Err(_) => {}
            }
        }
        &self.device
    }

    /// Frees the places of directories that are no longer written to. It runs when a new directory needs a place, at
    /// most once per sampling period.
    fn age(&self) {
        let changes = self.common.changes();
        if self.aged_at.swap(changes, Ordering::Relaxed) != changes {
            self.table.get().into_iter().flatten().for_each(|place| place.directory.age());
        }
    }

    /// Measures costs at mount, so that the first sampling period is judged by this device's costs.
    pub(super) fn measure(&self, ground: &PolicyDevice<'_>) {
        self.common.measure(ground);
        self.device.directory.begin_unseen(ground);
    }

    /// Records that a dedup daemon runs, so data may be stored now and shared later.
    pub(super) fn daemon_works(&self) {
        self.common.daemon_works();
    }

    /// True if any directory looks new data up inline. Only then are fingerprints of blocks that were stored
    /// meanwhile of use.
    pub(super) fn looks_for_fingerprints(&self) -> bool {
        let looks = |place: &DirectoryLanes| place.directory.policy() == Policy::Inline;
        looks(&self.device) || self.used_places().any(looks)
    }

    /// Returns the places of the table that hold a directory.
    fn used_places(&self) -> impl Iterator<Item = &DirectoryLanes> {
        let places = self.table.get().into_iter().flatten();
        places.filter(|place| place.directory.ino.load(Ordering::Relaxed) > 0)
    }

    /// Returns what the policy does and why; `None` when it is not the mount's policy and no data was written under it.
    pub(super) fn stats(&self, is_default: bool) -> Option<AutoStats> {
        let mut device = self.device.directory.chosen();
        let places = self.table.get().into_iter().flatten();
        device.blocks += places.map(|place| place.directory.unreported_blocks()).sum::<u64>();
        if !is_default && device.blocks == 0 {
            return None;
        }
        let mut directories: Vec<Chosen> = self.used_places().map(|place| place.directory.chosen()).collect();
        directories.sort_by_key(|chosen| std::cmp::Reverse(chosen.blocks));
        directories.truncate(AutoStats::DIRECTORIES_MAX);
        let common::Measured { costs, run_write_ns, measured, .. } = self.common.costs();
        Some(AutoStats { prefer: self.common.prefer(), costs, run_write_ns, measured, device, directories })
    }
}
