//! The aims, set before anything was measured, each with a floor below which it counts as a failure.

use super::{compaction, compare, write};
use nvfold::Policy;
use nvfold_bench::samples::{largest, smallest};
use serde::Serialize;

/// An aim for one figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Aim {
    pub what: &'static str,
    /// Whether a larger value is better.
    pub is_least: bool,
    pub aim: f64,
    /// The worst acceptable value.
    pub floor: f64,
    /// `None`: not measured in a smoke run.
    pub found: Option<f64>,
}

impl Aim {
    /// Returns whether the aim is met, in words.
    pub(super) fn verdict(&self) -> &'static str {
        let Some(found) = self.found else { return "not measured" };
        let reaches = |bound: f64| if self.is_least { found >= bound } else { found <= bound };
        match (reaches(self.aim), reaches(self.floor)) {
            (true, _) => "reached",
            (false, true) => "missed, above its floor",
            (false, false) => "missed, below its floor",
        }
    }
}

/// Returns all aims.
pub(super) fn of(compactions: &[compaction::Row], writes: &[write::Row], compares: &[compare::Row]) -> Vec<Aim> {
    let mut aims = of_compactions(compactions);
    aims.extend(of_writes(writes));
    let of_a_block = compares.iter().find(|row| row.bytes == 4096).map(|row| row.vectors_ns);
    aims.push(at_most("a compare of 4 KiB by vectors, ns (paper: 249)", 249.0, 500.0, of_a_block));
    aims
}

fn of_compactions(rows: &[compaction::Row]) -> Vec<Aim> {
    let icid: Vec<&compaction::Row> = rows.iter().filter(|row| row.variant == "ICID").collect();
    let each = |figure: &dyn Fn(&compaction::Row) -> f64| icid.iter().map(|row| figure(row)).collect::<Vec<f64>>();
    let of_all = |row: &compaction::Row| {
        let all = rows.iter().find(|other| other.variant == "ICID_KA" && other.value_bytes == row.value_bytes);
        100.0 * row.shared_bytes as f64 / all.map_or(f64::NAN, |all| all.shared_bytes as f64)
    };
    let (shared, found) = (each(&|row| row.shared_of_records_percent), each(&of_all));
    let metadata = each(&|row| row.metadata_percent / row.paper_metadata_percent);
    let media = each(&|row| row.media_metadata_percent / row.paper_metadata_percent);
    let stored = each(&|row| row.collected.stored_bytes as f64 / row.live_bytes as f64);
    vec![
        at_least("shared of what was copied, % (worst size)", 99.0, 95.0, Some(smallest(&shared))),
        at_least("ICID finds of what ICID_KA finds, % (worst size)", 99.0, 95.0, Some(smallest(&found))),
        at_most("extents of 16 bytes to the paper's Table 6, ratio (worst size)", 1.0, 1.5, Some(largest(&metadata))),
        at_most("metadata on our media to the paper's Table 6, ratio (worst size)", 1.0, 2.0, Some(largest(&media))),
        at_most("stored to live bytes when collected (worst size)", 1.02, 1.05, Some(largest(&stored))),
    ]
}

fn of_writes(rows: &[write::Row]) -> [Aim; 4] {
    let ratio = |bytes: usize, lane: write::Lane, cost: &dyn Fn(&write::Row) -> Option<f64>| {
        let of = |lane: write::Lane| rows.iter().find(|row| row.bytes == bytes && row.lane == lane.name());
        Some(cost(of(lane)?)? / cost(of(write::Lane::Plain(Policy::Off))?)?)
    };
    let charged = |row: &write::Row| row.charged_ns.get("optane").copied();
    let wall = |row: &write::Row| row.wall_ratio;
    let (kib_4, kib_128) = (4 << 10, 128 << 10);
    [
        at_most(
            "charged on optane, unaligned, 4 KiB, to a plain write",
            0.5,
            1.0,
            ratio(kib_4, write::Lane::Unaligned, &charged),
        ),
        at_most(
            "charged on optane, unaligned, cold, 4 KiB, to a plain write",
            1.0,
            1.5,
            ratio(kib_4, write::Lane::Cold, &charged),
        ),
        at_most(
            "wall clock, native, unaligned, 4 KiB, to a plain write",
            1.0,
            1.5,
            ratio(kib_4, write::Lane::Unaligned, &wall),
        ),
        at_most(
            "wall clock, native, unaligned, 128 KiB, to a plain write",
            0.5,
            1.0,
            ratio(kib_128, write::Lane::Unaligned, &wall),
        ),
    ]
}

fn at_least(what: &'static str, aim: f64, floor: f64, found: Option<f64>) -> Aim {
    Aim { what, is_least: true, aim, floor, found: found.filter(|found| found.is_finite()) }
}

fn at_most(what: &'static str, aim: f64, floor: f64, found: Option<f64>) -> Aim {
    Aim { is_least: false, ..at_least(what, aim, floor, found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_aim_is_marked_as_missed() {
        let verdicts = [99.0, 96.0, 90.0].map(|found| at_least("", 99.0, 95.0, Some(found)).verdict());
        assert_eq!(verdicts, ["reached", "missed, above its floor", "missed, below its floor"]);
        let verdicts = [1.0, 1.2, 2.0].map(|found| at_most("", 1.0, 1.5, Some(found)).verdict());
        assert_eq!(verdicts, ["reached", "missed, above its floor", "missed, below its floor"]);
        assert_eq!(at_most("", 1.0, 1.5, None).verdict(), "not measured");
    }
}
