//! `bench meta`: operations on names per second (create with 4 KiB, stat, readdir, rename, unlink), embedded, mounted
//! and on tmpfs. The mounted and the tmpfs rows run the same system calls.

use crate::mounts::Mounts;
use crate::place::{FsType, Place};
use crate::report::{Report, Row};
use crate::samples::{median, timed};
use crate::{Doing, Options, Result};
use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, RenameMode};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

const OPERATIONS: [&str; 5] = ["create 4 KiB", "stat", "readdir", "rename", "unlink"];

/// Seconds of each operation on all files.
type Times = [f64; 5];

/// Runs the benchmark.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::new("meta", "ratio to tmpfs");
    let mounts = Mounts::set_up(options, 1 << 30)?;
    report.leave_out(&mounts.left_out);
    let mut places = vec![("tmpfs", Some(&mounts.tmpfs)), ("embedded inline", None)];
    // The ceiling cannot rename or remove.
    let mounted = mounts.mounted.iter().filter(|mounted| mounted.place.fs_type != FsType::CEILING);
    places.extend(mounted.map(|mounted| (&*mounted.name, Some(&mounted.place))));
    let mut times: Vec<Vec<Times>> = vec![Vec::new(); places.len()];
    for pass in 0..=options.repeats {
        for (at, (_, place)) in places.iter().enumerate() {
            let took = match place {
                Some(place) => system_calls(place, pass, options.files)?,
                None => embedded(options.files)?,
            };
            if pass > 0 {
                times[at].push(took);
            }
        }
    }
    for (operation, name) in OPERATIONS.iter().enumerate() {
        let column = |at: usize| times[at].iter().map(|times| times[operation]).collect::<Vec<f64>>();
        let base = median(&column(0));
        for (at, (place, _)) in places.iter().enumerate() {
            report.rows.push(Row::operations(place, name, 1, options.files as f64, &column(at), base));
        }
    }
    Ok(report)
}

/// Makes the block unique to the file, because sharing is not measured here.
fn content(file: u64, block: &mut [u8; 4096]) {
    block[..8].copy_from_slice(&file.to_le_bytes());
}

/// Runs one pass in a new directory, which is proven to be at that place before and after.
fn system_calls(place: &Place, pass: u32, files: u64) -> Result<Times> {
    let dir = place.dir.join(format!("pass{pass}"));
    fs::create_dir(&dir).doing(format!("make {}", dir.display()))?;
    place.prove(&dir)?;
    let names: Vec<(PathBuf, PathBuf)> =
        (0..files).map(|file| (dir.join(format!("file{file}")), dir.join(format!("renamed{file}")))).collect();
    let mut block = [1; 4096];
    let times = [
        timed(|| {
            (0..).zip(&names).try_for_each(|(file, (name, _))| {
                content(file, &mut block);
                fs::File::create(name).and_then(|mut file| file.write_all(&block)).doing("create a file")
            })
        })?,
        timed(|| {
            names.iter().try_for_each(|(name, _)| {
                black_box(fs::metadata(name).doing("stat")?.len());
                Ok(())
            })
        })?,
        timed(|| {
            let found = fs::read_dir(&dir).doing("list")?.count() as u64;
            assert_eq!(black_box(found), files, "every name is listed once");
            Ok(())
        })?,
        timed(|| names.iter().try_for_each(|(name, renamed)| fs::rename(name, renamed).doing("rename")))?,
        timed(|| names.iter().try_for_each(|(_, renamed)| fs::remove_file(renamed).doing("unlink")))?,
    ];
    place.prove(&dir)?;
    fs::remove_dir(&dir).doing("remove the directory")?;
    Ok(times)
}

fn embedded(files: u64) -> Result<Times> {
    let bytes = ((files * 8192).max(64 << 20) + (64 << 20)).next_multiple_of(2 << 20);
    let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).map_err(nvfold::Error::from);
    let region = region.doing("make a memory device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    let fs = FileSystem::mount(region, MountOptions { clock, ..MountOptions::default() }).doing("mount")?;
    let root = InodeNumber::ROOT;
    let names: Vec<(String, String)> =
        (0..files).map(|file| (format!("file{file}"), format!("renamed{file}"))).collect();
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let mut block = [1; 4096];
    Ok([
        timed(|| {
            (0..).zip(&names).try_for_each(|(file, (name, _))| {
                content(file, &mut block);
                let created = fs.create(root, name.as_bytes(), &new).doing("create")?;
                fs.open(created.ino).and_then(|file| file.write_at(0, &block)).doing("write")
            })
        })?,
        timed(|| {
            names.iter().try_for_each(|(name, _)| {
                black_box(fs.lookup(root, name.as_bytes()).doing("stat")?.size);
                Ok(())
            })
        })?,
        timed(|| {
            let mut found = 0;
            fs.readdir(root, 0, &mut |entry| {
                found += u64::from(!black_box(entry).name.is_empty());
                true
            })
            .doing("list")?;
            assert_eq!(found, files, "every name is listed once");
            Ok(())
        })?,
        timed(|| {
            names.iter().try_for_each(|(name, renamed)| {
                fs.rename(root, name.as_bytes(), root, renamed.as_bytes(), RenameMode::Replace).doing("rename")
            })
        })?,
        timed(|| names.iter().try_for_each(|(_, renamed)| fs.unlink(root, renamed.as_bytes()).doing("unlink")))?,
    ])
}
