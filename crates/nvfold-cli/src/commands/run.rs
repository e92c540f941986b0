//! `nvfold run`: executes a program with its files on a device, or on a mount with hints about its copies.
//!
//! The command checks the program, puts its request into the environment, preloads libnvfold_preload, and executes
//! the program in the same process. So signals, the terminal and the exit code are the program's own. The process id
//! tells the library that this process owns the device (crates/nvfold-preload).

mod program;

use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::{mounts, statistics};
use clap::Args;
use nvfold::Policy;
use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libnvfold_preload.so";
/// Exit code, as of env(1): the program exists but cannot be run.
const CANNOT_RUN: u8 = 126;

/// Run an unmodified program with its files on a device, without a mount; or on a mount, and share what it copies
#[derive(Args, Debug)]
#[command(after_help = "\
The program is not changed. Files below the prefix are on the device; all other files are on the host. nvfold follows \
the program's own copies through memory, so data that it copies from one file to another is shared, unless the options \
contain another policy.

One process owns the device: the one that `nvfold run` becomes, and programs that it executes in its place. If a child \
process uses the prefix, the call fails with EIO, and a message says so once. Statically linked programs, setuid \
programs, Go programs and programs that use io_uring are refused, because their calls cannot be intercepted. \
docs/run.md lists what works and what does not.

Exit code: the code of the program; 125 if the device cannot be opened, 126 if the program cannot be run, 127 if it does \
not exist.

With --mount no device is opened: the program and its children use the mount through the kernel, and send the \
server hints about where the bytes that they write were copied from. Programs that cannot be followed run without hints.

Another example: nvfold run --mount /mnt -- sh -c 'cd /mnt && sort a b > c'")]
#[command(before_help = "Example: nvfold run --device pool -o create,size=1G -- tar -C /nvfold -xf linux.tar")]
pub(crate) struct Run {
    /// The device: a file, a DAX file or a device-dax node
    #[arg(long, value_name = "DEVICE", required_unless_present = "mount")]
    device: Option<PathBuf>,
    /// Mount point of nvfold instead of a device; for any number of processes
    #[arg(long, value_name = "DIR", conflicts_with_all = ["device", "prefix", "options", "stats"])]
    mount: Option<PathBuf>,
    /// Path at which the program sees the device: absolute, need not exist
    #[arg(long, default_value = "/nvfold", value_name = "PATH")]
    prefix: PathBuf,
    /// Options of the device, for example create, size=SIZE, ro, policy=NAME (default icid), compress=CODEC; docs/c.md lists
    /// all
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// At exit, print on stderr how much the program wrote, and how much of it is shared
    #[arg(long)]
    stats: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the command; returns only on failure.
pub(crate) fn run(command: &Run) -> Outcome<Infallible> {
    let mut variables = match (&command.mount, &command.device) {
        (Some(dir), _) => of_mount(dir)?,
        (None, Some(device)) => of_device(command, device)?,
        (None, None) => return Err(Failure::usage("run", "give a device or a mount")),
    };
    let library = library()?;
    let (name, arguments) = command.command.split_first().expect("clap asks for one");
    let program = program::find(name)?;
    let first = match program::check(&program) {
        Err(failure) if command.mount.is_none() => return Err(failure.exits_with(CANNOT_RUN)),
        Err(failure) => {
            failure.hint("it runs all the same, and what it copies is not followed").report("run");
            None
        }
        Ok(first) => first,
    };
    variables.push(("LD_PRELOAD", preloaded(first, &library, env::var_os("LD_PRELOAD"))));
    let mut becomes = Command::new(&program);
    becomes.arg0(name).args(arguments);
    for variable in VARIABLES {
        becomes.env_remove(variable);
    }
    let error = becomes.envs(variables).exec();
    Err(Failure::new(format!("run {}", program.display()), error).exits_with(CANNOT_RUN))
}

/// Environment variables read by the library.
const VARIABLES: [&str; 6] = [
    "NVFOLD_RUN_DEVICE",
    "NVFOLD_RUN_PREFIX",
    "NVFOLD_RUN_OPTIONS",
    "NVFOLD_RUN_PID",
    "NVFOLD_RUN_STATS",
    "NVFOLD_RUN_MOUNT",
];

type Variables = Vec<(&'static str, OsString)>;

fn of_device(command: &Run, device: &Path) -> Outcome<Variables> {
    let prefix = checked_prefix(&command.prefix)?;
    check_options(&command.options)?;
    let mut variables = vec![
        ("NVFOLD_RUN_DEVICE", absolute(device)?.into()),
        ("NVFOLD_RUN_PREFIX", prefix.into()),
        ("NVFOLD_RUN_OPTIONS", command.options.join(",").into()),
        ("NVFOLD_RUN_PID", std::process::id().to_string().into()),
    ];
    if command.stats {
        variables.push(("NVFOLD_RUN_STATS", "1".into()));
    }
    Ok(variables)
}

/// Warns if the policy of the mount would share nothing. That is no failure, because a directory may have another
/// policy.
fn of_mount(dir: &Path) -> Outcome<Variables> {
    let name = dir.display();
    let mounted = mounts::at(dir).ok_or_else(|| {
        Failure::new(&name, "no nvfold is mounted there")
            .hint("give the mount point itself; `nvfold mount DEVICE DIR` makes a mount")
    })?;
    let policy = statistics::ask(&mounted.dir)?.policy.unwrap_or_default();
    if !Policy::named(policy.as_bytes()).is_some_and(Policy::follows_origins) {
        eprint_line(&format!(
            "nvfold: warning: {name}: its policy {policy} does not share what is copied, except in directories with \
             another policy; mount it with -o policy=icid"
        ));
    }
    Ok(vec![("NVFOLD_RUN_MOUNT", mounted.dir.into())])
}

/// Refuses options that the library must not repeat in each program that the process executes later.
fn check_options(options: &[String]) -> Outcome<()> {
    match options.iter().flat_map(|list| list.split(',')).any(|option| option.trim() == "format") {
        true => {
            Err(Failure::usage("option format", "it would erase the device again with each program that is executed")
                .hint("format it with `nvfold mkfs`; option create makes a device if there is none"))
        }
        false => Ok(()),
    }
}

/// Checks that a prefix is an absolute path in normal form.
fn checked_prefix(prefix: &Path) -> Outcome<&Path> {
    let is_plain = prefix.components().skip(1).all(|component| matches!(component, Component::Normal(_)));
    let rebuilt: PathBuf = prefix.components().collect();
    if !prefix.is_absolute() || !is_plain || prefix == Path::new("/") || rebuilt.as_os_str() != prefix.as_os_str() {
        let why = "it must be an absolute path other than /, without ., .. or a / at its end";
        return Err(Failure::usage(format!("prefix {}", prefix.display()), why));
    }
    Ok(prefix)
}

/// Returns the absolute path of the device, because the program may change its directory. `mem:` is memory of the
/// process.
fn absolute(device: &Path) -> Outcome<PathBuf> {
    if device == Path::new("mem:") {
        return Ok(device.to_owned());
    }
    std::path::absolute(device).doing(format!("device {}", device.display()))
}

/// Returns the path of the library: as NVFOLD_PRELOAD gives it, else where it is installed.
fn library() -> Outcome<PathBuf> {
    let named = env::var_os("NVFOLD_PRELOAD").filter(|path| !path.is_empty()).map(PathBuf::from);
    let beside = env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let folder = beside.parent().unwrap_or(Path::new("/"));
    let installed = [folder.join(LIBRARY), folder.join("../lib/nvfold").join(LIBRARY)];
    let found = match named {
        Some(named) => Some(named).filter(|path| path.is_file()),
        None => installed.into_iter().find(|path| path.is_file()),
    };
    let found = found.ok_or_else(|| {
        Failure::new(format!("find {LIBRARY}"), "it is neither beside this command nor in ../lib/nvfold")
            .hint("`make install` puts it there; the variable NVFOLD_PRELOAD can give another path")
    })?;
    let path = found.canonicalize().doing(format!("find {}", found.display()))?;
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        let why = "its path contains a colon or a space, which separate the entries of LD_PRELOAD";
        return Err(Failure::new(format!("preload {}", path.display()), why));
    }
    Ok(path)
}

/// Puts the library before the libraries that the user preloads, and before all of them what must come first.
fn preloaded(first: Option<OsString>, library: &Path, others: Option<OsString>) -> OsString {
    let mut all = first.map_or_else(OsString::new, |mut first| {
        first.push(":");
        first
    });
    all.push(library.as_os_str());
    for other in others.iter().flat_map(|others| others.as_bytes().split(|byte| matches!(byte, b':' | b' '))) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            all.push(":");
            all.push(OsStr::from_bytes(other));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_must_be_absolute_and_normalized() {
        assert!(checked_prefix(Path::new("/nvfold")).is_ok() && checked_prefix(Path::new("/a/b")).is_ok());
        for wrong in ["", "/", "nvfold", "/nvfold/", "/a/../b", "/a/./b", "//a"] {
            assert!(checked_prefix(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn libraries_that_the_user_preloads_are_loaded_after_ours() {
        let list = |others: Option<&str>| preloaded(None, Path::new("/l/ours.so"), others.map(OsString::from));
        assert_eq!(list(None), "/l/ours.so");
        assert_eq!(list(Some("a.so b.so:/l/ours.so::c.so")), "/l/ours.so:a.so:b.so:c.so");
        let first = Some(OsString::from("libasan.so.8"));
        assert_eq!(preloaded(first, Path::new("/o.so"), Some("a.so".into())), "libasan.so.8:/o.so:a.so");
    }
}
