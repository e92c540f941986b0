//! Opening a device: mapping it, owning it, and detecting what a fence guarantees on it.
//!
//! **The safety argument of [`Mapping`].** The mapping is shared memory: any thread may store to any byte of it at
//! any moment, through the safe methods of `Region`, and so may a process that ignores our lock. So we promise the
//! compiler nothing that a store could break. All accesses are atomic and of whole aligned words, or assembly that
//! stands for such accesses (`shared` says which, and why that is allowed). No reference to media is ever given out,
//! not even to bytes that copy on write never changes: reads copy, and compares work in place. Every access is
//! checked against the length first. The length is a multiple of 4096, so the words that a range touches lie in the
//! device if the range does. The mapping lives as long as the last `Region` of it. The length grows only when what was
//! added is mapped, and what is taken back stays mapped, as memory of nobody.

use crate::cgroup::Room;
use crate::copy::Streaming;
use crate::counters::Tally;
use crate::descriptor::Descriptor;
use crate::fault::Faults;
use crate::flush::Instruction;
use crate::host_file::HostFile;
use crate::journal;
use crate::profile::{Profile, Throttle};
use crate::recorder::Event;
use crate::reserved::{How, Reserved};
use crate::shared::Wide;
use crate::wear::Wear;
use crate::writeback::Writeback;
use crate::{BLOCK_BYTES, DEVICE_BYTES_MAX, host, owner};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Why a size does not suit the file system of the host.
const NOT_WHOLE_PAGES: &str = "is not a multiple of the page size of its file system (2 MiB on most hugetlbfs)";

/// How long opening waits for a holder that is about to let go.
const LETS_GO_WITHIN: Duration = Duration::from_secs(30);
/// How often it looks meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// In how many looks in a row the holder must seem to stay, or is not found. What /proc says of a process is read piece by
/// piece while it may end, and one that is not found may have ended since the attempt.
const LOOKS: u32 = 3;

/// The place of a device.
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

/// What a fence guarantees on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceLevel {
    /// MAP_SYNC or device-dax: a fence makes data power-safe.
    Dax,
    /// tmpfs, hugetlbfs, memfd: data survives the process, not power.
    Memory,
    /// A file on a disk: what was stored before the last sync survives process and power, what was stored later
    /// survives neither. A sync is atomic (module `writeback`).
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

/// When cache-line flush instructions are issued. Flushes are always counted, charged and recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// At level `dax` only. Elsewhere they gain nothing: a killed process loses no store to shared memory or the page
    /// cache, flushed or not.
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
    /// Charge the emulated device's time without letting threads wait for it: the time shows only in
    /// `Region::counters` and `clock::device_ns`.
    pub counts_only: bool,
    /// Count lines written and lines read per block (8 bytes of DRAM a block).
    pub track_wear: bool,
    /// Count the writes of each line: 4 bytes of DRAM a line, a sixteenth of the written part of the device.
    pub track_lines: bool,
    /// Record every store, flush and fence.
    pub record: bool,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Reserve address space behind the device, into which it can be made longer while it is mapped
    /// ([`Region::lengthen_mapped`](crate::Region::lengthen_mapped)).
    pub can_grow: bool,
    /// Treat a device in memory as one of level `file`, for tests of that level.
    pub as_file: bool,
    /// At level `file`, record every change of the file: `Region::take_host_events`. There and at level `memory`, let
    /// `Region::limit_host` limit the disk or the memory of the device.
    pub record_host: bool,
    /// Smallest number for the device's descriptor, for a process whose program relies on the low numbers; 0: a high one,
    /// if the process may have one.
    pub descriptor_min: i32,
    /// Whose files are opened as a device.
    pub trust: Trust,
    /// Another path of the existing device, by which it is opened: `/proc/self/fd/N` of a descriptor that another process
    /// has opened. Messages name the device itself.
    pub opened_by: Option<PathBuf>,
}

/// Whose files are opened as a device. Who may write the file of a device can change everything that is stored on it, and
/// who may read it can read everything, whatever the permissions of the files on the device say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Any that can be opened.
    #[default]
    Any,
    /// Those of the caller and of root. A symbolic link to the file must be theirs, too.
    Owner,
    /// The same, if nobody else may read or write them. Who may use a device-dax node is left to the administrator.
    OwnerAlone,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            profile: Profile::default(),
            flush: FlushMode::default(),
            counts_only: false,
            track_wear: false,
            track_lines: false,
            record: false,
            huge_pages: true,
            can_grow: false,
            as_file: false,
            record_host: false,
            descriptor_min: 0,
            trust: Trust::default(),
            opened_by: None,
        }
    }
}

/// The reason why a device cannot be used.
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
    /// The errno of the host: what a cut-off sync left in the journal cannot be put in its place.
    #[error(
        "cannot replay the journal of {device}: {source}; nothing is lost: the next read-write open tries again, and a \
         read-only one does without"
    )]
    Replay {
        /// Path.
        device: String,
        /// Why.
        source: std::io::Error,
    },
    /// EBUSY: another process owns it.
    #[error("{device} is in use by {owner}")]
    Busy {
        /// Path.
        device: String,
        /// `process N (name)`, as far as it is known.
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
    #[error("{device} cannot be used as a device: its size of {bytes} bytes {why}")]
    Size {
        /// Path or `mem:`.
        device: String,
        /// Its size.
        bytes: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// ENOMEM: it cannot be made longer while it is mapped, because other things follow it in the address space.
    #[error(
        "{device} cannot have {bytes} bytes while it is in use: {most} bytes are the most that this process has room for; a \
         device in a file can have more while it is unmounted (`nvfold umount`, then `nvfold resize`)"
    )]
    NoRoomBehind {
        /// Path or `mem:`.
        device: String,
        /// The wanted size.
        bytes: u64,
        /// The size that it can have.
        most: u64,
    },
    /// EROFS: the caller wants to write a device that may only be read.
    #[error("{device} cannot be written, only read ({source})")]
    ReadOnlyFile {
        /// Path.
        device: String,
        /// The host's reason.
        source: std::io::Error,
    },
    /// EIO: some stores may not have reached the device, so its content is no longer trusted.
    #[error(
        "{device} is lost: it was truncated, its host has no memory left for it, or bad memory was written; mount it \
         again to recover what reached it"
    )]
    Lost {
        /// Path or `mem:`.
        device: String,
    },
    /// EIO: the program has closed or replaced the descriptor of the device, and the lock went with it.
    #[error(
        "{device} is lost: the program has closed or replaced nvfold's descriptor of it (closefrom, close, dup2), so \
         nothing more is written to it; close it, and open it again to recover what is there; open devices after the \
         program has closed what it inherited"
    )]
    DescriptorClosed {
        /// Path or `mem:`.
        device: String,
    },
    /// EACCES: somebody else's file, which was not to be trusted ([`Trust::Owner`]).
    #[error(
        "{device} belongs to user {uid}, who can read and change everything that is stored on it; make it yours (chown) \
         if you trust what is on it"
    )]
    ForeignOwner {
        /// Path.
        device: String,
        /// Who owns it, or the symbolic link that leads to it.
        uid: u32,
    },
    /// EACCES: others may read or write the file ([`Trust::OwnerAlone`]).
    #[error(
        "{device} has mode {mode:04o}: others than its owner can read or change everything that is stored on it; run \
         chmod 600 on it"
    )]
    OpenToOthers {
        /// Path.
        device: String,
        /// Its permission bits.
        mode: u32,
    },
    /// EIO: bad memory.
    #[error("cannot {doing} {device} at offset {offset:#x}: {length} bytes there lie in bad memory")]
    BadMemory {
        /// `read` or `write`.
        doing: &'static str,
        /// Path or `mem:`.
        device: String,
        /// Device offset in bytes.
        offset: u64,
        /// How many bytes are unreadable.
        length: u64,
    },
    /// EINVAL: a memory device exists only once it was created with a size.
    #[error("mem: is a new device in memory, and needs a size")]
    MemoryNeedsSize,
}

impl PmemError {
    /// Returns the POSIX error number (errno).
    pub fn errno(&self) -> i32 {
        match self {
            PmemError::Io { source, .. } | PmemError::Replay { source, .. } => source.raw_os_error().unwrap_or(5),
            PmemError::Lost { .. } | PmemError::DescriptorClosed { .. } | PmemError::BadMemory { .. } => 5,
            PmemError::ForeignOwner { .. } | PmemError::OpenToOthers { .. } => 13,
            PmemError::NoRoomBehind { .. } => 12,
            PmemError::Busy { .. } => 16,
            PmemError::ReadOnlyFile { .. } => 30,
            PmemError::NotADevice { .. } | PmemError::Size { .. } | PmemError::MemoryNeedsSize => 22,
        }
    }
}

/// A mapped device and everything that belongs to it.
pub(crate) struct Mapping {
    pub(crate) base: *mut u8,
    /// It grows, but never beyond the reserved address space.
    length: AtomicU64,
    /// Address space around the mapping, if it can grow.
    reserved: Option<Reserved>,
    how: How,
    wants_huge_pages: bool,
    host_file: HostFile,
    /// Held while the length changes.
    lengthening: Mutex<()>,
    pub(crate) file: Arc<Descriptor>,
    /// The process that opened it. A forked child has copies of the descriptor and of the lock.
    process: u32,
    pub(crate) name: String,
    pub(crate) level: PersistenceLevel,
    pub(crate) read_only: bool,
    pub(crate) is_character_device: bool,
    pub(crate) can_punch: bool,
    /// Whether flush instructions are issued.
    pub(crate) flushes: bool,
    /// What failed under the mapping. The record is watched if an access must do more than count: with a profile,
    /// wear, the recorder, poison, or after memory has failed.
    pub(crate) faults: &'static Faults,
    /// Lines that a test has made bad, and whether there are any.
    pub(crate) is_poisoned: AtomicBool,
    pub(crate) poisoned: Mutex<Vec<Range<u64>>>,
    pub(crate) streaming: Streaming,
    pub(crate) wide: Wide,
    pub(crate) instruction: Instruction,
    pub(crate) tally: Tally,
    pub(crate) throttle: Throttle,
    /// Lines written and lines read, a block.
    pub(crate) wear: Option<[Wear; 2]>,
    /// Writes of each line.
    pub(crate) line_wear: Option<Wear>,
    /// Tells this mapping's lines from those of other mappings in the model of a thread's cache.
    pub(crate) number: u64,
    pub(crate) recorder: Option<Mutex<Vec<Event>>>,
    /// Stores that are not on the disk yet; only at level `file`.
    pub(crate) writeback: Option<Arc<Writeback>>,
    /// What limits the memory of the device; only at level `memory`, and only if something does.
    pub(crate) room: Option<Room>,
    /// Called before every store.
    pub(crate) store_observer: Mutex<Option<Arc<StoreObserver>>>,
}

/// Called before a store with its offset and length in bytes. If it returns false, the store is not done and the
/// device is lost.
pub type StoreObserver = dyn Fn(&crate::Region, u64, u64) -> bool + Send + Sync;

// SAFETY: `base` points to shared memory that stays mapped until drop; all access goes through `Region`, whose
// methods make atomic accesses, as the module's safety argument says.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; no method needs exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes everything durable and releases the lock. Nothing may be stored from now on.
    pub(crate) fn let_go(&self) {
        if let Some(writeback) = &self.writeback {
            writeback.close();
        }
        // Closing would release the lock as well, but only after a child that another thread is starting has closed
        // its copy of the descriptor. A descriptor that is not ours any more may have a lock of the program's.
        if let (true, Ok(file)) = (self.process == std::process::id(), self.file.get()) {
            let _ = host::flock(file, FlockOperation::Unlock);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.let_go();
        self.faults.unregister();
        // Reserved address space is unmapped with all that is in it.
        if self.reserved.is_none() {
            // SAFETY: base and length are what mmap returned and was given; no access can follow, because every access
            // is that of a `Region`, which keeps this value alive.
            let _ = unsafe { host::munmap(self.base.cast(), self.length() as usize) };
        }
    }
}

/// A device that is open and locked, but not mapped yet.
struct Opened {
    file: HostFile,
    is_character_device: bool,
}

impl Mapping {
    /// Opens an existing device.
    pub(crate) fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Mapping, PmemError> {
        let DeviceSpec::Path(path) = spec else {
            return Err(PmemError::MemoryNeedsSize);
        };
        let opened = open_path(path, options)?;
        let length = device_length(&opened, spec)?;
        let Some(device_bytes) = journal::device_bytes_of(length).filter(|_| !opened.is_character_device) else {
            return Mapping::map(opened, spec, length, options);
        };
        if !options.read_only {
            replay(&opened, spec, device_bytes)?;
            return Mapping::map(opened, spec, device_bytes, options);
        }
        let mapping = Mapping::map(opened, spec, device_bytes, &OpenOptions { as_file: true, ..options.clone() })?;
        mapping.replay_in_memory().map_err(|errno| io("read the journal of", spec, errno))?;
        Ok(mapping)
    }

    /// Opens a device after creating or resizing it.
    pub(crate) fn create(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Mapping, PmemError> {
        check_length(spec, size_bytes)?;
        match spec {
            DeviceSpec::Memory => {
                let file = host::memfd_create("nvfold", MemfdFlags::CLOEXEC);
                let file = file.map_err(|errno| io("create", spec, errno))?;
                let file = HostFile::new(hold(file, spec, options)?, options.record_host);
                Mapping::resize_and_map(Opened { file, is_character_device: false }, spec, size_bytes, options)
            }
            DeviceSpec::Path(path) => match create_path(path, options)? {
                Some(created) => Mapping::resize_and_map(created, spec, size_bytes, options).inspect_err(|_| {
                    // A file that we created and could not use must not stay. The first error is returned; a failure
                    // to remove it adds nothing.
                    let _ = fs::remove_file(path);
                }),
                None => {
                    let opened = open_path(path, options)?;
                    let length = device_length(&opened, spec)?;
                    if let Some(bytes) = journal::device_bytes_of(length).filter(|_| !opened.is_character_device) {
                        replay(&opened, spec, bytes)?;
                    }
                    Mapping::resize_and_map(opened, spec, size_bytes, options)
                }
            },
        }
    }

    /// Opens an existing device, and makes it longer.
    pub(crate) fn lengthen(spec: &DeviceSpec, size_bytes: u64, options: &OpenOptions) -> Result<Mapping, PmemError> {
        check_length(spec, size_bytes)?;
        let DeviceSpec::Path(path) = spec else {
            return Err(PmemError::MemoryNeedsSize);
        };
        let opened = open_path(path, options)?;
        let length = device_length(&opened, spec)?;
        let is_journalled = !opened.is_character_device;
        let device_bytes = journal::device_bytes_of(length).filter(|_| is_journalled);
        if let Some(bytes) = device_bytes {
            replay(&opened, spec, bytes)?;
        }
        let before = device_bytes.unwrap_or(length);
        if size_bytes < before {
            let why = "is less than the device has";
            return Err(PmemError::Size { device: spec.to_string(), bytes: size_bytes, why });
        }
        let file = opened.file.clone();
        let longer = Mapping::resize_and_map(opened, spec, size_bytes, options).and_then(|mapping| {
            // The size is durable before anything on the device relies on it.
            let synced = if mapping.is_character_device { Ok(()) } else { file.sync() };
            synced.map(|()| mapping).map_err(|errno| io("set the size of", spec, errno))
        });
        longer.inspect_err(|_| {
            // The first error is returned. A file that stays longer does no harm.
            let _ = file.set_length(before);
        })
    }

    fn resize_and_map(
        opened: Opened,
        spec: &DeviceSpec,
        size_bytes: u64,
        options: &OpenOptions,
    ) -> Result<Mapping, PmemError> {
        if !opened.is_character_device {
            opened.file.set_length(size_bytes).map_err(|errno| match errno {
                Errno::INVAL => PmemError::Size { device: spec.to_string(), bytes: size_bytes, why: NOT_WHOLE_PAGES },
                _ => io("set the size of", spec, errno),
            })?;
            return Mapping::map(opened, spec, size_bytes, options);
        }
        let length = device_length(&opened, spec)?;
        if length < size_bytes {
            let why = "is more than the device has";
            return Err(PmemError::Size { device: spec.to_string(), bytes: size_bytes, why });
        }
        Mapping::map(opened, spec, length, options)
    }

    fn map(opened: Opened, spec: &DeviceSpec, length: u64, options: &OpenOptions) -> Result<Mapping, PmemError> {
        check_length(spec, length)?;
        static MAPPINGS: AtomicU64 = AtomicU64::new(0);
        let can_grow = options.can_grow && !options.read_only && !opened.is_character_device;
        let reserved = if can_grow { Reserved::behind(length) } else { None };
        let capacity = reserved.as_ref().map_or(length, Reserved::bytes);
        let table = |is_wanted: bool, new: fn(u64) -> Option<Wear>| {
            let no_memory = || io("count the wear of", spec, Errno::NOMEM);
            is_wanted.then(|| new(capacity).ok_or_else(no_memory)).transpose()
        };
        let written = table(options.track_wear, Wear::of_blocks)?;
        let read = table(options.track_wear, Wear::of_blocks)?;
        let line_wear = table(options.track_lines, Wear::of_lines)?;
        let (base, level, how) = map_file(&opened, length, options).map_err(|errno| io("map", spec, errno))?;
        let base = match &reserved {
            Some(reserved) => {
                // Only now is it known how the file can be mapped. A mapping that fails would take the place of what is
                // reserved.
                let moved = opened.file.descriptor().get().and_then(|file| reserved.map(0..length, &how, file));
                // SAFETY: what was mapped just now, and nobody knows of it.
                let _ = unsafe { host::munmap(base.cast(), length as usize) };
                moved.map_err(|errno| io("map", spec, errno))?
            }
            None => base,
        };
        let is_memory = level == PersistenceLevel::Memory && !options.read_only;
        let room = is_memory.then(|| Room::of_this_process(options.record_host)).flatten();
        // What is reserved is allocated in small pages; a huge one would take more than that.
        let wants_huge_pages = options.huge_pages && room.is_none();
        advise(base, length, wants_huge_pages);
        let can_punch = !options.read_only && can_punch(&opened, length);
        // At level `file` every store is watched, because `writeback` must know of it.
        let is_private = level == PersistenceLevel::File && (!options.read_only || options.as_file);
        let is_tracked = options.track_wear || options.track_lines;
        let watched = !options.profile.is_native() || options.record || is_tracked || is_private;
        let file = opened.file.descriptor().clone();
        let faults = Faults::register(base, length, &file, page_bytes(&file), watched);
        file.tell(faults);
        let writeback = is_private.then(|| Writeback::new(base, length, capacity, opened.file.clone(), faults));
        if let Some(None) = writeback {
            faults.unregister();
            return Err(io("track the pages of", spec, Errno::NOMEM));
        }
        Ok(Mapping {
            base,
            length: AtomicU64::new(length),
            reserved,
            how,
            wants_huge_pages,
            lengthening: Mutex::new(()),
            host_file: opened.file,
            file,
            process: std::process::id(),
            writeback: writeback.flatten(),
            room,
            name: spec.to_string(),
            level,
            read_only: options.read_only,
            is_character_device: opened.is_character_device,
            can_punch,
            flushes: level == PersistenceLevel::Dax || options.flush == FlushMode::Always,
            faults,
            is_poisoned: AtomicBool::new(false),
            poisoned: Mutex::default(),
            streaming: Streaming::detect(),
            wide: Wide::detect(),
            instruction: Instruction::detect(),
            tally: Tally::new(),
            throttle: Throttle::new(options.profile.clone(), options.counts_only),
            wear: written.zip(read).map(|(written, read)| [written, read]),
            line_wear,
            number: MAPPINGS.fetch_add(1, Ordering::Relaxed),
            recorder: options.record.then(|| Mutex::new(Vec::new())),
            store_observer: Mutex::new(None),
        })
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Returns how long it can become while it is mapped.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.reserved.as_ref().map_or(self.length(), Reserved::bytes)
    }

    /// Returns how many bytes the host's file has, without a journal.
    pub(crate) fn host_bytes(&self) -> u64 {
        let is_plain = !self.is_character_device && self.writeback.is_none();
        let bytes = || self.host_file.length().map_or(0, |bytes| bytes / BLOCK_BYTES * BLOCK_BYTES);
        if is_plain { bytes().max(self.length()) } else { self.length() }
    }

    /// Makes the device longer under its mapping. The new part reads as zeros if the file was not longer.
    pub(crate) fn lengthen_mapped(&self, size_bytes: u64) -> Result<(), PmemError> {
        let _lengthening = self.lengthening.lock();
        let (before, device) = (self.length(), || self.name.clone());
        let refused = |why| Err(PmemError::Size { device: device(), bytes: size_bytes, why });
        if size_bytes <= before {
            return if size_bytes == before { Ok(()) } else { refused("is less than the device has") };
        }
        if !size_bytes.is_multiple_of(BLOCK_BYTES) || size_bytes > DEVICE_BYTES_MAX {
            return refused("is not a multiple of 4096, or is larger than the largest device, 16 TiB");
        }
        if self.is_character_device {
            return refused("is more than the device has");
        }
        if size_bytes < self.host_bytes() {
            return refused("is less than the file has");
        }
        if size_bytes > self.capacity_bytes() {
            return Err(PmemError::NoRoomBehind { device: device(), bytes: size_bytes, most: self.capacity_bytes() });
        }
        let had = self.host_bytes();
        self.set_file_length(size_bytes).map_err(|errno| match errno {
            Errno::INVAL => PmemError::Size { device: device(), bytes: size_bytes, why: NOT_WHOLE_PAGES },
            _ => io("set the size of", &self.name, errno),
        })?;
        if let Err(errno) = self.map_behind(before, size_bytes) {
            // The first error is returned. A file that stays longer does no harm.
            let _ = self.set_file_length(had);
            return Err(io("map", &self.name, errno));
        }
        self.faults.lengthen(size_bytes);
        self.length.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Takes back what [`Mapping::lengthen_mapped`] did. Nothing was stored to the part behind `size_bytes`, and nobody
    /// knows of it.
    pub(crate) fn shorten_mapped(&self, size_bytes: u64) {
        let _lengthening = self.lengthening.lock();
        let Some(reserved) = self.reserved.as_ref().filter(|_| size_bytes < self.length()) else { return };
        let end = self.length();
        self.length.store(size_bytes, Ordering::Release);
        self.faults.lengthen(size_bytes);
        reserved.take_out(size_bytes..end);
        // A file that stays longer does no harm.
        let _ = self.set_file_length(size_bytes);
    }

    /// Gives the file another length, durably.
    fn set_file_length(&self, bytes: u64) -> rustix::io::Result<()> {
        if let Some(writeback) = &self.writeback {
            return writeback.set_device_bytes(bytes);
        }
        self.host_file.set_length(bytes)?;
        if self.level == PersistenceLevel::Dax { self.host_file.sync() } else { Ok(()) }
    }

    fn map_behind(&self, before: u64, end: u64) -> rustix::io::Result<()> {
        let reserved = self.reserved.as_ref().ok_or(Errno::NOMEM)?;
        let mapped = reserved.map(before..end, &self.how, self.file.get()?);
        let base = mapped.inspect_err(|_| reserved.take_out(before..end))?;
        advise(base, end - before, self.wants_huge_pages);
        Ok(())
    }

    /// For a device that may only be read: shows the pages of the journal in memory, and leaves the journal as it is.
    fn replay_in_memory(&self) -> rustix::io::Result<()> {
        let Some(writeback) = &self.writeback else { return Ok(()) };
        journal::replay_into(writeback.file(), self.length(), &mut |page, bytes| {
            // SAFETY: the page lies in the device, which the journal has checked, and so in our mapping. The mapping
            // is private, and no other code knows of it yet.
            let to =
                unsafe { std::slice::from_raw_parts_mut(self.base.add((page * BLOCK_BYTES) as usize), bytes.len()) };
            to.copy_from_slice(bytes);
            writeback.hold(page);
        })
    }
}

/// Completes the sync that a power cut or a killed process interrupted.
fn replay(opened: &Opened, spec: &DeviceSpec, device_bytes: u64) -> Result<(), PmemError> {
    let failed = |errno: Errno| PmemError::Replay { device: spec.to_string(), source: errno.into() };
    journal::replay(&opened.file, device_bytes).map_err(failed)
}

fn io(doing: &'static str, device: impl fmt::Display, errno: Errno) -> PmemError {
    PmemError::Io { doing, device: device.to_string(), source: errno.into() }
}

/// Opens and locks an existing device.
fn open_path(path: &Path, options: &OpenOptions) -> Result<Opened, PmemError> {
    let read_only = options.read_only;
    let by = options.opened_by.as_deref().unwrap_or(path);
    let device = || path.display().to_string();
    let failed = |source| PmemError::Io { doing: "open", device: device(), source };
    // The kind is checked before opening, because opening a fifo would block, and other devices may do anything.
    device_kind(path, &fs::metadata(by).map_err(failed)?)?;
    let open = |write| fs::OpenOptions::new().read(true).write(write).open(by);
    let file = open(!read_only).map_err(|source| {
        let refused = matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
        if refused && open(false).is_ok() {
            return PmemError::ReadOnlyFile { device: device(), source };
        }
        failed(source)
    })?;
    let metadata = file.metadata().map_err(failed)?;
    let is_character_device = device_kind(path, &metadata)?;
    check_trust(path, &metadata, options.trust)?;
    let file = hold(file.into(), device(), options)?;
    lock(&file, path, read_only)?;
    Ok(Opened { file: HostFile::new(file, options.record_host), is_character_device })
}

fn hold(file: OwnedFd, device: impl fmt::Display, options: &OpenOptions) -> Result<Arc<Descriptor>, PmemError> {
    let held = Descriptor::new(file, options.descriptor_min);
    Ok(Arc::new(held.map_err(|errno| io("hold", device, errno))?))
}

/// Checks an open file, whose metadata these are, and the symbolic link that leads to it.
fn check_trust(path: &Path, metadata: &fs::Metadata, trust: Trust) -> Result<(), PmemError> {
    if trust == Trust::Any {
        return Ok(());
    }
    let link = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_symlink);
    let ours = [rustix::process::geteuid().as_raw(), 0];
    let owners = [Some(metadata.uid()), link.map(|link| link.uid())];
    if let Some(uid) = owners.into_iter().flatten().find(|uid| !ours.contains(uid)) {
        return Err(PmemError::ForeignOwner { device: path.display().to_string(), uid });
    }
    let mode = metadata.mode() & 0o7777;
    if trust == Trust::OwnerAlone && metadata.is_file() && mode & 0o066 != 0 {
        return Err(PmemError::OpenToOthers { device: path.display().to_string(), mode });
    }
    Ok(())
}

/// Creates and locks a new file; returns `None` if a file is there already. A device holds the files of many users,
/// so only its owner may read it.
fn create_path(path: &Path, options: &OpenOptions) -> Result<Option<Opened>, PmemError> {
    match fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            let file = hold(file.into(), path.display(), options)?;
            lock(&file, path, false)?;
            let file = HostFile::new(file, options.record_host);
            Ok(Some(Opened { file, is_character_device: false }))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        Err(source) => Err(PmemError::Io { doing: "create", device: path.display().to_string(), source }),
    }
}

/// Returns whether it is a character device, or an error if it cannot be mapped.
fn device_kind(path: &Path, metadata: &fs::Metadata) -> Result<bool, PmemError> {
    let what = match FileType::from_raw_mode(metadata.mode()) {
        FileType::RegularFile => return Ok(false),
        FileType::CharacterDevice if dax_size_bytes(metadata.rdev()).is_some() => return Ok(true),
        FileType::CharacterDevice => "a character device other than device-dax",
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device (put a file on it, or use its DAX node)",
        FileType::Socket => "a socket",
        FileType::Fifo => "a fifo",
        _ => "neither file nor device",
    };
    Err(PmemError::NotADevice { device: path.display().to_string(), what })
}

fn device_length(opened: &Opened, device: impl fmt::Display) -> Result<u64, PmemError> {
    let stat = opened.file.descriptor().stat().map_err(|errno| io("stat", device, errno))?;
    let size = if opened.is_character_device { dax_size_bytes(stat.st_rdev) } else { None };
    Ok(size.unwrap_or(stat.st_size as u64))
}

/// Returns the size of a device-dax node in bytes as the kernel reports it; `None` for other character devices.
fn dax_size_bytes(device_number: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device_number), rustix::fs::minor(device_number));
    let node = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    let subsystem = fs::read_link(node.join("subsystem")).ok()?;
    if !subsystem.ends_with("dax") {
        return None;
    }
    fs::read_to_string(node.join("size")).ok()?.trim().parse().ok()
}

fn check_length(spec: &DeviceSpec, bytes: u64) -> Result<(), PmemError> {
    let why = match bytes {
        0 => "holds nothing",
        _ if !bytes.is_multiple_of(BLOCK_BYTES) => "is not a multiple of 4096",
        _ if bytes > DEVICE_BYTES_MAX => "is larger than the largest device, 16 TiB",
        _ => return Ok(()),
    };
    Err(PmemError::Size { device: spec.to_string(), bytes, why })
}

/// Locks a device for one process: exclusively to write, shared with other readers to read. Waits for a holder that is
/// about to let go.
fn lock(file: &Descriptor, path: &Path, read_only: bool) -> Result<(), PmemError> {
    let operation =
        if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let end = Instant::now() + LETS_GO_WITHIN;
    let mut stays = 0;
    loop {
        match file.get().and_then(|file| host::flock(file, operation)) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(io("lock", path.display(), errno)),
        }
        let holder = owner::of(path);
        let lets_go = holder.is_some_and(|pid| owner::is_ending(pid, path));
        stays = if lets_go { 0 } else { stays + 1 };
        if stays == LOOKS || Instant::now() >= end {
            let owner = holder.map_or_else(|| "another process".into(), owner::describe);
            return Err(PmemError::Busy { device: path.display().to_string(), owner });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Tells the kernel how a new mapping is used.
fn advise(base: *mut u8, length: u64, wants_huge_pages: bool) {
    // SAFETY: advice on our own mapping changes no content. A core dump shall not hold the files of all users.
    let _ = unsafe { host::madvise(base.cast(), length as usize, Advice::LinuxDontDump) };
    if wants_huge_pages {
        // SAFETY: advice on our own mapping changes no content. Refusal is no error: the kernel decides.
        let _ = unsafe { host::madvise(base.cast(), length as usize, Advice::LinuxHugepage) };
    }
}

/// Maps a file. Returns the level that this gives, and how it was mapped.
fn map_file(
    opened: &Opened,
    length: u64,
    options: &OpenOptions,
) -> rustix::io::Result<(*mut u8, PersistenceLevel, How)> {
    let file = opened.file.descriptor().get()?;
    let read_only = if options.read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
    let map = |protection, flags| {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        unsafe { host::mmap(std::ptr::null_mut(), length as usize, protection, flags, file, 0) }
    };
    let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // Without known flush instructions a fence makes nothing power-safe, however the device is mapped.
    if cfg!(target_arch = "x86_64")
        && !options.as_file
        && let Ok(base) = map(read_only, synchronous)
    {
        return Ok((base.cast(), PersistenceLevel::Dax, (read_only, synchronous)));
    }
    if is_in_memory(opened.file.descriptor()) && !options.as_file {
        let base = map(read_only, MapFlags::SHARED)?;
        return Ok((base.cast(), PersistenceLevel::Memory, (read_only, MapFlags::SHARED)));
    }
    // Private: see `writeback`. The host reserves no memory for pages that are never stored to.
    let private = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    Ok((map(both, private)?.cast(), PersistenceLevel::File, (both, private)))
}

/// Returns the size of the unit that is mapped, and fails, as a whole: 4096 bytes except on hugetlbfs.
fn page_bytes(file: &Descriptor) -> u64 {
    match file.get().and_then(host::fstatfs) {
        Ok(stat) if stat.f_type as u64 == HUGETLBFS => stat.f_bsize as u64,
        _ => BLOCK_BYTES,
    }
}

/// Returns whether the file lives only in memory.
fn is_in_memory(file: &Descriptor) -> bool {
    cfg!(miri)
        || file.get().and_then(host::fstatfs).is_ok_and(|stat| matches!(stat.f_type as u64, TMPFS | RAMFS | HUGETLBFS))
}

/// Returns whether the host gives back the memory of holes. The test punches a hole behind the end, which changes
/// nothing.
fn can_punch(opened: &Opened, length: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = |file| host::fallocate(file, flags, length, BLOCK_BYTES);
    !opened.is_character_device && opened.file.descriptor().get().and_then(punched).is_ok()
}
