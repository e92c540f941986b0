//! A figure or table of a paper, measured here: what every paper's module hands over, and what is kept as JSON.
//!
//! The problem: a paper gives some of its results as text and most as pictures, and a reader wants to know of each
//! claim whether it holds here. So a [`Figure`] has three parts: the [`Chart`]s (everything that was measured), the
//! [`Row`]s (what the paper says in words, beside ours) and the [`Aim`]s (what we set out to reach).

use super::machine::Machine;
use crate::{Doing, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;

/// Version of the JSON; a new field does not change it.
pub const VERSION: u32 = 1;

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

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A line a series.
    Lines,
    /// Bars side by side.
    Bars,
    /// Bars on top of one another.
    Stacked,
    /// Numbers only: not drawn.
    Table,
}

/// A named value for each place on the x axis, for each series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chart {
    /// How it is drawn.
    pub kind: Kind,
    /// Above it.
    pub title: String,
    /// What `x` is.
    pub x_label: String,
    /// What the values are, with the unit.
    pub y_label: String,
    /// The places on the x axis.
    pub x: Vec<String>,
    /// The values.
    pub series: Vec<Series>,
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// One value for each `x` of the chart; NaN (null in JSON) where there is none, in a table only.
    #[serde(deserialize_with = "numbers_or_null")]
    pub y: Vec<f64>,
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
}

impl Chart {
    /// Without series yet.
    pub fn new(kind: Kind, title: &str, x_label: &str, y_label: &str, x: impl IntoIterator<Item = String>) -> Chart {
        let [title, x_label, y_label] = [title, x_label, y_label].map(String::from);
        Chart { kind, title, x_label, y_label, x: x.into_iter().collect(), series: Vec::new() }
    }

    /// With one more series.
    pub fn with(mut self, name: &str, y: impl IntoIterator<Item = f64>) -> Chart {
        let y: Vec<f64> = y.into_iter().collect();
        assert_eq!(y.len(), self.x.len(), "{}: {name} has a value for each x", self.title);
        self.series.push(Series { name: name.into(), y });
        self
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
    /// A value that is to be at least `least`.
    pub fn at_least(aim: impl Into<String>, ours: f64, least: f64) -> Aim {
        Aim { aim: aim.into(), ours: number(ours), met: ours >= least }
    }

    /// A value that is to be at most `most`.
    pub fn at_most(aim: impl Into<String>, ours: f64, most: f64) -> Aim {
        Aim { aim: aim.into(), ours: number(ours), met: ours <= most }
    }
}

impl Figure {
    /// Writes `<id>.json` and, where there is something to draw, `<id>.svg` and `<id>.png` into the folder of its
    /// profile in `out`.
    pub fn save(&self, out: &Path) -> Result<()> {
        let folder = out.join(&self.profile);
        std::fs::create_dir_all(&folder).doing(format!("make {}", folder.display()))?;
        let file = folder.join(format!("{}.json", self.id));
        let json = serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form");
        std::fs::write(&file, json + "\n").doing(format!("write {}", file.display()))?;
        if self.is_drawn() {
            super::chart::draw(&self.charts, &folder.join(&self.id))?;
        }
        Ok(())
    }

    /// Whether there is a picture.
    pub fn is_drawn(&self) -> bool {
        self.charts.iter().any(|chart| chart.kind != Kind::Table)
    }
}

/// The smallest of the values; infinite if there are none.
pub fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The largest of the values; minus infinity if there are none.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn number_or_null<'a, D: Deserializer<'a>>(text: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(text)?.unwrap_or(f64::NAN))
}

fn numbers_or_null<'a, D: Deserializer<'a>>(list: D) -> std::result::Result<Vec<f64>, D::Error> {
    let values: Vec<Option<f64>> = Vec::deserialize(list)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

/// A number as people read it: three significant digits, or a whole number with separators.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    if size < 10.0 {
        return format!("{value:.2}");
    }
    if size < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", size);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (value, text) in [(0.987, "0.99"), (12.34, "12.3"), (999.6, "1,000"), (1234567.0, "1,234,567")] {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(-1234.0), "-1,234");
    }

    #[test]
    fn a_ratio_to_a_range_is_to_its_nearer_end() {
        let ratio = |ours| Row::range("x", 3.0, 4.0, ours, "").ratio;
        assert_eq!([ratio(1.5), ratio(3.5), ratio(8.0)], [Some(0.5), Some(1.0), Some(2.0)]);
    }
}
