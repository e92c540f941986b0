//! Every flush and every fence is needed: without it, some crash state violates a condition. The exceptions are
//! listed here with the reason, and docs/crash-consistency.md shows the whole table. `NVFOLD_SUBJECT` and
//! `NVFOLD_MUTATE` (a prefix of the paths of files) select a part, for use during a change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nvfold_tests::crash::mutation::{self, Choice, Mutation, Outcome, Place};
use nvfold_tests::random::Seed;
use nvfold_tests::show;

/// File, function, number of the line in it, mutation; and a reason.
type Reason = (&'static str, &'static str, usize, Mutation, &'static str);

/// Mutations that so few states reveal that a sample finds them only by chance: a change anywhere in the program may
/// draw another sample.
const RARE: &[Reason] = &[
    (
        "chunk/fact.rs",
        "insert_batch",
        1,
        Mutation::DropFence,
        "the list behind a new entry is cut off, and reconcile enters it again: only links of an earlier chain show it",
    ),
    ("chunk/fact.rs", "insert_batch", 1, Mutation::Swap, "as above"),
    (
        "mount/reconcile.rs",
        "set_exact",
        1,
        Mutation::DropFence,
        "an emptied entry must be durable before its block gets another user; only a second crash at that moment shows it",
    ),
    ("mount/reconcile.rs", "set_exact", 1, Mutation::Swap, "as above"),
    ("mount/reconcile.rs", "set_packed_exact", 1, Mutation::DropFence, "the same for packed chunks"),
    ("mount/reconcile.rs", "set_packed_exact", 1, Mutation::Swap, "the same for packed chunks"),
    (
        "mount/grow.rs",
        "write_copy",
        2,
        Mutation::Swap,
        "all copies of the superblock are torn at once; each alone is found out by its sum, and another copy is taken",
    ),
    (
        "space/mod.rs",
        "clear_segment",
        3,
        Mutation::DropFence,
        "a segment could become a table before its zeros are durable; file data left there seldom looks like a table",
    ),
    ("space/mod.rs", "clear_segment", 3, Mutation::Swap, "as above"),
    (
        "inode/table.rs",
        "free_areas",
        2,
        Mutation::DropFence,
        "the next user of the slot issues a fence before its commit word; until then a crash may tear the head of its inode",
    ),
    ("inode/table.rs", "free_areas", 2, Mutation::Swap, "as above"),
];

/// Flushes and fences that stay although no state needs them, and why.
const KEPT: &[Reason] = &[
    (
        "mount/grow.rs",
        "clear_zone",
        2,
        Mutation::DropFence,
        "the fence of the first copy of the superblock covers it: that copy does not decide the size yet",
    ),
    ("mount/grow.rs", "clear_zone", 2, Mutation::Swap, "as above"),
    (
        "chunk/scan.rs",
        "scan_part",
        1,
        Mutation::DropFence,
        "undone updates stay marked, so after a crash during this mount the next one undoes them again: generators advance last",
    ),
    ("chunk/scan.rs", "scan_part", 1, Mutation::Swap, "as above"),
    (
        "store/release.rs",
        "release_packed",
        1,
        Mutation::Swap,
        "the fence is for the next user of the entry; what the operation did before it is durable already",
    ),
    ("space/append.rs", "append_to", 1, Mutation::DropFlush, "only fsck reads this header; recovery does not"),
    ("space/append.rs", "grow_packed", 1, Mutation::DropFlush, "as above"),
    (
        "chunk/counts.rs",
        "set_length",
        1,
        Mutation::DropFlush,
        "the next store, a reference for the new bytes, is in the same line and flushes it",
    ),
    (
        "store/tails.rs",
        "index_grown_chunk",
        1,
        Mutation::DropFence,
        "a lost fingerprint only costs savings: its chunk is not found after the crash",
    ),
    ("store/tails.rs", "index_grown_chunk", 1, Mutation::Swap, "as above"),
    ("store/fingerprints.rs", "enter_end", 1, Mutation::DropFence, "as above"),
    ("store/fingerprints.rs", "enter_end", 1, Mutation::Swap, "as above"),
    (
        "store/claims.rs",
        "drop",
        1,
        Mutation::DropFence,
        "nothing refers to what a failed operation stored, and the next one that stores there fences before it refers to it",
    ),
    ("store/claims.rs", "drop", 1, Mutation::Swap, "as above"),
    (
        "store/claims.rs",
        "drop",
        2,
        Mutation::DropFence,
        "the tail stays longer than the part that is referenced, as after a crash while it grows",
    ),
    ("store/claims.rs", "drop", 2, Mutation::Swap, "as above"),
    (
        "store/commit.rs",
        "store_commit_words",
        6,
        Mutation::Swap,
        "the slot must be clear before the operation is acknowledged, but not before the operation's remaining stores",
    ),
    (
        "chunk/counts.rs",
        "flush_decreases",
        3,
        Mutation::DropFence,
        "the saved state, which is written next, has a fence; a device too full for a saved state needs this one",
    ),
    ("chunk/counts.rs", "flush_decreases", 3, Mutation::Swap, "as above"),
    (
        "trees/births.rs",
        "make_live",
        2,
        Mutation::DropFence,
        "the next turn begins with a fence, and the last one is followed by another before names lead to what it made",
    ),
    ("trees/births.rs", "make_live", 2, Mutation::Swap, "as above"),
    (
        "trees/births.rs",
        "show_names",
        2,
        Mutation::DropFence,
        "the commit that links the copy has a fence before its commit words, of the same thread",
    ),
    ("trees/births.rs", "show_names", 2, Mutation::Swap, "as above"),
    (
        "chunk/generators.rs",
        "pass",
        1,
        Mutation::DropFlush,
        "undone updates are marked, and the next transaction advances past these numbers with its own",
    ),
    ("chunk/generators.rs", "pass", 2, Mutation::DropFence, "as above"),
    ("chunk/generators.rs", "pass", 2, Mutation::Swap, "as above"),
    (
        "mount/journal.rs",
        "clear_journal",
        1,
        Mutation::DropFence,
        "the superblock's fences come before the first operation anyway; replay must not depend on them",
    ),
    (
        "chunk/fact.rs",
        "insert_batch",
        2,
        Mutation::DropFence,
        "an entry lost in a crash only costs savings, and an unmount fences before it marks the device clean",
    ),
    ("chunk/fact.rs", "insert_batch", 2, Mutation::Swap, "as above"),
    ("chunk/fact.rs", "begin", 1, Mutation::DropFence, "the next step changes only hints, whatever the head says"),
    (
        "chunk/fact.rs",
        "finish_order",
        2,
        Mutation::DropFence,
        "both orders of the list reach the same entries; reconcile repeats the step and adds entries made in between",
    ),
    ("chunk/fact.rs", "finish_order", 2, Mutation::Swap, "as above"),
    (
        "chunk/fact.rs",
        "take_order_back",
        1,
        Mutation::DropFence,
        "recovery undoes the new order again, and until reconcile has reached a chain, none of its hints counts",
    ),
    ("chunk/fact.rs", "take_order_back", 1, Mutation::Swap, "as above"),
    ("chunk/fact.rs", "tidy_one", 2, Mutation::DropFence, "part of reconcile, which the next mount repeats"),
    ("chunk/fact.rs", "tidy_one", 2, Mutation::Swap, "as above"),
    (
        "chunk/fact.rs",
        "remove_lost",
        1,
        Mutation::DropFence,
        "in reconcile, when nothing is free yet; the next mount removes the entry again",
    ),
    (
        "store/queued.rs",
        "complete",
        1,
        Mutation::Swap,
        "an entry still marked in process is queued again, and it no longer refers to the replaced blocks",
    ),
    (
        "store/queued.rs",
        "queue_after_crash",
        1,
        Mutation::DropFence,
        "entries marked in process or needed are both queued after a crash",
    ),
    ("store/queued.rs", "queue_after_crash", 1, Mutation::Swap, "as above"),
    ("jobs/work_queue.rs", "remap", 1, Mutation::DropFence, "update counts from before a crash are discarded"),
    ("store/queued.rs", "count_holds", 1, Mutation::DropFence, "reconcile counts references in use anew"),
    ("store/queued.rs", "count_holds", 1, Mutation::Swap, "as above"),
    (
        "mount/convert.rs",
        "clear_links",
        2,
        Mutation::DropFence,
        "no superblock refers to this pm index yet, and the unmount before that has fences",
    ),
    ("mount/convert.rs", "clear_links", 2, Mutation::Swap, "as above"),
    (
        "mount/saved.rs",
        "save",
        2,
        Mutation::DropFence,
        "the third superblock, written first, has a fence in between; a device with only two copies needs this one",
    ),
    ("mount/saved.rs", "save", 2, Mutation::Swap, "as above"),
    (
        "store/features.rs",
        "write_superblock",
        2,
        Mutation::Swap,
        "if a crash tears two copies at once, the third is whole; a device with only two copies needs this",
    ),
];

/// File and function that no recorded workload executes, and the test that covers it instead.
const UNREACHED: &[(&str, &str, &str)] = &[
    ("check/repair.rs", "mend_packed_entries", "part of fsck's repair: `crates/nvfold/tests/deext.rs`"),
    (
        "chunk/fingerprints.rs",
        "make_invalid",
        "a mount with other fingerprint functions: `crates/nvfold/tests/nv_dedup.rs`",
    ),
    ("chunk/exact.rs", "set_exact", "a damaged entry in the wrong chain: `crates/nvfold/tests/fact.rs`"),
    ("dedup/nv_dedup/costs.rs", "measure_entry", "costs are measured with a stopwatch, which these mounts do not have"),
    ("dedup/nv_dedup/costs.rs", "measure_with", "as above; after a crash it leaves the same as a failed operation"),
    (
        "check/repair.rs",
        "repair",
        "fsck's repair: `crates/nvfold/tests/repair.rs` interrupts it at every point and runs it again",
    ),
    ("check/repair.rs", "write_entry", "as above"),
    ("check/repair.rs", "write_segment_table", "as above"),
    ("check/repair.rs", "mend_generators", "as above"),
    ("check/repair.rs", "make_root", "as above"),
    ("check/undo.rs", "restore", "undoing a repair, as above"),
    ("fs/repair.rs", "set_parent", "part of fsck's repair, as above"),
    ("store/release.rs", "give_back", "a hold that lost a race: `crates/nvfold/src/races/denova.rs`"),
    (
        "jobs/reclaim.rs",
        "drop_move",
        "bad memory: `crates/nvfold/tests/faults.rs`; a chunk that was moved meanwhile: `races/moves.rs`",
    ),
    (
        "inode/table.rs",
        "empty_old_log",
        "reuse of a slot whose freeing a crash interrupted: `crates/nvfold/tests/cut_off.rs`",
    ),
    (
        "inode/table.rs",
        "write_segment",
        "mkfs, which has a test of its own: `crates/nvfold/tests/cut_off.rs`; a table grows by `Space::write_table_part`",
    ),
    ("mount/mkfs.rs", "clear_tables", "mkfs, which has a test of its own: `crates/nvfold/tests/cut_off.rs`"),
    ("mount/mkfs.rs", "format", "mkfs, as above"),
    ("mount/mkfs.rs", "write_root", "mkfs, as above"),
];

#[test]
fn omitting_any_flush_or_fence_fails_a_test_or_has_a_stated_reason() {
    let seed = Seed::or_else("mutations", 1);
    let variable = |name| std::env::var(name).ok();
    let choice = Choice { subject: variable("NVFOLD_SUBJECT"), files: variable("NVFOLD_MUTATE") };
    let may_survive = |place: &Place, mutation| is_in(KEPT, place, mutation) || is_in(RARE, place, mutation);
    let outcome = mutation::try_all(&choice, seed.value(), may_survive);
    for verdict in &outcome.verdicts {
        let killed = verdict.killed_by.as_deref().unwrap_or("NOT KILLED");
        let (place, mutation, states) = (&verdict.place, verdict.mutation, verdict.states);
        println!("{place}, {mutation}, in {} recordings, {states} states: {killed}", verdict.recordings);
    }
    let killed = outcome.verdicts.iter().filter(|verdict| verdict.killed_by.is_some()).count();
    let states: u64 = outcome.verdicts.iter().map(|verdict| verdict.states).sum();
    let kept = outcome.verdicts.len() - killed;
    show(&format!("{killed} mutations killed, {kept} kept for a reason, in {states} crash states"));
    let table = table(&outcome);
    println!("{table}");
    if !choice.is_all() {
        println!("not reached: {:?}", outcome.unreached.keys().collect::<Vec<_>>());
        return;
    }
    assert_eq!(wrong(&outcome), Vec::<String>::new(), "what is killed, kept and reached is not what this file says");
    assert!(table == documented(), "docs/crash-consistency.md shows another table; this is it:\n{table}");
}

fn is(place: &Place, file: &str, function: &str, number: usize) -> bool {
    (&place.file[..], &place.function[..], place.number) == (file, function, number)
}

/// Returns whether a list contains a mutation of a place.
fn is_in(list: &[Reason], place: &Place, mutation: Mutation) -> bool {
    list.iter().any(|reason| is(place, reason.0, reason.1, reason.2) && reason.3 == mutation)
}

/// Returns survivors without a reason, and reasons for mutations that do not survive or do not exist; the same for
/// unreached functions.
fn wrong(outcome: &Outcome) -> Vec<String> {
    let survivors: BTreeSet<(&Place, Mutation)> = outcome
        .verdicts
        .iter()
        .filter(|verdict| verdict.killed_by.is_none())
        .map(|verdict| (&verdict.place, verdict.mutation))
        .collect();
    let mut wrong: Vec<String> = survivors
        .iter()
        .filter(|(place, mutation)| !is_in(KEPT, place, *mutation) && !is_in(RARE, place, *mutation))
        .map(|(place, mutation)| format!("{place}: {mutation} is not noticed"))
        .collect();
    for (file, function, number, mutation, _) in KEPT {
        if !survivors.iter().any(|(place, other)| is(place, file, function, *number) && other == mutation) {
            wrong.push(format!("{file} {function} {number}: {mutation} has a reason and needs none"));
        }
    }
    let listed: BTreeSet<(String, String)> =
        UNREACHED.iter().map(|(file, function, _)| (file.to_string(), function.to_string())).collect();
    let unreached: BTreeSet<(String, String)> = outcome.unreached.keys().cloned().collect();
    wrong.extend(unreached.difference(&listed).map(|(file, function)| format!("{file} {function}: not reached")));
    wrong.extend(listed.difference(&unreached).map(|(file, function)| format!("{file} {function}: reached")));
    wrong
}

/// Returns the table of the page.
fn table(outcome: &Outcome) -> String {
    let mut rows: BTreeMap<&Place, BTreeMap<Mutation, bool>> = BTreeMap::new();
    for verdict in &outcome.verdicts {
        rows.entry(&verdict.place).or_default().insert(verdict.mutation, verdict.killed_by.is_some());
    }
    let mut text = String::from("| place | drop flush | drop fence | swap |\n|---|---|---|---|\n");
    for (place, killed) in rows {
        let cell = |mutation| match killed.get(&mutation) {
            None => "",
            Some(_) if is_in(RARE, place, mutation) => "rare",
            Some(true) => "killed",
            Some(false) => "kept",
        };
        let cells = [Mutation::DropFlush, Mutation::DropFence, Mutation::Swap].map(cell).join(" | ");
        text.push_str(&format!("| {place} | {cells} |\n"));
    }
    let lists = [
        ("Missed by so few states that a sample may have none of them", RARE),
        ("Kept although nobody misses it", KEPT),
    ];
    for (head, list) in lists {
        text.push_str(&format!("\n{head}:\n\n"));
        for (file, function, number, mutation, why) in list {
            text.push_str(&format!("- `{file}` `{function}` {number}, {mutation}:\n  {why}\n"));
        }
    }
    text.push_str("\nNot in any recording of an operation or a recovery:\n\n");
    for (file, function, why) in UNREACHED {
        text.push_str(&format!("- `{file}` `{function}`:\n  {why}\n"));
    }
    text
}

fn documented() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/crash-consistency.md");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let after = text.split_once("<!-- mutations -->\n").expect("the page has a table of mutations").1;
    after.split_once("<!-- end of mutations -->").expect("the table ends").0.to_owned()
}
