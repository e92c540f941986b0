//! `nvfold dedup` and `nvfold undedup`: share stored data, and undo sharing.
//!
//! Both go through files in small ranges; each range is done completely or not at all. After an interruption,
//! finished ranges stay as they are. A second run passes over them quickly, because it changes only what is not yet
//! as wanted. Undedup first computes, on a copy of the extents, how much space it needs, and starts only if that is
//! free. Draining policy denova's queue needs no pass over files: see [`queue`].

mod queue;
pub(crate) use queue::drain_all;

use crate::dedup_options::{self, DedupOptions, parse_compression};
use crate::device::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::mount::requests::RANGE_BYTES_MAX;
use crate::output::Output;
use crate::problems::{Problem, Problems};
use crate::progress::Progress;
use crate::report;
use crate::size;
use crate::stored::{Found, Refused, Stored};
use clap::Args;
use nvfold::{Compression, FileKind, Reshared, UndedupPlan, errno};
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

/// What both take.
#[derive(Args, Debug)]
struct Which {
    /// Files and directories on a mount, including everything below them; or one unmounted device
    #[arg(value_name = "PATH|DEVICE", required = true)]
    targets: Vec<PathBuf>,
    /// On a device: the files and directories [default: /]
    #[arg(long, value_name = "PATH")]
    at: Vec<PathBuf>,
    /// On a device: options of the policies, as for a mount, for example compress=zstd
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        long_help = "On a device: options of the policies, as for a mount; listed below"
    )]
    options: Vec<String>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// Share data that is already stored
///
/// Reads the files and shares each 4 KiB block with an equal block, of these files or of any file whose blocks have
/// fingerprints. Blocks without a fingerprint get one. Under policy deext, blocks are cut into pieces first, and the
/// pieces are shared. Contents, sizes and times do not change. Only root and the owner of a file may do this. If it is
/// interrupted, the work done so far stays; start it again to continue.
///
/// --drain, --pause, --resume and --mode control the queue of policy denova, for the whole file system. Root and the
/// user who mounted it may use them.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold dedup /tmp/fold/backups")]
#[command(after_long_help = dedup_options::help())]
pub(crate) struct Dedup {
    #[command(flatten)]
    which: Which,
    /// Also compress packed chunks that are not compressed yet or that get smaller: lz4, zstd or zstd:LEVEL [default:
    /// zstd]. Blocks are not compressed; under policy deext they become pieces first
    #[arg(long, value_name = "CODEC", num_args = 0..=1, require_equals = true, default_missing_value = "zstd",
          value_parser = parse_compression, conflicts_with_all = ["drain", "pause", "resume", "mode"])]
    compress: Option<Compression>,
    #[command(flatten)]
    steer: queue::Steer,
}

/// Undo sharing: give every file its own copy of each block
///
/// Pieces of policy deext become blocks. Checks first that there is space for the copies, and changes nothing if there
/// is not. The policy still applies to new data: `nvfold policy PATH off --recursive` keeps files unshared. Contents,
/// sizes and times do not change. Only root and the owner of a file may do this. If it is interrupted, the work done so
/// far stays; start it again to continue.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold undedup --dry-run /tmp/fold/database")]
#[command(after_long_help = dedup_options::help())]
pub(crate) struct Undedup {
    #[command(flatten)]
    which: Which,
    /// Only report how much space it would take
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Report {
    files: u64,
    /// Files and directories that disappeared before their turn came.
    vanished: u64,
    /// Logical bytes in the ranges examined.
    looked_at_bytes: u64,
    /// Bytes in blocks that are now shared, or that got their own copy.
    changed_bytes: u64,
    /// Bytes in data blocks in use, for the whole file system.
    stored_bytes_before: u64,
    stored_bytes_after: u64,
    available_bytes_before: u64,
    available_bytes_after: u64,
    /// Upper bound of the space that undedup needs or needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    needed: Option<Needed>,
    seconds: f64,
    problem_count: u64,
    problems: Vec<Problem>,
}

/// Space that the copies need.
#[derive(Clone, Serialize)]
struct Needed {
    /// Bytes to copy.
    copied_bytes: u64,
    /// Free space that the copies take; less than `copied_bytes` where copying frees something.
    data_bytes: u64,
    /// Upper bound of the additional space for the logs of the files.
    log_bytes: u64,
}

impl Needed {
    fn bytes(&self) -> u64 {
        self.data_bytes + self.log_bytes
    }
}

/// Runs `nvfold dedup`.
pub(crate) fn dedup(dedup: &Dedup, output: &Output) -> Outcome<u8> {
    let Dedup { which, compress, steer } = dedup;
    if steer.drain || steer.change().is_some() {
        if which.targets.len() > 1 || !which.at.is_empty() {
            return Err(Failure::usage(
                "dedup",
                "the queue belongs to a file system: give one path on it, or a device",
            ));
        }
        return match steer.change() {
            Some(change) => queue::change(&which.targets[0], change, output),
            None => on_stored(which, false, |stored, _| queue::drain(stored, &which.targets[0], output)),
        };
    }
    on_stored(&dedup.which, false, |stored, paths| {
        let work = Work::start(stored, paths, "dedup", output)?;
        work.finish(None, |stored, found, range| match compress {
            Some(compression) => stored.compress(found, range, *compression),
            None => stored.dedup(found, range),
        })
    })
    .and_then(|report| tell(&report, "dedup", if compress.is_some() { "changed" } else { "shared" }, output))
}

/// Runs `nvfold undedup`.
pub(crate) fn undedup(undedup: &Undedup, output: &Output) -> Outcome<u8> {
    on_stored(&undedup.which, undedup.dry_run, |stored, paths| {
        let mut work = Work::start(stored, paths, "undedup", output)?;
        let needed = work.plan(undedup.dry_run)?;
        let available = stored.space(&paths[0])?.available_bytes;
        if undedup.dry_run {
            return work.finish(Some(needed), |_, _, _| Ok(Reshared::default()));
        }
        if needed.bytes() > available {
            let missing = size::show(needed.bytes() - available);
            let (bytes, available) = (size::show(needed.bytes()), size::show(available));
            let why = format!("the copies take {bytes} and {available} are free: {missing} are missing");
            return Err(Failure::new("undedup", why).hint("nothing was changed; free some space, or give fewer files"));
        }
        work.finish(Some(needed), |stored, found, range| stored.undedup(found, range))
    })
    .and_then(|report| tell(&report, "undedup", if undedup.dry_run { "would copy" } else { "copied" }, output))
}

/// Runs `work` on the file system that the command line names. A device is unmounted afterwards even if `work`
/// failed, and is clean.
fn on_stored<T>(which: &Which, read_only: bool, work: impl FnOnce(&Stored, &[PathBuf]) -> Outcome<T>) -> Outcome<T> {
    let Which { targets, at, options, device_options } = which;
    let mut dedup = DedupOptions::default();
    let taken = options.iter().try_for_each(|list| dedup.take_list(list));
    taken.and_then(|()| dedup.check()).map_err(|why| Failure::usage("-o", why))?;
    let dedup = (!options.is_empty()).then_some(&dedup);
    let (stored, paths) = Stored::open(targets, at, dedup, device_options, read_only)?;
    let done = work(&stored, &paths);
    stored.close()?;
    done
}

fn tell(report: &Report, command: &str, changed: &str, output: &Output) -> Outcome<u8> {
    report::emit(output.json, command, report, || describe(report, changed))?;
    Ok(u8::from(report.problem_count > 0))
}

fn describe(report: &Report, changed: &str) -> String {
    let seconds = report.seconds;
    let rate = size::show((report.looked_at_bytes as f64 / seconds.max(1e-9)) as u64);
    let copied = report.needed.as_ref().filter(|_| report.changed_bytes == 0).map(|needed| needed.copied_bytes);
    let from_to = |before, after| format!("{} before, {} after", size::show(before), size::show(after));
    let mut rows = vec![
        ("files", report.files.to_string()),
        ("read", format!("{} in {seconds:.2} s, {rate}/s", size::show(report.looked_at_bytes))),
        (changed, size::show(copied.unwrap_or(report.changed_bytes))),
        ("stored", from_to(report.stored_bytes_before, report.stored_bytes_after)),
        ("available", from_to(report.available_bytes_before, report.available_bytes_after)),
    ];
    if report.vanished > 0 {
        rows.insert(1, ("skipped", format!("{}, which were removed meanwhile", report.vanished)));
    }
    if let Some(needed) = &report.needed {
        let (data, logs) = (size::show(needed.data_bytes), size::show(needed.log_bytes));
        rows.insert(rows.len() - 3, ("space needed", format!("{data}, and up to {logs} for logs")));
    }
    report::facts(&rows)
}

/// A pass over the files.
struct Work<'a> {
    stored: &'a Stored,
    paths: &'a [PathBuf],
    what: &'static str,
    output: &'a Output,
    problems: Problems,
    started: Instant,
    /// The sum of the sizes of all files.
    total_bytes: u64,
    stored_bytes_before: u64,
    available_bytes_before: u64,
}

impl<'a> Work<'a> {
    fn start(stored: &'a Stored, paths: &'a [PathBuf], what: &'static str, output: &'a Output) -> Outcome<Work<'a>> {
        let problems = Problems::until_signal()?;
        for path in paths {
            stored.settle(path)?;
        }
        let mut total_bytes = 0;
        // The pass that does the work reports files that cannot be read.
        stored.walk(paths, &Problems::default(), &mut |found| {
            total_bytes = u64::saturating_add(total_bytes, found.size_bytes * u64::from(is_file(found)));
        });
        let before = stored.space(&paths[0])?;
        Ok(Work {
            stored,
            paths,
            what,
            output,
            problems,
            started: Instant::now(),
            total_bytes,
            stored_bytes_before: before.stored_bytes,
            available_bytes_before: before.available_bytes,
        })
    }

    /// Computes the space that undedup needs, without the files whose extents this user may not see.
    fn plan(&mut self, dry_run: bool) -> Outcome<Needed> {
        let mut plan = UndedupPlan::new();
        let mut progress = Progress::new(self.output.progress, "plan", self.total_bytes);
        let mut done_bytes = 0;
        self.stored.walk(self.paths, &Problems::default(), &mut |found| {
            if !is_file(found) || self.problems.is_stopped() {
                return;
            }
            let mut extents = Vec::new();
            let mut from = 0;
            loop {
                match self.stored.extents(found, from) {
                    Ok(more) if more.is_empty() => break,
                    Ok(more) => extents.extend(more),
                    // The owner of a file may undo its sharing, and may not see it.
                    Err(refused) if refused.errno == errno::EPERM && !dry_run => return,
                    Err(refused) => return self.stored.note(found.path, &refused, &self.problems),
                }
                from = extents.last().map_or(0, |last| last.offset + last.length);
            }
            plan.add(&extents);
            done_bytes = u64::saturating_add(done_bytes, found.size_bytes);
            progress.update(done_bytes, String::new);
        });
        progress.finish(done_bytes, String::new);
        match self.problems.stop_reason(self.what) {
            Some(reason) => Err(reason),
            None => Ok(Needed {
                copied_bytes: plan.copied_bytes(),
                data_bytes: plan.data_bytes(),
                log_bytes: plan.log_bytes(),
            }),
        }
    }

    /// Does the work, range by range, and makes the report.
    fn finish(
        self,
        needed: Option<Needed>,
        change: impl Fn(&Stored, &Found<'_>, Range<u64>) -> Result<Reshared, Refused>,
    ) -> Outcome<Report> {
        let Work { stored, paths, what, output, problems, total_bytes, .. } = &self;
        let mut progress = Progress::new(output.progress, what, *total_bytes);
        let (mut files, mut passed_bytes, mut done) = (0, 0, Reshared::default());
        stored.walk(paths, problems, &mut |found| {
            if !is_file(found) {
                return;
            }
            let changed = for_each_range(stored, found, problems, |range| {
                let end = range.end;
                done += change(stored, found, range)?;
                progress.update(u64::saturating_add(passed_bytes, end), || {
                    format!("{} changed", size::show(done.changed_bytes))
                });
                Ok(())
            });
            match changed {
                Ok(()) => files += u64::from(!problems.is_stopped()),
                Err(refused) if refused.errno == errno::ENOSPC => {
                    let why = format!("{refused}; what was done so far stays");
                    problems.end(Failure::new(found.path.display(), why));
                }
                Err(refused) if refused.errno == errno::EROFS => {
                    problems.end(Failure::new(found.path.display(), refused));
                }
                Err(refused) => stored.note(found.path, &refused, problems),
            }
            passed_bytes = passed_bytes.saturating_add(found.size_bytes);
        });
        progress.finish(passed_bytes, || format!("{} changed", size::show(done.changed_bytes)));
        let (problem_count, told) = problems.told();
        if let Some(reason) = problems.stop_reason(what) {
            return Err(reason.hint("start it again to continue; what is done is skipped"));
        }
        let after = stored.space(&paths[0])?;
        Ok(Report {
            files,
            vanished: problems.vanished(),
            looked_at_bytes: done.looked_at_bytes,
            changed_bytes: done.changed_bytes,
            stored_bytes_before: self.stored_bytes_before,
            stored_bytes_after: after.stored_bytes,
            available_bytes_before: self.available_bytes_before,
            available_bytes_after: after.available_bytes,
            needed,
            seconds: self.started.elapsed().as_secs_f64(),
            problem_count,
            problems: told,
        })
    }
}

/// Calls `each` for ranges that cover all data of a file, and few holes.
fn for_each_range(
    stored: &Stored,
    found: &Found<'_>,
    problems: &Problems,
    mut each: impl FnMut(Range<u64>) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut from = 0;
    loop {
        let data = stored.data(found, from)?;
        let Some(last) = data.last() else { return Ok(()) };
        from = last.end;
        for range in ranges(&data) {
            if problems.is_stopped() {
                return Ok(());
            }
            each(range)?;
        }
    }
}

/// Returns ranges of at most [`RANGE_BYTES_MAX`] that cover the data. They include small holes.
fn ranges(data: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &Range { start: mut at, end } in data {
        while at < end {
            match ranges.last_mut().filter(|last| last.start + RANGE_BYTES_MAX > at) {
                Some(last) => last.end = end.min(last.start + RANGE_BYTES_MAX),
                None => ranges.push(at..end.min(at + RANGE_BYTES_MAX)),
            }
            at = ranges.last().map_or(end, |last| last.end);
        }
    }
    ranges
}

fn is_file(found: &Found<'_>) -> bool {
    found.kind == FileKind::Regular
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dedup_ranges_cover_all_data_and_no_large_hole() {
        let of = |data: &[(u64, u64)]| {
            let data: Vec<_> = data.iter().map(|(offset, length)| *offset..offset + length).collect();
            ranges(&data).into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(100, 50)]), [(100, 150)]);
        assert_eq!(of(&[(0, 4096), (8192, 100)]), [(0, 8292)], "a small hole");
        assert_eq!(of(&[(0, 10 * mib)]), [(0, 4 * mib), (4 * mib, 8 * mib), (8 * mib, 10 * mib)]);
        assert_eq!(of(&[(0, mib), (gib, mib)]), [(0, mib), (gib, gib + mib)]);
        assert_eq!(of(&[(0, 3 * mib), (3 * mib, 3 * mib)]), [(0, 4 * mib), (4 * mib, 6 * mib)]);
    }
}
