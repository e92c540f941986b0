//! Every flush and every fence is needed: without it, some crash state does not hold.

use nvfold_tests::crash::mutation;
use nvfold_tests::random::Seed;

#[test]
fn no_flush_and_no_fence_is_missed_by_nobody() {
    let seed = Seed::new("mutations");
    let verdicts = mutation::all(seed.value());
    for verdict in &verdicts {
        let outcome = match &verdict.killed_by {
            Some(text) => format!("killed: {}", text.replace('\n', " ").chars().take(200).collect::<String>()),
            None => "SURVIVES".into(),
        };
        println!(
            "{} {:?}: {} recordings, {} states: {outcome}",
            verdict.place, verdict.mutation, verdict.recordings, verdict.states
        );
    }
}
