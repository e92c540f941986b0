//! Overwriting whole blocks without looking for duplicates: what nobody else references has a short way, and whatever
//! is not so simple has the same outcome by the other ways.

use crate::deext::{ROOT, create, device, noise, open, read, unmount};
use nvfold::*;
use pmem::Region;

const BLOCK: usize = 4096;
const INDEXES: [IndexKind; 2] = [IndexKind::Dram, IndexKind::Pm];

fn mount(region: &Region) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy: Policy::Off, ..MountOptions::default() }).unwrap()
}

/// Overwrites one block of a file, and of its content in memory.
fn overwrite(file: &File, content: &mut Vec<u8>, block: usize, seed: u64) {
    let (at, new) = (block * BLOCK, noise(BLOCK, seed));
    file.write_at(at as u64, &new).unwrap();
    content.resize(content.len().max(at + BLOCK), 0);
    content[at..at + BLOCK].copy_from_slice(&new);
    assert!(read(file) == *content, "block {block}");
}

#[test]
fn any_block_of_a_file_can_be_overwritten_and_counts_stay_exact() {
    for index in INDEXES {
        let region = device(64, index);
        let fs = mount(&region);
        let (file, clone) = (create(&fs, "file"), create(&fs, "clone"));
        let mut content = noise(8 * BLOCK + 100, 1);
        file.write_at(0, &content).unwrap();
        clone.clone_from(&file, 3 * BLOCK as u64, 0, 2 * BLOCK as u64).unwrap();
        let of_clone = read(&clone);
        // Reserved, and behind it a hole.
        file.allocate(10 * BLOCK as u64, 2 * BLOCK as u64, AllocateMode::Reserve).unwrap();
        content.resize(12 * BLOCK, 0);
        file.set_len(14 * BLOCK as u64).unwrap();
        content.resize(14 * BLOCK, 0);
        for seed in 2..6 {
            // Private, shared, the last one of the data, reserved, a hole, behind the end.
            for block in [0, 5, 3, 4, 8, 10, 13, 13 + seed as usize] {
                overwrite(&file, &mut content, block, seed * 100 + block as u64);
            }
            assert!(read(&clone) == of_clone, "what is shared stays");
        }
        assert_eq!(fs.stats().stored_bytes, (2 + 9 + 1 + 5 + 1) * BLOCK as u64);
        drop((file, clone));
        unmount(&region, fs);
        let fs = mount(&region);
        assert!(read(&open(&fs, "file")) == content && read(&open(&fs, "clone")) == of_clone);
        fs.unlink(ROOT, b"file").unwrap();
        fs.unlink(ROOT, b"clone").unwrap();
        assert_eq!(fs.stats().stored_bytes, 0);
        unmount(&region, fs);
    }
}

/// The block, one line of the log and the commit word, with a fence before the commit word and one behind it.
#[test]
fn an_overwritten_private_block_costs_two_lines_and_two_fences() {
    const TIMES: u64 = 40;
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let file = create(&fs, "file");
    file.write_at(0, &noise(64 * BLOCK, 1)).unwrap();
    let before = region.counters();
    for number in 0..TIMES {
        file.write_at((number * 7 % 64) * BLOCK as u64, &noise(BLOCK, number + 2)).unwrap();
    }
    let cost = region.counters() - before;
    // A page of the log is begun once.
    assert_eq!(cost.lines_streamed(), TIMES * BLOCK as u64 / 64);
    assert!((2 * TIMES..2 * TIMES + 4).contains(&cost.lines_flushed), "{cost:?}");
    assert!((2 * TIMES..2 * TIMES + 4).contains(&cost.fences), "{cost:?}");
    drop(file);
    unmount(&region, fs);
}

/// The short way asks for a block like any other: a full device has none, and nothing changes then.
#[test]
fn an_overwrite_on_a_full_device_fails_and_changes_nothing() {
    let region = device(64, IndexKind::Dram);
    let fs = mount(&region);
    let (file, rest) = (create(&fs, "file"), create(&fs, "rest"));
    let content = noise(4 * BLOCK, 1);
    file.write_at(0, &content).unwrap();
    let mut at = 0;
    for step in [1 << 20, BLOCK] {
        while rest.write_at(at, &noise(step, at + 3)).is_ok() {
            at += step as u64;
        }
    }
    let error = file.write_at(BLOCK as u64, &noise(BLOCK, 2)).unwrap_err();
    assert_eq!(error.errno(), errno::ENOSPC);
    assert!(read(&file) == content);
    drop(rest);
    fs.unlink(ROOT, b"rest").unwrap();
    file.write_at(BLOCK as u64, &noise(BLOCK, 2)).unwrap();
    drop(file);
    unmount(&region, fs);
}
