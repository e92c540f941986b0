//! The targets of a comparison: each can be written and read at an offset, by one thread per lane.

use crate::data::Random;
use crate::place::Place;
use crate::{Doing, Result};
use nvfold::{FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Region};
use std::fs::{File, OpenOptions as FileOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// One thread's part of a target.
pub(crate) trait Lane: Send + Sync {
    /// Writes at an offset.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Reads at an offset; the bytes must be used.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Makes the written data as durable as the target allows, inside the timed part.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
    /// Fails if the lane is not, or no longer, on the target of its row; outside the timed part.
    fn prove(&self) -> Result<()> {
        Ok(())
    }
}

/// A measured target, with one lane per thread.
pub(crate) struct Target {
    /// Name of the row.
    pub name: String,
    /// Share of duplicate blocks in its data, percent.
    pub percent: u64,
    /// One lane per thread.
    pub lanes: Vec<Box<dyn Lane>>,
}

struct Raw {
    region: Region,
    start: u64,
}

impl Lane for Raw {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _ = black_box(self.region.fence(self.region.stream(self.start + offset, data)));
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.region.read_into(self.start + offset, buffer);
        black_box(buffer);
        Ok(())
    }
}

struct Embedded {
    file: nvfold::File,
    _fs: FileSystem,
}

impl Lane for Embedded {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_at(offset, data).doing("write embedded")
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, buffer).doing("read embedded")?;
        black_box(buffer);
        Ok(())
    }
}

struct OnDisk {
    place: Place,
    path: PathBuf,
    file: File,
    sync: bool,
}

impl Lane for OnDisk {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, offset).doing("write a file")
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buffer, offset).doing("read a file")?;
        black_box(buffer);
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        if self.sync { self.file.sync_data().doing("sync a file") } else { Ok(()) }
    }

    fn prove(&self) -> Result<()> {
        self.place.prove_open(&self.path, &self.file)
    }
}

/// Makes the raw limit: streaming copies to memory, with a fence each.
pub(crate) fn raw(threads: u64, bytes_a_lane: u64) -> Result<Target> {
    let region = Region::create(&DeviceSpec::Memory, threads * bytes_a_lane, &OpenOptions::default());
    let region = region.map_err(nvfold::Error::from).doing("make a memory device")?;
    let lane = |thread| Box::new(Raw { region: region.clone(), start: thread * bytes_a_lane }) as Box<dyn Lane>;
    Ok(Target { name: "raw limit".into(), percent: 0, lanes: (0..threads).map(lane).collect() })
}

/// Makes nvfold in this process on a memory device.
pub(crate) fn embedded(
    policy: Policy,
    percent: u64,
    flush: FlushMode,
    threads: u64,
    bytes_a_lane: u64,
) -> Result<Target> {
    let options = OpenOptions { flush, ..OpenOptions::default() };
    // Copy on write holds the old and the new pass; small devices also need space for logs and inodes.
    let bytes = 2 * threads * bytes_a_lane + (64 << 20);
    let region = Region::create(&DeviceSpec::Memory, bytes.next_multiple_of(2 << 20), &options);
    let region = region.map_err(nvfold::Error::from).doing("make a memory device")?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    let fs = FileSystem::mount(region, MountOptions { policy, clock, ..MountOptions::default() }).doing("mount")?;
    let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
    for thread in 0..threads {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        let created = fs.create(InodeNumber::ROOT, format!("lane{thread}").as_bytes(), &new).doing("create a file")?;
        lanes.push(Box::new(Embedded { file: fs.open(created.ino).doing("open a file")?, _fs: fs.clone() }));
    }
    let policy = match policy {
        Policy::Off => "off".to_string(),
        Policy::Inline => format!("inline {percent} %"),
        other => format!("{} {percent} %", other.name()),
    };
    let flushed = if flush == FlushMode::Always { ", flushing as on DAX" } else { "" };
    Ok(Target { name: format!("embedded {policy}{flushed}"), percent, lanes })
}

/// Opens a file for each lane, at a place of that file system; with O_DIRECT in its directory `direct`.
pub(crate) fn files(name: &str, place: &Place, how: Access, threads: u64) -> Result<Target> {
    let dir = if how == Access::Direct { place.dir.join("direct") } else { place.dir.clone() };
    let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
    for thread in 0..threads {
        let mut options = FileOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        if how == Access::Direct {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        }
        let path = dir.join(format!("lane{thread}"));
        let file = options.open(&path).doing(format!("open {}", path.display()))?;
        lanes.push(Box::new(OnDisk { place: place.clone(), path, file, sync: how == Access::Synced }));
    }
    let how = match how {
        Access::Plain => "",
        Access::Synced => ", fsync at the end",
        Access::Direct => ", O_DIRECT",
    };
    Ok(Target { name: format!("{name}{how}"), percent: 0, lanes })
}

/// How files are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only the write system calls.
    Plain,
    /// Also fsync, at the end of the timed part.
    Synced,
    /// Past the page cache.
    Direct,
}

/// Compares a sample of the content of a lane with what was written.
pub(crate) fn holds(lane: &dyn Lane, data: &[u8], block: usize) -> Result<bool> {
    let mut random = Random(data.len() as u64);
    // O_DIRECT requires aligned memory: a buffer of twice the length contains an aligned part.
    let mut buffer = vec![0; 2 * block];
    for _ in 0..16 {
        let at = (random.next_u64() % (data.len() / block) as u64) as usize * block;
        let aligned = buffer.as_ptr().align_offset(4096);
        let part = &mut buffer[aligned..aligned + block];
        lane.read(at as u64, part)?;
        if part != &data[at..at + block] {
            return Ok(false);
        }
    }
    Ok(true)
}
