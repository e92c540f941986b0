//! `nvfold mount`: mounts in the background; returns when the mount works, or reports why it failed.
//!
//! The command starts itself again as a child, with a socket as the child's standard output. The child mounts and
//! serves. When the mount works, the child writes a line of JSON, waits until the parent has heard it, and detaches from
//! the terminal. Otherwise it reports the failure on stderr and ends, and the parent ends with its exit code. If the
//! parent is ended by a signal before it has heard, the child takes the mount down.

use crate::commands::info::describe_unused;
use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::{Handed, Options, Plan, mount_help, mounted_words, remount, serve};
use crate::output::Output;
use crate::report;
use crate::statistics::Statistics;
use crate::stop::Stop;
use crate::text::escaped;
use clap::Args;
use nvfold_mount::Connection;
use rustix::process::Signal;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the parent answers when it has heard that the mount works.
const HEARD: u8 = 1;

/// Mount a device (or `mem:`, a new one in memory) on a directory
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold mount mem: /tmp/fold -o size=8G")]
#[command(after_long_help = options_help())]
pub(crate) struct Mount {
    /// Device, or mem: for a new one in memory (set its size with -o size=8G)
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Mount point
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Mount options, for example size=8G,compress=zstd,ro; listed below
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        help = "Mount options, for example size=8G,compress=zstd,ro (--help lists them)",
        long_help = "Mount options, for example size=8G,compress=zstd,ro; listed below"
    )]
    options: Vec<String>,
    /// Serve in the foreground, until unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Mount a device that belongs to another user, or that others may read or write
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device_options: DeviceOptions,
    /// Set by the command for the process that it starts in the background
    #[arg(long, hide = true)]
    background_child: bool,
    /// Unmount when the process ends that has started this one
    #[arg(long, hide = true)]
    with_parent: bool,
    /// Check everything, mount nothing (mount -f)
    #[arg(long = "fake", hide = true)]
    fake: bool,
    /// From mount(8): sloppy, no mtab, verbose
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    /// From mount(8): type and namespace
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
    #[arg(short = 'N', hide = true)]
    namespace: Option<String>,
}

fn options_help() -> String {
    format!("Mount options (-o NAME=VALUE,...), besides those of mount(8):\n\n{}", mount_help())
}

/// Runs the command.
pub(crate) fn run(mount: &Mount, output: &Output) -> Outcome<u8> {
    let plan = plan(mount)?;
    if mount.fake {
        return Ok(0);
    }
    if plan.options.remount {
        remount(&plan.dir, &plan.options)?;
        return Ok(0);
    }
    if mount.background_child || mount.with_parent {
        // Until the mount works, a command that is ended takes it down.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).doing("watch the command")?;
    }
    if mount.foreground || mount.background_child {
        serve(plan, |statistics| match mount.background_child {
            true => report_and_detach(statistics, mount.with_parent),
            false => describe(statistics, output),
        })?;
        return Ok(0);
    }
    start_in_background(&plan, output)
}

fn plan(mount: &Mount) -> Outcome<Plan> {
    let is_remount = mount.options.iter().any(|list| list.split(',').any(|option| option == "remount"));
    // A remount keeps every option that it does not name, so it starts without root's defaults.
    let mut options = Options::new(rustix::process::geteuid().is_root() && !is_remount);
    mount.options.iter().try_for_each(|list| options.take(list))?;
    options.dedup.check().map_err(|why| Failure::usage("mount options", why))?;
    let DeviceOptions { profile, flush } = mount.device_options.clone();
    options.device.profile = profile.or(options.device.profile);
    options.device.flush = flush.or(options.device.flush);
    let is_memory = mount.device == Path::new("mem:");
    if let Some(bytes) = options.size_bytes.filter(|_| is_memory) {
        device::check_size(bytes).map_err(|why| Failure::new("mem:", why))?;
    }
    // The background process changes its directory to /, so the paths must be absolute.
    let device = if is_memory { mount.device.clone() } else { device::absolute(&mount.device)? };
    let dir = device::absolute(&mount.dir)?;
    Ok(Plan { device, handed: handed(&dir)?, dir, options, force: mount.force, on_stop: || () })
}

/// Returns the mount that another process has made, if the mount point is `/dev/fd/N`: so mount.fuse3 and managers of
/// containers pass a descriptor.
fn handed(dir: &Path) -> Outcome<Option<Handed>> {
    let number = dir.strip_prefix("/dev/fd").ok().and_then(Path::to_str).and_then(|number| number.parse().ok());
    let connection = number.map(|number: i32| Connection::inherited(number, None)).transpose().map_err(|why| {
        Failure::usage(dir.display(), why).hint("give the descriptor of /dev/fuse that mount(2) was called with")
    })?;
    Ok(connection.map(|connection| Handed { connection, device: None }))
}

fn start_in_background(plan: &Plan, output: &Output) -> Outcome<u8> {
    let doing = "start the serving process";
    let program = std::env::current_exe().doing(doing)?;
    // Passes on the options as they were given. The paths are absolute, because the child changes its directory.
    let skip_names = std::env::args_os().skip(1).collect::<Vec<_>>();
    let mut command = Command::new(program);
    command.arg("mount").arg("--background-child").arg(&plan.device).arg(&plan.dir);
    command.args(option_arguments(&skip_names));
    let (here, there) = UnixStream::pair().doing(doing)?;
    let mut child = command.stdin(Stdio::null()).stdout(OwnedFd::from(there)).spawn().doing(doing)?;
    // It holds the other end too, and so would hide the end of the child.
    drop(command);
    let mut line = String::new();
    BufReader::new(&here).read_line(&mut line).doing(doing)?;
    if line.is_empty() {
        let status = child.wait().doing(doing)?;
        return match status.code() {
            // The child has reported the reason.
            Some(code) if code != 0 => Ok(code as u8),
            _ => Err(Failure::new("mount", format!("the serving process ended early ({status})"))),
        };
    }
    let statistics: Statistics = serde_json::from_str(&line).doing("read the report of the serving process")?;
    // A signal that came before has ended this command, and the server takes the mount down. From here on the mount stays.
    let _stop = Stop::on_signals()?;
    (&here).write_all(&[HEARD]).doing(doing)?;
    describe(&statistics, output)?;
    Ok(0)
}

/// Returns the arguments that are options of `mount`, with their values.
fn option_arguments(arguments: &[std::ffi::OsString]) -> Vec<std::ffi::OsString> {
    let mut kept = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        let takes_value = matches!(text.as_ref(), "-o" | "--profile" | "--flush");
        if takes_value {
            kept.push(argument.clone());
            kept.extend(rest.next().cloned());
        } else if ["--force", "--json"].contains(&text.as_ref())
            || ["-o", "--profile=", "--flush="].iter().any(|prefix| text.starts_with(prefix))
        {
            kept.push(argument.clone());
        }
    }
    kept
}

/// Tells the waiting parent that the mount works, and detaches from terminal, session and directory. Fails if the parent
/// has ended: nobody knows of the mount then.
fn report_and_detach(statistics: &Statistics, with_parent: bool) -> Outcome<()> {
    let doing = "go to the background";
    rustix::process::setsid().doing(doing)?;
    rustix::process::chdir("/").doing(doing)?;
    let line = serde_json::to_string(statistics).doing(doing)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").doing(doing)?;
    let mut stdout = std::io::stdout().lock();
    if with_parent {
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).doing(doing)?;
    } else {
        // Before the parent may end.
        rustix::process::set_parent_process_death_signal(None).doing(doing)?;
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).doing(doing)?;
        if rustix::io::read(&stdout, &mut [0]).doing(doing)? == 0 {
            return Err(Failure::new(doing, "the command that mounts was ended"));
        }
    }
    rustix::stdio::dup2_stdout(&null).doing(doing)?;
    rustix::stdio::dup2_stderr(&null).doing(doing)
}

fn describe(statistics: &Statistics, output: &Output) -> Outcome<()> {
    report::emit_done(output.json, output.quiet, "mount", statistics, || {
        let text = mounted_words(statistics);
        match statistics.unused_bytes {
            0 => escaped(&text),
            _ => escaped(&format!("{text}; {}", describe_unused(statistics))),
        }
    })
}
