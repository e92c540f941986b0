//! The FUSE mount: a session with the kernel over one [`FileSystem`].
//!
//! ```text
//! open or make the device -> mount what is on it -> nvfold_mount::Mount -> ready
//!   threads: those of the mount, one that waits for signals
//! unmounted -> threads of the mount ended -> device clean -> released
//! ```
//!
//! What an operator must know on the way is told by `events`, in the log of `-o log=`; `-o metrics=` serves the figures.
//!
//! SIGTERM, SIGINT and SIGHUP unmount. A busy mount is detached from the tree. It ends when the last file on it is closed, or
//! after [`GRACE`], whichever comes first; everything written by then is on the device, and the device is clean. A
//! lost device ends its mount in the same way, and the command fails.
//!
//! A server in a sandbox can neither mount nor open the device. It gets both as descriptors ([`Handed`]), and whoever
//! mounted unmounts. If it is told to end before that, it ends the session after [`GRACE`].

pub(crate) mod backups;
pub(crate) mod clones;
mod events;
pub(crate) mod growth;
pub(crate) mod limits;
mod memory;
mod options;
mod remount;
pub(crate) mod requests;
pub(crate) mod settings;
pub(crate) mod snapshots;

pub(crate) use options::{Options, help as mount_help, lists as options_lists};
pub(crate) use remount::remount;
pub(crate) use settings::{Setting, yes_or_no};

use crate::device;
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::log;
use crate::metrics::{self, EventCounts, Opened, Scraped, Serving};
use crate::mounts;
use crate::report;
use crate::size;
use crate::statistics::Statistics;
use crate::stop;
use crate::unmount::unmount;
use crate::utab;
use events::Teller;
use nvfold::{FileSystem, MkfsOptions, MountOptions};
use nvfold_fuse::place;
use nvfold_mount::{Connection, Counters, Error, Flusher, Mount, Reader, Reports};
use pmem::{DeviceSpec, OpenOptions, Region};
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
    let device = mounts::show(&plan.device);
    log::begin(plan.options.log.as_ref(), &device, &dir)?;
    let endpoints = open_endpoints(&plan, &dir)?;
    let region = open_device(&plan)?;
    let connection = plan.handed.take().map(|handed| handed.connection);
    let is_own = connection.is_none();
    let counts = EventCounts::of(events::KINDS.iter().map(|kind| kind.name));
    let was_clean = nvfold::read_superblock(&region).is_ok_and(|(superblock, _)| superblock.is_clean());
    let teller = Teller { region: region.clone(), device: device.clone(), dir: dir.clone(), was_clean, counts };
    // From here on the device is in use, so a signal must leave it clean. One that comes too early to unmount is kept.
    let signals = Signals::new(stop::signals()).doing("wait for signals")?;
    let begun = Instant::now();
    let fs = mount_device(&plan, region)?;
    teller.counts.scanned(begun.elapsed());
    memory::prepare(fs.region(), &teller);
    end_on_panic(&teller);
    let figures = Arc::new(metrics::Source::new(fs.clone(), device.clone(), dir.clone(), teller.counts.clone()));
    let mut mount = match start(&plan, &fs, connection, &teller, &figures) {
        Ok(mount) => mount,
        Err(failure) => {
            fs.unmount().doing(&device)?;
            return Err(failure);
        }
    };
    if is_own {
        utab::record(&dir, &plan.options.for_umount);
    }
    let ending = Ending { fs: fs.clone(), teller: teller.clone(), foreign: (!is_own).then(|| mount.flusher()) };
    ending.start_on(signals, plan.on_stop);
    let begin = || -> Outcome<(Statistics, Vec<Serving>)> {
        let serving = serve_metrics(endpoints, &figures, mount.shared_counters())?;
        let statistics = Statistics::of_mounted(&fs, &device, &dir, mount.counters()).doing(&device)?;
        ready(&statistics)?;
        Ok((statistics, serving))
    };
    let (statistics, serving) = match begin() {
        Ok(ready) => ready,
        Err(failure) => {
            if is_own {
                let _ = unmount(&dir, UnmountFlags::DETACH);
            }
            drop(mount);
            fs.unmount().doing(&device)?;
            return Err(failure);
        }
    };
    teller.tell_of("mounted", mounted_words(&statistics));
    if mount.is_served_by_ring() {
        place::keep_clients_on_cpu();
    }
    let ended = mount.wait();
    (plan.on_stop)();
    drop(serving);
    utab::forget(&dir);
    let region = fs.region().clone();
    // Also after a failed session: everything acknowledged is on the device, so it can be left clean.
    let unmounted = fs.unmount();
    region.let_go();
    tell_end(&teller, &unmounted);
    unmounted.doing(format!("unmount {device}"))?;
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

/// Makes the places where metrics are to be read.
fn open_endpoints(plan: &Plan, dir: &Path) -> Outcome<Vec<Opened>> {
    if let Some(inside) =
        plan.options.metrics.iter().find(|place| place.path().is_some_and(|path| path.starts_with(dir)))
    {
        return Err(Failure::usage(format!("mount option metrics={inside}"), "it would lie on the mount itself"));
    }
    plan.options.metrics.iter().map(Opened::new).collect()
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
    let open = OpenOptions { can_grow: true, ..options.device.open_options(false) };
    let region = Region::create(&DeviceSpec::Memory, size, &open).doing("create the device")?;
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
fn start(
    plan: &Plan,
    fs: &FileSystem,
    connection: Option<Connection>,
    teller: &Teller,
    figures: &Arc<metrics::Source>,
) -> Outcome<Mount> {
    let mut options = plan.options.of_mount(&teller.device, device::clock());
    options.events = teller.clone().handler();
    options.reports = Some(Arc::new(Reporter(figures.clone())));
    let fs = fs.clone();
    match connection {
        Some(connection) => Mount::serve(fs, connection, options),
        None => Mount::new(fs, &teller.dir, options),
    }
    .map_err(|error| failed(&teller.dir, error))
}

/// Begins to serve the metrics, as `-o metrics=` says.
fn serve_metrics(
    endpoints: Vec<Opened>,
    figures: &Arc<metrics::Source>,
    served: Arc<Counters>,
) -> Outcome<Vec<Serving>> {
    let figures = figures.clone();
    let scrape: metrics::Scrape = Arc::new(move |reader| {
        let (device, mount_point) = (figures.device.clone(), mounts::show(&figures.dir));
        vec![Scraped { device, mount_point, figures: figures.figures(&served, reader).ok() }]
    });
    endpoints.into_iter().map(|endpoint| endpoint.serve(scrape.clone())).collect()
}

/// Describes a new mount in a line.
pub(crate) fn mounted_words(statistics: &Statistics) -> String {
    let dir = statistics.mount_point.as_deref().unwrap_or_default();
    format!("{} is mounted on {dir}", device_words(statistics))
}

/// Describes the device of a mount, and how data is stored there.
pub(crate) fn device_words(statistics: &Statistics) -> String {
    let Statistics { device, persistence, policy, superblock, .. } = statistics;
    let (size, policy) = (size::show(superblock.device_bytes), policy.as_deref().unwrap_or_default());
    format!("{device} ({size}, level {persistence}, policy {policy})")
}

/// Makes what other commands read of a mount.
struct Reporter(Arc<metrics::Source>);

impl Reports for Reporter {
    fn stats(&self, served: &Counters, reader: Reader) -> Vec<u8> {
        let metrics::Source { fs, device, dir, .. } = &*self.0;
        let statistics = match reader {
            Reader::Manager => Statistics::of_mounted(fs, device, dir, served),
            Reader::Other => Statistics::for_others(fs, device, dir, served),
        };
        let json = statistics.ok().and_then(|statistics| report::json("report", &statistics).ok());
        json.unwrap_or_default().into_bytes()
    }

    fn metrics(&self, served: &Counters, reader: Reader) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.0.figures(served, reader).ok()?).ok()
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
fn end_on_panic(teller: &Teller) {
    let teller = teller.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if nvfold::panic_is_contained() {
            return teller.tell_of("panicked", format!("internal error beside the requests: {panic}"));
        }
        teller.tell_of("panicked", format!("internal error, the mount on {} ends: {panic}", teller.dir.display()));
        std::process::abort();
    }));
}

/// Tells how the mount has ended.
fn tell_end(teller: &Teller, unmounted: &nvfold::Result<()>) {
    let Teller { device, dir, .. } = teller;
    match unmounted {
        Ok(()) => teller.tell_of("unmounted", format!("{device}: unmounted from {}", dir.display())),
        Err(error) => teller.tell_of("unmount_failed", format!("unmount {device}: {error}")),
    }
}

/// How the signals that ask for it end a mount.
struct Ending {
    fs: FileSystem,
    teller: Teller,
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
                match unmount(&self.teller.dir, UnmountFlags::empty()) {
                    // The session ends now, and so does `serve`.
                    Ok(()) => return,
                    Err(Errno::BUSY) => return self.leave_busy_mount(),
                    // Another process has unmounted it.
                    Err(Errno::INVAL) => return,
                    Err(error) => eprint_line(&format!("nvfold: unmount {}: {error}", self.teller.dir.display())),
                }
            }
        });
    }

    /// Detaches a mount that is in use. After the grace period, ends the process with a clean device.
    fn leave_busy_mount(self) {
        let mounted = mounts::at(&self.teller.dir);
        let _ = requests::ask_to_write_back(&self.teller.dir);
        let _ = unmount(&self.teller.dir, UnmountFlags::DETACH);
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
        tell_end(&self.teller, &unmounted);
        i32::from(unmounted.is_err())
    }
}
