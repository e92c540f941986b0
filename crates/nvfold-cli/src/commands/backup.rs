//! `nvfold backup`: copies a device to a file, mounted or not.
//!
//! | module | content |
//! |---|---|
//! | `target` | the file: it gets its name when it is whole |

mod target;

use crate::bounded;
use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome, warn};
use crate::mount::backups::{Backup as Asked, Part};
use crate::mounts::{self, Mounted};
use crate::output::Output;
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::statistics::{check_answers, show_uuid};
use crate::stop::Stop;
use crate::text::escaped;
use clap::Args;
use nvfold::{Error, FileSystem, MountOptions, Policy, Share};
use nvfold_mount::REPORT_ATTRIBUTE;
use rustix::io::Errno;
use serde::Serialize;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use target::Target;

/// How many bytes of an unmounted device are read at once.
const READ_BYTES: u64 = 1 << 20;

/// Copy a device to a file, also while it is mounted and used
///
/// The copy is a device: it can be mounted, checked and exported. It has the UUID and the label of the original, and what
/// the original shares is shared in it. Holes stay holes, and free space is not copied.
///
/// The copy of a mounted device is what the file system was at one moment soon after the command began, with all that
/// programs had written by then, and it is clean. Programs go on meanwhile: they wait for a moment at the beginning, and when
/// they overwrite more than 64 MiB that is not copied yet. Those who wait for longer than 10 s, because the file cannot be
/// written fast enough, end the backup. Root and the user who mounted the device may back it up. A copy of a `mem:` mount
/// can be mounted as a device file.
///
/// FILE appears when it is whole. Until then it is FILE.partial, which is removed if the command fails or is interrupted.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold backup /tmp/fold pool.copy")]
pub(crate) struct Backup {
    /// Device, or the directory where it is mounted
    #[arg(value_name = "DEVICE|DIR")]
    source: PathBuf,
    /// The copy, readable for its owner alone
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace an existing FILE, when the copy is whole
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Report {
    device: String,
    mount_point: Option<String>,
    file: String,
    uuid: Option<String>,
    /// Bytes that were written to the file.
    copied_bytes: u64,
    device_bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// The longest time that an operation of the mount has waited.
    writers_waited_ns: u64,
    /// True if the next mount of the copy has nothing to recover.
    clean: bool,
    /// Bytes of bad memory, which are zeros in the copy.
    unreadable_bytes: u64,
}

/// What was copied.
struct Copied {
    target: Target,
    device_bytes: u64,
    copied_bytes: u64,
    waited_ns: u64,
    unreadable_bytes: u64,
}

/// Runs the command.
pub(crate) fn run(backup: &Backup, output: &Output) -> Outcome<u8> {
    let stop = Stop::on_signals()?;
    let started = Instant::now();
    let mounted = mounted(&backup.source)?;
    let copied = match &mounted {
        Some(mounted) => copy_mounted(backup, mounted, output, &stop)?,
        None => copy_unmounted(backup, output, &stop)?,
    };
    copied.target.sync()?;
    copied.target.unlock()?;
    if mounted.as_ref().is_some_and(|mounted| !mounted.read_only) {
        leave_clean(&copied.target, &stop)?;
    }
    let (uuid, clean) = identity(copied.target.partial());
    interrupted(&stop, backup)?;
    copied.target.commit()?;
    let seconds = started.elapsed().as_secs_f64();
    let report = Report {
        device: mounted.as_ref().map_or_else(|| mounts::show(&backup.source), |it| mounts::show(&it.source)),
        mount_point: mounted.as_ref().map(|mounted| mounts::show(&mounted.dir)),
        file: mounts::show(&backup.file),
        uuid,
        copied_bytes: copied.copied_bytes,
        device_bytes: copied.device_bytes,
        seconds,
        bytes_per_second: copied.copied_bytes as f64 / seconds.max(1e-9),
        writers_waited_ns: copied.waited_ns,
        clean,
        unreadable_bytes: copied.unreadable_bytes,
    };
    report::emit_done(output.json, output.quiet, "backup", &report, || describe(&report))?;
    Ok(u8::from(report.unreadable_bytes > 0))
}

fn describe(report: &Report) -> String {
    let rate = size::show(report.bytes_per_second as u64);
    let source = report.mount_point.as_ref().unwrap_or(&report.device);
    let (bytes, of) = (size::show(report.copied_bytes), size::show(report.device_bytes));
    let mut text = escaped(&format!("copied {bytes} of {source} (a device of {of}) to {}", report.file));
    text += &format!(" in {:.2} s, {rate}/s\n", report.seconds);
    if report.mount_point.is_some() {
        text += &format!("writers waited {:.1} ms\n", report.writers_waited_ns as f64 / 1e6);
    }
    if report.unreadable_bytes > 0 {
        let bytes = report.unreadable_bytes;
        text += &format!("{bytes} bytes lie in bad memory and are zeros in the copy: check it with `nvfold fsck`\n");
    }
    text += if report.clean { "the copy is clean" } else { "the copy is as the device is: its next mount recovers it" };
    text
}

/// Returns the mount of what a command line names; `None` if it is a device that is not mounted.
fn mounted(source: &Path) -> Outcome<Option<Mounted>> {
    if let Some(mounted) = mounts::at(source) {
        return Ok(Some(mounted));
    }
    check_answers(source)?;
    if source.is_dir() {
        let why = "it is neither a device nor a directory where nvfold is mounted";
        return Err(Failure::new(mounts::show(source), why).hint("`nvfold df` lists the mounts"));
    }
    Ok(mounts::of_device(source))
}

/// Copies a device that no process uses.
fn copy_unmounted(backup: &Backup, output: &Output, stop: &Stop) -> Outcome<Copied> {
    let name = mounts::show(&backup.source);
    let region = device::open(&backup.source, &backup.device_options, true)?;
    if let Err(error @ Error::NotNvfold { .. }) = nvfold::read_superblock(&region) {
        return Err(Failure::of(name, error));
    }
    let (device_bytes, allocated) = (region.len_bytes(), region.allocated_bytes());
    let mut target = Target::make(&backup.file, backup.force, &backup.source)?;
    if target.share_blocks_of(&backup.source) {
        return Ok(Copied { target, device_bytes, copied_bytes: 0, waited_ns: 0, unreadable_bytes: 0 });
    }
    target.set_length(device_bytes)?;
    target.check_room(allocated)?;
    let mut progress = Progress::new(output.progress, "backup", allocated);
    let (mut at, mut read_bytes) = (region.next_allocated(0, device_bytes), 0);
    while at < device_bytes {
        interrupted(stop, backup)?;
        let mut bytes = vec![0; READ_BYTES.min(device_bytes - at) as usize];
        region.scan_into(at, &mut bytes);
        region.check().doing(&name)?;
        target.write(at, &bytes)?;
        read_bytes += bytes.len() as u64;
        progress.update(read_bytes.min(allocated), || written(&target));
        at = region.next_allocated(at + bytes.len() as u64, device_bytes);
    }
    progress.finish(read_bytes.min(allocated), || written(&target));
    Ok(Copied { copied_bytes: target.written_bytes(), target, device_bytes, waited_ns: 0, unreadable_bytes: 0 })
}

/// Copies a mounted device, with the help of its server.
fn copy_mounted(backup: &Backup, mounted: &Mounted, output: &Output, stop: &Stop) -> Outcome<Copied> {
    let name = mounts::show(&mounted.dir);
    bounded::get(&mounted.dir, REPORT_ATTRIBUTE, bounded::ANSWERS_WITHIN).map_err(|error| not_copied(&name, &error))?;
    refuse_itself(backup, mounted)?;
    let mut target = Target::make(&backup.file, backup.force, Path::new(&mounted.source))?;
    let mut asked = Asked::begin(&mounted.dir).map_err(|error| not_begun(&name, &error))?;
    let (device_bytes, used_bytes) = (asked.begun.device_bytes, asked.begun.used_bytes);
    target.set_length(device_bytes)?;
    target.check_room(used_bytes)?;
    let mut progress = Progress::new(output.progress, "backup", used_bytes);
    let copied = asked.while_alive(|asked| -> Outcome<()> {
        loop {
            interrupted(stop, backup)?;
            match asked.next_part().map_err(|error| not_copied(&name, &error))? {
                Part::Bytes(offset, left_bytes, bytes) => {
                    target.write(offset, &bytes)?;
                    progress.update(used_bytes.saturating_sub(left_bytes), || written(&target));
                }
                Part::Done => return Ok(()),
                Part::GivenUp => return Err(given_up(&name, &backup.file)),
                Part::Lost => return Err(Failure::new(&name, "the device is lost, so it cannot be copied")),
            }
        }
    });
    copied.doing(&name)??;
    progress.finish(used_bytes, || written(&target));
    let ending = asked.end().map_err(|error| not_copied(&name, &error))?;
    let copied_bytes = target.written_bytes();
    let (waited_ns, unreadable_bytes) = (ending.waited_ns, ending.unreadable_bytes);
    Ok(Copied { target, device_bytes, copied_bytes, waited_ns, unreadable_bytes })
}

/// Says how much of it was written: less than what was read, because zeros are left out.
fn written(target: &Target) -> String {
    format!("{} written", size::show(target.written_bytes()))
}

/// Refuses a copy on the file system that is copied.
fn refuse_itself(backup: &Backup, mounted: &Mounted) -> Outcome<()> {
    let device_of = |path: &Path| path.metadata().map(|metadata| metadata.dev());
    let folder = target::folder_of(&backup.file);
    if device_of(&folder).doing(mounts::show(&folder))? == device_of(&mounted.dir).doing(mounts::show(&mounted.dir))? {
        let why = format!("it lies on {}, which is to be copied", mounts::show(&mounted.dir));
        return Err(Failure::usage(mounts::show(&backup.file), why).hint("name a file on another file system"));
    }
    Ok(())
}

/// Finishes on the copy what a mount would have to recover.
fn leave_clean(target: &Target, stop: &Stop) -> Outcome<()> {
    let name = mounts::show(target.partial());
    let region = device::open(target.partial(), &DeviceOptions::default(), false)?;
    let (superblock, _) = nvfold::read_superblock(&region).doing(&name)?;
    let options = MountOptions {
        policy: Policy::Off,
        share: Share::of_device(&superblock),
        cores: device::processors(),
        clock: device::clock(),
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region, options).doing(&name)?;
    let recovered = loop {
        if stop.is_asked() {
            return Ok(());
        }
        match fs.reconcile_step() {
            Ok(true) => break fs.unmount(),
            Ok(false) => {}
            Err(error) => break Err(error),
        }
    };
    match recovered {
        Err(error @ Error::Corrupt { .. }) => {
            warn(&format!("the device is damaged, and so is the copy: {error}"));
            Ok(())
        }
        recovered => recovered.doing(&name),
    }
}

/// Returns the UUID of a device, and whether it is clean.
fn identity(device: &Path) -> (Option<String>, bool) {
    let region = device::open(device, &DeviceOptions::default(), true).ok();
    let superblock = region.and_then(|region| nvfold::read_superblock(&region).ok()).map(|(superblock, _)| superblock);
    superblock.map_or((None, false), |superblock| (Some(show_uuid(&superblock.uuid)), superblock.is_clean()))
}

fn interrupted(stop: &Stop, backup: &Backup) -> Outcome<()> {
    let Some(signal) = stop.signal() else { return Ok(()) };
    Err(Failure::new(mounts::show(&backup.file), "interrupted; no copy was made").by_signal(signal))
}

fn not_begun(name: &str, error: &io::Error) -> Failure {
    let failure = |why: &'static str| Failure::new(name, why);
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => failure("only root and the user who mounted it may copy the whole device")
            .hint("a snapshot needs no such right"),
        Some(Errno::BUSY) => failure("another backup of it is under way").hint("wait until that one has ended"),
        Some(Errno::NODATA | Errno::OPNOTSUPP) => failure("its server cannot make backups: it is of another version")
            .hint("unmount it, and mount it with this nvfold"),
        _ => not_copied(name, error),
    }
}

fn not_copied(name: &str, error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) => {
            Failure::new(name, "the process that serves it has ended; no copy was made")
                .hint(format!("unmount it with `nvfold umount {name}`, and then copy the device"))
        }
        Some(Errno::STALE) => {
            Failure::new(name, "the server has ended this backup, because nothing was asked for a while")
        }
        _ => Failure::new(name, format!("cannot copy the device: {error}")),
    }
}

fn given_up(name: &str, file: &Path) -> Failure {
    let why = format!("programs had to wait too long for {}; no copy was made", mounts::show(file));
    Failure::new(name, why).hint("copy it to a faster file system, or when less is written")
}
