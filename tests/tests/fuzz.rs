//! The fuzz targets without a fuzzer: the same functions, on random input that shrinks.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvfold::Policy;
use nvfold::check::{CheckOptions, check};
use nvfold::media::journal::{JournalSlot, WordStore};
use nvfold::media::segment::SegmentEntry;
use nvfold::media::superblock::{COPIES, Geometry, Superblock};
use nvfold_tests::hostile::{self, image, image::Kind};
use nvfold_tests::model::script;
use nvfold_tests::random::soak_factor;
use nvfold_tests::slate::{Content, Slate};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use zerocopy::{FromBytes, IntoBytes};

/// How long one case may take, many times what any needs.
const HANG: Duration = Duration::from_secs(60);

/// Failing inputs are kept beside the test and tried first; `NVFOLD_SOAK` makes the run longer.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/fuzz.regressions");
    ProptestConfig {
        cases: cases * soak_factor() as u32,
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(9000))]

    #[test]
    fn operation_sequences_answer_as_the_model_does(
        head in any::<[u8; script::HEAD_BYTES]>(),
        records in vec(any::<[u8; script::RECORD_BYTES]>(), 1..60),
    ) {
        watched(|| script::run(&[&head[..], records.as_flattened()].concat()));
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn fsck_mount_and_repair_agree_on_damaged_images(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        records in vec(any::<[u8; hostile::damage::RECORD_BYTES]>(), 1..4),
    ) {
        watched(|| hostile::run_damaged(&[&head[..], records.as_flattened()].concat()));
    }

    #[test]
    fn fsck_mount_and_repair_agree_on_images_that_were_written_over(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        written in vec((any::<[u8; 3]>(), vec(any::<u8>(), 0..20)), 1..8),
    ) {
        let records = written.iter().map(|(at, bytes)| [&at[..], &[bytes.len() as u8], bytes].concat());
        let bytes = [&head[..], &records.collect::<Vec<_>>().concat()].concat();
        watched(|| hostile::run_arbitrary(&bytes));
    }
}

#[test]
fn every_seed_of_the_corpora_holds() {
    for (target, run) in [
        ("operations", script::run as fn(&[u8])),
        ("damaged_image", hostile::run_damaged),
        ("arbitrary_image", hostile::run_arbitrary),
    ] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let seeds: Vec<_> = std::fs::read_dir(&directory).expect("the seeds are checked in").collect();
        assert!(seeds.len() >= 50, "{} seeds of {target}", seeds.len());
        for seed in seeds {
            let bytes = std::fs::read(seed.expect("an entry").path()).expect("read a seed");
            watched(|| run(&bytes));
        }
    }
}

/// Runs one case. One that does not end is no failure that a test could report: it ends the process.
fn watched(case: impl FnOnce()) {
    let (done, ended) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a case is still not done after {HANG:?}; proptest prints its seed with PROPTEST_VERBOSE=2");
            std::process::abort();
        }
    });
    case();
    drop(done);
    watch.join().expect("the watch ends with the case");
}

// --- what was found ------------------------------------------------------------------------------

fn damaged(kind: Kind, damage: impl FnOnce(&Geometry, &mut Content)) -> Content {
    let mut content = image::image(kind).content.clone();
    let geometry = Geometry::of(content.len_bytes()).expect("a size that can be formatted");
    damage(&geometry, &mut content);
    content
}

fn edit_superblocks(content: &mut Content, change: impl Fn(&mut Superblock)) {
    for at in COPIES {
        let bytes = content.read(at, size_of::<Superblock>() as u64);
        let mut superblock = Superblock::read_from_bytes(&bytes).expect("a superblock's bytes");
        change(&mut superblock);
        content.write(at, superblock.sealed().as_bytes());
    }
}

#[track_caller]
fn assert_agreed(content: &Content) {
    if let Err(why) = hostile::try_device(content, Policy::Inline) {
        panic!("{why}");
    }
}

/// The entry is two words: a crash in the growth of the inode table may leave one of them. Mounting did not clear it,
/// and fsck found it after the next unmount.
#[test]
fn half_a_segment_entry_is_gone_after_the_next_mount() {
    for segment in 2..8 {
        assert_agreed(&damaged(Kind::Crashed, |geometry, content| {
            content.write(geometry.segment_entry_offset(segment), &SegmentEntry::inodes(segment, 1).as_bytes()[..8]);
        }));
    }
}

/// fsck looked at the words that operations store, recovery stored all.
#[test]
fn a_journal_with_a_word_that_no_operation_stores_is_named_and_refused() {
    let slot = image::image(Kind::Crashed).inodes()[0].at;
    for word in (0..512).step_by(8) {
        let content = damaged(Kind::Crashed, |geometry, content| {
            let journal = JournalSlot::new(&[WordStore { offset: slot + word, value: 0 }]);
            content.write(geometry.journal_slot_offset(3), journal.as_bytes());
        });
        assert_agreed(&content);
    }
}

#[test]
fn the_count_of_mounts_may_run_over() {
    assert_agreed(&damaged(Kind::Small, |_, content| {
        edit_superblocks(content, |superblock| superblock.mount_epoch = u64::MAX);
    }));
}

/// fsck wrote superblocks without knowing what their flags ask of writers, and called the device repaired.
#[test]
fn repair_keeps_off_a_device_with_features_that_writers_must_know() {
    let content = damaged(Kind::CutOff, |_, content| {
        edit_superblocks(content, |superblock| superblock.read_only_compatible = 1 << 40);
        content.write(COPIES[1] + 100, &[0xff]);
    });
    assert_agreed(&content);
    let region = Slate::new(content.len_bytes()).with(&content);
    let repaired = check(&region, &CheckOptions { repair: true, data: true });
    assert!(matches!(repaired, Err(nvfold::Error::Newer { .. })), "{repaired:?}");
    assert_eq!(Content::of(&region), content);
}
