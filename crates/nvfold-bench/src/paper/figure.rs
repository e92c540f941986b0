//! A figure or table of a paper, measured here: what every paper's module hands over, and what is kept as JSON.
//!
//! The problem: a paper gives some of its results as text and most as pictures, and a reader wants to know of each
//! claim whether it holds here. So a [`Figure`] has three parts: the [`Chart`]s (everything that was measured), the
//! [`Row`]s (what the paper says in words, beside ours) and the [`Aim`]s (what we set out to reach).

use super::machine::Machine;
use crate::{BenchError, Doing, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;

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
    /// What the paper's text and tables give, in the unit of the chart.
    #[serde(default)]
    pub paper: Vec<PaperValue>,
}

/// A value, or a range, that the paper gives for a place of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperValue {
    /// Name of the series that it is compared with; `None`: of none in particular. In a stacked chart a value is a
    /// height from the axis on, so it is that of the lowest series or, with `None`, of all.
    pub series: Option<String>,
    /// The place: one of the chart's `x`.
    pub x: String,
    /// Lowest value.
    pub low: f64,
    /// Highest value; the lowest again if the paper gives one value.
    pub high: f64,
}

impl PaperValue {
    /// Whether the paper gives a range.
    pub fn is_range(&self) -> bool {
        self.low != self.high
    }
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// One value for each `x` of the chart; not finite (null in JSON) where there is none: that is not drawn.
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

impl Chart {
    /// Without series yet.
    pub fn new(kind: Kind, title: &str, x_label: &str, y_label: &str, x: impl IntoIterator<Item = String>) -> Chart {
        let [title, x_label, y_label] = [title, x_label, y_label].map(String::from);
        Chart { kind, title, x_label, y_label, x: x.into_iter().collect(), series: Vec::new(), paper: Vec::new() }
    }

    /// With one more series.
    pub fn with(mut self, name: &str, y: impl IntoIterator<Item = f64>) -> Chart {
        let y: Vec<f64> = y.into_iter().collect();
        assert_eq!(y.len(), self.x.len(), "{}: {name} has a value for each x", self.title);
        self.series.push(Series { name: name.into(), y });
        self
    }

    /// With what the paper gives for a place; both ends may be one value. Left out where the chart has no such place:
    /// a test's sizes have fewer.
    pub fn with_paper(mut self, series: Option<&str>, x: &str, low: f64, high: f64) -> Chart {
        if self.x.iter().any(|place| place == x) {
            self.paper.push(PaperValue { series: series.map(String::from), x: x.into(), low, high });
        }
        self
    }

    /// With what the paper gives for every place.
    pub fn with_paper_everywhere(self, series: Option<&str>, low: f64, high: f64) -> Chart {
        let places = self.x.clone();
        places.iter().fold(self, |chart, place| chart.with_paper(series, place, low, high))
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
    /// Whether the figure of this id and profile lies in the folder `out`, made from this commit.
    pub fn is_there(out: &Path, profile: &str, id: &str, commit: &str) -> bool {
        /// What is looked at; the rest may be of an older schema.
        #[derive(Deserialize)]
        struct Origin {
            version: u32,
            commit: Option<String>,
        }
        let text = std::fs::read_to_string(out.join(profile).join(format!("{id}.json")));
        let origin: Option<Origin> = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        origin.is_some_and(|origin| origin.version == VERSION && origin.commit.as_deref() == Some(commit))
    }

    /// The figure of this id and profile in the folder `out`; `None` if there is none.
    pub fn load(out: &Path, profile: &str, id: &str) -> Result<Option<Figure>> {
        let file = out.join(profile).join(format!("{id}.json"));
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).doing(format!("read {}", file.display())),
        };
        let stale = |why: String| BenchError::Stale { file: file.display().to_string(), why };
        let figure: Figure = serde_json::from_str(&text).map_err(|error| stale(error.to_string()))?;
        match figure.version {
            VERSION => Ok(Some(figure)),
            version => Err(stale(format!("version {version} of its schema"))),
        }
    }

    /// Draws its picture in the folder of its profile in `out`, where there is something to draw.
    pub fn draw(&self, out: &Path) -> Result<()> {
        if self.is_drawn() { super::chart::draw(&self.charts, &out.join(&self.profile).join(&self.id)) } else { Ok(()) }
    }

    /// Writes `<id>.json` and, where there is something to draw, `<id>.svg` and `<id>.png` into the folder of its
    /// profile in `out`.
    pub fn save(&self, out: &Path) -> Result<()> {
        let folder = out.join(&self.profile);
        std::fs::create_dir_all(&folder).doing(format!("make {}", folder.display()))?;
        self.draw(out)?;
        // The JSON comes last and as a whole, so a run that is cut short leaves none that is half there.
        let [file, unfinished] = ["json", "json.tmp"].map(|ending| folder.join(format!("{}.{ending}", self.id)));
        let json = serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form");
        std::fs::write(&unfinished, json + "\n").doing(format!("write {}", unfinished.display()))?;
        std::fs::rename(&unfinished, &file).doing(format!("write {}", file.display()))
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
