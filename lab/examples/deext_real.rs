//! What `scripts/deext-real.sh` cannot ask the command: a second copy written in requests of several sizes, and all files
//! of a device read back, both with no kernel on the way.
//!
//! ```text
//! deext_real copies POLICY FILE    a line a way of writing: way, new data in % of the copy, new host memory in %
//! deext_real read DEVICE           bytes of all files, and seconds in which they were read
//! ```

#![forbid(unsafe_code)]

use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<&str>>()[..] {
        ["copies", policy, file] => second_copies(policy, Path::new(file)),
        ["read", device] => read_all(Path::new(device)),
        _ => Err("deext_real copies POLICY FILE, or deext_real read DEVICE".into()),
    }
}

/// How a copy is written: its name, the size of the requests in bytes, whether they come in a random order.
const WAYS: [(&str, usize, bool); 4] =
    [("512 B", 512, false), ("4 KiB", 4096, false), ("1 MiB", 1 << 20, false), ("128 KiB, shuffled", 128 << 10, true)];

/// Longer than any policy waits for more of a stream.
const IDLE: Duration = Duration::from_secs(5);

const NEW_FILE: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };

/// Prints what a second copy stores, for each way of writing it and for the same with a byte in front.
fn second_copies(policy: &str, file: &Path) -> Result<()> {
    let Some(policy) = Policy::named(policy.as_bytes()) else {
        return Err(format!("unknown policy `{policy}`; there are: {}", Policy::names()).into());
    };
    let first = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let shifted = [b"+", &first[..]].concat();
    for (second, suffix) in [(&first, ""), (&shifted, ", a byte in front")] {
        for (way, request_bytes, is_shuffled) in WAYS {
            let (stored, host) = second_copy(policy, &first, second, request_bytes, is_shuffled)?;
            let percent = |bytes: i64| 100.0 * bytes as f64 / second.len() as f64;
            println!("{way}{suffix}\t{:.2}\t{:.2}", percent(stored), percent(host));
        }
    }
    Ok(())
}

/// Bytes of data and of host memory that the second copy takes beside the first.
fn second_copy(
    policy: Policy,
    first: &[u8],
    second: &[u8],
    request_bytes: usize,
    is_shuffled: bool,
) -> Result<(i64, i64)> {
    // Room for both in whole blocks, whatever is shared.
    let device_bytes = (4 * first.len() as u64 + (64 << 20)).next_multiple_of(2 << 20);
    let region = Region::create(&DeviceSpec::Memory, device_bytes, &OpenOptions::default())?;
    FileSystem::mkfs(&region, &MkfsOptions::default())?;
    let idle_ns = Arc::new(AtomicI64::new(0));
    let skipped_ns = idle_ns.clone();
    let clock: nvfold::Clock = Arc::new(move || now_ns() + skipped_ns.load(Ordering::Relaxed));
    let fs = FileSystem::mount(region, MountOptions { policy, clock, ..MountOptions::default() })?;

    let settle = || -> Result<(i64, i64)> {
        idle_ns.fetch_add(IDLE.as_nanos() as i64, Ordering::Relaxed);
        work_off(&fs)?;
        let stats = fs.stats();
        Ok((stats.stored_bytes as i64, stats.device_allocated_bytes as i64))
    };
    write(&fs, b"first", first, 1 << 20, false)?;
    let before = settle()?;
    write(&fs, b"second", second, request_bytes, is_shuffled)?;
    let after = settle()?;
    assert_is(&fs, b"second", second)?;
    fs.unmount()?;
    Ok((after.0 - before.0, after.1 - before.1))
}

fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_nanos() as i64)
}

/// Does all that is put off, and gives free memory back.
fn work_off(fs: &FileSystem) -> Result<()> {
    while !fs.fill_step()? {}
    while !fs.drain_step()? {}
    fs.sync()?;
    fs.trim()?;
    Ok(())
}

fn write(fs: &FileSystem, name: &[u8], data: &[u8], request_bytes: usize, is_shuffled: bool) -> Result<()> {
    let file = fs.open(fs.create(InodeNumber::ROOT, name, &NEW_FILE)?.ino)?;
    let mut requests: Vec<(usize, &[u8])> =
        (0..data.len()).step_by(request_bytes).zip(data.chunks(request_bytes)).collect();
    if is_shuffled {
        shuffle(&mut requests);
    }
    for (offset, request) in requests {
        file.write_at(offset as u64, request)?;
    }
    Ok(())
}

/// The same order each time (Fisher and Yates, with xorshift).
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(at, (state % (at as u64 + 1)) as usize);
    }
}

/// A copy that saves space and is wrong saves nothing.
fn assert_is(fs: &FileSystem, name: &[u8], data: &[u8]) -> Result<()> {
    let file = fs.open(fs.lookup(InodeNumber::ROOT, name)?.ino)?;
    let mut read = vec![0; data.len() + 1];
    let len = file.read_at(0, &mut read)?;
    if read[..len] == *data { Ok(()) } else { Err("the second copy does not read as it was written".into()) }
}

/// Reads all files of a device once, in 1 MiB requests; prints their bytes and the seconds that the reading took.
fn read_all(device: &Path) -> Result<()> {
    let region = Region::open(&device.to_string_lossy().parse()?, &OpenOptions::default())?;
    let fs = FileSystem::mount(region, MountOptions { read_only: true, ..MountOptions::default() })?;
    let mut files = Vec::new();
    let mut directories = vec![InodeNumber::ROOT];
    while let Some(directory) = directories.pop() {
        fs.readdir(directory, 0, &mut |entry| {
            match entry.kind {
                FileKind::Directory if entry.name != b"." && entry.name != b".." => directories.push(entry.ino),
                FileKind::Regular => files.push(entry.ino),
                _ => {}
            }
            true
        })?;
    }
    let mut buffer = vec![0; 1 << 20];
    let (mut bytes, start) = (0, Instant::now());
    for ino in files {
        let file = fs.open(ino)?;
        let mut offset = 0;
        loop {
            let len = file.read_at(offset, &mut buffer)?;
            offset += len as u64;
            if len == 0 {
                break;
            }
        }
        bytes += offset;
    }
    println!("{bytes}\t{:.6}", start.elapsed().as_secs_f64());
    Ok(())
}
