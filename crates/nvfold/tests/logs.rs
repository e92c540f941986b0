//! What is written to a log beside the change itself: a log is rewritten when most of it is dead, and only then.

use crate::deext::*;
use nvfold::*;
use pmem::{Counters, Region};

const SYSTEMS: [Policy; 6] =
    [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::DeExt, Policy::Icid];

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

/// Does something `times` times, and returns what all of it cost.
fn cost(fs: &FileSystem, times: u64, mut each: impl FnMut(u64)) -> Counters {
    let before = fs.region().counters();
    (0..times).for_each(&mut each);
    fs.region().counters() - before
}

/// Lines of the attributes that are live make a log long, and do not make it dead: with them, a write costs what it
/// costs without.
#[test]
fn a_write_to_a_file_with_large_attributes_does_not_rewrite_its_log() {
    const TIMES: u64 = 600;
    for policy in SYSTEMS {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        let [plain, rich] = ["plain", "rich"].map(|name| create(&fs, name));
        for number in 0..12 {
            let name = format!("user.{number:0>200}");
            fs.set_xattr(rich.ino(), name.as_bytes(), &[7; 1024], XattrMode::Create).unwrap();
        }
        let mut seed = 0;
        let mut overwrite = |file: &File| {
            cost(&fs, TIMES, |_| {
                seed += 1;
                file.write_at(0, &noise(4096, seed)).unwrap();
            })
        };
        let [of_plain, of_rich] = [overwrite(&plain), overwrite(&rich)];
        let lines = of_rich.lines_written().saturating_sub(of_plain.lines_written());
        let fences = of_rich.fences.saturating_sub(of_plain.fences);
        // At most one compaction of some 250 lines, for 4 times as many that are dead.
        assert!(lines <= TIMES && fences <= TIMES / 20, "{policy:?}: {lines} lines, {fences} fences more");
        drop((plain, rich));
        unmount(&region, fs);
    }
}

/// When space is short, logs are rewritten earlier: what is saved must still pay for what is written.
#[test]
fn removing_a_long_name_costs_the_same_in_a_large_directory() {
    const REMOVED: u64 = 100;
    for policy in SYSTEMS {
        let removal = |names: u64| {
            let region = device(64, IndexKind::Dram);
            let fs = mount(&region, policy);
            let dir = fs.mkdir(ROOT, b"dir", &NewInode { kind: FileKind::Directory, ..NEW }).unwrap().ino;
            let name = |number: u64| format!("{number:0>240}");
            let first = fs.create(dir, name(0).as_bytes(), &NEW).unwrap().ino;
            (1..names).for_each(|number| _ = fs.link(first, dir, name(number).as_bytes()).unwrap());
            // Leave less than an eighth of the device.
            let (filler, mut at) = (create(&fs, "filler"), 0);
            while fs.statfs().blocks_free > fs.statfs().blocks / 10 {
                filler.write_at(at, &noise(1 << 20, 1 + at)).unwrap();
                at += 1 << 20;
            }
            let cost = cost(&fs, REMOVED, |number| fs.unlink(dir, name(number).as_bytes()).unwrap());
            drop(filler);
            unmount(&region, fs);
            cost.lines_written() / REMOVED
        };
        let (few, many) = (removal(REMOVED), removal(4000));
        assert!(many <= 2 * few.max(8), "{policy:?}: {few} lines with few names, {many} with many");
    }
}
