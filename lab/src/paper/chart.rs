//! A chart: named series of values over the places of an x axis, and the paper's values for some of them.
//!
//! It is only data. The drawing code decides how it looks, and tables of numbers are charts too.

use super::number::numbers_or_null;
use serde::{Deserialize, Serialize};

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// One line per series.
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
pub(super) struct Chart {
    /// How it is drawn.
    pub kind: Kind,
    /// Title above it.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the values, with the unit.
    pub y_label: String,
    /// The places on the x axis.
    pub x: Vec<String>,
    /// The values.
    pub series: Vec<Series>,
    /// Values of the paper's text and tables, in the unit of the chart.
    #[serde(default)]
    pub paper: Vec<PaperValue>,
}

/// A value, or a range, of the paper for a place of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PaperValue {
    /// Name of the series that it is compared with; `None` if it belongs to no series. In a stacked chart a value is
    /// a height from the axis on, so it belongs to the lowest series or, with `None`, to all.
    pub series: Option<String>,
    /// The place: one of the chart's `x`.
    pub x: String,
    /// Lowest value.
    pub low: f64,
    /// Highest value; the lowest again if the paper gives one value.
    pub high: f64,
}

impl PaperValue {
    /// Returns whether the paper gives a range.
    pub(super) fn is_range(&self) -> bool {
        self.low != self.high
    }
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    /// Name of the series.
    pub name: String,
    /// One value for each `x` of the chart; a value that is not finite (null in JSON) is missing and not drawn.
    #[serde(deserialize_with = "numbers_or_null")]
    pub y: Vec<f64>,
}

impl Chart {
    /// Makes a chart without series.
    pub(super) fn new(
        kind: Kind,
        title: &str,
        x_label: &str,
        y_label: &str,
        x: impl IntoIterator<Item = String>,
    ) -> Chart {
        let [title, x_label, y_label] = [title, x_label, y_label].map(String::from);
        Chart { kind, title, x_label, y_label, x: x.into_iter().collect(), series: Vec::new(), paper: Vec::new() }
    }

    /// Adds a series.
    pub(super) fn with(mut self, name: &str, y: impl IntoIterator<Item = f64>) -> Chart {
        let y: Vec<f64> = y.into_iter().collect();
        assert_eq!(y.len(), self.x.len(), "{}: {name} has a value for each x", self.title);
        self.series.push(Series { name: name.into(), y });
        self
    }

    /// Adds the paper's range for a place; both ends may be one value. It is left out if the chart has no such place,
    /// because tests use fewer sizes.
    pub(super) fn with_paper(mut self, series: Option<&str>, x: &str, low: f64, high: f64) -> Chart {
        if self.x.iter().any(|place| place == x) {
            self.paper.push(PaperValue { series: series.map(String::from), x: x.into(), low, high });
        }
        self
    }

    /// Adds the paper's range for every place.
    pub(super) fn with_paper_everywhere(self, series: Option<&str>, low: f64, high: f64) -> Chart {
        let places = self.x.clone();
        places.iter().fold(self, |chart, place| chart.with_paper(series, place, low, high))
    }
}
