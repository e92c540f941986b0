//! `nvfold info`: shows the superblock of a file system.

use crate::device::DeviceOptions;
use crate::failure::Outcome;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::Statistics;
use clap::Args;
use std::path::PathBuf;

/// Show the identity, layout, persistence level and state of a file system
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold info /dev/shm/pool")]
pub(crate) struct Info {
    /// Device or mount point
    #[arg(value_name = "DEVICE|DIR")]
    target: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// Runs the command.
pub(crate) fn run(info: &Info, output: &Output) -> Outcome<u8> {
    let statistics = Statistics::of(&info.target, &info.device_options)?;
    report::emit(output.json, "info", &statistics, || describe(&statistics))?;
    Ok(0)
}

fn describe(statistics: &Statistics) -> String {
    let superblock = &statistics.superblock;
    let mounted = match (&statistics.mount_point, statistics.pid) {
        (Some(dir), Some(pid)) => {
            format!("on {dir}, by process {pid}{}", if statistics.read_only { ", read-only" } else { "" })
        }
        _ => "no".into(),
    };
    let state = match (superblock.clean, &statistics.mount_point) {
        (true, _) => "clean",
        (false, Some(_)) => "in use",
        (false, None) => "not unmounted; the next mount recovers it",
    };
    let flags =
        [superblock.incompatible_features, superblock.read_only_compatible_features, superblock.compatible_features];
    let offsets = [
        superblock.journal_offset,
        superblock.segment_table_offset,
        superblock.chunk_table_offset,
        superblock.data_offset,
    ];
    let [journal, segments, chunks, data] = offsets.map(|offset| format!("{offset:#x}"));
    let index = statistics.index.as_ref().map(|index| index.describe(superblock.device_bytes));
    let index = index.or_else(|| superblock.index.clone()).unwrap_or_default();
    let mut facts = vec![
        ("device", statistics.device.clone()),
        ("label", superblock.label.clone()),
        ("uuid", superblock.uuid.clone()),
        (
            "format",
            format!(
                "version {}, feature flags {:#x} {:#x} {:#x}",
                superblock.format_version, flags[0], flags[1], flags[2]
            ),
        ),
        ("size", format!("{} ({} bytes)", size::show(superblock.device_bytes), superblock.device_bytes)),
        ("persistence", statistics.persistence.clone()),
        ("state", state.into()),
        ("mounted", mounted),
        ("policy", statistics.policy.clone().unwrap_or_else(|| "chosen at mount".into())),
        ("compress", statistics.compress.clone().unwrap_or_else(|| "chosen at mount".into())),
        ("share", statistics.share.clone().unwrap_or_else(|| "chosen at mount".into())),
        ("layout", format!("journal {journal}, segment table {segments}, chunk table {chunks}, data {data}")),
        ("index", index),
        ("created", show_time(superblock.created_ns)),
        ("last mounted", show_time(superblock.mounted_ns)),
        ("read-write mounts", superblock.read_write_mounts.to_string()),
    ];
    facts.extend((statistics.unused_bytes > 0).then(|| ("unused", describe_unused(statistics))));
    facts.extend(statistics.memory_limit.as_ref().map(|limit| ("memory limit", limit.describe())));
    facts.extend(statistics.sync_errors.as_ref().map(|errors| ("syncs", errors.describe())));
    facts.extend(statistics.recovery.as_ref().map(|recovery| ("recovery", recovery.describe())));
    report::facts(&facts)
}

/// Says that the device is longer than the file system on it, and how to use the rest.
pub(super) fn describe_unused(statistics: &Statistics) -> String {
    let (unused, device) = (size::show(statistics.unused_bytes), &statistics.device);
    format!("{unused} of the device lie after the file system; unmounted, `nvfold resize {device}` adds them")
}

/// Formats a time as `2026-11-21 05:42:01 UTC`; `never` for 0.
pub(super) fn show_time(ns: i64) -> String {
    if ns == 0 {
        return "never".into();
    }
    let seconds = ns.div_euclid(1_000_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Converts days since 1970-01-01 to a Gregorian date. The computation lets years begin in March, so that the leap
/// day is the last day of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_IN_400_YEARS: i64 = 146_097;
    let shifted = days + 719_468;
    let era = shifted.div_euclid(DAYS_IN_400_YEARS);
    let of_era = shifted.rem_euclid(DAYS_IN_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_reports_are_printed_as_dates() {
        assert_eq!(show_time(1), "1970-01-01 00:00:00 UTC");
        assert_eq!(show_time(951_782_400_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(show_time(1_767_225_599_000_000_000), "2025-12-31 23:59:59 UTC");
        assert_eq!(show_time(-1_000_000_000), "1969-12-31 23:59:59 UTC");
    }
}
