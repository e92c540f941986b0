//! A collection that is broken at one place: its crash states alone must show it.
//!
//! The problem: the flushes and fences by which a collected chunk is published are those of every write, so [`super::mutation`]
//! finds each of them needed by some other operation. And a mistake in the order of the collection itself, such as an old
//! chunk that is freed too early, is not a flush or a fence that is missing.
//!
//! The idea: one recording of a whole collection. Only what it does is changed, and crashes come only there.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pmem::{Event, Site};

use super::mutation::{Mutation, Place, Sources, is_store, mutated, places, places_of};
use super::workload::{Base, Step, Trace, Workload};
use super::{Bounds, Effort, Explorer, SUBJECTS, Seen, lock, on_all_cores};

const EFFORT: Effort = Effort {
    bounds: Bounds { exhaustive: 4, each_max: 8, subsets: 2, torn: 2 },
    in_recovery: &[],
    busy_recoveries: 1,
    idle_recoveries: 1,
};

/// The last operation of a workload, as a subject carried it out.
struct Collection {
    subject: usize,
    trace: Trace,
}

impl Collection {
    fn steps(&self) -> &[Step] {
        &self.trace.steps[self.trace.crashes_from..]
    }

    fn events(&self) -> impl Iterator<Item = &Event> {
        self.steps().iter().filter_map(|step| match step {
            Step::Event(event) => Some(event),
            Step::Outcomes(_) => None,
        })
    }

    /// Returns the recording with the last operation changed.
    fn broken(&self, sites: &[Site], mutation: Mutation) -> Option<Trace> {
        let Trace { name, steps, crashes_from } = &self.trace;
        let last = mutated(self.steps(), sites, mutation)?;
        let steps = [&steps[..*crashes_from], &last].concat();
        Some(Trace { name: name.clone(), steps, crashes_from: *crashes_from })
    }
}

/// The lines of a program, by place.
type Sites = BTreeMap<Place, Vec<Site>>;

/// What was tried.
pub struct Tried {
    /// Of each mutation.
    pub of_each: Vec<Noticed>,
    /// States that were judged.
    pub states: u64,
    /// The places of the collection that store.
    pub stores: Vec<Place>,
    /// Those that flush, stream or fence.
    pub flushes: Vec<Place>,
}

/// The names of the subjects that execute a place.
#[derive(Clone, Default)]
pub struct Noticed {
    /// Those with a state that violates a condition.
    pub noticed: Vec<&'static str>,
    /// The others.
    pub missed: Vec<&'static str>,
}

/// Breaks the last operation of a workload at each of these places. Places of stores have numbers of their own: that of
/// the line among those of the function that store.
///
/// # Panics
/// A subject does not recover although nothing is broken.
pub fn try_broken(workload: &Workload, mutations: &[(Place, Mutation)], seed: u64) -> Tried {
    let bases: Vec<Base> = SUBJECTS.iter().map(Base::new).collect();
    let wanted = (0..SUBJECTS.len()).filter(|subject| SUBJECTS[*subject].wants(workload));
    let record = |subject: usize| Collection { subject, trace: bases[subject].trace(workload) };
    let collections: Vec<Collection> = wanted.map(record).collect();
    let mut sources = Sources::default();
    let events = || collections.iter().flat_map(Collection::events);
    let [stores, others]: [Sites; 2] =
        [places_of(&mut sources, events().filter(|event| is_store(event))), places(&mut sources, events())];
    let (of_each, states) = (Mutex::new(vec![Noticed::default(); mutations.len()]), AtomicU64::new(0));
    let unbroken = collections.iter().map(|collection| (None, collection));
    let broken = (0..mutations.len()).flat_map(|at| collections.iter().map(move |collection| (Some(at), collection)));
    let tasks: Vec<(Option<usize>, &Collection)> = unbroken.chain(broken).collect();
    on_all_cores(&bases, &tasks, |disks, number, (mutation, collection)| {
        let subject = &SUBJECTS[collection.subject];
        let seen = Seen::default();
        let mut explorer = Explorer::new(subject, &mut disks[collection.subject], &seen);
        let seed = seed.wrapping_add(number as u64);
        let Some(at) = *mutation else {
            let explored = explorer.explore(&collection.trace, &EFFORT, seed);
            return explored.unwrap_or_else(|violation| panic!("unbroken: {}", violation.text));
        };
        let (place, mutation) = &mutations[at];
        let places = if matches!(mutation, Mutation::Forget | Mutation::Early) { &stores } else { &others };
        if let Some(trace) = places.get(place).and_then(|sites| collection.broken(sites, *mutation)) {
            let is_missed = explorer.explore(&trace, &EFFORT, seed).is_ok();
            states.fetch_add(explorer.tally.distinct(), Ordering::Relaxed);
            let Noticed { noticed, missed } = &mut lock(&of_each)[at];
            if is_missed { missed } else { noticed }.push(subject.name);
        }
    });
    let of_places = |places: &Sites| places.keys().cloned().collect();
    Tried {
        of_each: of_each.into_inner().expect("no panic"),
        states: states.into_inner(),
        stores: of_places(&stores),
        flushes: of_places(&others),
    }
}
