//! The FUSE mount: a session with the kernel over one [`FileSystem`].
//!
//! ```text
//! open or make the device -> mount what is on it -> mount(2), handshake -> ready
//!   threads: those that answer the kernel (nvfold_fuse), one for housekeeping (`housekeeping`), one that shares what is
//!            queued and fills in fingerprints (`daemon`), one that waits for signals;
//!            after a crash one that reconciles until it is done
//! unmounted -> nameless files freed -> device clean -> released
//! ```
//!
//! SIGTERM, SIGINT and SIGHUP unmount. A busy mount is detached from the tree. It ends when the last file on it is closed, or
//! after [`GRACE`], whichever comes first; everything written by then is on the device, and the device is clean. A
//! lost device ends its mount in the same way, and the command fails.

mod access;
mod acl;
mod convert;
mod daemon;
mod front;
mod handshake;
mod hints;
mod housekeeping;
mod lookups;
mod memory;
mod notices;
mod options;
mod pages;
mod remount;
pub mod requests;
pub mod settings;
mod syncs;
mod turns;

pub use options::{Options, help as mount_help, research as mount_research};
pub use remount::remount;
pub use settings::{Setting, yes_or_no};

use crate::counters::Counters;
use crate::device;
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::mounts::{self, Mounted};
use crate::report;
use crate::statistics::Statistics;
use crate::stop;
use crate::unmount::unmount;
use crate::utab;
use access::Access;
use front::{Front, Reader};
use handshake::{Agreed, Handshake};
use notices::Notices;
use nvfold::{FileSystem, MkfsOptions, MountOptions};
use nvfold_fuse::{Transport, place};
use options::WantedTransport;
use pmem::{DeviceSpec, Region};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use signal_hook::iterator::Signals;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a detached mount may stay busy.
const GRACE: Duration = Duration::from_secs(5);
/// How often work that waits for a writable mount looks whether it may start.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The read-ahead of the kernel, in KiB.
const READ_AHEAD_KIB: &str = "1024";

/// The device to mount, the mount point, and the options.
pub struct Plan {
    pub device: PathBuf,
    pub dir: PathBuf,
    pub options: Options,
    /// Mount a device that others can read or change.
    pub force: bool,
}

/// Mounts, calls `ready` with a description of the mount, serves requests until it is unmounted, and leaves the
/// device clean and released.
pub fn serve(plan: &Plan, ready: impl FnOnce(&Statistics) -> Outcome<()>) -> Outcome<()> {
    let dir = check_dir(&plan.dir)?;
    let region = open_device(plan)?;
    // From here on the device is in use, so a signal must leave it clean. One that comes too early to unmount is kept.
    let signals = Signals::new(stop::signals()).doing("wait for signals")?;
    let fs = mount_device(plan, region)?;
    let device = mounts::show(&plan.device);
    memory::prepare(fs.region(), &device);
    let counters = Arc::new(Counters::default());
    let access = Access::new(plan.options.read_only);
    end_on_panic(&dir);
    let mounting = Mounting { plan, fs: &fs, dir: &dir, device: &device, counters: &counters, access: &access };
    let session = match mounting.start() {
        Ok(session) => session,
        Err(failure) => {
            fs.unmount().doing(&device)?;
            return Err(failure);
        }
    };
    set_read_ahead(&dir);
    utab::record(&dir, &plan.options.for_umount);
    access.watch(fs.clone(), &dir);
    let housekeeping = housekeeping::start(fs.clone(), device.clone(), dir.clone(), access.clone());
    start_reconciling(fs.clone(), device.clone(), access.clone());
    let daemon = daemon::start(fs.clone(), access);
    start_unmounting_on(signals, fs.clone(), dir.clone());
    if let Err(failure) = session.described.and_then(|snapshot| ready(&snapshot)) {
        let _ = unmount(&dir, UnmountFlags::DETACH);
        drop(daemon);
        fs.unmount().doing(&device)?;
        return Err(failure);
    }
    if session.by_ring {
        place::keep_clients_on_cpu();
    }
    let ended = session.serving.wait();
    utab::forget(&dir);
    drop(housekeeping);
    drop(daemon);
    let region = fs.region().clone();
    // Also after a failed session: everything acknowledged is on the device, so it can be left clean.
    let unmounted = fs.unmount();
    region.let_go();
    unmounted
        .inspect_err(|error| announce(&format!("nvfold: unmount {device}: {error}")))
        .doing(format!("unmount {device}"))?;
    ended.doing(format!("serve {}", dir.display()))
}

/// Reconciles counts and free space after a crash, while requests are served. Unmounting finishes what is left.
fn start_reconciling(fs: FileSystem, device: String, access: Access) {
    thread::spawn(move || {
        loop {
            while access.is_read_only() && !fs.is_read_only() {
                thread::sleep(LOOK_AGAIN);
            }
            match fs.reconcile_step() {
                // Lets threads that wait for the step to end go first.
                Ok(false) => thread::yield_now(),
                Ok(true) => return,
                Err(error) => {
                    return announce(&format!("nvfold: {device}: {error}; what it held before the crash is kept"));
                }
            }
        }
    });
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
            device::open_to_mount(&plan.device, &options.device, options.read_only, options.allow_other, plan.force)
        }
    }
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

/// A mount that is being served.
struct Session {
    by_ring: bool,
    /// The description of the mount before the first request was answered.
    described: Outcome<Statistics>,
    serving: nvfold_fuse::Session,
}

/// The parts from which a session is made.
struct Mounting<'m> {
    plan: &'m Plan,
    fs: &'m FileSystem,
    dir: &'m Path,
    device: &'m str,
    counters: &'m Arc<Counters>,
    access: &'m Access,
}

impl Mounting<'_> {
    /// Mounts and starts to answer requests, by io_uring if that is wanted and works. If the kernel agrees to
    /// io_uring in the handshake and then refuses the rings, mounts again without it.
    fn start(&self) -> Outcome<Session> {
        let doing = || format!("mount on {}", self.dir.display());
        let transport = self.plan.options.transport;
        let wants_ring = match transport {
            WantedTransport::Device => false,
            WantedTransport::Auto => nvfold_fuse::is_ring_available().is_ok(),
            WantedTransport::Ring => nvfold_fuse::is_ring_available().map(|()| true).map_err(|why| {
                Failure::new(doing(), format!("requests cannot come by io_uring: {why}")).hint("use -o transport=auto")
            })?,
        };
        match self.start_by(wants_ring)? {
            Err(_) if wants_ring && transport == WantedTransport::Auto => self.start_by(false)?,
            started => started,
        }
        .doing(doing())
    }

    /// Mounts once. An inner error means that the transport failed; nothing is mounted then.
    fn start_by(&self, wants_ring: bool) -> Outcome<io::Result<Session>> {
        let background = memory::background_requests(self.fs.region().level());
        let mounted = handshake::mount(&self.plan.options, self.dir, self.device, wants_ring, background);
        let (session, agreed) = mounted.map_err(|why| no_mount(self.dir, why))?;
        let started = self.serve(&session, agreed);
        if started.is_err() {
            let _ = unmount(self.dir, UnmountFlags::DETACH);
        }
        // If dropped, it would unmount whatever is mounted there by then: fuser 0.18 has that test the wrong way
        // round.
        std::mem::forget(session);
        Ok(started)
    }

    fn serve(&self, session: &fuser::Session<Handshake>, agreed: Agreed) -> io::Result<Session> {
        let (fs, counters, by_ring) = (self.fs.clone(), self.counters.clone(), agreed.by_ring);
        counters.requests_come_by_ring(by_ring);
        let snapshot = {
            let (fs, device, dir, counters) =
                (fs.clone(), self.device.to_owned(), self.dir.to_owned(), counters.clone());
            move |reader| match reader {
                Reader::Manager => Statistics::of_mounted(&fs, &device, &dir, &counters),
                Reader::Other => Statistics::for_others(&fs, &device, &dir, &counters),
            }
        };
        let described = snapshot(Reader::Manager).doing(self.device);
        let reporter = Box::new(move |reader| {
            let json = snapshot(reader).ok().and_then(|snapshot| report::json("report", &snapshot).ok());
            json.unwrap_or_default().into_bytes()
        });
        let notices = Notices::new(session.notifier());
        let options = &self.plan.options;
        let access = self.access.clone();
        let front = Front::new(fs, device::clock(), reporter, notices, counters, access, options.cache, agreed);
        let transport = match by_ring {
            true => Transport::Ring,
            false => Transport::Device { threads: options.threads, spin: options.spin() },
        };
        let connection = session.as_fd().try_clone_to_owned()?;
        let serving = nvfold_fuse::Session::start(Arc::new(front), connection, transport)?;
        Ok(Session { by_ring, described, serving })
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

/// Raises the kernel's read-ahead, which is 128 KiB unless root sets it. Best effort: only speed depends on it.
fn set_read_ahead(dir: &Path) {
    if let Some(mounted) = mounts::at(dir) {
        let _ = std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", mounted.number), READ_AHEAD_KIB);
    }
}

fn start_unmounting_on(mut signals: Signals, fs: FileSystem, dir: PathBuf) {
    thread::spawn(move || {
        for _ in signals.forever() {
            match unmount(&dir, UnmountFlags::empty()) {
                // The session ends now, and so does `serve`.
                Ok(()) => return,
                Err(Errno::BUSY) => return leave_busy_mount(fs, &dir),
                // Another process has unmounted it.
                Err(Errno::INVAL) => return,
                Err(error) => eprint_line(&format!("nvfold: unmount {}: {error}", dir.display())),
            }
        }
    });
}

/// Makes the kernel fail all requests of a mount, for those that still use it: the end of the process does that only
/// when the last thread has ended, and one that drops a name may wait for a user's lock. Best effort: the directory is
/// that of the fusectl file system.
fn end_connection(mounted: &Mounted) {
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", mounted.connection()), "1");
}

/// Detaches a mount that is in use. After the grace period, ends the process with a clean device.
fn leave_busy_mount(fs: FileSystem, dir: &Path) {
    let mounted = mounts::at(dir);
    if let Ok(root) = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        // Makes the kernel write back its dirty pages.
        let _ = rustix::fs::syncfs(&root);
    }
    let _ = unmount(dir, UnmountFlags::DETACH);
    thread::sleep(GRACE);
    let region = fs.region().clone();
    let code = match fs.unmount() {
        Ok(()) => 0,
        Err(error) => {
            eprint_line(&format!("nvfold: unmount: {error}"));
            1
        }
    };
    region.let_go();
    if let Some(mounted) = mounted {
        end_connection(&mounted);
    }
    std::process::exit(code);
}
