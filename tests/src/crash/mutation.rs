//! Mutations: the same recordings with a flush or a fence left out, or two steps swapped. The harness must notice.
//!
//! The problem: a harness that finds nothing may be blind. The idea: take the recordings of the operations, leave out
//! the events of one line of the program, and look for a crash state that violates a condition. If there is none, no
//! promise depends on that flush or fence, or a test is missing.
//!
//! ```text
//! drop flush   the lines stay in the cache: a stream becomes a store
//! drop fence   the flushes it waited for stay in flight until the next fence; holes that it settled stay open
//! swap         stores after a fence are durable before those that the fence waits for
//! forget       the stores are left out              (of a collection only: see `collection`)
//! early        the stores are durable before all others of the operation           (the same)
//! ```
//!
//! The recording is fixed: the program does not react to the mutation. So a mutation affects only durability and
//! order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fmt, fs};

use nvfold::IndexKind;
use nvfold::internals::media::superblock::COPIES;
use pmem::{Action, Event, Site};

use crate::random::soak_factor;

use super::workload::{Base, COLLECTED_BETWEEN, Step, Trace, Workload, singles};
use super::{Bounds, Case, Disk, Effort, Explorer, SUBJECTS, Seen, is_barrier, lock, on_all_cores};

/// How a recording is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutation {
    /// The flushes are left out.
    DropFlush,
    /// The fences are left out.
    DropFence,
    /// The stores behind the fence are durable before those that it waits for.
    Swap,
    /// The stores are left out, as if the program forgot the step.
    Forget,
    /// The stores are durable before all others, as if the program took the step too early.
    Early,
}

impl fmt::Display for Mutation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Mutation::DropFlush => "drop flush",
            Mutation::DropFence => "drop fence",
            Mutation::Swap => "swap",
            Mutation::Forget => "forget",
            Mutation::Early => "early",
        })
    }
}

/// A place in the program, named so that edits of other lines do not change the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Path below `crates/nvfold/src`.
    pub file: String,
    /// The function that contains the line.
    pub function: String,
    /// The number of the line among the lines of that function that do something to the media, counted from 1.
    pub number: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}` `{}` {}", self.file, self.function, self.number)
    }
}

/// The result of one mutation.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The place.
    pub place: Place,
    /// The mutation.
    pub mutation: Mutation,
    /// Recordings that execute the place.
    pub recordings: usize,
    /// States that were judged.
    pub states: u64,
    /// The state that violates a condition, if there is one.
    pub killed_by: Option<String>,
}

/// Recordings in which a mutation is tried: first of operations, then of recoveries.
const OPERATIONS_MAX: usize = 100;
const RECOVERIES_TRIED_MAX: usize = 400;
/// The same for a mutation that is known to survive, which gets only a first look: nothing ends its search early, so
/// it would take most of the time. `make soak` searches in full.
const KEPT_OPERATIONS_MAX: usize = 8;
const KEPT_RECOVERIES_MAX: usize = 20;
/// Recoveries that are kept of one workload.
const RECOVERIES_MAX: usize = 30;

const EFFORT: Effort = Effort {
    bounds: Bounds { exhaustive: 6, each_max: 24, subsets: 16, torn: 16 },
    in_recovery: &[],
    busy_recoveries: 1,
    idle_recoveries: 1,
};

/// A first look, which kills most of the mutations that can be killed. Only the survivors are worth [`EFFORT`].
const FIRST_LOOK: Effort = Effort { bounds: Bounds { exhaustive: 3, each_max: 4, subsets: 2, torn: 2 }, ..EFFORT };

/// For the recordings without a mutation, to collect their recoveries.
const RECORDING: Effort = Effort { bounds: Bounds { exhaustive: 5, each_max: 16, subsets: 8, torn: 8 }, ..EFFORT };
/// The same in `make test` for devices without chains on the media: their recoveries vary less.
const RECORDING_OF_LESS: Effort =
    Effort { bounds: Bounds { exhaustive: 4, each_max: 8, subsets: 2, torn: 2 }, ..EFFORT };

/// A recording of an operation, or of a recovery with the state it began with.
struct Recorded {
    subject: usize,
    trace: Trace,
    kind: Kind,
    state: Option<super::Difference>,
}

/// The results of all mutations, and the lines where none was tried.
pub struct Outcome {
    /// By place.
    pub verdicts: Vec<Verdict>,
    /// Functions with lines that flush, stream or fence but that no recording executes, and the number of such lines.
    pub unreached: BTreeMap<(String, String), usize>,
}

/// Selects the mutations that are tried.
#[derive(Default)]
pub struct Choice {
    /// Only those in the recordings of this subject.
    pub subject: Option<String>,
    /// Only those at places in files whose paths begin so.
    pub files: Option<String>,
}

impl Choice {
    /// Returns whether all mutations are selected.
    pub fn is_all(&self) -> bool {
        self.subject.is_none() && self.files.is_none()
    }

    fn records(&self, subject: usize, workload: &Workload) -> bool {
        let subject = &SUBJECTS[subject];
        let is_chosen = self.subject.as_ref().map_or(subject.mutated, |name| subject.name == name);
        // These would add no line of code; `super::collection` has the mutations of a collection.
        let adds_lines = !workload.name.starts_with(COLLECTED_BETWEEN);
        is_chosen && adds_lines && subject.wants(workload)
    }
}

/// Tries mutations of all lines that the workloads of length 1, and recoveries from their crashes, execute. `is_kept`
/// says whether a mutation is known to survive.
pub fn try_all(choice: &Choice, seed: u64, is_kept: impl Fn(&Place, Mutation) -> bool + Sync) -> Outcome {
    let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
    let seen: Vec<Seen> = SUBJECTS.iter().map(|_| Seen::default()).collect();
    let recorded = record(&bases, &seen, |workload, subject| choice.records(subject, workload), seed);
    let mut sources = Sources::default();
    let places = places(&mut sources, recorded.iter().flat_map(|recorded| recorded.trace.events()));
    let mut tasks: Vec<(&Place, &Vec<Site>, Mutation)> = Vec::new();
    let is_chosen = |place: &Place| choice.files.as_ref().is_none_or(|files| place.file.starts_with(&files[..]));
    for (place, sites) in places.iter().filter(|(place, _)| is_chosen(place)) {
        tasks.extend([Mutation::DropFlush, Mutation::DropFence, Mutation::Swap].map(|kind| (place, sites, kind)));
    }
    let verdicts = Mutex::new(Vec::new());
    on_all_cores(&bases, &tasks, |disks, number, (place, sites, mutation)| {
        let random = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
        let is_spared = soak_factor() == 1 && is_kept(place, *mutation);
        let (most, looks): (_, &[Effort]) = if is_spared {
            ([KEPT_OPERATIONS_MAX, KEPT_RECOVERIES_MAX], &[FIRST_LOOK])
        } else {
            ([OPERATIONS_MAX, RECOVERIES_TRIED_MAX], &[FIRST_LOOK, EFFORT])
        };
        let verdict = try_mutation(disks, &seen, &recorded, place, sites, *mutation, most, looks, random);
        lock(&verdicts).extend(verdict);
    });
    let mut verdicts = verdicts.into_inner().expect("no panic");
    verdicts.sort_by(|one, other| (&one.place, one.mutation).cmp(&(&other.place, other.mutation)));
    Outcome { verdicts, unreached: sources.unreached(&places) }
}

/// Records all operations of length 1, and a few recoveries from crashes of each. The test of the crash states judges
/// these states, so here they count as judged: only a state that the mutation adds can show it.
fn record(bases: &[Base], seen: &[Seen], is_wanted: impl Fn(&Workload, usize) -> bool, seed: u64) -> Vec<Recorded> {
    let workloads = singles();
    let subjects = |workload| (0..bases.len()).map(move |at| (workload, at));
    let is_wanted = |(workload, at): &(&Workload, usize)| is_wanted(workload, *at);
    let tasks: Vec<_> = workloads.iter().flat_map(subjects).filter(is_wanted).collect();
    let recorded = Mutex::new(BTreeMap::new());
    on_all_cores(bases, &tasks, |disks, number, (workload, subject)| {
        let trace = bases[*subject].trace(workload);
        // A separate set, so that the recordings do not depend on what other threads have seen.
        let seen_here = Seen::default();
        let mut explorer = Explorer::new(&SUBJECTS[*subject], &mut disks[*subject], &seen_here);
        explorer.recoveries = Some(Vec::new());
        let is_spared = soak_factor() == 1 && SUBJECTS[*subject].index == IndexKind::Dram;
        let effort = if is_spared { RECORDING_OF_LESS } else { RECORDING };
        if let Err(violation) = explorer.explore(&trace, &effort, seed.wrapping_add(number as u64)) {
            panic!("without a mutation: {}", violation.text);
        }
        let recoveries = most_telling(explorer.recoveries.take().expect("asked for"));
        let recorded_one = |trace: Trace, state| Recorded { subject: *subject, kind: kind(&trace), trace, state };
        let operation = recorded_one(trace, None);
        let of_recovery = |case: Case| recorded_one(case.trace, Some(case.state));
        let all: Vec<Recorded> = std::iter::once(operation).chain(recoveries.into_iter().map(of_recovery)).collect();
        lock(&recorded).insert(number, all);
        seen[*subject].extend(seen_here);
    });
    recorded.into_inner().expect("no panic").into_values().flatten().collect()
}

/// Returns the first few recoveries of each kind, so that no kind displaces another.
fn most_telling(cases: Vec<Case>) -> Vec<Case> {
    let mut cases = rare_ones_too(cases, |case| kind(&case.trace));
    cases.truncate(RECOVERIES_MAX);
    cases
}

/// What distinguishes recoveries: the lines that they execute, and the copy of the superblock that they begin with.
type Kind = (BTreeSet<(u32, u32)>, Option<u64>);

fn kind(trace: &Trace) -> Kind {
    let lines = trace.events().map(|event| (event.site.line(), event.site.column())).collect();
    let superblock = trace.events().find_map(|event| match event.action {
        Action::Store { offset, .. } if COPIES.contains(&offset) => Some(offset),
        _ => None,
    });
    (lines, superblock)
}

/// Orders recoveries: the first of each kind, then the second of each, and so on, so that rare kinds are tried too.
fn rare_ones_too<T, K: Eq + Hash>(recoveries: Vec<T>, kind: impl Fn(&T) -> K) -> Vec<T> {
    let mut counts: HashMap<K, usize> = HashMap::new();
    let mut ranked: Vec<(usize, T)> = Vec::new();
    for recovery in recoveries {
        let count = counts.entry(kind(&recovery)).or_insert(0);
        *count += 1;
        ranked.push((*count, recovery));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, recovery)| recovery).collect()
}

fn try_mutation(
    disks: &mut [Disk],
    seen: &[Seen],
    recorded: &[Recorded],
    place: &Place,
    sites: &[Site],
    mutation: Mutation,
    [operations_max, recoveries_max]: [usize; 2],
    looks: &[Effort],
    mut random: fastrand::Rng,
) -> Option<Verdict> {
    let comes_by = |recorded: &&Recorded| first(&recorded.trace.steps, sites, mutation).is_some();
    let (mut operations, mut recoveries): (Vec<_>, Vec<_>) =
        recorded.iter().filter(comes_by).partition(|recorded| recorded.state.is_none());
    let recordings = operations.len() + recoveries.len();
    [&mut operations, &mut recoveries].into_iter().for_each(|some| random.shuffle(some));
    let recoveries = rare_ones_too(recoveries, |recorded| &recorded.kind);
    let mutated = |recorded| Some((recorded, mutate(recorded, sites, mutation)?));
    let operations = operations.into_iter().filter_map(mutated).take(operations_max);
    let recoveries = recoveries.into_iter().filter_map(mutated).take(recoveries_max);
    let tried: Vec<(&Recorded, Trace)> = operations.chain(recoveries).collect();
    if tried.is_empty() {
        return None;
    }
    let mut verdict = Verdict { place: place.clone(), mutation, recordings, states: 0, killed_by: None };
    for (effort, (recorded, trace)) in looks.iter().flat_map(|effort| tried.iter().map(move |tried| (effort, tried))) {
        let (subject, disk) = (&SUBJECTS[recorded.subject], &mut disks[recorded.subject]);
        let mark = disk.mark();
        recorded.state.iter().for_each(|state| disk.advance(state));
        let mut explorer = Explorer::new(subject, disk, &seen[recorded.subject]);
        let explored = explorer.explore(trace, effort, random.u64(..));
        verdict.states += explorer.tally.distinct();
        disk.roll_back(mark);
        if let Err(violation) = explored {
            verdict.killed_by = Some(violation.text);
            break;
        }
    }
    Some(verdict)
}

/// Returns the first step that the mutation could change.
fn first(steps: &[Step], sites: &[Site], mutation: Mutation) -> Option<usize> {
    steps.iter().position(|step| match step {
        Step::Event(event) if sites.contains(&event.site) => match mutation {
            Mutation::DropFlush => matches!(event.action, Action::Flush { .. } | Action::Stream { .. }),
            Mutation::DropFence => is_barrier(event),
            Mutation::Swap => event.action == Action::Fence,
            Mutation::Forget | Mutation::Early => is_store(event),
        },
        _ => false,
    })
}

pub(super) fn is_store(event: &Event) -> bool {
    matches!(event.action, Action::Store { .. } | Action::Stream { .. })
}

/// Returns the recording with the mutation; `None` if the mutation changes nothing.
fn mutate(recorded: &Recorded, sites: &[Site], mutation: Mutation) -> Option<Trace> {
    let trace = &recorded.trace;
    let first = first(&trace.steps, sites, mutation)?;
    let steps = mutated(&trace.steps, sites, mutation)?;
    // A swap changes states from the previous fence on, so crashes begin at the start; the other two mutations act
    // only from their first step on.
    let from = if mutation == Mutation::Swap { 0 } else { first };
    Some(Trace { name: trace.name.clone(), steps, crashes_from: trace.crashes_from.max(from) })
}

/// Returns the steps with the mutation; `None` if it changes nothing.
pub(super) fn mutated(steps: &[Step], sites: &[Site], mutation: Mutation) -> Option<Vec<Step>> {
    let is_here = |event: &Event| sites.contains(&event.site);
    first(steps, sites, mutation)?;
    let without = |is_dropped: fn(&Event) -> bool| {
        let dropped = |step: &&Step| matches!(step, Step::Event(event) if is_dropped(event) && is_here(event));
        Some(steps.iter().filter(|step| !dropped(step)).cloned().collect())
    };
    match mutation {
        Mutation::DropFlush => Some(steps.iter().filter_map(|step| without_flush(step, is_here)).collect()),
        Mutation::DropFence => without(is_barrier),
        Mutation::Swap => swapped(steps, &is_here),
        Mutation::Forget => without(is_store),
        Mutation::Early => early(steps, &is_here),
    }
}

fn without_flush(step: &Step, is_here: impl Fn(&Event) -> bool) -> Option<Step> {
    match step {
        Step::Event(event) if is_here(event) => match &event.action {
            Action::Flush { .. } => None,
            Action::Stream { offset, bytes } => {
                let action = Action::Store { offset: *offset, bytes: bytes.clone(), at_once: false };
                Some(Step::Event(Event { action, ..event.clone() }))
            }
            _ => Some(step.clone()),
        },
        _ => Some(step.clone()),
    }
}

/// Returns the steps with each fence of the place swapped: the steps after it, up to the next fence, come before the
/// steps that it waits for, back to the previous fence. `None` if nothing follows a fence in its operation.
fn swapped(steps: &[Step], is_here: &impl Fn(&Event) -> bool) -> Option<Vec<Step>> {
    let is_fence = |step: &Step| matches!(step, Step::Event(event) if event.action == Action::Fence);
    let ends = |step: &Step| is_fence(step) || matches!(step, Step::Outcomes(_));
    let stores = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::Event(event) if is_store(event)));
    let mut swapped = steps.to_vec();
    let mut any = false;
    for at in 0..steps.len() {
        let Step::Event(event) = &steps[at] else { continue };
        if event.action != Action::Fence || !is_here(event) {
            continue;
        }
        let start = steps[..at].iter().rposition(ends).map_or(0, |before| before + 1);
        let Some(length) = steps[at + 1..].iter().position(ends) else { continue };
        let end = at + 1 + length;
        if !is_fence(&steps[end]) || !stores(&steps[at + 1..end]) || !stores(&steps[start..at]) {
            continue;
        }
        let order = [&steps[at + 1..=end], &steps[start..=at]].concat();
        swapped.splice(start..=end, order);
        any = true;
        break;
    }
    any.then_some(swapped)
}

/// Returns the steps with the stores and flushes of a place before all others, and a fence after them.
fn early(steps: &[Step], is_here: &impl Fn(&Event) -> bool) -> Option<Vec<Step>> {
    let is_fence = |step: &&Step| matches!(step, Step::Event(event) if event.action == Action::Fence);
    let is_early = |step: &&Step| matches!(step, Step::Event(event) if is_here(event) && !is_barrier(event));
    let begin = steps.iter().position(|step| matches!(step, Step::Event(_)))?;
    let fence = steps.iter().find(is_fence)?;
    let taken = steps.iter().filter(is_early).chain([fence]);
    let rest = steps[begin..].iter().filter(|step| !is_early(step));
    Some(steps[..begin].iter().chain(taken).chain(rest).cloned().collect())
}

/// Returns the places of all events, each with its lines of code. Lines of tests and of other crates are left out.
pub(super) fn places<'e>(sources: &mut Sources, events: impl Iterator<Item = &'e Event>) -> BTreeMap<Place, Vec<Site>> {
    places_of(sources, events.filter(|event| !matches!(event.action, Action::Store { .. } | Action::Punch { .. })))
}

/// As `places`, of just these events.
pub(super) fn places_of<'e>(
    sources: &mut Sources,
    events: impl Iterator<Item = &'e Event>,
) -> BTreeMap<Place, Vec<Site>> {
    let sites: BTreeSet<Site> = events.map(|event| event.site).collect();
    let mut numbers: HashMap<(String, String), usize> = HashMap::new();
    let mut last: HashMap<(String, String), u32> = HashMap::new();
    let mut places: BTreeMap<Place, Vec<Site>> = BTreeMap::new();
    for site in sites {
        let Some((file, function)) = sources.place(site) else { continue };
        let key = (file.clone(), function.clone());
        // A line that flushes and fences counts as one place.
        let number = numbers.entry(key.clone()).or_insert(0);
        if last.insert(key, site.line()) != Some(site.line()) {
            *number += 1;
        }
        places.entry(Place { file, function, number: *number }).or_default().push(site);
    }
    places
}

/// The source files, for finding the function that contains a line.
#[derive(Default)]
pub(super) struct Sources {
    files: HashMap<String, Vec<String>>,
}

impl Sources {
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/nvfold/src")
    }

    fn lines(&mut self, name: &str) -> &[String] {
        self.files.entry(name.to_owned()).or_insert_with(|| {
            let path = Sources::root().join(name);
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            text.lines().map(str::to_owned).collect()
        })
    }

    fn place(&mut self, site: Site) -> Option<(String, String)> {
        let name = site.file().split_once("crates/nvfold/src/")?.1.to_owned();
        let function = self.function_of(&name, site.line() as usize)?;
        Some((name, function))
    }

    /// Returns the function around a line, counted from 1.
    fn function_of(&mut self, name: &str, line: usize) -> Option<String> {
        self.lines(name)[..line].iter().rev().find_map(|line| function(line))
    }

    /// Returns the lines that do something to the media but belong to none of these places.
    fn unreached(&mut self, places: &BTreeMap<Place, Vec<Site>>) -> BTreeMap<(String, String), usize> {
        const CALLS: [&str; 7] =
            [".flush()", ".fence(", ".stream(", ".store_new(", ".stream_zeros(", "store_words(", ".settle_holes("];
        let reached: HashSet<(&str, usize)> = places
            .iter()
            .flat_map(|(place, sites)| sites.iter().map(|site| (&place.file[..], site.line() as usize)))
            .collect();
        let mut unreached = BTreeMap::new();
        for name in source_files(&Sources::root(), "") {
            let lines = self.lines(&name);
            let code = lines.iter().position(|line| is_for_tests(line)).unwrap_or(lines.len());
            let is_call = |line: &str| {
                let line = line.trim_start();
                !line.starts_with("//") && CALLS.iter().any(|call| line.contains(call)) && function(line).is_none()
            };
            let calls = lines[..code].iter().enumerate().filter(|(_, line)| is_call(line)).map(|(at, _)| at + 1);
            for line in calls.collect::<Vec<_>>() {
                let Some(function) = self.function_of(&name, line) else { continue };
                // The events of a function with this attribute belong to its callers.
                let is_callers = is_within(&self.lines(&name)[..line], "#[track_caller]");
                if !is_callers && !reached.contains(&(&name[..], line)) {
                    *unreached.entry((name.clone(), function)).or_insert(0) += 1;
                }
            }
        }
        unreached
    }
}

/// Returns the Rust files below a directory, by their path in it. Modules of tests are left out.
fn source_files(root: &Path, within: &str) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join(within)).expect("the sources are there") {
        let entry = entry.expect("the sources are there");
        let name = entry.file_name().into_string().expect("names of sources are UTF-8");
        let path = if within.is_empty() { name.clone() } else { format!("{within}/{name}") };
        if entry.path().is_dir() && !["races", "tests"].contains(&&name[..]) {
            files.extend(source_files(root, &path));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// True if the function that the last of these lines belongs to has this attribute.
fn is_within(lines: &[String], attribute: &str) -> bool {
    let header = lines.iter().rposition(|line| function(line).is_some()).unwrap_or(0);
    let attributes = lines[..header].iter().rev().take_while(|line| line.trim_start().starts_with("#["));
    attributes.into_iter().any(|line| line.trim_start() == attribute)
}

/// Returns the name of the function that a line begins.
fn function(line: &str) -> Option<String> {
    let words = line.trim_start().strip_prefix("pub(crate) ").or(line.trim_start().strip_prefix("pub(super) "));
    let words = words.unwrap_or(line.trim_start());
    let rest = words.strip_prefix("pub ").unwrap_or(words).strip_prefix("fn ")?;
    let name: String = rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    Some(name)
}

/// True for the line before the tests of a file, with which its code ends.
fn is_for_tests(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that a host has given, earlier threads and earlier judgements must not affect a recording.
    #[test]
    fn recordings_are_deterministic() {
        let is_wanted = |workload: &Workload, subject: usize| {
            let is_here = ["denova, pm", "nv-dedup"].contains(&SUBJECTS[subject].name);
            let names = ["xattr in blocks", "dedup of what is queued", "trim of a run, then of all"];
            is_here && SUBJECTS[subject].wants(workload) && names.contains(&&workload.name[..])
        };
        let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
        let recordings = || {
            let seen: Vec<Seen> = SUBJECTS.iter().map(|_| Seen::default()).collect();
            let events = |recorded: &Recorded| {
                let events = recorded.trace.events().map(|event| format!("{} {:?}", event.site, event.action));
                (recorded.trace.name.clone(), events.collect::<Vec<_>>())
            };
            record(&bases, &seen, is_wanted, 1).iter().map(events).collect::<Vec<_>>()
        };
        let (first, second) = (recordings(), recordings());
        assert!(first.len() > 100, "{} recordings", first.len());
        let other = first.iter().zip(&second).find(|(first, second)| first != second);
        assert!(first.len() == second.len() && other.is_none(), "not the same: {other:?}");
    }
}
