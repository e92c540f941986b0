//! The recorder of a region: what it logs, and that its crash images catch what they are for.

use pmem::{Action, DeviceSpec, OpenOptions, PendingWord, Recording, Region, Replay, StoreOrder};
use proptest::prelude::*;

const DEVICE_BYTES: u64 = 8192;

fn recorded() -> Region {
    let options = OpenOptions { record: true, ..OpenOptions::default() };
    Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &options).unwrap()
}

#[test]
fn all_stores_to_media_are_recorded_in_sequence() {
    let region = recorded();
    let _ = region.write(60, &[1u8; 8]).flush();
    let _ = region.stream(128, &[2; 1024]);
    let _ = region.store_u64(8, 3);
    assert!(region.compare_exchange_u64(8, 4, 5).is_err());
    let _ = region.compare_exchange_u128(16, 0, 6);
    region.fence(());
    region.punch(0, 4096).unwrap();
    region.settle_holes().unwrap();
    let recording = region.take_recording();
    let names: Vec<_> = recording
        .events
        .iter()
        .map(|event| match &event.action {
            Action::Store { offset, bytes, .. } => ("store", *offset, bytes.len() as u64),
            Action::Stream { offset, bytes } => ("stream", *offset, bytes.len() as u64),
            Action::Flush { offset, length } => ("flush", *offset, *length),
            Action::Fence => ("fence", 0, 0),
            Action::Punch { offset, length } => ("punch", *offset, *length),
            Action::SettleHoles => ("settle holes", 0, 0),
        })
        .collect();
    let expected = [
        ("store", 60, 8),
        ("flush", 60, 8),
        ("stream", 128, 1024),
        ("store", 8, 8),
        ("store", 16, 16),
        ("fence", 0, 0),
        ("punch", 0, 4096),
        ("settle holes", 0, 0),
    ];
    assert_eq!(names, expected);
    let here = recording.events.iter().all(|event| event.site.file().ends_with("recorder.rs"));
    assert!(here && recording.events[0].site.line() == recording.events[1].site.line(), "sites are those of callers");
    assert!(region.equal(128, &[0; 1024]), "memory that was given back reads as zeros");
    assert_eq!(region.recording(), Some(Recording::default()));
}

#[test]
fn a_region_without_a_recorder_keeps_no_log() {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    let _ = region.store_u64(0, 1);
    assert_eq!(region.recording(), None);
    assert!(region.take_recording().events.is_empty());
}

/// Whether some crash state has the commit word without all of the data it stands for.
fn can_break(recording: &Recording) -> bool {
    let mut replay = Replay::new(&[0; DEVICE_BYTES as usize]);
    (0..=recording.events.len()).any(|events| {
        replay.advance(recording, events);
        // One word at a time missing, and one at a time there: enough to tear any pair.
        (0..replay.unguaranteed().len()).any(|odd| {
            [true, false].into_iter().any(|others| {
                let mut at = 0;
                let image = replay.image(StoreOrder::AnyWord, |_: &PendingWord| {
                    at += 1;
                    (at - 1 == odd) != others
                });
                image[0] == 1 && image[4096..8192] != [7; 4096]
            })
        })
    })
}

#[test]
fn a_commit_after_a_fence_holds_in_every_crash_and_one_without_a_fence_does_not() {
    let ordered = recorded();
    let data = ordered.fence(ordered.stream(4096, &[7; 4096]));
    let _ = ordered.fence(ordered.store_u64(0, data.ptr().offset() / 4096).flush());
    assert!(!can_break(&ordered.take_recording()));

    let unordered = recorded();
    let data = unordered.stream(4096, &[7; 4096]);
    let commit = unordered.store_u64(0, 1).flush();
    let _ = unordered.fence((data, commit));
    assert!(can_break(&unordered.take_recording()), "the missing fence must show");
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    WriteAndFlush(u64, Vec<u8>),
    Stream(u64, Vec<u8>),
    Word(u64, u64),
    Fence,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..1500);
    prop_oneof![
        (0..6000u64, bytes()).prop_map(|(offset, bytes)| Step::Write(offset, bytes)),
        (0..6000u64, bytes()).prop_map(|(offset, bytes)| Step::WriteAndFlush(offset, bytes)),
        (0..6000u64, bytes()).prop_map(|(offset, bytes)| Step::Stream(offset, bytes)),
        (0..1000u64, any::<u64>()).prop_map(|(word, value)| Step::Word(word * 8, value)),
        Just(Step::Fence),
    ]
}

fn run(region: &Region, step: &Step) {
    match step {
        Step::Write(offset, bytes) => drop(region.write(*offset, &bytes[..])),
        Step::WriteAndFlush(offset, bytes) => drop(region.write(*offset, &bytes[..]).flush()),
        Step::Stream(offset, bytes) => drop(region.stream(*offset, bytes)),
        Step::Word(offset, value) => drop(region.store_u64(*offset, *value)),
        Step::Fence => region.fence(()),
    }
}

proptest! {
    #[test]
    fn a_crash_image_lies_between_what_is_guaranteed_and_what_was_stored(
        steps in proptest::collection::vec(step(), 0..20),
        choice: u64,
    ) {
        let region = recorded();
        steps.iter().for_each(|step| run(&region, step));
        let stored = region.to_vec(0, DEVICE_BYTES);
        let recording = region.recording().unwrap();
        let base = vec![0; DEVICE_BYTES as usize];
        let image = |reached: &mut dyn FnMut(&PendingWord) -> bool, order| {
            recording.image(&base, recording.events.len(), order, reached)
        };
        for order in [StoreOrder::AnyWord, StoreOrder::Line] {
            prop_assert_eq!(&image(&mut |_| true, order), &stored, "all of it reached the media");
            let guaranteed = image(&mut |_| false, order);
            let some = image(&mut |word| choice >> (word.offset / 8 % 64) & 1 == 1, order);
            let words = guaranteed.chunks(8).zip(stored.chunks(8)).zip(some.chunks(8)).enumerate();
            let pending: std::collections::HashSet<u64> =
                recording.unguaranteed(recording.events.len()).iter().map(|word| word.offset / 8).collect();
            for (number, ((guaranteed, stored), some)) in words {
                prop_assert!(pending.contains(&(number as u64)) || (guaranteed == stored && some == stored), "{number}");
            }
        }
        // A flush of everything and a fence leave nothing open.
        let _ = region.fence(region.write(0, &stored[..]).flush());
        let recording = region.take_recording();
        prop_assert!(recording.unguaranteed(recording.events.len()).is_empty());
        prop_assert_eq!(recording.image(&base, recording.events.len(), StoreOrder::AnyWord, |_| false), stored);
    }
}
