//! Policy `auto`: in each directory the policy that is the best for its data on this device now.
//!
//! The problem: which policy is the best depends on the medium and on the workload, and the conclusions of the papers
//! contradict one another: inline pays on slow media (NV-Dedup), offline on fast ones (DeNOVA), packing where data is
//! compressible (DeEXT). Users do not know, and workloads change.
//!
//! The idea: it is no other way to place data but a chooser. Wherever `fs` asks for the policy of a file, `auto` answers
//! with a concrete one, the one that is chosen for the directory that the file was made in. All that is stored is stored
//! by the existing policies, and stays correct and shareable however often the choice changes. The choice follows from
//! measured costs and from what was seen in the last sampling period.
//!
//! ```text
//! fs: a write            -> of(directory)        the directory's lane of the chosen policy
//!     request            -> Observed             counts what is offered and what is shared; `off` watches some
//!     request_done       -> Directory            at the end of a period: ratio, estimates, choice with hysteresis
//! ```
//!
//! The table of directories has room for [`PLACES`]; files of others go the way of the whole device, which is watched in the
//! same way. A new directory begins with the choice of the whole device.
//!
//! | file | what |
//! |---|---|
//! | [`options`] | options, estimates, reasons, statistics |
//! | [`model`] | what each policy would do: the formulae |
//! | `choice` | when to change: hysteresis |
//! | `outlook` | what has to be looked at, and when that refutes the choice |
//! | `seen`, `observe` | what is seen, and how it is counted |
//! | `directory` | sampling periods |
//! | `common` | costs, and what the device allows |

mod choice;
mod common;
mod directory;
pub mod model;
mod observe;
pub mod options;
mod outlook;
mod seen;

use super::deext::DeExt;
use super::denova::DeNova;
use super::inline::Inline;
use super::policy::Policy;
use super::{Dedup, Ground};
use crate::compression::Compression;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering;
use crate::words::Stopwatch;
use common::Common;
use directory::Directory;
use observe::{Observed, Watch};
use options::{AutoOptions, AutoStats, Chosen};
use std::sync::{Arc, OnceLock};

/// Directories in the table.
const PLACES: usize = 64;
/// Places that a directory may have.
const WAYS: usize = 4;
/// Concrete policies that can be chosen.
const LANES: [Policy; 4] = [Policy::Off, Policy::Inline, Policy::DeNova, Policy::DeExt];

/// The policies that it chooses from.
#[derive(Clone)]
pub(super) struct Concrete {
    pub(super) inline: Arc<Inline>,
    pub(super) denova: Arc<DeNova>,
    pub(super) deext: Arc<DeExt>,
}

/// A directory with its lanes, one for each of [`LANES`].
struct Place {
    directory: Arc<Directory>,
    lanes: [Observed; LANES.len()],
}

/// See the module.
pub(super) struct Auto {
    common: Arc<Common>,
    concrete: Concrete,
    device: Place,
    /// Made when the first file of a directory is written.
    table: OnceLock<Box<[Place]>>,
    /// [`Common::changes`] when the table was gone over last.
    aged_at: AtomicU64,
}

impl Place {
    fn new(directory: Directory, concrete: &Concrete) -> Place {
        let directory = Arc::new(directory);
        let lanes = LANES.map(|policy| {
            let inner: Arc<dyn Dedup> = match policy {
                Policy::Inline => concrete.inline.clone(),
                Policy::DeNova => concrete.denova.clone(),
                Policy::DeExt => concrete.deext.clone(),
                _ => Arc::new(Watch { inline: concrete.inline.clone(), directory: directory.clone() }),
            };
            Observed { inner, directory: directory.clone(), cuts: policy == Policy::DeExt }
        });
        Place { directory, lanes }
    }

    fn chosen(&self) -> &dyn Dedup {
        let policy = self.directory.policy();
        let lane = LANES.iter().position(|of| *of == policy).unwrap_or(0);
        &self.lanes[lane]
    }
}

impl Auto {
    /// Of a mount. `given`: costs to go by instead of measured ones.
    pub(super) fn new(
        options: AutoOptions,
        given: Option<super::nv_dedup::options::Costs>,
        stopwatch: Option<Stopwatch>,
        concrete: Concrete,
        compression: Compression,
    ) -> Auto {
        let common = Arc::new(Common::new(options, given, stopwatch, concrete.denova.clone(), compression));
        let device = Place::new(Directory::of_device(common.clone()), &concrete);
        Auto { common, concrete, device, table: OnceLock::new(), aged_at: AtomicU64::new(0) }
    }

    /// The concrete policy for new data of files in a directory; 0: of none in particular.
    pub(super) fn of(&self, directory: u64) -> &dyn Dedup {
        match directory {
            0 => self.device.chosen(),
            directory => self.place_of(directory).chosen(),
        }
    }

    /// Which one that is.
    pub(super) fn policy_of(&self, directory: u64) -> Policy {
        let places = self.table.get().into_iter().flatten();
        let place =
            places.into_iter().find(|place| directory > 0 && place.directory.ino.load(Ordering::Relaxed) == directory);
        place.unwrap_or(&self.device).directory.policy()
    }

    /// The place of a directory, which may be new; that of the whole device when there is no room.
    fn place_of(&self, directory: u64) -> &Place {
        let table = self.table.get_or_init(|| {
            let free = || Directory::free(&self.device.directory, self.common.clone());
            (0..PLACES).map(|_| Place::new(free(), &self.concrete)).collect()
        });
        let sets = PLACES / WAYS;
        let set = (directory.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % sets;
        let places = &table[set * WAYS..(set + 1) * WAYS];
        let is_its = |place: &&Place| place.directory.ino.load(Ordering::Relaxed) == directory;
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

    /// Frees the places of directories that nobody writes to, when a directory has none, once a sampling period.
    fn age(&self) {
        let changes = self.common.changes();
        if self.aged_at.swap(changes, Ordering::Relaxed) != changes {
            self.table.get().into_iter().flatten().for_each(|place| place.directory.age());
        }
    }

    /// Mount: measures, so that the first sampling period is judged by this device's costs.
    pub(super) fn measure(&self, ground: &Ground<'_>) {
        self.common.measure(ground);
        self.device.directory.begin_unseen(ground);
    }

    /// A daemon shares later what is stored now.
    pub(super) fn daemon_works(&self) {
        self.common.daemon_works();
    }

    /// Whether new data is looked for anywhere, so that what was stored meanwhile is worth its fingerprints.
    pub(super) fn looks_for_fingerprints(&self) -> bool {
        let looks = |place: &Place| place.directory.policy() == Policy::Inline;
        looks(&self.device) || self.used_places().any(looks)
    }

    /// The places of the table that have a directory.
    fn used_places(&self) -> impl Iterator<Item = &Place> {
        let places = self.table.get().into_iter().flatten();
        places.filter(|place| place.directory.ino.load(Ordering::Relaxed) > 0)
    }

    /// What it does, and why; `None` when nothing was written by it and it is not the policy of new data.
    pub(super) fn stats(&self, is_default: bool) -> Option<AutoStats> {
        let mut device = self.device.directory.chosen();
        let places = self.table.get().into_iter().flatten();
        device.blocks += places.map(|place| place.directory.untold_blocks()).sum::<u64>();
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
