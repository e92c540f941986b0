//! A cross-check with the real fio: one row of Figure 6 through the mount, with `dedupe_percentage=50`.
//!
//! Our workloads are our own implementation; fio is an independent one. Through FUSE a request costs more than on a
//! DAX file system, so the gain is smaller. The winner and the number of shared requests must agree.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::Run;
use crate::{Doing, LabError, Result, bounds, program};
use nvfold_bench::mounts;
use nvfold_bench::process::output;
use nvfold_bench::scratch::Scratch;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const PERCENT: u64 = 50;
const POLICIES: [&str; 3] = ["off", "inline", "nv-dedup"];

/// Makes the figure, or explains why it cannot be measured.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let (file_mib, seconds): (u64, u64) = if run.turn.smoke { (8, 1) } else { (128, 8) };
    let settings = format!(
        "fio --rw=randwrite --bs=4k --direct=1 --dedupe_percentage={PERCENT}, one thread, a file of {file_mib} MiB, \
         {seconds} s after {} s of ramp, on a mount of mem: with profile={}.",
        seconds.div_ceil(4),
        run.turn.name
    );
    let mut figure = run.turn.figure("fio", "Cross-check: the real fio on a mount", settings);
    if let Some(why) = what_is_missing() {
        run.turn.say(&format!("fio is left out: {why}"));
        figure.reading = "Not measured.".into();
        figure.left_out.push(why.into());
        return Ok(vec![figure]);
    }
    let mut rates = Vec::new();
    let mut shared = Vec::new();
    for policy in POLICIES {
        run.turn.say(&format!("fio on a mount with policy {policy}"));
        let (rate, share) = measure(run, policy, file_mib, seconds)?;
        rates.push(rate);
        shared.push(share);
    }
    let x = || POLICIES.iter().map(ToString::to_string);
    figure.charts = vec![
        Chart::new(Drawn::Bars, "fio on a mount, 50 % duplicates", "policy", "requests/s", x())
            .with("fio", rates.clone()),
        Chart::new(Drawn::Table, "shared", "policy", "% of the requests", x()).with("shared", shared.clone()),
    ];
    figure.rows = vec![
        Row::own("inline to off", rates[1] / rates[0], "x"),
        Row::own("nv-dedup to off", rates[2] / rates[0], "x"),
        Row::own("requests that nv-dedup shares (fio repeats 50)", shared[2], "%"),
    ];
    figure.reading = format!(
        "Of the requests that fio generates, nv-dedup shares {} %; it runs at {} times the speed of off; every request \
         is a round trip through FUSE.",
        number(shared[2]),
        number(rates[2] / rates[0])
    );
    Ok(vec![figure])
}

fn what_is_missing() -> Option<&'static str> {
    let quiet =
        |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !rustix::process::geteuid().is_root() {
        Some("mounting needs root")
    } else if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse")
    } else if !quiet("fio").is_ok_and(|status| status.success()) {
        Some("fio is not installed (scripts/test-deps.sh does that)")
    } else {
        None
    }
}

/// Returns requests per second, and the share of requests that was shared, percent.
fn measure(run: &Run, policy: &str, file_mib: u64, seconds: u64) -> Result<(f64, f64)> {
    let scratch = Scratch::new_in(&std::env::temp_dir())?;
    let dir = &scratch.path().canonicalize().doing("look at a folder")?;
    let options = format!("size={}M,policy={policy},profile={},nodiscard", 4 * file_mib + 64, run.turn.name);
    let mounted = mounts::nvfold(&program::nvfold()?, policy, Path::new("mem:"), dir, &options)?;
    let mut fio = Command::new("fio");
    fio.args(["--name=cross-check", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=psync", "--time_based"]);
    fio.args(["--group_reporting", "--output-format=json", "--randrepeat=1", "--norandommap"]);
    fio.arg(format!("--directory={}", dir.display())).arg("--filename=cross-check");
    fio.arg(format!("--dedupe_percentage={PERCENT}")).arg(format!("--size={file_mib}M"));
    fio.arg(format!("--runtime={seconds}")).arg(format!("--ramp_time={}", seconds.div_ceil(4)));
    mounted.place.prove(dir)?;
    let said: Value = parse("fio", &output(&mut fio)?)?;
    mounted.place.prove(&dir.join("cross-check"))?;
    let mut stats = Command::new(program::nvfold()?);
    let stats = parse("nvfold stats", &output(stats.args(["--json", "stats"]).arg(dir))?)?;
    let rate = said["jobs"][0]["write"]["iops"].as_f64();
    let [offered, shared] = ["pieces_offered", "pieces_shared"].map(|name| stats["space"][name].as_f64());
    if let Some((offered, shared)) = offered.zip(shared) {
        check(policy, offered, shared)?;
    }
    let share = |(offered, shared): (f64, f64)| if offered > 0.0 { 100.0 * shared / offered } else { 0.0 };
    let share = offered.zip(shared).map(share);
    rate.zip(share).ok_or_else(|| LabError::wrong("fio or nvfold stats (no figures)".into()))
}

/// Refuses more shared requests than fio repeats. It draws which ones, so their number varies: five standard deviations.
fn check(policy: &str, offered: f64, shared: f64) -> Result<()> {
    let part = PERCENT as f64 / 100.0;
    let most = offered * part + 5.0 * (offered * part * (1.0 - part)).sqrt();
    let why = format!("fio repeats {PERCENT} % of the {offered} requests, give or take what it draws");
    bounds::at_most(format!("fio, {policy}: requests shared"), shared, most, "", &why)
}

fn parse(who: &str, text: &str) -> Result<Value> {
    // fio prints notes before its report.
    let start = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[start..]).map_err(|error| LabError::wrong(format!("{who} ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_requests_shared_than_fio_repeats_are_refused() {
        check("nv-dedup", 10_000.0, 5_200.0).unwrap();
        check("off", 0.0, 0.0).unwrap();
        let error = check("nv-dedup", 10_000.0, 5_300.0).unwrap_err().to_string();
        assert!(error.contains("fio, nv-dedup: requests shared: 5300 was measured"), "{error}");
    }
}
