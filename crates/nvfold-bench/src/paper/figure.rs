//! A figure or table of a paper, measured here: what every paper's module hands over, and what is kept as JSON.
//!
//! The problem: a paper gives some of its results as text and most as pictures, and a reader wants to know of each
//! claim whether it holds here. So a [`Figure`] has three parts: the [`Chart`]s (everything that was measured), the
//! [`Row`]s (what the paper says in words, beside ours) and the [`Aim`]s (what we set out to reach).

use super::chart::{Chart, Kind};
use super::machine::Machine;
use super::number::{number, number_or_null};
use serde::{Deserialize, Serialize};

/// Version of the JSON; a new field that may be left out does not change it.
pub const VERSION: u32 = 2;

/// One figure or table on one device profile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Version of this schema.
    pub version: u32,
    /// Which paper.
    pub paper: String,
    /// `figure-6`, `table-4`.
    pub id: String,
    /// What the figure is called here.
    pub title: String,
    /// Version of nvfold.
    pub nvfold: String,
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// The command that made it.
    pub command: String,
    /// What it ran on.
    pub machine: Machine,
    /// Name of the device profile.
    pub profile: String,
    /// What was run, in a sentence or two.
    pub settings: String,
    /// Everything measured.
    pub charts: Vec<Chart>,
    /// The paper's words beside ours.
    pub rows: Vec<Row>,
    /// What we set out to reach.
    pub aims: Vec<Aim>,
    /// What the figure says, in a sentence.
    pub reading: String,
    /// What could not be measured, and why.
    pub left_out: Vec<String>,
}

/// All figures of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this schema.
    pub version: u32,
    /// The command.
    pub command: String,
    /// Which paper.
    pub paper: &'static str,
    /// What was made.
    pub figures: Vec<Figure>,
}

/// One thing that the paper says, and what it is here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What is told.
    pub what: String,
    /// Lowest and highest value that the paper's text and tables give.
    pub paper: Option<(f64, f64)>,
    /// The paper shows it in a picture and gives no value.
    pub picture_only: bool,
    /// Ours; NaN (null in JSON) where there is no such number.
    #[serde(deserialize_with = "number_or_null")]
    pub ours: f64,
    /// Ours to the paper's; to the nearer end of a range, 1 within it.
    pub ratio: Option<f64>,
    /// Unit, or empty.
    pub unit: String,
}

/// Something to reach, and whether it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Aim {
    /// What was to be reached.
    pub aim: String,
    /// What was.
    pub ours: String,
    /// Whether that is enough.
    pub met: bool,
    /// What it is judged by.
    #[serde(default)]
    pub by: Measure,
    /// Of a missed aim: what bounds it here, one sentence with a figure.
    pub floor: Option<String>,
}

/// What an aim is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Charged device time and CPU time of the thread.
    Cost,
    /// Time on the clock of a shared machine.
    Wall,
    /// Something counted: bytes, blocks, entries.
    #[default]
    Count,
}

impl Measure {
    /// As it stands in a table.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Cost => "cost",
            Measure::Wall => "wall",
            Measure::Count => "count",
        }
    }
}

impl Row {
    /// What the paper gives as a range; both ends may be one value.
    pub fn range(what: impl Into<String>, low: f64, high: f64, ours: f64, unit: &str) -> Row {
        let nearest = ours.clamp(low, high);
        Row { paper: Some((low, high)), ratio: Some(ours / nearest), ..Row::own(what, ours, unit) }
    }

    /// What the paper gives as a value.
    pub fn value(what: impl Into<String>, paper: f64, ours: f64, unit: &str) -> Row {
        Row::range(what, paper, paper, ours, unit)
    }

    /// What the paper gives as a picture only.
    pub fn picture(what: impl Into<String>, ours: f64, unit: &str) -> Row {
        Row { picture_only: true, ..Row::own(what, ours, unit) }
    }

    /// What the paper does not have.
    pub fn own(what: impl Into<String>, ours: f64, unit: &str) -> Row {
        Row { what: what.into(), paper: None, picture_only: false, ours, ratio: None, unit: unit.into() }
    }
}

impl Aim {
    /// An aim that is judged by a count.
    pub fn new(aim: impl Into<String>, ours: impl Into<String>, met: bool) -> Aim {
        Aim { aim: aim.into(), ours: ours.into(), met, by: Measure::default(), floor: None }
    }

    /// A value that is to be at least `least`.
    pub fn at_least(aim: impl Into<String>, ours: f64, least: f64) -> Aim {
        Aim::new(aim, number(ours), ours >= least)
    }

    /// A value that is to be at most `most`.
    pub fn at_most(aim: impl Into<String>, ours: f64, most: f64) -> Aim {
        Aim::new(aim, number(ours), ours <= most)
    }

    /// Judged by something else than a count.
    pub fn by(self, by: Measure) -> Aim {
        Aim { by, ..self }
    }

    /// With what bounds it here, if it is missed.
    pub fn with_floor(self, floor: impl Into<String>) -> Aim {
        let floor = (!self.met).then(|| floor.into());
        Aim { floor, ..self }
    }
}

impl Figure {
    /// Whether there is a picture.
    pub fn is_drawn(&self) -> bool {
        self.charts.iter().any(|chart| chart.kind != Kind::Table)
    }
}

#[cfg(test)]
impl Figure {
    /// A figure that says little, for tests of what is done with figures.
    pub fn example(profile: &str, met: bool) -> Figure {
        Figure {
            version: VERSION,
            paper: "a-paper".into(),
            id: "figure-1".into(),
            title: "Figure 1: speed".into(),
            nvfold: "1.0.0".into(),
            commit: Some("0123456789ab".into()),
            command: "nvfold bench paper a-paper".into(),
            machine: Machine::here().unwrap(),
            profile: profile.into(),
            settings: "Run once.".into(),
            charts: vec![Chart::new(Kind::Bars, "speed", "x", "requests/s", ["a".into()]).with("ours", [2.0])],
            rows: vec![Row::range("ours to theirs", 1.0, 1.5, 3.0, "x"), Row::picture("more", 1.0, "")],
            aims: vec![
                Aim::new("be fast", "2", met).by(Measure::Cost).with_floor("Copying alone takes 3 us."),
                Aim::new("be small", "2", met),
            ],
            reading: "It is fast.".into(),
            left_out: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_to_a_range_is_to_its_nearer_end() {
        let ratio = |ours| Row::range("x", 3.0, 4.0, ours, "").ratio;
        assert_eq!([ratio(1.5), ratio(3.5), ratio(8.0)], [Some(0.5), Some(1.0), Some(2.0)]);
    }
}
