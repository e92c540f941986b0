//! Level `file`: what a power cut leaves of the file below a device, at any moment of a sync, and of the replay after
//! it.
//!
//! The problem: the words of [`pmem::Recording`] model memory. The pages of a file reach the disk in any order, and
//! only the state at a sync counts.
//!
//! The idea: a recorded workload is stored once more, event by event, to a device of level `file`, and synced between
//! two events, also in the middle of operations. Each change that the sync makes to the file is a point; at each the
//! model of power cuts ([`pmem::PowerCut`]) gives files that the disk may hold:
//!
//! ```text
//! trace ---> stores, syncs ---> changes of the file ---> files ---> opened: exactly the device as it was at a sync
//!                                                                    (judged once a sync: fsck, mount, compare, ...)
//! ```

use super::disk::{Disk, Image};
use super::oracle::{Judge, Passed, Road};
use super::tree::Tree;
use super::workload::{Base, Step, Trace};
use super::{Subject, judging};
use pmem::{Action, DeviceSpec, HostEvent, HostImage, OpenOptions, PowerCut, Region};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// A sync follows so many events, on average.
const EVENTS_A_SYNC: usize = 40;
/// Cuts that are drawn after each change, in addition to the one that leaves nothing of it and the one that leaves
/// everything.
const DRAWN: usize = 8;
/// One file in so many suffers a power cut in its replay too.
const REPLAYS_CUT: usize = 8;

/// What was tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerTally {
    /// Syncs; the device of each was judged.
    pub syncs: u64,
    /// Files that a power cut may leave of a sync.
    pub cuts: u64,
    /// Files that a second power cut may leave of the replay.
    pub cuts_in_replay: u64,
}

impl std::ops::AddAssign for PowerTally {
    fn add_assign(&mut self, other: PowerTally) {
        self.syncs += other.syncs;
        self.cuts += other.cuts;
        self.cuts_in_replay += other.cuts_in_replay;
    }
}

/// Returns the options of a device of level `file`.
fn options() -> OpenOptions {
    OpenOptions { as_file: true, record_host: true, huge_pages: false, ..OpenOptions::default() }
}

/// Cuts the power in the syncs of a workload of `base`, with files in `dir`.
///
/// # Errors
/// The first power cut that leaves a file it must not leave.
pub fn cut_power(
    subject: &Subject,
    base: &Base,
    trace: &Trace,
    dir: &Path,
    random: &mut fastrand::Rng,
) -> Result<PowerTally, String> {
    let dir = tempfile::tempdir_in(dir).expect("a temporary directory");
    let device = DeviceSpec::Path(dir.path().join("device"));
    let region = Region::create(&device, subject.device_bytes(), &options()).expect("a device in a file");
    base.image.store_to(&region);
    region.sync().expect("the disk takes it");
    let mut cut = PowerCut::new(HostImage::default());
    region.take_host_events().iter().for_each(|event| cut.play(event));
    cut.play(&HostEvent::Sync);
    let mut syncs = Syncs {
        subject,
        name: &trace.name,
        left: dir.path().join("left"),
        cut,
        last: Image::of(&region),
        passed: Passed::default(),
        tally: PowerTally::default(),
        random,
    };
    let mut allowed: &[Arc<Tree>] = &[];
    for step in &trace.steps {
        match step {
            Step::Outcomes(outcomes) => allowed = outcomes,
            Step::Event(event) => {
                match &event.action {
                    Action::Store { offset, bytes, .. } | Action::Stream { offset, bytes } => {
                        let _ = region.write(*offset, &bytes[..]);
                    }
                    Action::Punch { offset, length } => region.punch(*offset, *length).expect("memory"),
                    Action::Flush { .. } | Action::Fence | Action::SettleHoles => {}
                }
                if syncs.random.usize(..EVENTS_A_SYNC) == 0 {
                    syncs.sync(&region, allowed)?;
                }
            }
        }
    }
    syncs.sync(&region, allowed)?;
    Ok(syncs.tally)
}

struct Syncs<'s> {
    subject: &'s Subject,
    name: &'s str,
    /// Path of the file that a power cut leaves.
    left: std::path::PathBuf,
    cut: PowerCut,
    /// The device at the last sync.
    last: Image,
    passed: Passed,
    tally: PowerTally,
    random: &'s mut fastrand::Rng,
}

impl Syncs<'_> {
    /// Syncs, and cuts the power after each change that the sync makes to the file.
    fn sync(&mut self, region: &Region, allowed: &[Arc<Tree>]) -> Result<(), String> {
        let now = Image::of(region);
        region.sync().expect("the disk takes it");
        self.tally.syncs += 1;
        for (number, event) in region.take_host_events().iter().enumerate() {
            self.cut.play(event);
            for image in self.cuts() {
                self.look(&image, &now)
                    .map_err(|why| format!("{}, {}: {why} {number}", self.subject.name, self.name))?;
            }
        }
        self.last = now.clone();
        self.judge(now, allowed).map_err(|why| format!("{}, {}: a synced device: {why}", self.subject.name, self.name))
    }

    fn cuts(&mut self) -> Vec<HostImage> {
        let random = &mut *self.random;
        let mut images = vec![self.cut.leaves(false, |_| 0), self.cut.leaves(false, |contents| contents - 1)];
        images.extend((0..DRAWN).map(|drawn| self.cut.leaves(drawn % 2 == 1, |contents| random.usize(..contents))));
        images
    }

    /// Checks a file that a power cut left: it must open as the device of the last sync, or of the sync under way.
    /// The same must hold for what a power cut leaves of the replay.
    fn look(&mut self, image: &HostImage, now: &Image) -> Result<(), String> {
        self.tally.cuts += 1;
        let (found, replayed) = self.open(image);
        if found != now.hash() && found != self.last.hash() {
            return Err("neither the sync before nor this one is there behind change".into());
        }
        if self.random.usize(..REPLAYS_CUT) != 0 {
            return Ok(());
        }
        let mut again = PowerCut::new(image.clone());
        for event in &replayed {
            again.play(event);
            self.tally.cuts_in_replay += 1;
            let random = &mut *self.random;
            let image = again.leaves(false, |contents| random.usize(..contents));
            if self.open(&image).0 != found {
                return Err("a power cut in the replay changes the device, behind change".into());
            }
        }
        Ok(())
    }

    /// Opens a file; returns the hash of its device, and what opening did to the file.
    fn open(&self, image: &HostImage) -> (u128, Vec<HostEvent>) {
        image.write_to(&File::create(&self.left).expect("a file")).expect("a file of a few pages");
        let region = Region::open(&DeviceSpec::Path(self.left.clone()), &options()).expect("it opens");
        (Image::of(&region).hash(), region.take_host_events())
    }

    /// Checks that the device of a sync is one that a crash may leave, with the tree of that moment.
    fn judge(&mut self, image: Image, allowed: &[Arc<Tree>]) -> Result<(), String> {
        let road = Road::of(image.hash());
        let mut disk = Disk::new(image, self.subject.device_bytes());
        let options = self.subject.options(self.subject.policy);
        judging(Judge { disk: &mut disk, options, allowed, road, passed: &self.passed, defect: None }).map(drop)
    }
}
