//! Equations (1) to (5): is inline worth it on this device, with this hash?
//!
//! For a share of duplicates a the paper's inline takes T_f + (1 - a) T_w, and off takes T_w (both with T_a, which
//! cancels out). With a weak fingerprint first, inline takes T_fw + a T_f + (1 - a) T_w. Both are one formula. Let
//! `new` be the time to decide that a block is new, and `duplicate` the time to decide that it exists. Then inline
//! takes `(1 - a) (new + T_w) + a duplicate`. It pays if that is less than T_w, which holds from
//! `a = new / (T_w - duplicate + new)` on, if that is below 1. Equations (3) and (5) say that it never is.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Figure, Row};
use super::super::number::number;
use super::Run;
use super::times::{Bench, SHA1, Times, WAYS, write_ns};
use super::volume::BLOCK;
use crate::Result;
use pmem::Profile;

/// Devices whose lines are drawn.
const DRAWN: [&str; 3] = ["optane", "native", "nvdimm-8x"];

/// Returns the share of duplicates from which on inline takes less time than storing everything.
fn pays_from(tw: f64, times: Times) -> Option<f64> {
    let share = times.new / (tw - times.duplicate + times.new);
    (times.duplicate < tw).then_some(share)
}

/// Returns the time of inline at a share of duplicates.
fn inline(tw: f64, times: Times, share: f64) -> f64 {
    (1.0 - share) * (times.new + tw) + share * times.duplicate
}

/// Makes the figure, for every device at once.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let bytes = if run.turn.smoke { 1 << 20 } else { 16 << 20 };
    let title = "Equations (1) to (5): is inline worth it";
    let settings = format!(
        "T_w is the time to store a block of 4 KiB durably on the device. The times of a new block and of a duplicate \
         are those that a running policy with a pm index takes to decide which of the two a block is; {} MiB of each, \
         medians of {} rounds.",
        bytes >> 20,
        run.fewer
    );
    let mut figure = run.turn.figure("equations", title, settings);
    let mut first = Vec::new();
    let ways = || WAYS.iter().map(|way| way.name.to_string());
    let from = "inline pays from this share of duplicates (-: never), %";
    let best = "inline's least time over all shares, times off's";
    let mut from = Chart::new(Drawn::Table, from, "", from, ways());
    let mut best = Chart::new(Drawn::Table, best, "", best, ways());
    for profile in Profile::all() {
        // A block takes half a millisecond there, so fewer are measured.
        let bytes = if profile.name() == "pcm" { bytes / 16 } else { bytes };
        let tw = write_ns(run, &profile, BLOCK)?;
        let mut measured = Vec::new();
        for way in WAYS {
            run.turn.say(&format!("equations, {} on {}", way.name, profile.name()));
            let mut bench = Bench::new(&profile, way, bytes)?;
            measured.push((way.name, bench.median_times(run.fewer, bytes, BLOCK)?));
            bench.close()?;
        }
        let times = || measured.iter().map(|(_, times)| *times);
        let percent = |times| pays_from(tw, times).map_or(f64::NAN, |share| 100.0 * share);
        from = from.with(profile.name(), times().map(percent));
        best = best.with(profile.name(), times().map(|times| (1.0 + times.new / tw).min(times.duplicate / tw)));
        add_device(&mut figure, profile.name(), tw, &measured);
        first.push((profile.name().to_string(), times().filter_map(|times| pays_from(tw, times)).reduce(f64::min)));
    }
    figure.charts.extend([from, best]);
    figure.reading = reading(&first);
    Ok(vec![figure])
}

/// Describes the results, by the smallest share of duplicates from which inline pays on each device.
fn reading(devices: &[(String, Option<f64>)]) -> String {
    let list = |parts: Vec<String>| match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => "no device".into(),
    };
    let names = |pays: bool| {
        list(devices.iter().filter(|(_, from)| from.is_some() == pays).map(|(name, _)| name.clone()).collect())
    };
    let latest = devices.iter().filter_map(|(_, from)| *from).fold(0.0, f64::max);
    format!(
        "Inline pays on {}: with the fingerprint that pays first, from {} % duplicates at the latest. On {}, none pays at \
         any share.",
        names(true),
        number(100.0 * latest),
        names(false)
    )
}

/// Adds the times of a device, and the resulting time of inline at each share of duplicates.
fn add_device(figure: &mut Figure, device: &str, tw: f64, measured: &[(&'static str, Times)]) {
    let us = |what: fn(&Times) -> f64| measured.iter().map(move |(_, times)| what(times) / 1000.0);
    let head = format!("{device}, us");
    let x = measured.iter().map(|(name, _)| name.to_string());
    let chart = Chart::new(Drawn::Table, &head, "", &head, x)
        .with("T_w", measured.iter().map(|_| tw / 1000.0))
        .with("a new block", us(|times| times.new))
        .with("a duplicate", us(|times| times.duplicate));
    figure.charts.push(chart);
    let sha1 = measured.iter().find(|(name, _)| *name == SHA1.name).expect("SHA-1 is measured");
    // The paper says "much less", for its Optane.
    figure.rows.push(Row::own(format!("equation (1) on {device}: T_f to T_w with SHA-1"), sha1.1.new / tw, "x"));
    if DRAWN.contains(&device) {
        let shares: Vec<f64> = (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
        let x = shares.iter().map(|share| format!("{:.0} %", 100.0 * share));
        let title = format!("Equations (2) and (4): time of inline on {device}");
        let chart =
            Chart::new(Drawn::Lines, &title, "duplicates", "times off's", x).with("off", shares.iter().map(|_| 1.0));
        let add = |chart: Chart, (name, times): &(&'static str, Times)| {
            chart.with(name, shares.iter().map(|share| inline(tw, *times, *share) / tw))
        };
        figure.charts.push(measured.iter().fold(chart, add));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_pays_from_the_ratio_at_which_it_is_as_fast_as_off() {
        let times = Times { new: 300.0, duplicate: 600.0 };
        let share = pays_from(1000.0, times).unwrap();
        assert!((inline(1000.0, times, share) - 1000.0).abs() < 1e-9, "{share}");
        assert!(inline(1000.0, times, share + 0.1) < 1000.0);
    }

    #[test]
    fn the_caption_of_the_equations_mentions_each_device_once() {
        let devices = [("slow", Some(0.05)), ("slower", Some(0.01)), ("fast", None)];
        let devices = devices.map(|(name, share)| (name.to_string(), share));
        let expected = "Inline pays on slow and slower: with the fingerprint that pays first, from 5.00 % duplicates at the \
                        latest. On fast, none pays at any share.";
        assert_eq!(reading(&devices), expected);
    }

    #[test]
    fn inline_never_pays_if_finding_a_duplicate_takes_longer_than_writing_it() {
        assert_eq!(pays_from(1000.0, Times { new: 1200.0, duplicate: 1200.0 }), None);
    }
}
