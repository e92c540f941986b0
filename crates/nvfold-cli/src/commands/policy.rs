//! `nvfold policy`: which dedup system decides on new data of a file, and choosing it.

use crate::device::DeviceOptions;
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::problems::Problems;
use crate::report;
use crate::stored::{Found, Stored};
use clap::Args;
use nvfold::{FileKind, Policy as Name};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show or set the policy for new data of a file or directory
///
/// A file or directory may have a policy of its own (the extended attribute user.nvfold.dedup); without one the
/// mount's counts. What is made in a directory gets a copy of the directory's own. Data that is stored stays as it
/// is: see `nvfold dedup` and `nvfold undedup`.
#[derive(Args, Debug)]
pub struct Policy {
    /// File or directory on a mount, or an unmounted device
    #[arg(value_name = "PATH|DEVICE")]
    target: PathBuf,
    /// The policy to set: off, inline, ..., or default for that of the mount
    #[arg(value_name = "POLICY", value_parser = parse_wanted)]
    wanted: Option<Wanted>,
    /// Set it for everything below a directory too
    #[arg(short, long, requires = "wanted")]
    recursive: bool,
    /// On a device: the file or directory
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// What to set: a policy, or none.
#[derive(Clone, Copy, Debug)]
struct Wanted(Option<Name>);

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match Name::named(text.as_bytes()) {
        None if text == "default" => Ok(Wanted(None)),
        None => Err(format!("unknown policy `{text}`; there are: {}, default", Name::names())),
        policy => Ok(Wanted(policy)),
    }
}

#[derive(Serialize)]
struct Report {
    path: String,
    /// The policy for new data. Absent when it is that of a mount and the device is not mounted.
    policy: Option<String>,
    /// `own` or `mount`.
    from: &'static str,
    /// Value of the attribute, also when it names no policy that this version knows.
    attribute: Option<String>,
    /// Files and directories whose policy was set.
    set: u64,
    problem_count: u64,
}

/// Runs it.
pub fn run(policy: &Policy, output: &Output) -> Outcome<u8> {
    let Policy { target, wanted, recursive, at, device_options } = policy;
    let at: Vec<PathBuf> = at.iter().cloned().collect();
    let (stored, paths) = Stored::open(std::slice::from_ref(target), &at, None, device_options, wanted.is_none())?;
    let done = show_or_set(&stored, &paths[0], *wanted, *recursive);
    stored.close()?;
    let report = done?;
    report::emit(output.json, "policy", &report, || describe(&report))?;
    Ok(u8::from(report.problem_count > 0))
}

fn show_or_set(stored: &Stored, path: &Path, wanted: Option<Wanted>, recursive: bool) -> Outcome<Report> {
    let what = || mounts::show(path);
    let found = stored.find(path).doing(what())?;
    if !matches!(found.kind, FileKind::Regular | FileKind::Directory) {
        return Err(Failure::new(what(), "only files and directories have a policy"));
    }
    let problems = Problems::until_signal()?;
    let mut set = 0;
    if let Some(Wanted(wanted)) = wanted {
        stored.set_own_policy(&found, wanted).doing(what())?;
        set = 1;
        if recursive {
            let mut each = |found: &Found| match stored.set_own_policy(found, wanted) {
                Ok(()) => set += 1,
                Err(error) => stored.note(&found.path, &error, &problems),
            };
            stored.walk(&[path.to_owned()], &problems, &mut each);
            // The walk began with the path itself.
            set -= 1;
        }
    }
    let (problem_count, _) = problems.told();
    if let Some(reason) = problems.stop_reason("policy") {
        return Err(reason);
    }
    let attribute = stored.own_policy(&found).doing(what())?;
    let own = attribute.as_deref().and_then(Name::named);
    Ok(Report {
        path: what(),
        policy: own.map_or_else(|| stored.mount_policy(path), |own| Ok(Some(own.name().to_owned())))?,
        from: if own.is_some() { "own" } else { "mount" },
        attribute: attribute.map(|value| String::from_utf8_lossy(&value).into_owned()),
        set,
        problem_count,
    })
}

fn describe(report: &Report) -> String {
    let why = match (report.from, &report.attribute) {
        ("own", _) => "its own".to_owned(),
        (_, None) => "that of the mount".to_owned(),
        (_, Some(unknown)) => format!("that of the mount; its own, `{unknown}`, is unknown to this version"),
    };
    let policy = report.policy.as_deref().unwrap_or("not mounted");
    let set = if report.set > 1 { format!("; set for {} files and directories", report.set) } else { String::new() };
    format!("{}: {policy} ({why}){set}", report.path)
}
