//! Races between the daemon of policy `denova` and threads that read, write, clone, cut and remove the files it works
//! on. When all are done and the queue is empty, all equal blocks must be shared.

use super::*;
use std::collections::HashSet;

/// Runs a test on a device in mode immediate, with files of these blocks.
fn explore_with(
    index: IndexKind,
    files: &'static [(&'static str, &'static [u8])],
    test: impl Fn(&Device, Vec<File>) + Send + Sync + 'static,
) {
    explore(move || {
        let device = device(index);
        let made = files.iter().map(|(name, bytes)| {
            let file = device.file(name);
            let write = |(at, byte): (usize, &u8)| file.write_at((at * BLOCK) as u64, &block(*byte)).unwrap();
            bytes.iter().enumerate().for_each(write);
            file
        });
        let made = made.collect();
        test(&device, made);
        device.settle();
    });
}

fn options() -> MountOptions {
    MountOptions { policy: Policy::DeNova, cores: 4, ..MountOptions::default() }
}

fn device(index: IndexKind) -> Device {
    Device::made(&MkfsOptions { index, ..MkfsOptions::default() }, options())
}

fn drain(fs: &FileSystem) {
    while !fs.drain_step().unwrap() {}
}

/// Asserts that nothing is left to share: the number of stored blocks is that of distinct contents.
fn shares_all(fs: &FileSystem, files: &[&File]) {
    drain(fs);
    let contents: Vec<Vec<u8>> = files.iter().map(|file| content(file)).collect();
    let distinct: HashSet<&[u8]> = contents.iter().flat_map(|bytes| bytes.chunks(BLOCK)).collect();
    assert_eq!(fs.stats().data_blocks, distinct.len() as u64);
}

#[test]
fn a_file_is_shared_while_it_is_read_and_overwritten() {
    explore_with(IndexKind::Dram, &[("a", &[1, 2]), ("b", &[2, 1])], |device, files| {
        let [a, b] = &files[..] else { unreachable!() };
        let (fs, reader, writer) = (device.fs.clone(), b.clone(), b.clone());
        race([
            task(move || drain(&fs)),
            task(move || {
                let seen = content(&reader);
                assert!(seen == [block(2), block(1)].concat() || seen == [block(3), block(1)].concat());
            }),
            task(move || writer.write_at(0, &block(3)).unwrap()),
        ]);
        assert_eq!((content(a), content(b)), ([block(1), block(2)].concat(), [block(3), block(1)].concat()));
        shares_all(&device.fs, &[a, b]);
    });
}

/// The block that the daemon is about to share loses its references.
#[test]
fn a_block_loses_its_references_while_the_daemon_shares_it() {
    explore_with(IndexKind::Dram, &[("a", &[1]), ("b", &[1])], |device, files| {
        let [a, b] = &files[..] else { unreachable!() };
        device.fs.drain_step().unwrap();
        let (fs, writer, remover) = (device.fs.clone(), a.clone(), device.fs.clone());
        race([
            task(move || drain(&fs)),
            task(move || writer.write_at(0, &block(7)).unwrap()),
            task(move || remover.unlink(ROOT, b"a").unwrap()),
        ]);
        assert_eq!((content(a), content(b)), (block(7).to_vec(), block(1).to_vec()));
        shares_all(&device.fs, &[a, b]);
    });
}

#[test]
fn a_file_is_shared_while_it_is_removed_and_its_blocks_are_used_again() {
    explore_with(IndexKind::Pm, &[("a", &[1]), ("b", &[1, 2])], |device, mut files| {
        let (b, a) = (files.pop().unwrap(), files.pop().unwrap());
        let (fs, remover, writer) = (device.fs.clone(), device.fs.clone(), a.clone());
        race([
            task(move || drain(&fs)),
            task(move || {
                drop(b);
                remover.unlink(ROOT, b"b").unwrap();
            }),
            task(move || writer.append(&block(2)).unwrap()),
        ]);
        assert_eq!(content(&a), [block(1), block(2)].concat());
        shares_all(&device.fs, &[&a]);
    });
}

/// A block that waits to be released is found, released and written over at the same time.
#[test]
fn a_block_is_found_while_it_is_released_late() {
    explore(|| {
        let mkfs = MkfsOptions { index: IndexKind::Pm, ..MkfsOptions::default() };
        let device = Device::made(&mkfs, MountOptions { policy: Policy::Inline, ..options() });
        let [a, b, c] = ["a", "b", "c"].map(|name| device.file(name));
        a.write_at(0, &block(1)).unwrap();
        a.write_at(0, &block(2)).unwrap();
        let (fs, finds, takes) = (device.fs.clone(), b.clone(), c.clone());
        race([
            task(move || _ = fs.statfs()),
            task(move || finds.write_at(0, &block(1)).unwrap()),
            task(move || takes.write_at(0, &block(3)).unwrap()),
        ]);
        for (file, byte) in [(&a, 2), (&b, 1), (&c, 3)] {
            assert_eq!(content(file), block(byte));
        }
        assert_eq!(device.fs.stats().data_blocks, 3);
        drop((a, b, c));
        device.settle();
    });
}

#[test]
fn a_file_is_shared_while_it_is_cloned_and_truncated() {
    explore_with(IndexKind::Dram, &[("a", &[1, 2]), ("b", &[3]), ("c", &[2])], |device, files| {
        let [a, b, c] = &files[..] else { unreachable!() };
        let (fs, source, clone, shrinks) = (device.fs.clone(), a.clone(), b.clone(), a.clone());
        race([
            task(move || drain(&fs)),
            task(move || clone.clone_from(&source, 0, 0, 2 * BLOCK as u64).unwrap()),
            task(move || shrinks.set_len(BLOCK as u64).unwrap()),
        ]);
        let seen = content(b);
        assert!(seen == [block(1), block(2)].concat() || seen == block(1), "whole, or what was left");
        assert_eq!((content(a), content(c)), (block(1).to_vec(), block(2).to_vec()));
        drain(&device.fs);
    });
}

#[test]
fn a_file_is_shared_while_byte_ranges_of_it_are_cloned() {
    explore_with(IndexKind::Dram, &[("a", &[1, 2]), ("b", &[2, 1])], |device, files| {
        let [a, b] = &files[..] else { unreachable!() };
        let d = device.file("d");
        let (fs, source, clone) = (device.fs.clone(), b.clone(), d.clone());
        race([task(move || drain(&fs)), task(move || clone.clone_from(&source, 100, 0, 5000).unwrap())]);
        assert_eq!(content(&d), [block(2), block(1)].concat()[100..5100]);
        assert_eq!((content(a), content(b)), ([block(1), block(2)].concat(), [block(2), block(1)].concat()));
        drain(&device.fs);
        drop(d);
    });
}

#[test]
fn a_dedup_request_and_a_writer_share_the_blocks_that_the_daemon_shares() {
    explore_with(IndexKind::Pm, &[("a", &[1, 2]), ("b", &[2, 1])], |device, files| {
        let [a, b] = &files[..] else { unreachable!() };
        let c = device.file("c");
        device.fs.set_xattr(c.ino(), POLICY_ATTRIBUTE, b"inline", XattrMode::Set).unwrap();
        let (fs, sharer, writer) = (device.fs.clone(), a.clone(), c.clone());
        race([
            task(move || drain(&fs)),
            task(move || sharer.dedup_range(0, u64::MAX).unwrap()),
            task(move || writer.write_at(0, &block(1)).unwrap()),
        ]);
        assert_eq!((content(a), content(b)), ([block(1), block(2)].concat(), [block(2), block(1)].concat()));
        assert_eq!(content(&c), block(1));
        shares_all(&device.fs, &[a, b, &c]);
        drop(c);
    });
}

#[test]
fn two_daemons_work_on_one_queue() {
    explore_with(IndexKind::Dram, &[("a", &[1, 1]), ("b", &[2, 1])], |device, files| {
        let [a, b] = &files[..] else { unreachable!() };
        let (one, other, writer) = (device.fs.clone(), device.fs.clone(), b.clone());
        race([
            task(move || drain(&one)),
            task(move || {
                let mut daemon = Daemon::new(other);
                (0..3).for_each(|_| _ = daemon.turn().unwrap());
            }),
            task(move || writer.write_at(0, &block(1)).unwrap()),
        ]);
        assert_eq!((content(a), content(b)), ([block(1), block(1)].concat(), [block(1), block(1)].concat()));
        shares_all(&device.fs, &[a, b]);
    });
}

#[test]
fn an_unmount_is_safe_while_the_daemon_works() {
    explore(|| {
        let device = device(IndexKind::Dram);
        for name in ["a", "b"] {
            device.file(name).write_at(0, &[block(1), block(2)].concat()).unwrap();
        }
        let (one, other) = (device.fs.clone(), device.fs.clone());
        race([task(move || while let Ok(false) = one.drain_step() {}), task(move || other.unmount().unwrap())]);
        let report = check(&device.region, &CheckOptions::default()).unwrap();
        assert!(report.clean && report.findings.is_empty(), "{:?}", report.findings);
        let device = Device { fs: FileSystem::mount(device.region.clone(), options()).unwrap(), ..device };
        drain(&device.fs);
        assert_eq!(device.fs.stats().data_blocks, 2);
        device.settle();
    });
}

/// The daemon drops a block with a chunk entry while another thread clones it.
#[test]
fn the_daemon_drops_a_block_while_its_file_is_cloned() {
    explore_with(IndexKind::Dram, &[("c", &[1])], |device, files| {
        drain(&device.fs);
        let a = device.file("a");
        a.write_at(0, &block(1)).unwrap();
        // A clone that is removed again leaves an entry with one reference.
        let b = device.file("b");
        b.clone_from(&a, 0, 0, BLOCK as u64).unwrap();
        drop(b);
        device.fs.unlink(ROOT, b"b").unwrap();
        let d = device.file("d");
        let (fs, source, clone) = (device.fs.clone(), a.clone(), d.clone());
        race([
            task(move || drain(&fs)),
            task(move || {
                clone.clone_from(&source, 0, 0, BLOCK as u64).unwrap();
            }),
        ]);
        let e = device.file("e");
        e.write_at(0, &block(9)).unwrap();
        let one = block(1).to_vec();
        assert_eq!((content(&a), content(&d), content(&files[0])), (one.clone(), one.clone(), one));
    });
}
