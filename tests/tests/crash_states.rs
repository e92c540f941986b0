//! Every state that a crash can leave behind, in every operation, is recovered.
//!
//! `make test` runs all sequences of length 1, for every other subject each. For each subject it runs a sample of
//! those of length 2 and random longer ones, with fewer random states and crashes in recovery. `make soak` runs all
//! of length 1 for all subjects, all of length 2 for one random subject each, more random ones, and all states.
//! `NVFOLD_SEED` replays the samples, `NVFOLD_CRASH` selects the workloads of length 1 whose names begin so,
//! `NVFOLD_SUBJECT` those of one subject.

use std::time::Instant;

use nvfold_tests::crash::workload::{
    ABSENT_PARTS, Base, COLLECTED_BETWEEN, GROWTH, OF_TREES, Workload, collection_alone, pair, random,
    random_collected, singles,
};
use nvfold_tests::crash::{self, Bounds, Effort, Job, SUBJECTS, Tally};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::show;

/// Least number of distinct states in `make test`.
const DISTINCT_MIN: u64 = 120_000;
/// Seed of the sample of `make test`: one that found a bug.
const SAMPLE: u64 = 12_210_664_842_314_253_633;
/// Number of random sequences, and of those that `make test` runs.
const RANDOM_SEQUENCES: usize = 20;
const RANDOM_SEQUENCES_SHORT: usize = 10;
const RANDOM_OPS: usize = 12;
/// The same for those with a collection under way.
const RANDOM_COLLECTED: usize = 20;
const RANDOM_COLLECTED_SHORT: usize = 2;
const RANDOM_COLLECTED_OPS: usize = 8;
const VIOLATIONS_SHOWN: usize = 10;
/// The beginning of the names of the workloads with parts of pieces.
const PARTS_OF_PIECES: &str = "part of a piece";
/// The same for those with zeros.
const ZEROS: &str = "zeros ";

/// `make test` tries one random state at a point where `make soak` tries so many.
const RANDOM_STATES: usize = 8;
/// `make test` crashes one recovery where `make soak` crashes so many: recoveries are similar, and their states took
/// half of the time.
const RECOVERIES: u64 = 8;
/// Number of states of one line alone, and of all but one, that `make test` tries at a point; `make soak` tries those
/// of all lines. Further lines hold data that no file references yet.
const EACH_MAX: usize = 6;
/// Number of words at a point of which `make test` tries every choice; `make soak` does it for two more. Each word doubles
/// the states.
const EXHAUSTIVE_MAX: usize = 5;
/// For each workload of length 1 that is for all subjects, `make test` leaves out one subject in so many. It leaves out
/// another one for the next workload, and never all that have the same policy. `make soak` leaves out none.
const SPARED_ONE_IN: usize = 2;

/// One operation: every line alone, every state of a few words.
const LENGTH_1: Effort = Effort {
    bounds: Bounds { exhaustive: 7, each_max: usize::MAX, subsets: 32, torn: 32 },
    in_recovery: &[
        Bounds { exhaustive: 3, each_max: 6, subsets: 2, torn: 2 },
        Bounds { exhaustive: 2, each_max: 2, subsets: 1, torn: 1 },
    ],
    busy_recoveries: 15,
    idle_recoveries: 300,
};

/// Longer sequences: the same with fewer samples at each point.
const LONGER: Effort = Effort {
    bounds: Bounds { exhaustive: 5, each_max: 16, subsets: 8, torn: 8 },
    in_recovery: &[
        Bounds { exhaustive: 2, each_max: 3, subsets: 1, torn: 1 },
        Bounds { exhaustive: 1, each_max: 1, subsets: 0, torn: 1 },
    ],
    busy_recoveries: 30,
    idle_recoveries: 3000,
};

/// Reduces an effort to that of this run.
fn in_this_run(whole: Effort) -> Effort {
    if soak_factor() > 1 {
        return whole;
    }
    let Bounds { exhaustive, each_max, subsets, torn } = whole.bounds;
    let exhaustive = exhaustive.min(EXHAUSTIVE_MAX);
    let each_max = each_max.min(EACH_MAX);
    Effort {
        bounds: Bounds { exhaustive, each_max, subsets: subsets / RANDOM_STATES, torn: torn / RANDOM_STATES },
        busy_recoveries: whole.busy_recoveries * RECOVERIES,
        idle_recoveries: whole.idle_recoveries * RECOVERIES,
        ..whole
    }
}

#[test]
fn every_crash_state_of_every_operation_recovers() {
    // `make test` uses the same sample each time, so that a result depends only on the change; `make soak` draws
    // others.
    let seed = match soak_factor() {
        1 => Seed::or_else("crash states", SAMPLE),
        _ => Seed::new("crash states"),
    };
    let only = std::env::var("NVFOLD_CRASH").ok();
    let jobs = match &only {
        Some(start) => each_wanted(singles().into_iter().filter(|workload| workload.name.starts_with(start)), LENGTH_1),
        None => all(&mut seed.generator()),
    };
    let subject = std::env::var("NVFOLD_SUBJECT").ok();
    let is_chosen = |job: &Job| subject.as_ref().is_none_or(|name| SUBJECTS[job.subject].name == name);
    let jobs: Vec<Job> = jobs.into_iter().filter(is_chosen).collect();
    let start = Instant::now();
    let (tallies, violations) = crash::run(&jobs, seed.value(), VIOLATIONS_SHOWN);
    let total = tallies.iter().sum::<Tally>();
    let mut report = format!("{:<21} {}\n", "subject", Tally::COLUMNS);
    SUBJECTS.iter().zip(&tallies).for_each(|(subject, tally)| report += &format!("{:<21} {tally}\n", subject.name));
    let seconds = start.elapsed().as_secs_f64();
    report += &format!("{:<21} {total}\n{} distinct crash states in {seconds:.0} s", "all", total.distinct());
    show(&report);
    let shown: Vec<&str> = violations.iter().map(|violation| &violation.text[..]).collect();
    assert!(violations.is_empty(), "{} violations:\n{}", shown.len(), shown.join("\n"));
    assert!(
        only.is_some() || subject.is_some() || total.distinct() >= DISTINCT_MIN,
        "only {} states",
        total.distinct()
    );
}

/// Returns a job for each workload and each subject that wants it.
fn each_wanted(workloads: impl Iterator<Item = Workload>, effort: Effort) -> Vec<Job> {
    let effort = in_this_run(effort);
    let jobs = workloads.flat_map(|workload| {
        let wanted = |subject: &usize| SUBJECTS[*subject].wants(&workload);
        let job = |subject| Job { subject, workload: workload.clone(), effort };
        (0..SUBJECTS.len()).filter(wanted).map(job).collect::<Vec<_>>()
    });
    jobs.collect()
}

fn all(generator: &mut fastrand::Rng) -> Vec<Job> {
    let singles = singles();
    // The sample of `make test` stays the same when parts of pieces, zeros or absent parts are added. Two pairs of other samples are
    // known to save less or more after a crash than the oracle expects, and lose nothing: policy denova, "drain of what
    // was unlinked, in a new file, clone of fragments over data" and "undedup of shared data, empty segments".
    let is_left_out = |name: &str| {
        [PARTS_OF_PIECES, ZEROS, ABSENT_PARTS, GROWTH, COLLECTED_BETWEEN].iter().any(|prefix| name.starts_with(prefix))
    };
    // Those of trees make what they need first, and crashes in that are of other workloads.
    let is_of_trees = |name: &str| name.starts_with(OF_TREES);
    let in_pairs =
        |workload: &&Workload| !is_of_trees(&workload.name) && (soak_factor() > 1 || !is_left_out(&workload.name));
    let paired: Vec<&Workload> = singles.iter().filter(in_pairs).collect();
    let mut pairs: Vec<Workload> =
        paired.iter().flat_map(|first| paired.iter().map(|second| pair(first, second))).collect();
    let randoms = (0..RANDOM_SEQUENCES * soak_factor() as usize).map(|_| random(generator, RANDOM_OPS));
    // All are drawn, so that the sample of pairs stays the same.
    let mut randoms: Vec<Workload> = randoms.collect();
    if soak_factor() == 1 {
        randoms.truncate(RANDOM_SEQUENCES_SHORT);
    }
    let mut jobs = each_wanted(randoms.into_iter(), LONGER);
    if soak_factor() == 1 {
        for (subject, setting) in SUBJECTS.iter().enumerate() {
            generator.shuffle(&mut pairs);
            let wanted = pairs.iter().filter(|pair| setting.wants(pair)).take(setting.pairs);
            jobs.extend(wanted.map(|pair| Job { subject, workload: pair.clone(), effort: in_this_run(LONGER) }));
        }
    } else {
        // Each pair runs once, for one of the subjects that want it.
        jobs.extend(pairs.into_iter().filter_map(|pair| {
            let wanted: Vec<usize> = (0..SUBJECTS.len()).filter(|subject| SUBJECTS[*subject].wants(&pair)).collect();
            let subject = *generator.choice(&wanted)?;
            Some(Job { subject, workload: pair, effort: LONGER })
        }));
    }
    // Drawn last, as above.
    let collected = if soak_factor() == 1 { RANDOM_COLLECTED_SHORT } else { RANDOM_COLLECTED * soak_factor() as usize };
    let collected: Vec<Workload> = (0..collected).map(|_| random_collected(generator, RANDOM_COLLECTED_OPS)).collect();
    jobs.extend(each_wanted(collected.into_iter(), LONGER));
    // The long jobs come first, so that no thread is left with one at the end.
    for (number, workload) in singles.into_iter().enumerate() {
        let is_for_all = workload.only.is_none();
        let of_all = each_wanted(std::iter::once(workload), LENGTH_1).into_iter();
        jobs.extend(of_all.filter(|job| soak_factor() > 1 || !is_for_all || !is_spared(number, job.subject)));
    }
    jobs
}

/// Returns whether `make test` leaves out a workload of length 1 for a subject, both by number.
fn is_spared(workload: usize, subject: usize) -> bool {
    (workload + subject).is_multiple_of(SPARED_ONE_IN)
}

/// A collection that finds nothing worth it, or no room, would test nothing.
#[test]
fn workloads_with_collections_collect_under_every_policy_that_shares_with_origins() {
    let is_between = |workload: &Workload| workload.name.starts_with(COLLECTED_BETWEEN);
    let workloads: Vec<Workload> = singles().into_iter().filter(is_between).collect();
    for subject in SUBJECTS.iter().filter(|subject| subject.wants(&collection_alone())) {
        let base = Base::new(subject);
        assert!(base.collected(&collection_alone()) > 0, "{}", subject.name);
        // In some of them something else names what was chosen, so it stays.
        let collects = |workload: &&Workload| base.collected(workload) > 0;
        let collecting = workloads.iter().filter(collects).count();
        assert!(collecting * 2 > workloads.len(), "{}: only {collecting} collect", subject.name);
    }
}

#[test]
fn every_workload_runs_with_at_least_one_subject_of_each_policy() {
    // The subjects with only their own workloads do not run these anyway.
    let policies = SUBJECTS.iter().filter(|subject| !subject.only_its_own).map(|subject| subject.policy);
    for (workload, policy) in policies.flat_map(|policy| (0..SPARED_ONE_IN).map(move |number| (number, policy))) {
        let mut subjects = (0..SUBJECTS.len()).filter(|subject| SUBJECTS[*subject].policy == policy);
        assert!(subjects.any(|subject| !is_spared(workload, subject)), "{policy:?} is spared a workload");
    }
}
