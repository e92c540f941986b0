//! Races on collecting: partly live chunks are replaced while files that reference them are read, cloned, written and
//! removed.

use super::*;

/// Offset in the block of the range that the clones reference, in bytes; below, the range's length.
const START: u64 = 1000;
const LENGTH: usize = 700;

fn options() -> MountOptions {
    MountOptions { policy: Policy::Inline, cores: 4, ..MountOptions::default() }
}

/// Makes a device with two clones of a part of a block whose file was removed.
fn device(index: IndexKind) -> (Device, [File; 2]) {
    let mkfs = MkfsOptions { index, ..MkfsOptions::default() };
    let device = Device::made(&mkfs, options());
    let source = device.file("source");
    source.write_at(0, &[7; BLOCK]).unwrap();
    let clones = ["a", "b"].map(|name| device.file(name));
    clones
        .iter()
        .for_each(|clone| assert_eq!(clone.clone_from(&source, START, 0, LENGTH as u64).unwrap(), LENGTH as u64));
    drop(source);
    device.fs.unlink(ROOT, b"source").unwrap();
    (device, clones)
}

fn settle(device: Device, clones: [File; 2]) {
    drop(clones);
    reclaim(&device.fs);
    device.settle();
}

#[test]
fn a_clone_is_read_while_its_bytes_are_collected() {
    explore(|| {
        let (device, clones) = device(IndexKind::Dram);
        let read = clones[0].clone();
        let other = device.file("other");
        race([
            task(move || (0..4).for_each(|_| assert_eq!(seen(&read), [7; LENGTH]))),
            // This write takes the block of the source as soon as it is free.
            task(move || other.write_at(0, &[9; BLOCK]).map(drop).unwrap()),
            reclaims(&device),
        ]);
        clones.iter().for_each(|clone| assert_eq!(seen(clone), [7; LENGTH]));
        assert_eq!(device.fs.stats().reclaim.collected_chunks, 1);
        settle(device, clones);
    });
}

#[test]
fn a_clone_is_cloned_cut_and_removed_while_its_bytes_are_collected() {
    for index in IndexKind::ALL {
        explore(move || {
            let (device, clones) = device(index);
            let (first, copy, second) = (clones[0].clone(), device.file("copy"), clones[1].clone());
            let (kept, fs) = (copy.clone(), device.fs.clone());
            race([
                task(move || {
                    assert_eq!(copy.clone_from(&first, 100, 50, 500).unwrap(), 500);
                    fs.unlink(ROOT, b"a").unwrap();
                }),
                task(move || {
                    second.set_len(300).unwrap();
                    second.write_at(100, &[3; 100]).unwrap();
                }),
                reclaims(&device),
            ]);
            assert_eq!(seen(&kept), [vec![0; 50], vec![7; 500]].concat());
            assert_eq!(seen(&clones[0]), [7; LENGTH]);
            assert_eq!(seen(&clones[1]), [vec![7; 100], vec![3; 100], vec![7; 100]].concat());
            drop(kept);
            settle(device, clones);
        });
    }
}

/// Two threads collect at once, while an equal block is written and shared with the chunk that is being replaced.
#[test]
fn an_equal_block_is_written_while_two_threads_collect() {
    explore(|| {
        let (device, clones) = device(IndexKind::Dram);
        let equal = device.file("equal");
        let again = equal.clone();
        race([task(move || equal.write_at(0, &[7; BLOCK]).map(drop).unwrap()), reclaims(&device), reclaims(&device)]);
        assert_eq!(seen(&again), [7; BLOCK]);
        clones.iter().for_each(|clone| assert_eq!(seen(clone), [7; LENGTH]));
        drop(again);
        settle(device, clones);
    });
}

/// Two blocks go to one file by parts, in turn, and their files are removed: the file alone maps them.
fn device_with_parts(index: IndexKind) -> (Device, File, Vec<u8>) {
    let device = Device::made(&MkfsOptions { index, ..MkfsOptions::default() }, options());
    let sources = ["one", "other"].map(|name| device.file(name));
    sources.iter().zip([1, 2]).for_each(|(source, byte)| source.write_at(0, &[byte; BLOCK]).unwrap());
    let (parts, mut content) = (device.file("parts"), Vec::new());
    for at in 0..8 {
        let source = &sources[at % 2];
        assert_eq!(parts.clone_from(source, 300 * at as u64, content.len() as u64, 200).unwrap(), 200);
        content.extend([1 + (at % 2) as u8; 200]);
    }
    drop(sources);
    ["one", "other"].iter().for_each(|name| device.fs.unlink(ROOT, name.as_bytes()).unwrap());
    (device, parts, content)
}

/// While the parts of a file are gathered it is read, cloned and written to, and blocks that become free are taken.
#[test]
fn a_file_is_read_cloned_and_written_while_its_parts_are_gathered() {
    for index in IndexKind::ALL {
        explore(move || {
            let (device, parts, content) = device_with_parts(index);
            let (read, cloned, written, copy) = (parts.clone(), parts.clone(), parts.clone(), device.file("copy"));
            let (kept, other, expected) = (copy.clone(), device.file("other"), content.clone());
            race([
                task(move || (0..3).for_each(|_| assert_eq!(seen(&read)[..1000], expected[..1000]))),
                task(move || {
                    assert_eq!(copy.clone_from(&cloned, 0, 0, 1000).unwrap(), 1000);
                    other.write_at(0, &[9; BLOCK]).unwrap();
                }),
                task(move || written.write_at(1100, &[3; 100]).map(drop).unwrap()),
                reclaims(&device),
            ]);
            assert_eq!(seen(&kept), content[..1000]);
            assert_eq!(seen(&parts), [&content[..1100], &[3; 100], &content[1200..]].concat());
            drop(kept);
            reclaim(&device.fs);
            assert_eq!(seen(&parts), [&content[..1100], &[3; 100], &content[1200..]].concat());
            drop(parts);
            device.settle();
        });
    }
}
