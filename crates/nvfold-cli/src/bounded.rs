//! Calls that a server must answer, given up after a time.
//!
//! The problem: a server that is stopped or stuck does not answer. A thread that waits for it cannot always be ended,
//! and then its process cannot end either: once the server has taken a request, the kernel waits for the answer
//! whatever signal comes.
//!
//! The idea: a child process makes the call and prints the result. The command waits for the child for a while, then
//! kills it and goes on. A child that cannot be killed ends when the server goes on or dies.

use crate::failure::Outcome;
use crate::mounts;
use crate::server::Server;
use crate::unmount::unmount;
use clap::{Args, ValueEnum};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a server may take for an answer. A busy one needs milliseconds.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// How often a command that waits checks whether the server is stopped.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a killed child may take to end before the command goes on without it.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// The largest value of an attribute (XATTR_SIZE_MAX), in bytes.
const VALUE_MAX: usize = 64 << 10;
/// The first byte that the child prints. The value follows, or the number of the error.
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Get the value of an attribute.
    Get,
    /// Check that an attribute has a value.
    Probe,
    /// Set an attribute.
    Set,
    /// Unmount.
    Unmount,
}

/// The command line of the child
#[derive(Args, Debug)]
pub(crate) struct BoundedCall {
    #[arg(value_enum)]
    kind: Kind,
    path: PathBuf,
    #[arg(default_value = "")]
    name: String,
    #[arg(default_value = "")]
    value: OsString,
}

/// Makes the call, in the child, and prints the result.
pub(crate) fn run(call: &BoundedCall) -> Outcome<u8> {
    // A command that is ended does not need the answer. Best effort: what else ends this is the answer itself.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let result = match call.kind {
        Kind::Get => {
            let mut value = vec![0; VALUE_MAX];
            attribute(&call.path, &call.name, &mut value).map(|length| {
                value.truncate(length);
                value
            })
        }
        Kind::Probe => attribute(&call.path, &call.name, &mut []).map(|_| Vec::new()),
        Kind::Set => as_root_asks(&call.name, |name| {
            rustix::fs::setxattr(&call.path, name, call.value.as_bytes(), XattrFlags::empty())
        })
        .map(|()| Vec::new()),
        Kind::Unmount => unmount(&call.path, UnmountFlags::empty()).map(|()| Vec::new()),
    };
    let printed = match result {
        Ok(value) => [&[DONE], value.as_slice()].concat(),
        Err(errno) => [&[REFUSED], errno.raw_os_error().to_string().as_bytes()].concat(),
    };
    let mut stdout = io::stdout().lock();
    // If the command has given up, no process reads this.
    let _ = stdout.write_all(&printed).and_then(|()| stdout.flush());
    Ok(0)
}

/// Gets the value of an attribute of a mount's, however long that takes; returns its length.
///
/// # Errors
/// Those of getxattr(2).
pub(crate) fn attribute(path: &Path, name: &str, value: &mut [u8]) -> rustix::io::Result<usize> {
    as_root_asks(name, |name| rustix::fs::getxattr(path, name, &mut *value))
}

/// Makes a call with the name of an attribute. Root takes the name that the kernel lets only root use, so that a server
/// that is not told who asks knows him (`-o idmap`); root of a container may not.
pub(crate) fn as_root_asks<T>(name: &str, mut ask: impl FnMut(&str) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let is_root = rustix::process::geteuid().is_root();
    let of_root = name.strip_prefix("user.nvfold.").filter(|_| is_root).map(|rest| format!("trusted.nvfold.{rest}"));
    match of_root.map(|name| ask(&name)) {
        None | Some(Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM)) => ask(name),
        Some(answer) => answer,
    }
}

/// Returns the value of an attribute of a file on a mount.
///
/// # Errors
/// Those of getxattr(2); `TimedOut` if the server has not answered within this time, or is stopped.
pub(crate) fn get(path: &Path, name: &str, within: Duration) -> io::Result<Vec<u8>> {
    call(Kind::Get, path, name, "", within)
}

/// Returns whether a file on a mount has an attribute.
///
/// # Errors
/// `TimedOut`, as for [`get`].
pub(crate) fn has(path: &Path, name: &str) -> io::Result<bool> {
    match call(Kind::Probe, path, name, "", ANSWERS_WITHIN) {
        Err(error) if error.kind() != ErrorKind::TimedOut => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// Sets an attribute of a file on a mount.
///
/// # Errors
/// Those of setxattr(2), and `TimedOut` as for [`get`].
pub(crate) fn set(path: &Path, name: &str, value: &str) -> io::Result<()> {
    call(Kind::Set, path, name, value, ANSWERS_WITHIN).map(drop)
}

/// Unmounts. The kernel first sends the server what it has cached, so this may wait for the server.
///
/// # Errors
/// Those of [`unmount`]; `TimedOut` if it takes longer than `within`, or if the server is stopped and so cannot take
/// what is cached. The unmount then goes on when the server does.
pub(crate) fn unmount_within(dir: &Path, within: Duration) -> io::Result<()> {
    call(Kind::Unmount, dir, "", "", within).map(drop)
}

fn call(kind: Kind, path: &Path, name: &str, value: &str, within: Duration) -> io::Result<Vec<u8>> {
    let kind = kind.to_possible_value().expect("no kind is skipped");
    let arguments = [OsStr::new(kind.get_name()), OsStr::new("--"), path.as_os_str(), name.as_ref(), value.as_ref()];
    let mut child = Command::new(std::env::current_exe()?)
        // The program may have another name, which would stand for another command.
        .arg0("nvfold")
        .arg("bounded-call")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let printed = printed_by(&mut child, path, within);
    match printed {
        Ok(_) => _ = child.wait(),
        Err(_) => give_up(&mut child),
    }
    let printed = printed?;
    match printed.split_first() {
        Some((&DONE, value)) => Ok(value.to_vec()),
        Some((&REFUSED, number)) => {
            let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            Err(number.map_or_else(ended_early, io::Error::from_raw_os_error))
        }
        _ => Err(ended_early()),
    }
}

/// Kills the child, and waits a moment for its end: a child that uses a mount makes it busy.
fn give_up(child: &mut Child) {
    let _ = child.kill();
    let end = Instant::now() + ENDS_WITHIN;
    while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(ENDS_WITHIN / 100);
    }
}

fn ended_early() -> io::Error {
    io::Error::other("the process that asks ended early")
}

/// Returns all that the child prints, or `TimedOut`.
fn printed_by(child: &mut Child, path: &Path, within: Duration) -> io::Result<Vec<u8>> {
    let mut pipe = child.stdout.take().ok_or_else(ended_early)?;
    let (all, came) = mpsc::channel();
    thread::spawn(move || {
        let mut printed = Vec::new();
        let read = pipe.read_to_end(&mut printed).map(|_| printed);
        let _ = all.send(read);
    });
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match came.recv_timeout(left.min(LOOK_EVERY)) {
            Ok(printed) => return printed,
            Err(RecvTimeoutError::Disconnected) => return Err(ended_early()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(stopped) = mounts::above(path).and_then(|mounted| Server::of(&mounted)).filter(|it| it.is_stopped())
        {
            return Err(io::Error::new(ErrorKind::TimedOut, stopped.why_silent()));
        }
        if left.is_zero() {
            let why = format!("the serving process has not answered within {} s", within.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
    }
}
