//! Feature `shuttle`: runs a test under many schedules of its threads.
//!
//! ```text
//! cargo test ... --features shuttle --lib races                what `make test` does: always the same schedules
//! NVFOLD_SOAK=20 cargo test ... --lib races                    20 times 1000 of each test, with new seeds
//! NVFOLD_SCHEDULE=9102... cargo test ... races::data::a_test   one schedule again, as a failure printed it
//! ```
//!
//! Some schedules choose the next thread at random at every point. Most switch threads at only a few points ([PCT]),
//! which finds races that need one long stop.
//!
//! [PCT]: https://www.microsoft.com/en-us/research/publication/a-randomized-scheduler-with-probabilistic-guarantees-of-finding-bugs/

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::sync::Arc;

/// Number of schedules of each test in `make test`; always the same ones.
const SCHEDULES: usize = 160;
/// Number of schedules of each test in `make soak`, times `NVFOLD_SOAK`; always new ones.
const SOAK_SCHEDULES: usize = 1000;
/// A PCT schedule of depth n has n - 1 switches at random points.
const PCT_DEPTHS: [usize; 2] = [2, 3];
/// Limit for the number of schedules in an exhaustive test.
const SCHEDULES_COUNTED_OUT_MAX: usize = 200_000;

/// What one thread of a test does.
pub type Task = Box<dyn FnOnce() + Send>;

/// Runs `test` under many schedules; shuttle prints a failing one.
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    if replayed(&test) {
        return;
    }
    match std::env::var("NVFOLD_SOAK").ok().and_then(|times| times.parse::<usize>().ok()) {
        None => {
            run(RandomScheduler::new_from_seed(1, SCHEDULES / 4), &test);
            for depth in PCT_DEPTHS {
                run(PctScheduler::new_from_seed(1, depth, SCHEDULES * 3 / 8), &test);
            }
        }
        Some(times) => {
            run(RandomScheduler::new(times * SOAK_SCHEDULES / 4), &test);
            for depth in PCT_DEPTHS {
                run(PctScheduler::new(depth, times * SOAK_SCHEDULES * 3 / 8), &test);
            }
        }
    }
}

/// Runs `test` under every possible schedule, and returns their number; only for very small tests.
pub fn exhaust(test: impl Fn() + Send + Sync + 'static) -> usize {
    let test = Arc::new(test);
    if replayed(&test) { 0 } else { run(DfsScheduler::new(Some(SCHEDULES_COUNTED_OUT_MAX), false), &test) }
}

/// Runs `work` under one schedule, for what several tests start from.
pub fn once(work: impl Fn() + Send + Sync + 'static) {
    run(RandomScheduler::new_from_seed(1, 1), &Arc::new(work));
}

/// Runs the one schedule that `NVFOLD_SCHEDULE` specifies, if it is set; returns true then.
fn replayed(test: &Arc<impl Fn() + Send + Sync + 'static>) -> bool {
    let schedule = std::env::var("NVFOLD_SCHEDULE");
    schedule.is_ok_and(|schedule| run(ReplayScheduler::new_from_encoded(&schedule), test) > 0)
}

fn run(scheduler: impl Scheduler + 'static, test: &Arc<impl Fn() + Send + Sync + 'static>) -> usize {
    let mut config = Config::new();
    config.stack_size = 2 << 20;
    config.silence_warnings = true;
    let test = test.clone();
    Runner::new(scheduler, config).run(move || test())
}

/// Runs each task in a thread, and waits until all have ended.
pub fn race<const N: usize>(tasks: [Task; N]) {
    let threads = tasks.map(|task| shuttle::thread::spawn(task));
    threads.into_iter().for_each(|thread| thread.join().expect("a task failed"));
}

/// Makes a task of a closure, whatever it returns.
pub fn task<T>(work: impl FnOnce() -> T + Send + 'static) -> Task {
    Box::new(move || drop(work()))
}
