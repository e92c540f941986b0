//! Crash consistency by enumeration: builds the states that the hardware can leave behind, mounts them and checks
//! them.
//!
//! The problem: an operation consists of a few dozen stores, and a crash may leave any combination of those that no
//! fence has waited for. An argument that recovery handles each combination is not convincing without a test.
//!
//! The idea: a workload runs on a recorded [`pmem::Region`]. At each fence the recording knows which words were not
//! guaranteed yet; each choice of them is a crash state, and one function judges each state:
//!
//! ```text
//! workload ---> trace ---> points -------> choices ------> states ------> judge
//! (ops)        (events,   (before each    (which words    (distinct       (fsck, mount, compare,
//!               outcomes)  fence, and      reached the     images)         fsck, mount, write, ...)
//!                          when an         media)                            |
//!                          operation   <-------------------------------------'
//!                          is done)      what recovery stored is a trace of its own: crashes in recovery
//! ```
//!
//! The states at a point between two fences are among those just before the second fence, because a word that was not
//! stored yet equals a word that did not reach the media. So the points are the fences, and the ends of operations.
//! From its end on an operation must be durable.
//!
//! | module | content |
//! |---|---|
//! | `workload` | the tree, the operations on it, and recording them |
//! | `states` | the choices at a point |
//! | `disk` | a device that holds one state after another |
//! | `oracle`, `tree` | the conditions on a state |
//! | [`defect`] | corrupted states and file systems: the oracle must notice |
//! | [`power`] | level `file`: power cuts in syncs of the same recordings |
//! | [`mutation`] | the same recordings with a flush or fence left out: the harness must notice |
//! | [`collection`] | a collection that is broken at one place: the harness must notice |

pub mod collection;
pub mod defect;
mod disk;
pub mod mutation;
mod oracle;
pub mod power;
mod states;
mod tree;
pub mod workload;

use std::borrow::Cow;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nvfold::{
    AutoOptions, Compression, DeNovaOptions, IndexKind, MethodChoice, MountOptions, NvDedupOptions, Pack, Policy,
    Prefer, ReorderOptions,
};
use pmem::{Action, Event, Pending};

use disk::{Difference, Disk};
use oracle::{Judge, Passed, Road};
pub use states::Bounds;
use tree::Tree;
use workload::{Base, DEVICE_BYTES, GROWN_DEVICE_BYTES, Step, Trace, Workload};

/// How a file system is mounted for the workloads. A line in [`SUBJECTS`] adds a new policy or index.
#[derive(Debug)]
pub struct Subject {
    /// Its name in reports.
    pub name: &'static str,
    /// Policy for new data.
    pub policy: Policy,
    /// Policy under which the tree was made.
    pub made_by: Policy,
    /// The index.
    pub index: IndexKind,
    /// Which ends of files are packed.
    pub pack: Pack,
    /// Compression of packed chunks.
    pub compression: Compression,
    /// Whether the workloads begin after a crash that left an operation in the journal, with no count reconciled,
    /// instead of after an unmount.
    pub after_crash: bool,
    /// Whether the device is so full that freed blocks are reused at once.
    pub full: bool,
    /// Whether its recordings are mutated. True for subjects that execute lines of code that other subjects do not.
    pub mutated: bool,
    /// Whether it runs only the workloads that are made for few subjects; other subjects cover the rest.
    pub only_its_own: bool,
    /// Whether the device is longer than its file system, which grows. It runs only the workloads for that.
    pub grows: bool,
    /// Pairs of operations in the sample of `make test`: many if no other subject runs them, few if another subject
    /// executes the same lines of code.
    pub pairs: usize,
}

/// The most common subject: data of its own policy, the dram index, unmounted in order, with free space.
const PLAIN: Subject = Subject {
    name: "off",
    policy: Policy::Off,
    made_by: Policy::Off,
    index: IndexKind::Dram,
    pack: Pack::Auto,
    compression: Compression::Off,
    after_crash: false,
    full: false,
    mutated: false,
    only_its_own: false,
    grows: false,
    pairs: 15,
};

const fn of(policy: Policy, name: &'static str) -> Subject {
    Subject { name, policy, made_by: policy, ..PLAIN }
}

/// A subject whose file system grows.
const fn growing(subject: Subject) -> Subject {
    Subject { grows: true, only_its_own: true, pairs: 0, ..subject }
}

/// All subjects that are tested.
pub const SUBJECTS: [Subject; 23] = [
    PLAIN,
    Subject { pack: Pack::On, mutated: true, ..of(Policy::Inline, "inline") },
    Subject { after_crash: true, full: true, ..of(Policy::Inline, "inline, crashed") },
    Subject {
        made_by: Policy::Inline,
        after_crash: true,
        full: true,
        mutated: true,
        ..of(Policy::Off, "off, crashed")
    },
    Subject { full: true, mutated: true, ..of(Policy::NvDedup, "nv-dedup") },
    Subject { after_crash: true, full: true, mutated: true, ..of(Policy::NvDedup, "nv-dedup, crashed") },
    of(Policy::DeNova, "denova"),
    Subject { after_crash: true, full: true, ..of(Policy::DeNova, "denova, crashed") },
    Subject { index: IndexKind::Pm, mutated: true, pairs: 40, ..of(Policy::DeNova, "denova, pm") },
    Subject {
        index: IndexKind::Pm,
        after_crash: true,
        full: true,
        mutated: true,
        pairs: 40,
        ..of(Policy::DeNova, "denova, pm, crashed")
    },
    Subject {
        index: IndexKind::Pm,
        pack: Pack::On,
        after_crash: true,
        full: true,
        ..of(Policy::NvDedup, "nv-dedup, pm, crashed")
    },
    Subject { index: IndexKind::Pm, full: true, ..of(Policy::Inline, "inline, pm") },
    Subject { full: true, mutated: true, ..of(Policy::DeExt, "deext") },
    Subject { index: IndexKind::Pm, after_crash: true, mutated: true, ..of(Policy::DeExt, "deext, pm, crashed") },
    Subject { compression: Compression::ZSTD, full: true, ..of(Policy::DeExt, "deext, compressed") },
    Subject { full: true, pairs: 5, ..of(Policy::Auto, "auto") },
    Subject { index: IndexKind::Pm, after_crash: true, pairs: 5, ..of(Policy::Auto, "auto, pm, crashed") },
    Subject { mutated: true, only_its_own: true, ..of(Policy::Icid, "icid") },
    Subject {
        index: IndexKind::Pm,
        after_crash: true,
        full: true,
        mutated: true,
        only_its_own: true,
        ..of(Policy::IcidInline, "icid+inline, pm, crashed")
    },
    Subject { only_its_own: true, ..of(Policy::IcidDeExt, "icid+deext") },
    growing(Subject { full: true, mutated: true, ..of(Policy::Inline, "inline, grows") }),
    growing(Subject { index: IndexKind::Pm, after_crash: true, ..of(Policy::DeNova, "denova, pm, crashed, grows") }),
    growing(Subject { full: true, ..of(Policy::DeExt, "deext, grows") }),
];

impl Subject {
    /// Returns whether a workload tests something specific to this subject.
    pub fn wants(&self, workload: &Workload) -> bool {
        if self.grows || workload.grows() {
            return self.grows && workload.grows();
        }
        workload.only.map_or(!self.only_its_own, |policies| policies.contains(&self.policy))
    }

    /// Returns the size of its devices.
    pub fn device_bytes(&self) -> u64 {
        if self.grows { GROWN_DEVICE_BYTES } else { DEVICE_BYTES }
    }

    fn options(&self, policy: Policy) -> MountOptions {
        // The periods are short, so that chunks without fingerprints, with weak and with strong ones are neighbours.
        let nv_dedup = NvDedupOptions { period: 2, method: MethodChoice::Paper, ..NvDedupOptions::default() };
        // A chain is reordered as soon as a shared entry in it is not the first.
        let denova = DeNovaOptions { reorder: ReorderOptions { references: 1, reads: 2 }, ..DeNovaOptions::default() };
        // Periods of two blocks, so that the choice changes within a workload.
        let auto = AutoOptions { prefer: Prefer::Speed, period: 2 };
        // With one allocation cursor, the result does not depend on which thread does what.
        let Subject { pack, compression, .. } = *self;
        MountOptions { policy, cores: 1, pack, compression, nv_dedup, denova, auto, ..MountOptions::default() }
    }
}

/// How much is tried for one workload.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// At each point of the workload.
    pub bounds: Bounds,
    /// Bounds at each point of a recovery, then of the recovery after that, and so on. Their number limits how many
    /// crashes follow one another.
    pub in_recovery: &'static [Bounds],
    /// One in so many states whose recovery repaired something has its recovery crashed too.
    pub busy_recoveries: u64,
    /// One in so many states whose recovery only marked the superblocks has its recovery crashed too.
    pub idle_recoveries: u64,
}

/// One workload for one subject.
pub struct Job {
    /// Position in [`SUBJECTS`].
    pub subject: usize,
    /// The operations.
    pub workload: Workload,
    /// How much is tried.
    pub effort: Effort,
}

/// States that were judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Distinct images after a crash of a workload.
    pub in_operations: u64,
    /// Distinct images after a crash in recovery.
    pub in_recovery: u64,
    /// Images that came again with the same allowed outcomes, and were not judged again.
    pub repeated: u64,
    /// Points at which crashes were made.
    pub points: u64,
    /// Workloads.
    pub workloads: u64,
    /// Processor time for them.
    pub busy: Duration,
}

impl Tally {
    /// Headings of the columns of its text.
    pub const COLUMNS: &str = "workloads     points  in operations  in recovery   repeated  processor";

    /// Returns the number of distinct images.
    pub fn distinct(&self) -> u64 {
        self.in_operations + self.in_recovery
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { in_operations, in_recovery, repeated, points, workloads, busy } = self;
        let seconds = busy.as_secs_f64();
        write!(out, "{workloads:>9} {points:>10} {in_operations:>14} {in_recovery:>12} {repeated:>10} {seconds:>8.0} s")
    }
}

impl<'t> std::iter::Sum<&'t Tally> for Tally {
    fn sum<I: Iterator<Item = &'t Tally>>(tallies: I) -> Tally {
        tallies.fold(Tally::default(), |sum, tally| Tally {
            in_operations: sum.in_operations + tally.in_operations,
            in_recovery: sum.in_recovery + tally.in_recovery,
            repeated: sum.repeated + tally.repeated,
            points: sum.points + tally.points,
            workloads: sum.workloads + tally.workloads,
            busy: sum.busy + tally.busy,
        })
    }
}

/// A state that violates a condition.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The operations, the point of the crash, and what is wrong.
    pub text: String,
}

/// Runs the jobs on all cores. Stops early after `violations_max` violations.
pub fn run(jobs: &[Job], seed: u64, violations_max: usize) -> ([Tally; SUBJECTS.len()], Vec<Violation>) {
    let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
    let seen: [Seen; SUBJECTS.len()] = Default::default();
    let (tallies, violations) = (Mutex::new([Tally::default(); SUBJECTS.len()]), Mutex::new(Vec::new()));
    on_all_cores(&bases, jobs, |disks, number, job| {
        if lock(&violations).len() >= violations_max {
            return;
        }
        let start = processor_time();
        let trace = bases[job.subject].trace(&job.workload);
        let subject = &SUBJECTS[job.subject];
        let mut explorer = Explorer::new(subject, &mut disks[job.subject], &seen[job.subject]);
        explorer.tally.workloads = 1;
        let explored = explorer.explore(&trace, &job.effort, seed.wrapping_add(number as u64));
        explorer.tally.busy = processor_time() - start;
        let tally = &mut lock(&tallies)[job.subject];
        *tally = [*tally, explorer.tally].iter().sum();
        lock(&violations).extend(explored.err());
    });
    (tallies.into_inner().expect("no panic"), violations.into_inner().expect("no panic"))
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Does each of the tasks once, on as many threads as there are cores; each thread has a disk for each base.
fn on_all_cores<T: Sync>(bases: &[Base], tasks: &[T], each: impl Fn(&mut [Disk], usize, &T) + Sync) {
    quiet_judges();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                nvfold::internals::number_this_thread(0);
                let mut disks: Vec<Disk> =
                    bases.iter().map(|base| Disk::new(base.image.clone(), base.device_bytes())).collect();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(number) else { return };
                    each(&mut disks, number, task);
                }
            });
        }
    });
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no thread panics with a lock")
}

/// Hashes of images that were judged without a violation, alone and with the outcomes that were allowed.
#[derive(Default)]
struct Seen {
    images: Mutex<HashSet<u128>>,
    judged: Mutex<HashSet<u128>>,
    passed: Passed,
}

impl Seen {
    /// Records an image; returns whether it is new.
    fn note(&self, image: u128) -> bool {
        lock(&self.images).insert(image)
    }

    /// Returns whether an image was judged with these outcomes, without a violation.
    fn holds(&self, image: u128, allowed: &[Arc<Tree>]) -> bool {
        lock(&self.judged).contains(&with_outcomes(image, allowed))
    }

    /// Records that an image was judged without a violation. An image with a violation is never recorded, not even
    /// while it is judged, so that another thread with the same image finds the violation too.
    fn note_holds(&self, image: u128, allowed: &[Arc<Tree>]) {
        lock(&self.judged).insert(with_outcomes(image, allowed));
    }

    /// Adds everything that `other` has recorded.
    fn extend(&self, other: Seen) {
        let all = |shared: Mutex<HashSet<u128>>| shared.into_inner().expect("no thread panics with a lock");
        lock(&self.images).extend(all(other.images));
        lock(&self.judged).extend(all(other.judged));
        self.passed.extend(other.passed);
    }
}

fn with_outcomes(image: u128, allowed: &[Arc<Tree>]) -> u128 {
    // A sum, because the order of the outcomes does not matter.
    let outcomes = allowed.iter().fold(0u64, |sum, tree| sum.wrapping_add(tree.digest()));
    image ^ u128::from(outcomes) << 64 ^ u128::from(outcomes.rotate_left(17))
}

/// Crashes traces at their points.
struct Explorer<'a> {
    subject: &'a Subject,
    disk: &'a mut Disk,
    seen: &'a Seen,
    tally: Tally,
    /// What recoveries did, if that is asked for. Then no state is judged.
    recoveries: Option<Vec<Case>>,
}

/// A recovery: the state that it began with, as a difference to the base, its actions, and the outcomes that are
/// allowed.
struct Case {
    state: Difference,
    trace: Trace,
}

/// A point at which a crash is made.
struct Point<'t> {
    trace: &'t Trace,
    /// Steps before it.
    step: usize,
    allowed: &'t [Arc<Tree>],
    pending: &'t Pending,
}

impl<'a> Explorer<'a> {
    fn new(subject: &'a Subject, disk: &'a mut Disk, seen: &'a Seen) -> Explorer<'a> {
        Explorer { subject, disk, seen, tally: Tally::default(), recoveries: None }
    }

    /// Tries all crashes of a trace that begins with the guaranteed image of the disk.
    fn explore(&mut self, trace: &Trace, effort: &Effort, seed: u64) -> Result<(), Violation> {
        self.explore_at(trace, &effort.bounds, effort, seed, 0)
    }

    /// As `explore`, after `depth` earlier crashes. The random choices depend only on the seed and the step, not on
    /// what other threads have seen, so the same seed gives the same states.
    fn explore_at(
        &mut self,
        trace: &Trace,
        bounds: &Bounds,
        effort: &Effort,
        seed: u64,
        depth: usize,
    ) -> Result<(), Violation> {
        let mark = self.disk.mark();
        let mut pending = Pending::default();
        let mut allowed: &[Arc<Tree>] = &[];
        let mut explored = Ok(());
        for (step, what) in trace.steps.iter().enumerate() {
            let narrows = |new: &[Arc<Tree>]| new.iter().all(|tree| allowed.iter().any(|old| Arc::ptr_eq(old, tree)));
            let is_point = match what {
                Step::Event(event) => is_barrier(event),
                // A state that is right for fewer outcomes is right for more, so the next point covers this one.
                Step::Outcomes(new) => !allowed.is_empty() && !narrows(new),
            };
            if is_point && step >= trace.crashes_from {
                explored = self.crash(&Point { trace, step, allowed, pending: &pending }, bounds, effort, seed, depth);
            }
            match what {
                Step::Event(event) if is_idle(event, self.disk, &pending) => {}
                Step::Event(event) => {
                    for event in told_apart(event, self.disk, &pending) {
                        let settled = pending.play(&event);
                        self.disk.settle(&settled);
                    }
                }
                Step::Outcomes(new) => allowed = new,
            }
            if explored.is_err() {
                break;
            }
        }
        if explored.is_ok() {
            let end = Point { trace, step: trace.steps.len(), allowed, pending: &pending };
            explored = self.crash(&end, bounds, effort, seed, depth);
        }
        self.disk.roll_back(mark);
        explored
    }

    /// Tries all states of one point.
    fn crash(
        &mut self,
        point: &Point<'_>,
        bounds: &Bounds,
        effort: &Effort,
        seed: u64,
        depth: usize,
    ) -> Result<(), Violation> {
        self.tally.points += 1;
        let mut random = fastrand::Rng::with_seed(seed ^ (point.step as u64) << 32);
        for choice in states::choices(point.pending, bounds, &mut random) {
            let reached = point.pending.words().iter().zip(&choice).filter(|(_, there)| **there);
            let state = self.disk.difference(reached.map(|(word, _)| word));
            if self.seen.holds(state.image_hash(), point.allowed) {
                self.tally.repeated += 1;
                continue;
            }
            let is_new_image = self.seen.note(state.image_hash());
            let count = if depth == 0 { &mut self.tally.in_operations } else { &mut self.tally.in_recovery };
            *count += u64::from(is_new_image);
            let road = Road::of(state.image_hash());
            let recovery = if self.recoveries.is_some() {
                self.recover(&state, road)
            } else {
                self.judge(&state, point.allowed, road)
            };
            let recovery = match recovery {
                Ok(recovery) => recovery,
                Err(why) => return Err(self.violation(point, &choice, depth, &why)),
            };
            self.seen.note_holds(state.image_hash(), point.allowed);
            let trace = || Trace::of_recovery(point.describe(&choice, depth), point.allowed, &recovery);
            if let Some(recoveries) = &mut self.recoveries {
                recoveries.push(Case { state: self.disk.since_base(&state), trace: trace() });
                continue;
            }
            let Road::ReconciledFirst { .. } = road else { continue };
            let one_in = if is_busy(&recovery) { effort.busy_recoveries } else { effort.idle_recoveries };
            // The low half has chosen the road already.
            let drawn = (state.image_hash() >> 64) as u64;
            if let Some(bounds) = effort.in_recovery.get(depth)
                && drawn.is_multiple_of(one_in)
            {
                let mark = self.disk.mark();
                self.disk.advance(&state);
                let explored = self.explore_at(&trace(), bounds, effort, drawn, depth + 1);
                self.disk.roll_back(mark);
                explored?;
            }
        }
        Ok(())
    }

    /// Judges one state; returns what recovery did.
    fn judge(&mut self, state: &Difference, allowed: &[Arc<Tree>], road: Road) -> Result<Vec<Event>, String> {
        self.disk.apply(state);
        let options = self.subject.options(self.subject.policy);
        let passed = &self.seen.passed;
        let judged = judging(Judge { disk: self.disk, options, allowed, road, passed, defect: None });
        self.disk.put_back();
        judged
    }

    /// Lets one state recover without judging it; returns what recovery did.
    fn recover(&mut self, state: &Difference, road: Road) -> Result<Vec<Event>, String> {
        self.disk.apply(state);
        let options = self.subject.options(self.subject.policy);
        let recovery = oracle::recover(self.disk, options, road.unmounts_first());
        self.disk.put_back();
        recovery
    }

    fn violation(&self, point: &Point<'_>, choice: &[bool], depth: usize, why: &str) -> Violation {
        let name = self.subject.name;
        Violation { text: format!("policy {name}: {}:\n  {why}", point.describe(choice, depth)) }
    }
}

impl Point<'_> {
    fn describe(&self, choice: &[bool], depth: usize) -> String {
        let next = self.trace.steps[self.step..].iter().find_map(|step| match step {
            Step::Event(event) => Some(event),
            Step::Outcomes(_) => None,
        });
        let before = next.map_or("at the end".to_owned(), |event| format!("before {}", event.site));
        let what = if depth == 0 { "crash" } else { "crash in recovery" };
        format!(
            "{}; {what} at step {} {before}; of {} words not guaranteed reached the media: {}",
            self.trace.name,
            self.step,
            choice.len(),
            self.reached(choice)
        )
    }

    /// Returns a text of the words that reached the media: neighbours together, a few of them.
    fn reached(&self, choice: &[bool]) -> String {
        const SHOWN: usize = 12;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (word, _) in self.pending.words().iter().zip(choice).filter(|(_, there)| **there) {
            let (start, end) = (word.offset, word.offset + word.bytes().len() as u64);
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => runs.push((start, end)),
            }
        }
        let shown: Vec<String> = runs.iter().take(SHOWN).map(|(start, end)| format!("{start:#x}..{end:#x}")).collect();
        format!("{}{}", shown.join(", "), if runs.len() > SHOWN { ", ..." } else { "" })
    }
}

/// Returns whether a long event streams bytes that are there anyway, whatever a crash leaves: zeros over the zeros of
/// a fresh segment.
fn is_idle(event: &Event, disk: &Disk, pending: &Pending) -> bool {
    const LONG: usize = 4096;
    let Action::Stream { offset, bytes } = &event.action else { return false };
    let range = *offset..*offset + bytes.len() as u64;
    bytes.len() > LONG
        && disk.image().holds(*offset, bytes)
        && !pending.words().iter().any(|word| range.contains(&word.offset))
}

/// Returns whether the event makes words guaranteed.
fn is_barrier(event: &Event) -> bool {
    matches!(event.action, Action::Fence | Action::SettleHoles)
}

/// Returns the event itself. For memory that is given back it returns only the pages that hold data, because the
/// other pages are zeros before and after.
fn told_apart<'e>(event: &'e Event, disk: &Disk, pending: &Pending) -> Vec<Cow<'e, Event>> {
    const PAGE: u64 = 4096;
    let Action::Punch { offset, length } = event.action else { return vec![Cow::Borrowed(event)] };
    let is_pending = |page: u64| pending.words().iter().any(|word| word.offset / PAGE == page);
    let pages =
        (offset / PAGE..(offset + length) / PAGE).filter(|page| disk.image().has_page(*page) || is_pending(*page));
    let of_page = |page| Event { action: Action::Punch { offset: page * PAGE, length: PAGE }, ..event.clone() };
    pages.map(|page| Cow::Owned(of_page(page))).collect()
}

/// Returns whether a recovery did more than mark the superblocks.
fn is_busy(recovery: &[Event]) -> bool {
    let stores = recovery.iter().filter(|event| matches!(event.action, Action::Store { .. } | Action::Stream { .. }));
    stores.count() > 2
}

/// Judges a state; a panic counts as a violation.
fn judging(judge: Judge<'_>) -> Result<Vec<Event>, String> {
    let judged = JUDGING.with(|judging| {
        judging.store(true, Ordering::Relaxed);
        let judged = catch_unwind(AssertUnwindSafe(|| judge.judge()));
        judging.store(false, Ordering::Relaxed);
        judged
    });
    judged.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}

thread_local!(static JUDGING: AtomicBool = const { AtomicBool::new(false) });

/// Suppresses the output of panics during a judgement, because they are reported as violations.
fn quiet_judges() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !JUDGING.with(|judging| judging.load(Ordering::Relaxed)) {
                print(info);
            }
        }));
    });
}
