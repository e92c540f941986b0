//! Images that were made to harm who reads them: every command is tried on each.
//!
//! `tests/src/hostile/commands.rs` says what a command may do. The images are made by hand (`hostile/made.rs`), or are
//! valid ones with random damage whose checksums are right again (`hostile/damage.rs`). `NVFOLD_SOAK` tries so many times
//! as many of the latter.

use nvfold_tests::hostile::commands::{Trial, Worst};
use nvfold_tests::hostile::damage::{self, RECORD_BYTES};
use nvfold_tests::hostile::image::{self, KINDS};
use nvfold_tests::hostile::made;
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use nvfold_tests::slate::Content;

/// Images with random damage in `make test`: one of each kind.
const DAMAGED: usize = KINDS.len();

/// Tries all commands on an image; adds what they took, or why one failed.
fn try_on(name: &str, content: &Content, worst: &mut Worst, failures: &mut Vec<String>) {
    match Trial::new(name, content).run() {
        Ok(took) => worst.add(took),
        Err(why) => failures.push(why),
    }
}

#[track_caller]
fn judge(worst: &Worst, failures: &[String]) {
    eprintln!("{}", worst.told());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn every_command_handles_forged_images_within_limits() {
    requires!(tool("bash"), tool("unshare"));
    let (mut worst, mut failures) = (Worst::default(), Vec::new());
    made::all().iter().for_each(|made| try_on(made.name, &made.content, &mut worst, &mut failures));
    judge(&worst, &failures);
}

#[test]
fn every_command_handles_a_tree_of_sixty_thousand_levels() {
    requires!(tool("bash"), tool("unshare"));
    let (mut worst, mut failures) = (Worst::default(), Vec::new());
    try_on("a tree of 60,000 levels", &made::deep_tree(), &mut worst, &mut failures);
    judge(&worst, &failures);
}

#[test]
fn every_command_handles_damaged_images_within_limits() {
    requires!(tool("bash"), tool("unshare"));
    let seed = Seed::new("images with random damage for all commands");
    let mut random = seed.generator();
    let (mut worst, mut failures) = (Worst::default(), Vec::new());
    for number in 0..DAMAGED * soak_factor() as usize {
        let image = image::image(KINDS[number % KINDS.len()]);
        let mut records = vec![0; RECORD_BYTES * random.usize(1..4)];
        random.fill(&mut records);
        let (content, done) = damage::apply(image, &damage::read(&records));
        let name = format!("{:?}: {}", image.kind, done.join("; "));
        try_on(&name, &content, &mut worst, &mut failures);
    }
    judge(&worst, &failures);
}
