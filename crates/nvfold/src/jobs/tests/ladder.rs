//! The ladder of a write: a rung that finds no space leaves nothing behind, whichever reservation fails.

use super::{ROOT, content, create, mount_with, noise, text_of};
use crate::api::{File, FileSystem};
use crate::check::{CheckOptions, check};
use crate::dedup::policy::Policy;
use crate::error::{Error, Result};
use crate::fs::{InodeOrigin, Ladder};
use crate::words::{AllocateMode, Times};
use crate::{MkfsOptions, MountOptions};
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: u64 = 4096;
const POLICIES: [Policy; 6] =
    [Policy::Off, Policy::Inline, Policy::DeExt, Policy::Icid, Policy::IcidInline, Policy::IcidDeExt];

/// A device, nearly full or not. If it is, no segment is free as a whole, and every third block of the others.
fn device(is_full: bool) -> Region {
    let region = Region::create(&DeviceSpec::Memory, 24 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount_with(&region, Policy::Off);
    create(&fs, "source", &text_of(1));
    if is_full {
        let full = create(&fs, "full", &[]);
        let mut end = 0;
        while full.write_at(end, &noise(16 << 10)).is_ok() {
            end += 16 << 10;
        }
        (0..end / BLOCK).step_by(3).for_each(|at| full.allocate(at * BLOCK, BLOCK, AllocateMode::PunchHole).unwrap());
    }
    fs.unmount().unwrap();
    region
}

/// A write: its offset (`None`: the end of the file), its bytes, and whether they are said to come from the source.
type Request = (Option<u64>, Vec<u8>, bool);

fn requests() -> Vec<Request> {
    let mut changed = text_of(1);
    changed[50_000..50_100].fill(7);
    vec![
        (Some(0), text_of(2), false),
        (None, text_of(3)[..5000].to_vec(), false),
        (Some(3 * BLOCK + 100), noise(2 * BLOCK as usize), false),
        (Some(BLOCK), changed[..60_000].to_vec(), true),
        (Some(2 * BLOCK + 9), noise(300), false),
    ]
}

fn write(fs: &FileSystem, file: &File, request: &Request, ladder: &Ladder) -> Result<()> {
    let (core, (at, data, is_copy)) = (fs.core(), request);
    let inode = core.inode(file.ino().0)?;
    if !is_copy {
        return core.write(&inode, *at, data, Times::Stamped, ladder).map(drop);
    }
    let source = core.inode(fs.lookup(ROOT, b"source")?.ino.0)?;
    let origin = InodeOrigin { at: 0, length: data.len() as u64, source: &source, source_offset: 0 };
    core.write_from(&inode, *at, data, &[origin], Times::Stamped, ladder).map(drop)
}

/// Fails each reservation of a request in turn, and compares the file and what is stored with those before. Returns how
/// often the request stopped before a lower rung.
fn fail_each(fs: &FileSystem, file: &File, request: &Request, is_open: bool) -> usize {
    let mut stops = 0;
    for nth in 1.. {
        let (before, stored) = (content(fs, "file"), fs.stats().stored_bytes);
        let ladder = Ladder::default();
        is_open.then(|| ladder.open());
        fs.fail_allocation(nth);
        let written = write(fs, file, request, &ladder);
        let has_failed = fs.fail_allocation(0) == 0;
        let has_stopped = ladder.has_stopped();
        stops += usize::from(has_stopped);
        match written {
            Ok(()) => assert!(!has_stopped, "{request:?}"),
            Err(Error::NoSpace { .. }) => {
                assert!(content(fs, "file") == before, "reservation {nth}: the file is as it was");
                assert_eq!(fs.stats().stored_bytes, stored, "reservation {nth}: nothing more is stored");
            }
            Err(error) => panic!("{error}"),
        }
        if !has_failed {
            return stops;
        }
    }
    unreachable!("a request has few reservations")
}

#[test]
fn a_rung_without_space_keeps_no_claims() {
    for is_full in [false, true] {
        for policy in POLICIES {
            let region = device(is_full);
            let options = MountOptions { policy, ..MountOptions::default() };
            let fs = FileSystem::mount(region.clone(), options).unwrap();
            let file = create(&fs, "file", &[]);
            let source = fs.open(fs.lookup(ROOT, b"source").unwrap().ino).unwrap();
            file.clone_from(&source, 0, 0, 64 << 10).unwrap();
            let mut stops = 0;
            for request in requests() {
                stops += fail_each(&fs, &file, &request, false);
                assert_eq!(fail_each(&fs, &file, &request, true), 0, "an open ladder has no stop");
            }
            assert_eq!(stops > 0, policy != Policy::Off && policy != Policy::Inline, "{policy:?} {is_full}");
            drop((file, source));
            fs.unmount().unwrap();
            let found = check(&region, &CheckOptions::default()).unwrap();
            assert!(found.findings.is_empty() && found.clean, "{policy:?} {is_full}: {found:#?}");
        }
    }
}
