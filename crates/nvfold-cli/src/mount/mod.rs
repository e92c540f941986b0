//! The FUSE mount: a session with the kernel over one [`FileSystem`].
//!
//! ```text
//! open or make the device -> mount what is on it -> nvfold_mount::Mount -> ready
//!   threads: those of the mount, one that waits for signals
//! unmounted -> threads of the mount ended -> device clean -> released
//! ```
//!
//! SIGTERM, SIGINT and SIGHUP unmount. A busy mount is detached from the tree. It ends when the last file on it is closed, or
//! after [`GRACE`], whichever comes first; everything written by then is on the device, and the device is clean. A
//! lost device ends its mount in the same way, and the command fails.
//!
//! A server in a sandbox can neither mount nor open the device. It gets both as descriptors ([`Handed`]), and whoever
//! mounted unmounts. If it is told to end before that, it ends the session after [`GRACE`].

pub(crate) mod clones;
mod events;
pub(crate) mod limits;
mod memory;
mod options;
mod remount;
pub(crate) mod requests;
pub(crate) mod settings;
pub(crate) mod snapshots;

pub(crate) use options::{Options, help as mount_help, research as mount_research};
pub(crate) use remount::remount;
pub(crate) use settings::{Setting, yes_or_no};

use crate::device;
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::mounts;
use crate::report;
use crate::statistics::Statistics;
use crate::stop;
use crate::unmount::unmount;
use crate::utab;
use nvfold::{FileSystem, MkfsOptions, MountOptions};
use nvfold_fuse::place;
use nvfold_mount::{Connection, Counters, Error, Flusher, Mount, Reader, Reports};
use pmem::{DeviceSpec, Region};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a detached mount may stay busy.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// How often a server that waits for its end looks whether it has come.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The device to mount, the mount point, and the options.
pub(crate) struct Plan {
    pub device: PathBuf,
    pub dir: PathBuf,
    pub options: Options,
    /// Mount a device that others can read or change.
    pub force: bool,
    /// What another process has opened.
    pub handed: Option<Handed>,
    /// Called once when the mount is about to end.
    pub on_stop: fn(),
}

/// What another process has opened for this one.
pub(crate) struct Handed {
    /// The mount.
    pub connection: Connection,
    /// The path by which the device is opened, if it has one.
    pub device: Option<PathBuf>,
}

/// Mounts, calls `ready` with a description of the mount, serves requests until it is unmounted, and leaves the
/// device clean and released.
pub(crate) fn serve(mut plan: Plan, ready: impl FnOnce(&Statistics) -> Outcome<()>) -> Outcome<()> {
    let dir = match &plan.handed {
        Some(handed) => handed.connection.dir().to_owned(),
        None => check_dir(&plan.dir)?,
    };
    let region = open_device(&plan)?;
    let connection = plan.handed.take().map(|handed| handed.connection);
    let is_own = connection.is_none();
    // From here on the device is in use, so a signal must leave it clean. One that comes too early to unmount is kept.
    let signals = Signals::new(stop::signals()).doing("wait for signals")?;
    let fs = mount_device(&plan, region)?;
    let device = mounts::show(&plan.device);
    memory::prepare(fs.region(), &device);
    end_on_panic(&dir);
    let mut mount = match start(&plan, &fs, connection, &dir, &device) {
        Ok(mount) => mount,
        Err(failure) => {
            fs.unmount().doing(&device)?;
            return Err(failure);
        }
    };
    if is_own {
        utab::record(&dir, &plan.options.for_umount);
    }
    let ending = Ending { fs: fs.clone(), dir: dir.clone(), foreign: (!is_own).then(|| mount.flusher()) };
    ending.start_on(signals, plan.on_stop);
    let described = Statistics::of_mounted(&fs, &device, &dir, mount.counters()).doing(&device);
    if let Err(failure) = described.and_then(|statistics| ready(&statistics)) {
        if is_own {
            let _ = unmount(&dir, UnmountFlags::DETACH);
        }
        drop(mount);
        fs.unmount().doing(&device)?;
        return Err(failure);
    }
    if mount.is_served_by_ring() {
        place::keep_clients_on_cpu();
    }
    let ended = mount.wait();
    (plan.on_stop)();
    utab::forget(&dir);
    let region = fs.region().clone();
    // Also after a failed session: everything acknowledged is on the device, so it can be left clean.
    let unmounted = fs.unmount();
    region.let_go();
    unmounted
        .inspect_err(|error| announce(&format!("nvfold: unmount {device}: {error}")))
        .doing(format!("unmount {device}"))?;
    ended.map_err(|error| failed(&dir, error))
}

fn check_dir(dir: &Path) -> Outcome<PathBuf> {
    if let Some(mounted) = mounts::at(dir) {
        let why = format!("{} is mounted there already", mounts::show(&mounted.source));
        return Err(Failure::new(mounts::show(dir), why).hint("unmount it first with `nvfold umount`"));
    }
    let resolved = dir.canonicalize().doing(mounts::show(dir))?;
    if resolved.is_dir() {
        Ok(resolved)
    } else {
        Err(Failure::new(mounts::show(dir), "not a directory, so nothing can be mounted there"))
    }
}

/// Opens the device of the plan. A memory device is made and formatted.
fn open_device(plan: &Plan) -> Outcome<Region> {
    let options = &plan.options;
    let name = mounts::show(&plan.device);
    match device::spec(&plan.device) {
        DeviceSpec::Memory => memory_device(options),
        DeviceSpec::Path(_) if options.size_bytes.is_some() => {
            Err(Failure::usage("mount option size", "only a memory device (mem:) gets its size when it is mounted")
                .hint("make other devices with `nvfold mkfs DEVICE --size SIZE`"))
        }
        DeviceSpec::Path(_) if options.index.is_some() => {
            Err(Failure::usage("mount option index", "only a memory device (mem:) gets its index when it is mounted")
                .hint(format!("convert it while it is not mounted: nvfold tune {name} --index dram|pm")))
        }
        DeviceSpec::Path(_) => {
            let by = plan.handed.as_ref().and_then(|handed| handed.device.as_deref());
            let Options { device, read_only, allow_other, .. } = options;
            device::open_to_mount(&plan.device, by, device, *read_only, *allow_other, plan.force)
        }
    }
}

/// Mounts without serving, and returns the mount and the device, which must be open to it. All that can be wrong with the
/// device itself is found before.
pub(crate) fn connect(plan: &Plan) -> Outcome<(Connection, Option<File>)> {
    let dir = check_dir(&plan.dir)?;
    let name = mounts::show(&plan.device);
    let device = match device::spec(&plan.device) {
        DeviceSpec::Memory => None,
        DeviceSpec::Path(path) => {
            let region = open_device(plan)?;
            nvfold::read_superblock(&region).doing(&name)?;
            drop(region);
            let opened = File::options().read(true).write(!plan.options.read_only).open(path);
            Some(opened.doing(format!("open {name}"))?)
        }
    };
    let options = plan.options.of_mount(&name, device::clock());
    let connection = Connection::new(&dir, &options, plan.options.read_only).map_err(|error| no_mount(&dir, error))?;
    utab::record(connection.dir(), &plan.options.for_umount);
    Ok((connection, device))
}

/// Mounts the file system of the plan.
fn mount_device(plan: &Plan, region: Region) -> Outcome<FileSystem> {
    let options = &plan.options;
    let mount = MountOptions {
        read_only: options.read_only,
        cores: options.threads,
        clock: device::clock(),
        stopwatch: Some(device::stopwatch()),
        discard: options.discard,
        share: options.share(),
        ..MountOptions::default()
    };
    options.dedup.mount(region, mount, &mounts::show(&plan.device))
}

fn memory_device(options: &Options) -> Outcome<Region> {
    let size = options.size_bytes.ok_or_else(|| {
        Failure::usage("mem:", "a memory device needs a size").hint("for example: nvfold mount mem: DIR -o size=8G")
    })?;
    let region =
        Region::create(&DeviceSpec::Memory, size, &options.device.open_options(false)).doing("create the device")?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mkfs = MkfsOptions {
        uuid: pmem::random_bytes::<16>(),
        label: String::new(),
        root_uid: uid,
        root_gid: gid,
        force: false,
        index: options.index.unwrap_or_default(),
        weak: options.dedup.weak.unwrap_or_default(),
        now: pmem::clock::coarse_now_ns(),
    };
    FileSystem::mkfs(&region, &mkfs).doing("format mem:")?;
    Ok(region)
}

/// Mounts, unless that is done, and starts to answer requests.
fn start(plan: &Plan, fs: &FileSystem, connection: Option<Connection>, dir: &Path, device: &str) -> Outcome<Mount> {
    let mut options = plan.options.of_mount(device, device::clock());
    let (device, place) = (device.to_owned(), dir.to_owned());
    options.events = events::handler(fs.region().clone(), device.clone(), place.clone());
    options.reports = Some(Arc::new(Reporter { fs: fs.clone(), device, dir: place }));
    let fs = fs.clone();
    match connection {
        Some(connection) => Mount::serve(fs, connection, options),
        None => Mount::new(fs, dir, options),
    }
    .map_err(|error| failed(dir, error))
}

/// Makes what other commands read of a mount.
struct Reporter {
    fs: FileSystem,
    device: String,
    dir: PathBuf,
}

impl Reports for Reporter {
    fn stats(&self, served: &Counters, reader: Reader) -> Vec<u8> {
        let Reporter { fs, device, dir } = self;
        let statistics = match reader {
            Reader::Manager => Statistics::of_mounted(fs, device, dir, served),
            Reader::Other => Statistics::for_others(fs, device, dir, served),
        };
        let json = statistics.ok().and_then(|statistics| report::json("report", &statistics).ok());
        json.unwrap_or_default().into_bytes()
    }

    fn usage(&self, usage: Option<nvfold::Usage>) -> Option<Vec<u8>> {
        serde_json::to_vec(&usage).ok()
    }
}

/// Says why a mount failed, and what to do.
fn failed(dir: &Path, error: Error) -> Failure {
    let mounting = format!("mount on {}", dir.display());
    match error {
        Error::NoRing { why, .. } => {
            Failure::new(mounting, format!("requests cannot come by io_uring: {why}")).hint("use -o transport=auto")
        }
        Error::Mount { source, .. } => no_mount(dir, source),
        Error::Start { source, .. } => Failure::new(mounting, source),
        Error::Serve { source, .. } => Failure::new(format!("serve {}", dir.display()), source),
        other => Failure::new(dir.display(), other),
    }
}

fn no_mount(dir: &Path, error: io::Error) -> Failure {
    let failure = Failure::new(format!("mount on {}", dir.display()), error);
    if !Path::new("/dev/fuse").exists() {
        failure.hint("/dev/fuse is missing: load the kernel module with `modprobe fuse`")
    } else if rustix::process::geteuid().is_root() {
        failure
    } else {
        failure.hint(device::why_no_mount())
    }
}

/// Makes a panic end the process. A panic is a bug and may leave memory half changed, so the process ends at once, as
/// in a crash, and the next mount recovers the device. Without the failed thread, requests would wait for ever. Panics
/// in work beside the requests are contained by the library; here they are told with the place in the source.
fn end_on_panic(dir: &Path) {
    let dir = dir.to_owned();
    std::panic::set_hook(Box::new(move |panic| {
        if nvfold::panic_is_contained() {
            return announce(&format!("nvfold: internal error beside the requests: {panic}"));
        }
        announce(&format!("nvfold: internal error, the mount on {} ends: {panic}", dir.display()));
        std::process::abort();
    }));
}

/// Prints a message, and writes it to the kernel's log if root. In the background stderr leads nowhere.
fn announce(message: &str) {
    let _ = std::fs::write("/dev/kmsg", message);
    eprint_line(message);
}

/// As `announce`, for what happens as it should: the level of the message is info.
fn inform(message: &str) {
    const INFO: &str = "<6>";
    let _ = std::fs::write("/dev/kmsg", format!("{INFO}{message}"));
    eprint_line(message);
}

/// How the signals that ask for it end a mount.
struct Ending {
    fs: FileSystem,
    dir: PathBuf,
    /// Another process has mounted it, so this one cannot unmount it.
    foreign: Option<Flusher>,
}

impl Ending {
    fn start_on(self, mut signals: Signals, on_stop: fn()) {
        thread::spawn(move || {
            for _ in signals.forever() {
                on_stop();
                if let Some(flusher) = &self.foreign {
                    return self.leave_foreign_mount(flusher);
                }
                match unmount(&self.dir, UnmountFlags::empty()) {
                    // The session ends now, and so does `serve`.
                    Ok(()) => return,
                    Err(Errno::BUSY) => return self.leave_busy_mount(),
                    // Another process has unmounted it.
                    Err(Errno::INVAL) => return,
                    Err(error) => eprint_line(&format!("nvfold: unmount {}: {error}", self.dir.display())),
                }
            }
        });
    }

    /// Detaches a mount that is in use. After the grace period, ends the process with a clean device.
    fn leave_busy_mount(self) {
        let mounted = mounts::at(&self.dir);
        let _ = requests::ask_to_write_back(&self.dir);
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        thread::sleep(GRACE);
        let code = self.leave();
        if let Some(mounted) = mounted {
            mounted.abort();
        }
        std::process::exit(code);
    }

    /// Waits for whoever mounted to unmount; after the grace period, ends the process with a clean device.
    fn leave_foreign_mount(&self, flusher: &Flusher) {
        let end = Instant::now() + GRACE;
        flusher.write_back();
        while !flusher.has_ended() {
            if Instant::now() >= end {
                std::process::exit(self.leave());
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Leaves the device clean and released; returns the exit code.
    fn leave(&self) -> i32 {
        let region = self.fs.region().clone();
        let unmounted = self.fs.clone().unmount();
        region.let_go();
        match unmounted {
            Ok(()) => 0,
            Err(error) => {
                eprint_line(&format!("nvfold: unmount: {error}"));
                1
            }
        }
    }
}
