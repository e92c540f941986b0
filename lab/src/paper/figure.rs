//! A figure or table of a paper, measured here: the result of every paper's module, and its JSON.
//!
//! The problem: a paper gives some of its results as text and most as pictures, and a reader wants to know for each
//! claim whether it holds here. The idea: a [`Figure`] has three parts: the [`Chart`]s (everything that was
//! measured), the [`Row`]s (the paper's statements next to our values) and the [`Aim`]s (what we set out to reach).
//!
//! **One rule: every number of a paper is an aim, or the row says why it is not comparable.** [`Figure::unjudged`] finds
//! rows that have neither; a run refuses them (`turn`).

use super::chart::{Chart, Kind};
use super::machine::Machine;
use super::number::{number, number_or_null};
use serde::{Deserialize, Serialize};

/// Version of the JSON; a new field that may be left out does not change it.
pub(super) const VERSION: u32 = 2;

/// One figure or table on one device profile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    /// Version of this schema.
    pub version: u32,
    /// Name of the paper.
    pub paper: String,
    /// `figure-6`, `table-4`.
    pub id: String,
    /// Title of the figure here.
    pub title: String,
    /// Version of nvfold.
    pub nvfold: String,
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// The command that made it.
    pub command: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// Name of the device profile.
    pub profile: String,
    /// Description of the run, in a sentence or two.
    pub settings: String,
    /// Everything measured.
    pub charts: Vec<Chart>,
    /// The paper's statements next to our values.
    pub rows: Vec<Row>,
    /// What we set out to reach.
    pub aims: Vec<Aim>,
    /// Conclusion of the figure, in a sentence.
    pub reading: String,
    /// What could not be measured, and why.
    pub left_out: Vec<String>,
}

/// All figures of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of this schema.
    pub version: u32,
    /// The command.
    pub command: String,
    /// Name of the paper.
    pub paper: &'static str,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// One statement of the paper, and our value for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    /// What the value is.
    pub what: String,
    /// Lowest and highest value in the paper's text and tables.
    pub paper: Option<(f64, f64)>,
    /// Whether the paper shows it only in a picture, without a value.
    pub picture_only: bool,
    /// Our value; NaN (null in JSON) where there is none.
    #[serde(deserialize_with = "number_or_null")]
    pub ours: f64,
    /// Our value relative to the paper's; for a range relative to its nearer end, 1 within it.
    pub ratio: Option<f64>,
    /// Unit, or empty.
    pub unit: String,
    /// How the paper's value is judged, if it has one.
    #[serde(default)]
    pub judged: Option<Judged>,
}

/// How a value of the paper is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Judged {
    /// It is this aim.
    Aim(String),
    /// It is not comparable, because of this.
    NotComparable(String),
}

/// An aim, and whether it was met.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Aim {
    /// The aim.
    pub aim: String,
    /// The result.
    pub ours: String,
    /// Whether the result meets the aim.
    pub met: bool,
    /// The kind of measurement that decides.
    #[serde(default)]
    pub by: Measure,
    /// For a missed aim: its limit here, one sentence with a figure.
    pub floor: Option<String>,
}

/// The kind of measurement that decides an aim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Measure {
    /// Charged device time and CPU time of the thread.
    Cost,
    /// Time on the clock of a shared machine.
    Wall,
    /// Something counted: bytes, blocks, entries.
    #[default]
    Count,
}

impl Measure {
    /// Returns its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Measure::Cost => "cost",
            Measure::Wall => "wall",
            Measure::Count => "count",
        }
    }
}

impl Row {
    /// Makes a row for a range of the paper; both ends may be one value.
    pub(super) fn range(what: impl Into<String>, low: f64, high: f64, ours: f64, unit: &str) -> Row {
        let nearest = ours.clamp(low, high);
        Row { paper: Some((low, high)), ratio: Some(ours / nearest), ..Row::own(what, ours, unit) }
    }

    /// Makes a row for a value of the paper.
    pub(super) fn value(what: impl Into<String>, paper: f64, ours: f64, unit: &str) -> Row {
        Row::range(what, paper, paper, ours, unit)
    }

    /// Makes a row for a statement that the paper shows only in a picture.
    pub(super) fn picture(what: impl Into<String>, ours: f64, unit: &str) -> Row {
        Row { picture_only: true, ..Row::own(what, ours, unit) }
    }

    /// Makes a row that the paper does not have.
    pub(super) fn own(what: impl Into<String>, ours: f64, unit: &str) -> Row {
        Row { what: what.into(), paper: None, picture_only: false, ours, ratio: None, unit: unit.into(), judged: None }
    }

    /// Says why the paper's value, if it has one, is not comparable.
    pub(super) fn not_comparable(self, because: impl Into<String>) -> Row {
        let judged = self.paper.map(|_| Judged::NotComparable(because.into()));
        Row { judged, ..self }
    }

    /// Says which aim judges the paper's value.
    pub(super) fn judged_by(self, aim: &Aim) -> Row {
        Row { judged: Some(Judged::Aim(aim.aim.clone())), ..self }
    }

    /// Returns the aim to have at least the paper's value, or the lowest of its range.
    pub(super) fn reach(&self, by: Measure) -> Aim {
        let (least, _) = self.paper.expect("an aim is for a value of the paper");
        Aim::at_least(format!("{}: at least {}", self.what, self.text(least)), self.ours, least).by(by)
    }

    /// Returns the aim to have at most the paper's value, or the highest of its range.
    pub(super) fn stay_below(&self, by: Measure) -> Aim {
        let (_, most) = self.paper.expect("an aim is for a value of the paper");
        Aim::at_most(format!("{}: at most {}", self.what, self.text(most)), self.ours, most).by(by)
    }

    fn text(&self, value: f64) -> String {
        if self.unit.is_empty() { number(value) } else { format!("{} {}", number(value), self.unit) }
    }
}

impl Aim {
    /// Makes an aim that a count decides.
    pub(super) fn new(aim: impl Into<String>, ours: impl Into<String>, met: bool) -> Aim {
        Aim { aim: aim.into(), ours: ours.into(), met, by: Measure::default(), floor: None }
    }

    /// Makes an aim for a value of at least `least`.
    pub(super) fn at_least(aim: impl Into<String>, ours: f64, least: f64) -> Aim {
        Aim::new(aim, number(ours), ours >= least)
    }

    /// Makes an aim for a value of at most `most`.
    pub(super) fn at_most(aim: impl Into<String>, ours: f64, most: f64) -> Aim {
        Aim::new(aim, number(ours), ours <= most)
    }

    /// Changes the kind of measurement that decides.
    pub(super) fn by(self, by: Measure) -> Aim {
        Aim { by, ..self }
    }

    /// Adds the limit here, if the aim is missed.
    pub(super) fn with_floor(self, floor: impl Into<String>) -> Aim {
        let floor = (!self.met).then(|| floor.into());
        Aim { floor, ..self }
    }
}

impl Figure {
    /// Adds a row whose value of the paper is this aim.
    pub(super) fn claim(&mut self, row: Row, aim: Aim) {
        self.rows.push(row.judged_by(&aim));
        self.aims.push(aim);
    }

    /// Returns the rows whose value of the paper is neither an aim of this figure nor explained.
    pub(super) fn unjudged(&self) -> impl Iterator<Item = &Row> {
        let is_judged = |row: &Row| match &row.judged {
            Some(Judged::Aim(name)) => self.aims.iter().any(|aim| aim.aim == *name),
            Some(Judged::NotComparable(_)) => true,
            None => false,
        };
        self.rows.iter().filter(move |row| row.paper.is_some() && !is_judged(row))
    }

    /// Says why the values of the paper that are no aims are not comparable.
    pub(super) fn explain(&mut self, because: &str) {
        let names: Vec<String> = self.unjudged().map(|row| row.what.clone()).collect();
        for row in self.rows.iter_mut().filter(|row| row.paper.is_some() && names.contains(&row.what)) {
            row.judged = Some(Judged::NotComparable(because.into()));
        }
    }

    /// Returns whether there is a picture.
    pub(super) fn is_drawn(&self) -> bool {
        self.charts.iter().any(|chart| chart.kind != Kind::Table)
    }
}

#[cfg(test)]
impl Figure {
    /// Returns a minimal figure, for tests of code that processes figures.
    pub(super) fn example(profile: &str, met: bool) -> Figure {
        Figure {
            version: VERSION,
            paper: "a-paper".into(),
            id: "figure-1".into(),
            title: "Figure 1: speed".into(),
            nvfold: "1.0.0".into(),
            commit: Some("0123456789ab".into()),
            command: "nvfold-lab paper a-paper".into(),
            machine: Machine::here().unwrap(),
            profile: profile.into(),
            settings: "Run once.".into(),
            charts: vec![Chart::new(Kind::Bars, "speed", "x", "requests/s", ["a".into()]).with("ours", [2.0])],
            rows: vec![
                Row::range("ours to theirs", 1.0, 1.5, 3.0, "x").not_comparable("theirs is older"),
                Row::picture("more", 1.0, ""),
            ],
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
    fn every_number_of_a_paper_is_an_aim_or_is_explained() {
        let mut figure = Figure { rows: Vec::new(), aims: Vec::new(), ..Figure::example("a", true) };
        let row = Row::value("ours to theirs", 2.0, 3.0, "x");
        let aim = row.reach(Measure::Cost);
        assert_eq!((aim.aim.as_str(), aim.met), ("ours to theirs: at least 2.00 x", true));
        assert!(!row.stay_below(Measure::Cost).met);
        figure.claim(row, aim);
        figure.rows.push(Row::own("not the paper's", 1.0, ""));
        figure.rows.push(Row::value("of another machine", 2.0, 3.0, "us").not_comparable("it is another machine"));
        assert_eq!(figure.unjudged().count(), 0);
        figure.rows.push(Row::value("forgotten", 2.0, 3.0, "us"));
        figure.rows.push(Row::value("no aim", 2.0, 3.0, "us").judged_by(&Aim::new("of another figure", "", true)));
        let unjudged: Vec<&str> = figure.unjudged().map(|row| row.what.as_str()).collect();
        assert_eq!(unjudged, ["forgotten", "no aim"]);
        figure.explain("the paper has another device");
        assert_eq!(figure.unjudged().count(), 0);
        assert!(matches!(&figure.rows[0].judged, Some(Judged::Aim(_))), "what is judged stays so");
    }

    #[test]
    fn a_ratio_to_a_range_uses_the_nearer_end() {
        let ratio = |ours| Row::range("x", 3.0, 4.0, ours, "").ratio;
        assert_eq!([ratio(1.5), ratio(3.5), ratio(8.0)], [Some(0.5), Some(1.0), Some(2.0)]);
    }
}
