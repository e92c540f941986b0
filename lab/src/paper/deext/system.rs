//! The systems of the figures: ext4, and nvfold with policy `deext` in several settings.

use super::ext4;
use super::set::Set;
use super::space::{Space, of_mounted, total};
use crate::{Doing, LabError, Result, bounds};
use nvfold::{
    Classes, DeExtOptions, File, FileKind, FileSystem, InodeNumber, Mean, MkfsOptions, MountOptions, NewInode,
    NvDedupOptions, Policy, StrongFunction, Verify,
};
use nvfold_bench::device::Device;
use pmem::{Counters, LINE_BYTES, Profile};

/// DeEXT Table II: time of the compressible check, nanoseconds per 4 KiB.
pub(super) const CHECK_NS_PER_4K: f64 = 165.0;
/// Bytes of a request.
const REQUEST: usize = 1 << 20;
/// Number of files per directory.
const FILES_OF_DIRECTORY: usize = 100;

/// The system that stores the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// The baseline.
    Ext4,
    /// The paper's piece lengths; a salted MD5 is trusted.
    AsInPaper,
    /// nvfold's piece lengths; bytes are compared before they are shared.
    Ours,
    /// As in the paper, but all data is cut every 16 KiB.
    FixedOnly,
    /// As in the paper, but all data is cut by its content.
    ContentOnly,
}

impl System {
    /// All systems, the baseline first.
    pub(super) const ALL: [System; 5] =
        [System::Ext4, System::AsInPaper, System::Ours, System::FixedOnly, System::ContentOnly];

    /// Returns its name in charts.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Ext4 => "ext4",
            System::AsInPaper => "DeEXT (as in the paper)",
            System::Ours => "DeEXT (ours)",
            System::FixedOnly => "fixed-only",
            System::ContentOnly => "content-only",
        }
    }

    fn mount(self) -> MountOptions {
        let classes = match self {
            System::FixedOnly => Classes::FixedOnly,
            System::ContentOnly => Classes::ContentOnly,
            System::Ext4 | System::AsInPaper | System::Ours => Classes::Dual,
        };
        let is_ours = self == System::Ours;
        let mean = if is_ours { Mean::Ours } else { Mean::Paper };
        let trusting = NvDedupOptions {
            strong: Some(StrongFunction::Md5Salted),
            verify: Verify::Strong,
            ..NvDedupOptions::default()
        };
        MountOptions {
            policy: Policy::DeExt,
            deext: DeExtOptions { classes, mean },
            nv_dedup: if is_ours { NvDedupOptions::default() } else { trusting },
            cores: 1,
            discard: Some(false),
            ..MountOptions::default()
        }
    }

    /// Returns whether it checks compressibility.
    fn checks(self) -> bool {
        matches!(self, System::AsInPaper | System::Ours)
    }
}

/// The cost of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Seconds of the device, including the compressible check as the paper charges it.
    pub latency_s: f64,
    /// Joules.
    pub joules: f64,
    /// Seconds of the processor; NaN where nothing was run.
    pub cpu_s: f64,
    /// Bytes of lines written.
    pub bytes_written: u64,
    /// Bytes of lines read.
    pub bytes_read: u64,
}

/// The result of a system for a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Bytes of its space.
    pub space: Space,
    /// Writing all files.
    pub write: Spent,
    /// Reading all of them back.
    pub read: Spent,
}

impl Outcome {
    /// Returns the bytes of its space.
    pub(super) fn space_bytes(&self) -> f64 {
        total(&self.space) as f64
    }

    /// Returns the sum of writing and reading back.
    pub(super) fn both(&self, what: impl Fn(&Spent) -> f64) -> f64 {
        what(&self.write) + what(&self.read)
    }
}

/// Writes a set with a system and reads it back.
pub(super) fn measure(system: System, set: &Set, profile: &Profile) -> Result<Outcome> {
    match system {
        System::Ext4 => Ok(of_ext4(ext4::space(set)?, profile)),
        _ => of_nvfold(system, set, profile),
    }
}

/// Charges one write and one read for each byte in use.
fn of_ext4(space: Space, profile: &Profile) -> Outcome {
    let bytes = total(&space);
    let spent = |line_ns: f64, bytes_written, bytes_read| Spent {
        latency_s: (bytes_written + bytes_read) as f64 * line_ns / LINE_BYTES as f64 / 1e9,
        joules: profile.joules_of(bytes_written, bytes_read).unwrap_or(f64::NAN),
        cpu_s: f64::NAN,
        bytes_written,
        bytes_read,
    };
    Outcome { space, write: spent(profile.write_line_ns, bytes, 0), read: spent(profile.read_line_ns, 0, bytes) }
}

fn of_nvfold(system: System, set: &Set, profile: &Profile) -> Result<Outcome> {
    let device = Device::new(profile, 2 * set.bytes() + (96 << 20));
    let region = device.create()?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let fs = FileSystem::mount(region, system.mount()).doing("mount")?;
    let (files, mut write) = spent(&fs, profile, || write_all(&fs, set))?;
    if system.checks() {
        write.latency_s += set.bytes() as f64 / 4096.0 * CHECK_NS_PER_4K / 1e9;
    }
    let (wrong, read) = spent(&fs, profile, || read_all(&files, set))?;
    if wrong > 0 {
        return Err(LabError::wrong(system.name().into()));
    }
    let space = of_mounted(&fs)?;
    drop(files);
    fs.unmount().doing("unmount")?;
    let outcome = Outcome { space, write, read };
    check(&format!("{}, {}", system.name(), set.name), set.unique_bytes, &outcome)?;
    Ok(outcome)
}

/// Refuses less stored data than there are bytes that are no copy of others, and fewer bytes written than stored.
fn check(what: &str, unique_bytes: u64, outcome: &Outcome) -> Result<()> {
    let (stored, written) = (outcome.space[0] as f64, outcome.write.bytes_written as f64);
    let why = "only bytes that repeat others are shared, and nothing is compressed";
    bounds::at_least(format!("{what}: bytes stored"), stored, unique_bytes as f64, "", why)?;
    bounds::at_least(format!("{what}: bytes written"), written, stored, "", "what is stored was written")
}

/// Does some work; returns its cost.
fn spent<T>(fs: &FileSystem, profile: &Profile, work: impl FnOnce() -> Result<T>) -> Result<(T, Spent)> {
    let (before, cpu) = (fs.region().counters(), pmem::clock::thread_cpu_ns());
    let done = work()?;
    let cpu_s = (pmem::clock::thread_cpu_ns() - cpu) as f64 / 1e9;
    let counted: Counters = fs.region().counters() - before;
    let spent = Spent {
        latency_s: counted.charged_ps as f64 / 1e12,
        joules: profile.joules(&counted).unwrap_or(f64::NAN),
        cpu_s,
        bytes_written: counted.lines_written() * LINE_BYTES,
        bytes_read: counted.bytes_read(),
    };
    Ok((done, spent))
}

/// Writes all files, a hundred per directory, and completes the background work.
fn write_all(fs: &FileSystem, set: &Set) -> Result<Vec<File>> {
    let new = |kind| NewInode { kind, mode: 0o700, uid: 0, gid: 0, rdev: 0 };
    let mut files = Vec::with_capacity(set.files.len());
    for (number, contents) in set.files.chunks(FILES_OF_DIRECTORY).enumerate() {
        let name = format!("d{number}");
        let made = fs.mkdir(InodeNumber::ROOT, name.as_bytes(), &new(FileKind::Directory));
        let folder = made.doing("make a directory")?.ino;
        for (number, content) in contents.iter().enumerate() {
            let name = format!("f{number}");
            let ino = fs.create(folder, name.as_bytes(), &new(FileKind::Regular)).doing("create a file")?.ino;
            let file = fs.open(ino).doing("open a file")?;
            for (at, request) in content.chunks(REQUEST).enumerate() {
                file.write_at((at * REQUEST) as u64, request).doing("write")?;
            }
            files.push(file);
        }
        while !fs.fill_step().doing("work in the background")? {}
    }
    Ok(files)
}

/// Reads all files; returns how many differ from what was written.
fn read_all(files: &[File], set: &Set) -> Result<usize> {
    let mut buffer = Vec::new();
    let mut wrong = 0;
    for (file, content) in files.iter().zip(&set.files) {
        buffer.resize(content.len(), 0);
        file.read_at(0, &mut buffer).doing("read back")?;
        wrong += usize::from(buffer != *content);
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(system: System, set: &Set) -> Outcome {
        measure(system, set, &"pcm".parse().unwrap()).unwrap()
    }

    #[test]
    fn every_deext_figure_is_computed_from_the_bytes_written_to_the_device() {
        let set = Set::made_up(1 << 20, 50);
        for system in [System::AsInPaper, System::Ours, System::FixedOnly, System::ContentOnly] {
            let Outcome { space, write, read } = outcome(system, &set);
            let check_s = if system.checks() { set.bytes() as f64 / 4096.0 * 165e-9 } else { 0.0 };
            let charged_s = (write.bytes_written * 150 + write.bytes_read * 50) as f64 / 1e9 + check_s;
            assert!((write.latency_s - charged_s).abs() < 1e-6, "{system:?}: {write:?}");
            assert!(read.bytes_read >= set.bytes() && read.bytes_written == 0, "{system:?}: {read:?}");
            assert!(space[0] < set.bytes() && write.bytes_written > space[0], "{system:?}: {space:?}");
        }
    }

    #[test]
    fn a_saved_share_above_the_share_of_copies_is_refused() {
        let outcome = |stored, bytes_written| {
            let write = Spent { bytes_written, ..Spent::default() };
            Outcome { space: [stored, 0, 0, 0, 0], write, read: Spent::default() }
        };
        check("ours", 1000, &outcome(1000, 1100)).unwrap();
        let error = check("ours", 1000, &outcome(900, 1100)).unwrap_err().to_string();
        assert!(error.contains("ours: bytes stored: 900 was measured"), "{error}");
        assert!(check("ours", 1000, &outcome(1000, 900)).is_err(), "less was written than is stored");
    }

    #[test]
    fn trusting_fingerprints_reads_less_than_comparing_bytes() {
        let set = Set::made_up(1 << 20, 50);
        let read = |system| outcome(system, &set).write.bytes_read;
        assert!(read(System::Ours) > 4 * read(System::AsInPaper));
    }
}
