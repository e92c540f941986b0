//! Races on writes with origins (ICID): their sources are written, cut, removed and moved meanwhile, and other
//! threads copy in the opposite direction.

use super::*;

/// Length of the copied data, in bytes: more than a block, and not a multiple of one.
const LENGTH: usize = 5000;

fn content(byte: u8) -> [u8; LENGTH] {
    std::array::from_fn(|at| byte.wrapping_add((at / 7) as u8))
}

fn device(policy: Policy) -> Device {
    Device::with(MountOptions { policy, cores: 4, ..MountOptions::default() })
}

/// Reads a file, changes one byte, and writes the bytes to another file with the first as origin; returns them.
fn copy(source: &File, target: &File, offset: u64) -> Vec<u8> {
    let mut bytes = seen(source);
    if let Some(byte) = bytes.get_mut(100) {
        *byte ^= 0x55;
    }
    let origin = Origin { at: 0, length: bytes.len() as u64, source, source_offset: 0 };
    target.write_at_from(offset, &bytes, &[origin]).unwrap();
    bytes
}

fn settle(device: Device) {
    while !device.fs.fill_step().unwrap() {}
    device.settle();
}

#[test]
fn copied_data_equals_the_read_data_while_its_source_is_written() {
    explore(|| {
        let device = device(Policy::Icid);
        let (a, b, other) = (device.file("a"), device.file("b"), device.file("other"));
        a.write_at(0, &content(1)).unwrap();
        let (source, target, written, again) = (a.clone(), b.clone(), a.clone(), other.clone());
        race([
            task(move || {
                let bytes = copy(&source, &target, 0);
                assert!(seen(&target) == bytes, "bytes of somebody else");
            }),
            task(move || {
                written.write_at(0, &content(2)).unwrap();
                // The freed blocks get other bytes.
                again.write_at(0, &content(3)).unwrap();
            }),
        ]);
        let mut copies = [content(1), content(2)];
        copies.iter_mut().for_each(|bytes| bytes[100] ^= 0x55);
        assert!(copies.iter().any(|bytes| seen(&b) == bytes));
        assert_eq!((seen(&a), seen(&other)), (content(2).to_vec(), content(3).to_vec()));
        drop((a, b, other));
        settle(device);
    });
}

#[test]
fn copied_data_survives_truncation_and_removal_of_its_source() {
    explore(|| {
        let device = device(Policy::Icid);
        let (a, b, other) = (device.file("a"), device.file("b"), device.file("other"));
        a.write_at(0, &content(1)).unwrap();
        let (fs, source, target, cut, again) = (device.fs.clone(), a.clone(), b.clone(), a, other.clone());
        race([
            task(move || {
                let mut bytes = seen(&source);
                let origin = Origin { at: 0, length: LENGTH as u64, source: &source, source_offset: 0 };
                target.append_from(&bytes, &[origin]).unwrap();
                bytes.splice(0..0, []);
                assert!(seen(&target) == bytes);
            }),
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                cut.set_len(10).unwrap();
                drop(cut);
                again.write_at(0, &content(3)).unwrap();
            }),
        ]);
        let copied = seen(&b);
        assert!(copied == content(1) || copied == content(1)[..10], "{} bytes", copied.len());
        assert_eq!(seen(&other), content(3));
        drop((b, other));
        settle(device);
    });
}

#[test]
fn two_writers_copy_from_one_source() {
    explore(|| {
        let device = device(Policy::IcidInline);
        let (a, b, c) = (device.file("a"), device.file("b"), device.file("c"));
        a.write_at(0, &content(1)).unwrap();
        let (of_b, of_c) = ((a.clone(), b.clone()), (a.clone(), c.clone()));
        race([task(move || copy(&of_b.0, &of_b.1, 3)), task(move || copy(&of_c.0, &of_c.1, 0))]);
        let mut copied = content(1);
        copied[100] ^= 0x55;
        assert_eq!((seen(&b)[3..].to_vec(), seen(&c)), (copied.to_vec(), copied.to_vec()));
        let stats = device.fs.stats().origins;
        assert_eq!((stats.shared_bytes, stats.changed), (2 * (LENGTH as u64 - 1), 0));
        drop((a, b, c));
        settle(device);
    });
}

#[test]
fn two_files_are_copied_to_each_other_and_within() {
    explore(|| {
        let device = device(Policy::Icid);
        let (a, b) = (device.file("a"), device.file("b"));
        a.write_at(0, &content(1)).unwrap();
        b.write_at(0, &content(9)).unwrap();
        let (one, two, within) = ((a.clone(), b.clone()), (b.clone(), a.clone()), a.clone());
        race([
            task(move || copy(&one.0, &one.1, 0)),
            task(move || copy(&two.0, &two.1, 0)),
            task(move || copy(&within, &within, 50)),
        ]);
        assert!(seen(&a).len() >= LENGTH && seen(&b).len() >= LENGTH);
        drop((a, b));
        settle(device);
    });
}

#[test]
fn a_source_moves_while_it_is_copied() {
    explore(|| {
        let options = MountOptions { policy: Policy::IcidDeExt, cores: 4, ..MountOptions::default() };
        let Device { region, fs } = Device::made(&MkfsOptions::default(), options.clone());
        let device = Device { region: region.clone(), fs };
        device.file("a").write_at(0, &content(1)).unwrap();
        // A crash, after which the segment of the chunk is closed.
        drop(device);
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        fs.reconcile().unwrap();
        let device = Device { region, fs };
        let a = device.fs.open(device.fs.lookup(ROOT, b"a").unwrap().ino).unwrap();
        let b = device.file("b");
        let (source, target, fs) = (a.clone(), b.clone(), device.fs.clone());
        race([task(move || copy(&source, &target, 0)), task(move || while !fs.reclaim_step(Victims::All).unwrap() {})]);
        let mut copied = content(1);
        copied[100] ^= 0x55;
        assert_eq!((seen(&a), seen(&b)), (content(1).to_vec(), copied.to_vec()));
        drop((a, b));
        (0..8).for_each(|_| while !device.fs.reclaim_step(Victims::All).unwrap() {});
        settle(device);
    });
}
