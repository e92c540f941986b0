//! Opening a device: mapping it, owning it, and knowing what a fence is worth there.
//!
//! **The safety story of [`Mapping`].** The mapping is shared memory. We promise the compiler nothing that
//! another process could break: no `&mut` into it is ever made; metadata is read by copying words with
//! atomic loads and written with atomic stores; `&[u8]` is given out by `Region::bytes` only, for bytes
//! that the file system never changes while they are referenced (copy on write). One process owns a device
//! (flock), so nobody else who plays by the rules writes it. Every access is checked against the length first,
//! and the mapping lives as long as the last `Region` of it.

use crate::counters::{Tally, Wear};
use crate::recorder::Event;
use crate::{DEVICE_BYTES_MAX, Profile, copy::Streaming, flush::Instruction};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, MemfdFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Where a device lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A plain file, a file on tmpfs, hugetlbfs or a DAX file system, or a device-dax node.
    Path(PathBuf),
    /// An anonymous memory device (`mem:`).
    Memory,
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Path(path) => path.display().fmt(out),
            DeviceSpec::Memory => out.write_str("mem:"),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<DeviceSpec, Infallible> {
        Ok(if text == "mem:" { DeviceSpec::Memory } else { DeviceSpec::Path(text.into()) })
    }
}

/// What a fence is worth on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceLevel {
    /// MAP_SYNC or device-dax: a fence makes data power-safe.
    Dax,
    /// tmpfs, hugetlbfs, memfd: data survives the process, not power.
    Memory,
    /// Page cache of a disk file system: `Region::sync` makes data power-safe.
    File,
}

impl fmt::Display for PersistenceLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            PersistenceLevel::Dax => "dax",
            PersistenceLevel::Memory => "memory",
            PersistenceLevel::File => "file",
        })
    }
}

/// When cache-line flush instructions are issued. They are counted, charged and recorded always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// Where they buy something: at level `dax`. A killed process loses no store to shared memory or the
    /// page cache, flushed or not.
    #[default]
    Auto,
    /// Always, as on a DAX device.
    Always,
}

/// How to open a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Map it for reading only.
    pub read_only: bool,
    /// Emulated device.
    pub profile: Profile,
    /// When flush instructions are issued.
    pub flush: FlushMode,
    /// Count line writes a block (4 bytes of DRAM a block).
    pub track_wear: bool,
    /// Record every store, flush and fence.
    pub record: bool,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            profile: Profile::default(),
            flush: FlushMode::default(),
            track_wear: false,
            record: false,
            huge_pages: true,
        }
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmemError {
    /// A system call failed.
    #[error("cannot {doing} {device}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Path or `mem:`.
        device: String,
        /// Why.
        source: std::io::Error,
    },
    /// EBUSY: another process owns it.
    #[error("{device} is in use by {owner}; unmount it there first")]
    Busy {
        /// Path.
        device: String,
        /// `process N (name)` as far as it can be told.
        owner: String,
    },
    /// EINVAL: it cannot be a device.
    #[error("{device} is {what}; a device is a regular file or a device-dax node")]
    NotADevice {
        /// Path.
        device: String,
        /// What it is instead.
        what: &'static str,
    },
    /// EINVAL: size 0, not a multiple of 4096, or larger than 16 TiB.
    #[error("{device}: {bytes} bytes {why}")]
    Size {
        /// Path or `mem:`.
        device: String,
        /// Its size.
        bytes: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// EINVAL: a memory device exists only once it was created with a size.
    #[error("mem: needs a size, for example size=8G")]
    MemoryNeedsSize,
}

impl PmemError {
    /// The POSIX error number.
    pub fn errno(&self) -> i32 {
        match self {
            PmemError::Io { source, .. } => source.raw_os_error().unwrap_or(5),
            PmemError::Busy { .. } => 16,
            PmemError::NotADevice { .. } | PmemError::Size { .. } | PmemError::MemoryNeedsSize => 22,
        }
    }
}

/// A mapped device and everything that belongs to it.
pub(crate) struct Mapping {
    pub(crate) base: *mut u8,
    pub(crate) length: u64,
    pub(crate) file: OwnedFd,
    pub(crate) name: String,
    pub(crate) level: PersistenceLevel,
    pub(crate) read_only: bool,
    pub(crate) is_character_device: bool,
    pub(crate) profile: Profile,
    /// Issue flush instructions.
    pub(crate) flushes: bool,
    /// Something beyond counting must happen on every access: profile, wear or recorder.
    pub(crate) slow: bool,
    pub(crate) streaming: Streaming,
    pub(crate) instruction: Instruction,
    pub(crate) tally: Tally,
    pub(crate) wear: Option<Wear>,
    pub(crate) recorder: Option<Mutex<Vec<Event>>>,
}

// SAFETY: `base` points to shared memory that stays mapped until drop; all access goes through `Region`, whose
// methods use atomics or copies as the module's safety story says.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; no method needs exclusive access.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are what mmap returned and was given; nobody holds a borrow, for every borrow
        // is bound to a `Region` that keeps this alive.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length as usize) };
    }
}

impl Mapping {
    /// Opens what exists.
    pub(crate) fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Mapping, PmemError> {
        let DeviceSpec::Path(path) = spec else { return Err(PmemError::MemoryNeedsSize) };
        let (file, is_character_device) = open_path(path, options.read_only, false)?;
        lock(&file, path, options.read_only)?;
        let length = device_length(&file, path, is_character_device)?;
        Mapping::map(file, spec, length, is_character_device, options)
    }

    /// Makes or resizes it first.
    pub(crate) fn create(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Mapping, PmemError> {
        check_length(spec.to_string(), size_bytes)?;
        let (file, is_character_device) = match spec {
            DeviceSpec::Memory => {
                let file = rustix::fs::memfd_create("nvfold", MemfdFlags::CLOEXEC);
                (file.map_err(|errno| io("create", spec, errno))?, false)
            }
            DeviceSpec::Path(path) => {
                let opened = open_path(path, false, true)?;
                lock(&opened.0, path, false)?;
                opened
            }
        };
        let length = match spec {
            DeviceSpec::Path(path) if is_character_device => device_length(&file, path, true)?,
            _ => {
                rustix::fs::ftruncate(&file, size_bytes).map_err(|errno| io("set the size of", spec, errno))?;
                size_bytes
            }
        };
        Mapping::map(file, spec, length, is_character_device, options)
    }

    fn map(
        file: OwnedFd,
        spec: &DeviceSpec,
        length: u64,
        is_character_device: bool,
        options: &OpenOptions,
    ) -> Result<Mapping, PmemError> {
        check_length(spec.to_string(), length)?;
        let (base, level) =
            map_file(&file, length, is_character_device, options.read_only).map_err(|errno| io("map", spec, errno))?;
        if options.huge_pages {
            // SAFETY: advice on our own mapping changes no content. Refusal is no error: the kernel decides.
            let _ = unsafe { rustix::mm::madvise(base.cast(), length as usize, Advice::LinuxHugepage) };
        }
        let recorder = options.record.then(|| Mutex::new(Vec::new()));
        let wear = options.track_wear.then(|| Wear::new(length));
        Ok(Mapping {
            base,
            length,
            file,
            name: spec.to_string(),
            level,
            read_only: options.read_only,
            is_character_device,
            flushes: level == PersistenceLevel::Dax || options.flush == FlushMode::Always,
            slow: !options.profile.is_native() || recorder.is_some() || wear.is_some(),
            profile: options.profile.clone(),
            streaming: Streaming::detect(),
            instruction: Instruction::detect(),
            tally: Tally::new(),
            wear,
            recorder,
        })
    }
}

fn io(doing: &'static str, device: impl fmt::Display, errno: rustix::io::Errno) -> PmemError {
    PmemError::Io { doing, device: device.to_string(), source: errno.into() }
}

fn open_path(path: &Path, read_only: bool, create: bool) -> Result<(OwnedFd, bool), PmemError> {
    let failed = |source| PmemError::Io { doing: "open", device: path.display().to_string(), source };
    // Look before opening: opening a fifo would block.
    if let Ok(metadata) = fs::metadata(path) {
        device_kind(path, metadata.mode())?;
    }
    let mut how = fs::OpenOptions::new();
    let file = how.read(true).write(!read_only).create(create).truncate(false).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let is_character_device = device_kind(path, metadata.mode())?;
    Ok((file.into(), is_character_device))
}

/// Whether it is a character device; an error for what cannot be mapped.
fn device_kind(path: &Path, mode: u32) -> Result<bool, PmemError> {
    let what = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(false),
        FileType::CharacterDevice => return Ok(true),
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device (put a file on it, or use its DAX node)",
        FileType::Socket => "a socket",
        FileType::Fifo => "a fifo",
        _ => "neither file nor device",
    };
    Err(PmemError::NotADevice { device: path.display().to_string(), what })
}

fn device_length(file: &OwnedFd, path: &Path, is_character_device: bool) -> Result<u64, PmemError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| io("stat", path.display(), errno))?;
    if !is_character_device {
        return Ok(stat.st_size as u64);
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let size = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
    let what = "a character device that is no device-dax";
    let not_dax = PmemError::NotADevice { device: path.display().to_string(), what };
    size.ok().and_then(|size| size.trim().parse().ok()).ok_or(not_dax)
}

fn check_length(device: String, bytes: u64) -> Result<(), PmemError> {
    let why = match bytes {
        0 => "is no device yet; give it a size",
        _ if !bytes.is_multiple_of(crate::BLOCK_BYTES) => "is not a multiple of 4096",
        _ if bytes > DEVICE_BYTES_MAX => "is more than the largest device, 16 TiB",
        _ => return Ok(()),
    };
    Err(PmemError::Size { device, bytes, why })
}

/// One process owns a device: exclusively to write, together with other readers to read.
fn lock(file: &OwnedFd, path: &Path, read_only: bool) -> Result<(), PmemError> {
    let operation =
        if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(PmemError::Busy { device: path.display().to_string(), owner: owner_of(path) })
        }
        Err(errno) => Err(io("lock", path.display(), errno)),
    }
}

/// Who holds the lock, from the kernel's list: `N: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF`.
fn owner_of(path: &Path) -> String {
    let unknown = "another process".to_string();
    let (Ok(metadata), Ok(locks)) = (fs::metadata(path), fs::read_to_string("/proc/locks")) else { return unknown };
    let inode = format!(":{}", metadata.ino());
    let pid = locks.lines().filter(|line| line.contains("FLOCK")).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(5).filter(|file| file.ends_with(&inode))?;
        fields.get(4)?.parse::<u32>().ok()
    });
    let Some(pid) = pid else { return unknown };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

fn map_file(
    file: &OwnedFd,
    length: u64,
    is_character_device: bool,
    read_only: bool,
) -> rustix::io::Result<(*mut u8, PersistenceLevel)> {
    let protection = if read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
    let map = |flags| {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), length as usize, protection, flags, file.as_fd(), 0) }
    };
    if let Ok(base) = map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
        return Ok((base.cast(), PersistenceLevel::Dax));
    }
    let base = map(MapFlags::SHARED)?;
    let in_memory = rustix::fs::fstatfs(file).is_ok_and(|stat| matches!(stat.f_type as u64, TMPFS | RAMFS | HUGETLBFS));
    let level = match (is_character_device, in_memory) {
        (true, _) => PersistenceLevel::Dax,
        (false, true) => PersistenceLevel::Memory,
        (false, false) => PersistenceLevel::File,
    };
    Ok((base.cast(), level))
}
