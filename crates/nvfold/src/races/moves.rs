//! Races on packed chunks that are moved while they are read, shared and dropped, and while their old space is
//! reused.

use super::*;
use crate::dedup::policy::POLICY_ATTRIBUTE;

/// Length of a piece, in bytes: a whole request.
const SHORT: usize = 3000;

fn short(byte: u8) -> [u8; SHORT] {
    [byte; SHORT]
}

fn options() -> MountOptions {
    MountOptions { policy: Policy::DeExt, cores: 4, ..MountOptions::default() }
}

/// Makes a device with files of these bytes in a closed segment, as after a crash, and a file whose data goes to
/// blocks.
fn device(index: IndexKind, files: &[(&str, u8)]) -> Device {
    let mkfs = MkfsOptions { index, ..MkfsOptions::default() };
    let Device { region, fs } = Device::made(&mkfs, options());
    let device = Device { region: region.clone(), fs };
    files.iter().for_each(|(name, byte)| device.file(name).write_at(0, &short(*byte)).unwrap());
    let blocks = device.file("blocks");
    device.fs.set_xattr(blocks.ino(), POLICY_ATTRIBUTE, b"off", XattrMode::Set).unwrap();
    drop((blocks, device));
    let fs = FileSystem::mount(region.clone(), options()).unwrap();
    fs.reconcile().unwrap();
    Device { region, fs }
}

fn open(device: &Device, name: &str) -> File {
    device.fs.open(device.fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
}

/// Reclaims all segments; repeats steps that had to wait for other threads.
fn reclaim(fs: &FileSystem) {
    for _ in 0..8 {
        while !fs.reclaim_step(Victims::All).unwrap() {}
    }
}

/// Reclaims segments, and writes other bytes to their space as soon as it is free: the block allocator prefers a
/// segment that is already in use.
fn reclaims_and_writes_there(device: &Device) -> Task {
    let (fs, blocks) = (device.fs.clone(), open(device, "blocks"));
    task(move || {
        reclaim(&fs);
        blocks.write_at(0, &[0xEE; 2 * BLOCK]).unwrap();
    })
}

fn settle(device: Device) {
    // Space of a half-emptied segment is not free yet, so reclamation must end first.
    reclaim(&device.fs);
    while !device.fs.fill_step().unwrap() {}
    device.settle();
}

#[test]
fn a_chunk_is_read_while_it_moves_and_its_old_place_is_reused() {
    explore(|| {
        let device = device(IndexKind::Dram, &[("a", 1)]);
        let file = open(&device, "a");
        race([
            // Many reads, because the critical moment is short: the reader knows the address and has not read the
            // bytes yet.
            task(move || (0..20).for_each(|_| assert_eq!(seen(&file), short(1), "bytes of somebody else"))),
            reclaims_and_writes_there(&device),
        ]);
        assert_eq!(seen(&open(&device, "a")), short(1));
        settle(device);
    });
}

#[test]
fn an_equal_piece_is_found_while_the_chunk_moves() {
    for index in IndexKind::ALL {
        explore(move || {
            let device = device(index, &[("a", 1)]);
            let writes = |name: &str| {
                let file = device.file(name);
                task(move || file.write_at(0, &short(1)).unwrap())
            };
            race([writes("b"), writes("c"), reclaims_and_writes_there(&device)]);
            for name in ["a", "b", "c"] {
                assert_eq!(seen(&open(&device, name)), short(1));
            }
            settle(device);
        });
    }
}

/// The last reference is dropped while the chunk is held for its move, and the next chunk reuses its entry.
#[test]
fn a_chunk_is_dropped_while_it_moves() {
    for index in IndexKind::ALL {
        explore(move || {
            let device = device(index, &[("a", 1), ("b", 2)]);
            let (cut, kept) = (open(&device, "a"), open(&device, "b"));
            let fs = device.fs.clone();
            race([
                task(move || {
                    cut.set_len(0).unwrap();
                    cut.write_at(0, &short(3)).unwrap();
                }),
                task(move || {
                    fs.unlink(ROOT, b"b").unwrap();
                    assert_eq!(seen(&kept), short(2));
                }),
                reclaims_and_writes_there(&device),
            ]);
            assert_eq!(seen(&open(&device, "a")), short(3));
            settle(device);
        });
    }
}

/// Two threads reclaim at once, and a third appends to the segment that chunks are moved to.
#[test]
fn two_threads_empty_segments_while_a_tail_grows_in_the_target() {
    explore(|| {
        let device = device(IndexKind::Dram, &[("a", 1), ("b", 2)]);
        let (fs, tail) = (device.fs.clone(), device.file("tail"));
        let grows = tail.clone();
        race([
            task(move || reclaim(&fs)),
            reclaims_and_writes_there(&device),
            task(move || (1..5).for_each(|byte| _ = grows.append(&[byte; 500]).unwrap())),
        ]);
        assert_eq!((seen(&open(&device, "a")), seen(&open(&device, "b"))), (short(1).to_vec(), short(2).to_vec()));
        assert_eq!(seen(&tail), [[1; 500], [2; 500], [3; 500], [4; 500]].concat());
        drop(tail);
        settle(device);
    });
}
