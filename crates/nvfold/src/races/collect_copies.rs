//! Races on collecting what was shared with its origins (ICID): parts of blocks are moved while the files that use them
//! are read, written and copied, and while the file that they were copied from is overwritten and removed.

use super::*;

/// The policies that share data with what it was copied from.
const FOLLOWING: [Policy; 3] = [Policy::Icid, Policy::IcidInline, Policy::IcidDeExt];

/// Length of the source, in bytes.
const SOURCE: usize = 2 * BLOCK;
/// Offset in the source and length of each copy: a part of one block, and parts of two.
const COPIED: [(usize, usize); 2] = [(1000, 700), (3000, 2500)];

/// Returns bytes that are other ones at each place, and for each number.
fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + number * 101) as u8).collect()
}

/// Writes a part of a file to another one, with the first as the origin; returns it. A part that is not there any more is
/// shorter.
fn copy(source: &File, start: usize, length: usize, target: &File, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    let read = source.read_at(start as u64, &mut bytes).unwrap();
    bytes.truncate(read);
    let origin = Origin { at: 0, length: read as u64, source, source_offset: start as u64 };
    target.write_at_from(offset, &bytes, &[origin]).unwrap();
    bytes
}

/// A source, and copies of parts of it that share its bytes.
struct Copies {
    device: Device,
    source: File,
    copies: [File; 2],
}

impl Copies {
    fn new(policy: Policy) -> Copies {
        let device = Device::with(MountOptions { policy, cores: 4, ..MountOptions::default() });
        let source = device.file("source");
        source.write_at(0, &content(1, SOURCE)).unwrap();
        let copies = ["a", "b"].map(|name| device.file(name));
        for ((start, length), target) in COPIED.into_iter().zip(&copies) {
            copy(&source, start, length, target, 0);
        }
        let shared = device.fs.stats().origins.shared_bytes;
        assert_eq!(shared, COPIED.iter().map(|(_, length)| *length as u64).sum::<u64>(), "{policy:?}");
        Copies { device, source, copies }
    }

    /// As `new`, with a source whose name is gone. It is not open any more.
    fn without_source(policy: Policy) -> (Device, [File; 2]) {
        let Copies { device, source, copies } = Copies::new(policy);
        drop(source);
        device.fs.unlink(ROOT, b"source").unwrap();
        (device, copies)
    }

    fn expected(copy: usize) -> Vec<u8> {
        let (start, length) = COPIED[copy];
        content(1, SOURCE)[start..start + length].to_vec()
    }
}

/// Collects the rest. In every schedule something of the source lives in a copy, and the rest of its chunk is dead.
fn settle(device: Device) {
    reclaim(&device.fs);
    assert!(device.fs.stats().reclaim.collected_chunks > 0, "nothing was collected");
    while !device.fs.fill_step().unwrap() {}
    device.settle();
}

#[test]
fn copies_are_read_while_their_source_dies_and_their_bytes_are_collected() {
    for policy in FOLLOWING {
        explore(move || {
            let Copies { device, source, copies } = Copies::new(policy);
            let (read, fs, other) = (copies.clone(), device.fs.clone(), device.file("other"));
            race([
                task(move || {
                    for _ in 0..2 {
                        (0..2).for_each(|copy| assert!(seen(&read[copy]) == Copies::expected(copy)));
                    }
                }),
                task(move || {
                    source.write_at(0, &content(2, BLOCK)).unwrap();
                    drop(source);
                    fs.unlink(ROOT, b"source").unwrap();
                    // What the source leaves gets other bytes as soon as it is free.
                    other.write_at(0, &content(3, SOURCE)).unwrap();
                }),
                reclaims(&device),
            ]);
            (0..2).for_each(|copy| assert!(seen(&copies[copy]) == Copies::expected(copy)));
            drop(copies);
            settle(device);
        });
    }
}

/// The writer comes before the marks of the collection, between them and the move, or after it.
#[test]
fn a_copy_is_written_while_its_bytes_are_collected() {
    for policy in FOLLOWING {
        explore(move || {
            let (device, copies) = Copies::without_source(policy);
            let (written, read, from) = (copies[1].clone(), copies[1].clone(), device.file("from"));
            from.write_at(0, &content(4, BLOCK)).unwrap();
            let mut after = Copies::expected(1);
            after[600..700].copy_from_slice(&content(5, 100));
            let between = after.clone();
            after[1000..1500].copy_from_slice(&content(4, BLOCK)[..500]);
            let states = [Copies::expected(1), between, after.clone()];
            race([
                task(move || {
                    written.write_at(600, &content(5, 100)).unwrap();
                    copy(&from, 0, 500, &written, 1000);
                }),
                task(move || {
                    let mut last = 0;
                    for _ in 0..3 {
                        let seen = seen(&read);
                        let now = states.iter().position(|state| *state == seen).expect("one of the states");
                        assert!(now >= last, "an older state came back");
                        last = now;
                    }
                }),
                reclaims(&device),
            ]);
            assert!(seen(&copies[0]) == Copies::expected(0));
            assert!(seen(&copies[1]) == after);
            drop(copies);
            settle(device);
        });
    }
}

/// The bytes that are to be shared die, move, or are written over, after they were compared and before they are shared.
#[test]
fn a_source_dies_while_it_is_copied_and_its_bytes_are_collected() {
    for policy in FOLLOWING {
        explore(move || {
            let Copies { device, source, copies } = Copies::new(policy);
            let (target, fs) = (device.file("target"), device.fs.clone());
            let (of_copy, written) = ((source.clone(), target.clone()), source);
            race([
                task(move || {
                    let bytes = copy(&of_copy.0, 500, 5000, &of_copy.1, 10);
                    assert!(seen(&of_copy.1)[10..] == bytes, "bytes of somebody else");
                }),
                task(move || {
                    written.write_at(0, &content(2, SOURCE)).unwrap();
                    fs.unlink(ROOT, b"source").unwrap();
                }),
                reclaims(&device),
            ]);
            let copied = seen(&target);
            assert!([1, 2].iter().any(|number| copied[10..] == content(*number, SOURCE)[500..5500]));
            (0..2).for_each(|copy| assert!(seen(&copies[copy]) == Copies::expected(copy)));
            drop((target, copies));
            settle(device);
        });
    }
}

/// A copy is made of what the collection moves: its references are taken on the old chunk or on the new one, and neither
/// is freed too early or kept.
#[test]
fn a_copy_is_copied_cut_and_removed_while_its_bytes_are_collected() {
    for policy in FOLLOWING {
        explore(move || {
            let (device, copies) = Copies::without_source(policy);
            let (target, fs) = (device.file("target"), device.fs.clone());
            let (first, second, to) = (copies[0].clone(), copies[1].clone(), target.clone());
            race([
                task(move || {
                    assert!(copy(&second, 100, 2000, &to, 0) == Copies::expected(1)[100..2100]);
                    second.set_len(300).unwrap();
                }),
                task(move || {
                    drop(first);
                    fs.unlink(ROOT, b"a").unwrap();
                }),
                reclaims(&device),
            ]);
            assert!(seen(&target) == Copies::expected(1)[100..2100]);
            assert!(seen(&copies[0]) == Copies::expected(0));
            assert!(seen(&copies[1]) == Copies::expected(1)[..300]);
            drop((target, copies));
            settle(device);
        });
    }
}
