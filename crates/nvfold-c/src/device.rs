//! Open devices: a file system each, with its background thread.
//!
//! ```text
//! nvfold_device_open   make or open the device -> format if asked -> mount what is on it -> background thread
//! calls                `Device::run`; a panic in one breaks the device: EIO from then on
//! nvfold_device_close  no new calls -> descriptors closed -> calls under way have ended -> thread stopped
//!                      -> unmounted, clean (a broken one: left as a crash leaves it) -> released
//! exit                 the same for those that are still open
//! ```
//!
//! A handle is a number that only looks like a pointer, and is not used again: a closed handle is recognised, and nothing that C
//! passes is ever followed.
#![forbid(unsafe_code)]

use crate::background::{self, Background};
use crate::causality::Follows;
use crate::failure::{Failure, Outcome};
use crate::options::Options;
use nvfold::{AutoOptions, DeExtOptions, DeNovaOptions, FileSystem, MkfsOptions, MountOptions};
use parking_lot::{Mutex, RwLock};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Handles are multiples of this, so that none is a small number that a program might have for something else.
const HANDLE_STEP: usize = 0x1000;
/// How long exit waits for calls of other threads.
const EXIT_GRACE: Duration = Duration::from_secs(5);
/// How often closing looks whether calls have ended.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// An open device.
pub struct Device {
    /// The handle that C has, never used again.
    pub handle: usize,
    pub fs: FileSystem,
    /// Who owns what is made.
    pub uid: u32,
    pub gid: u32,
    /// Permission bits that new files do not get.
    pub umask: AtomicU32,
    /// Whether what is read from its files is followed through memory.
    pub follows_origins: Follows,
    /// Bytes that the program has written to its files.
    pub written_bytes: AtomicU64,
    /// Nothing is opened on it any more.
    closing: AtomicBool,
    /// A panic has left its state in DRAM half changed.
    broken: Arc<AtomicBool>,
    background: Mutex<Option<Background>>,
}

static DEVICES: RwLock<BTreeMap<usize, Arc<Device>>> = RwLock::new(BTreeMap::new());

impl Device {
    /// Does something with it. EIO when a panic has broken it, before or now.
    pub fn run<T>(&self, operation: impl FnOnce(&FileSystem) -> Outcome<T>) -> Outcome<T> {
        if self.broken.load(Ordering::SeqCst) {
            let why = "an internal error has broken this device; close it, and open it again, which recovers it";
            return Err(Failure::new(libc::EIO, why));
        }
        catch_unwind(AssertUnwindSafe(|| operation(&self.fs))).unwrap_or_else(|payload| {
            self.broken.store(true, Ordering::SeqCst);
            Err(Failure::panicked(&*payload))
        })
    }

    /// Whether it is being closed. To be asked under the lock of a table before something is put there; closing sets it
    /// first and empties the tables then.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

/// Returns the device of a handle. EBADF when there is none (any more).
pub fn of(handle: usize) -> Outcome<Arc<Device>> {
    let found = DEVICES.read().get(&handle).cloned();
    found.ok_or_else(|| Failure::new(libc::EBADF, "this handle is of no open device"))
}

/// Opens a device; returns its handle.
pub fn open(path: &[u8], options: &Options) -> Outcome<usize> {
    let spec = match path {
        b"" => return Err(Failure::new(libc::ENOENT, "the path of the device is empty")),
        b"mem:" => DeviceSpec::Memory,
        path => DeviceSpec::Path(PathBuf::from(OsStr::from_bytes(path))),
    };
    let region = region(&spec, options)?;
    let (clock, start) = (Arc::new(pmem::clock::coarse_now_ns), Instant::now());
    let mount = MountOptions {
        policy: options.policy,
        auto: AutoOptions { prefer: options.prefer, ..AutoOptions::default() },
        pack: options.pack,
        compression: options.compression,
        deext: DeExtOptions { classes: options.cut, ..DeExtOptions::default() },
        denova: DeNovaOptions { mode: options.mode, ..DeNovaOptions::default() },
        origin_bytes_min: options.origin_bytes_min,
        // What a thread owes to an emulated device has passed too.
        stopwatch: Some(Arc::new(move || pmem::clock::device_ns(start))),
        read_only: options.read_only,
        cores: options.threads,
        clock,
        discard: options.discard,
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region, mount)?;
    let follows_origins = options.origins.unwrap_or(options.policy.follows_origins());
    let origin_bytes_min = follows_origins.then(|| fs.origin_bytes_min());
    let broken = Arc::new(AtomicBool::new(false));
    let background = background::start(fs.clone(), broken.clone()).map_err(|error| {
        Failure::new(error.raw_os_error().unwrap_or(libc::EAGAIN), format!("start a thread: {error}"))
    })?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut devices = DEVICES.write();
    let handle = next_handle();
    let device = Device {
        handle,
        fs,
        uid,
        gid,
        umask: AtomicU32::new(process_umask()),
        follows_origins: Follows::begin(handle, origin_bytes_min),
        written_bytes: AtomicU64::new(0),
        closing: AtomicBool::new(false),
        broken,
        background: Mutex::new(Some(background)),
    };
    devices.insert(handle, Arc::new(device));
    Ok(handle)
}

fn next_handle() -> usize {
    static LAST: AtomicU64 = AtomicU64::new(0);
    (LAST.fetch_add(1, Ordering::Relaxed) as usize + 1) * HANDLE_STEP
}

/// Opens the device, and makes and formats it where that is asked for.
fn region(spec: &DeviceSpec, options: &Options) -> Outcome<Region> {
    let open_options = OpenOptions {
        read_only: options.read_only,
        profile: options.profile.clone(),
        descriptor_min: options.descriptor_min,
        ..OpenOptions::default()
    };
    let bytes = match spec {
        DeviceSpec::Memory => None,
        DeviceSpec::Path(path) => std::fs::metadata(path).ok().map(|metadata| metadata.len()),
    };
    let is_new = match spec {
        DeviceSpec::Memory => true,
        // An empty file holds nothing that could be lost; what is no file (device-dax) has no length either.
        DeviceSpec::Path(path) => bytes.is_none() || (bytes == Some(0) && path.is_file()),
    };
    let region = match options.size_bytes {
        _ if is_new && !options.create && !options.format && *spec != DeviceSpec::Memory => {
            return Ok(Region::open(spec, &open_options)?);
        }
        Some(size) if is_new || options.format => Region::create(spec, size, &open_options)?,
        None if is_new => return Err(Failure::invalid("a new device needs a size, for example size=1G")),
        _ => Region::open(spec, &open_options)?,
    };
    if is_new || options.format {
        let mkfs = MkfsOptions {
            uuid: pmem::random_bytes::<16>(),
            label: options.label.clone(),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            force: options.format,
            index: options.index,
            now: pmem::clock::precise_now_ns(),
            ..MkfsOptions::default()
        };
        FileSystem::mkfs(&region, &mkfs)?;
    }
    Ok(region)
}

/// The umask of the process, which can only be read by changing it, or here.
fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

/// Closes a device: unmounts it cleanly. `close_all_of` closes what is open on it, and is called when nothing new
/// is opened any more. Whatever comes of it, the handle is gone.
pub fn close(handle: usize, close_all_of: impl FnOnce(&Arc<Device>)) -> Outcome<()> {
    let device = of(handle)?;
    // Of two that close it, one finds it.
    if device.closing.swap(true, Ordering::SeqCst) {
        return Err(Failure::new(libc::EBADF, "another thread is closing this device"));
    }
    DEVICES.write().remove(&handle);
    close_all_of(&device);
    release(device, None)
}

/// Waits for the calls under way, stops the thread, and unmounts. `until`: gives up at that time.
fn release(mut device: Arc<Device>, until: Option<Instant>) -> Outcome<()> {
    let device = loop {
        match Arc::try_unwrap(device) {
            Ok(device) => break device,
            Err(shared) if until.is_some_and(|until| Instant::now() > until) => {
                // Others are still inside. What they do is as if the process had been killed; all that is done is kept.
                return if shared.broken.load(Ordering::SeqCst) { Ok(()) } else { Ok(shared.fs.sync()?) };
            }
            Err(shared) => device = shared,
        }
        thread::sleep(LOOK_AGAIN);
    };
    drop(device.background.into_inner());
    if device.broken.load(Ordering::SeqCst) {
        return Err(Failure::new(
            libc::EIO,
            "an internal error had broken this device; the next one to open it recovers it",
        ));
    }
    Ok(device.fs.unmount()?)
}

/// Closes all that is open, when the process ends by exit or by returning from main: what a program wrote is not lost
/// because it did not close, as files of the kernel's are not.
pub fn close_all_at_exit(close_all_of: impl Fn(&Arc<Device>)) {
    let devices = std::mem::take(&mut *DEVICES.write());
    let until = Instant::now() + EXIT_GRACE;
    for device in devices.into_values().filter(|device| !device.closing.swap(true, Ordering::SeqCst)) {
        close_all_of(&device);
        // Nobody is left to be told.
        let _ = release(device, Some(until));
    }
}
