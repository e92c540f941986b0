//! `nvfold policy`: shows and sets the policy for new data of a file or directory, and shows its compression.

use crate::device::DeviceOptions;
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::problems::Problems;
use crate::report;
use crate::stored::{Found, Stored};
use crate::text::escaped;
use clap::Args;
use nvfold::{COMPRESSION_ATTRIBUTE, Compression, FileKind, POLICY_ATTRIBUTE, Policy as Name};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show or set the policy for new data of a file or directory
///
/// A file or directory may have its own policy (the extended attribute user.nvfold.dedup); otherwise the policy of the
/// mount applies. A new file inherits the policy of its directory. Stored data does not change: see `nvfold dedup` and
/// `nvfold undedup`.
///
/// Also shows the compression of new packed data; set it with setfattr (the extended attribute user.nvfold.compress).
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold policy /tmp/fold/backups deext")]
pub(crate) struct Policy {
    /// File or directory on a mount, or an unmounted device
    #[arg(value_name = "PATH|DEVICE")]
    target: PathBuf,
    /// Policy to set: off, inline, ..., or default for the policy of the mount
    #[arg(value_name = "POLICY", value_parser = parse_wanted)]
    wanted: Option<Wanted>,
    /// Also set it for everything below a directory
    #[arg(short, long, requires = "wanted")]
    recursive: bool,
    /// On a device: the file or directory
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// The policy to set; `None` removes it.
#[derive(Clone, Copy, Debug)]
struct Wanted(Option<Name>);

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match Name::named(text.as_bytes()) {
        None if text == "default" => Ok(Wanted(None)),
        None => Err(format!("must be one of {}, default", Name::names())),
        policy => Ok(Wanted(policy)),
    }
}

#[derive(Serialize)]
struct Report {
    path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// The policy for new data. Absent if it depends on the mount and the device is not mounted.
    policy: Option<String>,
    /// `own` or `mount`.
    from: &'static str,
    /// The value of the attribute, even if this version knows no such policy.
    attribute: Option<String>,
    /// The compression of new packed data, with the same details.
    compression: Option<String>,
    compression_from: &'static str,
    compression_attribute: Option<String>,
    /// The number of files and directories whose policy was set.
    set: u64,
    problem_count: u64,
}

/// Runs the command.
pub(crate) fn run(policy: &Policy, output: &Output) -> Outcome<u8> {
    let Policy { target, wanted, recursive, at, device_options } = policy;
    let at: Vec<PathBuf> = at.iter().cloned().collect();
    let (stored, paths) = Stored::open(std::slice::from_ref(target), &at, None, device_options, wanted.is_none())?;
    let done = show_or_set(&stored, &paths[0], *wanted, *recursive);
    stored.close()?;
    let report = done?;
    let is_quiet = output.quiet && wanted.is_some();
    report::emit_done(output.json, is_quiet, "policy", &report, || describe(&report))?;
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
            let mut each = |found: &Found<'_>| match stored.set_own_policy(found, wanted) {
                Ok(()) => set += 1,
                Err(error) => stored.note(found.path, &error, &problems),
            };
            stored.walk(&[path.to_owned()], &problems, &mut each);
            // The walk visited the path itself again.
            set -= 1;
        }
    }
    let (problem_count, _) = problems.told();
    if let Some(reason) = problems.stop_reason("policy") {
        return Err(reason);
    }
    let of_mount = stored.mount_defaults(path)?;
    let own = |name| stored.own_attribute(&found, name).doing(what());
    let policy_named = |value: &[u8]| Name::named(value).map(|policy| policy.name().to_owned());
    let policy = Choice::new(own(POLICY_ATTRIBUTE)?, policy_named, of_mount.policy);
    let compression_named = |value: &[u8]| Compression::named(value).map(|compression| compression.to_string());
    let compression = Choice::new(own(COMPRESSION_ATTRIBUTE)?, compression_named, of_mount.compression);
    Ok(Report {
        path: what(),
        path_hex: mounts::hex(path),
        policy: policy.value,
        from: policy.from,
        attribute: policy.attribute,
        compression: compression.value,
        compression_from: compression.from,
        compression_attribute: compression.attribute,
        set,
        problem_count,
    })
}

/// The setting for new data, and its origin.
struct Choice {
    value: Option<String>,
    from: &'static str,
    attribute: Option<String>,
}

impl Choice {
    fn new(attribute: Option<Vec<u8>>, named: impl Fn(&[u8]) -> Option<String>, of_mount: Option<String>) -> Choice {
        let own = attribute.as_deref().and_then(named);
        Choice {
            from: if own.is_some() { "own" } else { "mount" },
            value: own.or(of_mount),
            attribute: attribute.map(|value| String::from_utf8_lossy(&value).into_owned()),
        }
    }
}

fn describe(report: &Report) -> String {
    let policy = describe_choice(&report.policy, report.from, &report.attribute);
    let compression = describe_choice(&report.compression, report.compression_from, &report.compression_attribute);
    let set = if report.set > 1 { format!("; set for {} files and directories", report.set) } else { String::new() };
    format!("{}: policy {policy}, compression {compression}{set}", escaped(&report.path))
}

fn describe_choice(value: &Option<String>, from: &str, attribute: &Option<String>) -> String {
    let Some(value) = value else { return "is chosen when the device is mounted".into() };
    let why = match (from, attribute) {
        ("own", _) => "its own".to_owned(),
        (_, None) => "from the mount".to_owned(),
        (_, Some(unknown)) => format!("from the mount; its own, `{unknown}`, is unknown to this version"),
    };
    format!("{value} ({why})")
}
