//! Drawing of charts: one picture per figure, its charts below one another, as SVG.
//!
//! A picture must be readable without the text around it. The legend has its own column next to the plot, the axis
//! goes as far as the data, and a system looks the same in all pictures ([`look`]). A value from the
//! paper's text is drawn as a hollow diamond, a range as a bar with end caps. The font is built into the program, so a
//! picture looks the same on every machine. The x axis is categorical: named places at equal distances, as in the
//! papers.
//!
//! ```text
//! |<- LEFT ->|<-------- plot -------->|<-- legend -->|
//!              title
//!    y label |                        |  -o- a system
//!    ticks   |                        |  -#- another
//!            +------------------------+   <> paper
//!              names of the places
//!              x label
//! ```

use super::axis::Axis;
use super::chart::{Chart, Kind, PaperValue};
use super::look::{self, Look};
use super::pen::{Area, Drawn, Pen, Point};
use crate::font::{font, width};
use crate::{LabError, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

// Pixels.
/// Maximum number of places with bars side by side.
const BARS_PLACES_MAX: usize = 12;
const WIDTH: i32 = 960;
const HEIGHT: i32 = 360;
/// Outer margin.
const MARGIN: i32 = 14;
/// Space above the plot: the title.
const TOP: i32 = 48;
/// Space left of the plot: the label of the y axis and the tick labels.
const LEFT: i32 = 88;
/// Space below the plot: two lines of names, and the label of the x axis.
const BOTTOM: i32 = 66;
/// The symbol of a legend entry, with the space around it.
const SYMBOL: i32 = 54;
const LEGEND_LINE: i32 = 21;
/// Maximum number of places of a line with markers.
const MOST_MARKERS: usize = 20;

// Font sizes.
const TITLE: u32 = 18;
const LABEL: u32 = 15;
const SMALL: u32 = 13;

const GRID: RGBColor = RGBColor(220, 220, 220);
/// Colour of a value of the paper that belongs to no series.
const OF_ALL: RGBColor = RGBColor(70, 70, 70);

/// Draws `<stem>.svg`.
pub(super) fn draw(charts: &[Chart], stem: &Path) -> Result<()> {
    let charts: Vec<Chart> = charts.iter().filter(|chart| chart.kind != Kind::Table).map(legible).collect();
    let charts: Vec<&Chart> = charts.iter().collect();
    let size = (WIDTH as u32, HEIGHT as u32 * charts.len() as u32);
    let failed = |error: Box<dyn Error>| LabError::Plot(format!("{}: {error}", stem.display()));
    draw_all(&charts, SVGBackend::new(&stem.with_extension("svg"), size).into_drawing_area()).map_err(failed)
}

/// Returns the chart to draw: with many places the bars would be too thin, so they become lines.
fn legible(chart: &Chart) -> Chart {
    let is_crowded = chart.kind == Kind::Bars && chart.x.len() > BARS_PLACES_MAX;
    Chart { kind: if is_crowded { Kind::Lines } else { chart.kind }, ..chart.clone() }
}

fn draw_all(charts: &[&Chart], root: Area) -> Drawn<()> {
    root.fill(&WHITE)?;
    // One column for the legends of all charts, so that the plots are aligned.
    let names = charts.iter().flat_map(|chart| &chart.series).map(|series| width(&series.name, SMALL));
    let legend = SYMBOL + names.max().unwrap_or(0);
    for (chart, area) in charts.iter().zip(root.split_evenly((charts.len(), 1))) {
        let looks = look::of_all(chart.series.iter().map(|series| series.name.as_str()));
        Picture { chart, looks, pen: Pen { area: &area }, frame: Frame::new(chart, legend) }.draw()?;
    }
    root.present()?;
    Ok(())
}

/// The place of a chart's plot, and its scales.
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    axis: Axis,
    places: usize,
}

impl Frame {
    fn new(chart: &Chart, legend: i32) -> Frame {
        let (right, bottom) = (WIDTH - MARGIN - legend, HEIGHT - BOTTOM);
        let given = chart.paper.iter().flat_map(|value| [value.low, value.high]);
        let axis = Axis::over(tops(chart).into_iter().chain(given));
        Frame { left: LEFT, right, top: TOP, bottom, axis, places: chart.x.len() }
    }

    /// Returns pixels from the left; a place is one unit wide.
    fn x(&self, place: f64) -> i32 {
        self.left + (f64::from(self.right - self.left) * place / self.places.max(1) as f64).round() as i32
    }

    /// Returns pixels from the top.
    fn y(&self, value: f64) -> i32 {
        let Axis { low, high, .. } = self.axis;
        self.bottom - (f64::from(self.bottom - self.top) * (value - low) / (high - low)).round() as i32
    }

    /// Returns pixels from the left to the middle of a place.
    fn middle(&self, place: usize) -> i32 {
        self.x(place as f64 + 0.5)
    }
}

/// Returns everything that is drawn: values, or the ends of stacked ones.
fn tops(chart: &Chart) -> Vec<f64> {
    let values = chart.series.iter().flat_map(|series| series.y.iter().copied());
    match chart.kind {
        Kind::Stacked => (0..chart.x.len()).map(|at| chart.series.iter().map(|series| series.y[at]).sum()).collect(),
        _ => values.collect(),
    }
}

/// A chart that is being drawn.
struct Picture<'a, 's> {
    chart: &'a Chart,
    /// Looks of its series.
    looks: Vec<Look>,
    pen: Pen<'a, 's>,
    frame: Frame,
}

impl Picture<'_, '_> {
    fn draw(&self) -> Drawn<()> {
        self.draw_title()?;
        self.draw_axis()?;
        self.draw_places()?;
        // Drawn before lines, because a value's white edge would hide their markers; after bars, which would hide it.
        let draw_paper = || self.chart.paper.iter().try_for_each(|value| self.draw_paper(value));
        match self.chart.kind {
            Kind::Lines => draw_paper().and_then(|()| self.draw_lines())?,
            Kind::Bars | Kind::Stacked => self.draw_bars().and_then(|()| draw_paper())?,
            Kind::Table => return Ok(()),
        }
        self.draw_legend()
    }

    fn draw_title(&self) -> Drawn<()> {
        let title = &self.chart.title;
        // The largest size that fits.
        let size = (SMALL..=TITLE).rev().find(|size| width(title, *size) <= WIDTH - 2 * MARGIN).unwrap_or(SMALL);
        self.pen.text(title, size, HPos::Center, (WIDTH / 2, MARGIN + TITLE as i32 / 2))
    }

    /// Draws ticks with their labels, lines across the plot, and the label of the values.
    fn draw_axis(&self) -> Drawn<()> {
        let Frame { left, right, top, bottom, axis, .. } = &self.frame;
        for tick in axis.ticks() {
            let y = self.frame.y(tick);
            self.pen.line(vec![(*left, y), (*right, y)], GRID, 1)?;
            self.pen.text(&axis.label(tick), SMALL, HPos::Right, (left - 8, y))?;
        }
        let zero = self.frame.y(0.0);
        self.pen.line(vec![(*left, zero), (*right, zero)], BLACK, 1)?;
        self.pen.line(vec![(*left, *top), (*left, *bottom)], BLACK, 1)?;
        let font = font(LABEL).transform(FontTransform::Rotate270);
        let style = TextStyle::from(font).pos(Pos::new(HPos::Center, VPos::Center));
        self.pen.area.draw_text(&self.chart.y_label, &style, (MARGIN + LABEL as i32 / 2, (top + bottom) / 2))?;
        Ok(())
    }

    /// Draws the names of the places and of the axis below it: every name, or every second or third if they would
    /// overlap; a long one in two lines.
    fn draw_places(&self) -> Drawn<()> {
        let Frame { left, right, bottom, .. } = self.frame;
        let room = (right - left) / self.chart.x.len().max(1) as i32;
        let names: Vec<Vec<String>> = self.chart.x.iter().map(|name| in_two_lines(name, room)).collect();
        let widest = names.iter().flatten().map(|line| width(line, SMALL)).max().unwrap_or(0) + 8;
        let every = (widest + room - 1) / room.max(1);
        for (at, lines) in names.iter().enumerate().step_by(every.max(1) as usize) {
            for (number, line) in (0..).zip(lines) {
                self.pen.text(line, SMALL, HPos::Center, (self.frame.middle(at), bottom + 14 + 16 * number))?;
            }
        }
        let lines = names.iter().map(Vec::len).max().unwrap_or(0) as i32;
        self.pen.text(&self.chart.x_label, LABEL, HPos::Center, ((left + right) / 2, bottom + 18 + 16 * lines))
    }

    fn draw_lines(&self) -> Drawn<()> {
        for (series, look) in self.chart.series.iter().zip(&self.looks) {
            // A ratio to zero is not finite and is not drawn.
            let finite = series.y.iter().enumerate().filter(|(_, y)| y.is_finite());
            let points: Vec<Point> = finite.map(|(at, y)| (self.frame.middle(at), self.frame.y(*y))).collect();
            self.pen.stroke(points.clone(), *look)?;
            if self.chart.x.len() <= MOST_MARKERS {
                points.into_iter().try_for_each(|point| self.pen.mark(point, *look))?;
            }
        }
        Ok(())
    }

    fn draw_bars(&self) -> Drawn<()> {
        let mut below = vec![0.0; self.chart.x.len()];
        for (number, (series, look)) in self.chart.series.iter().zip(&self.looks).enumerate() {
            for (at, y) in series.y.iter().enumerate().filter(|(_, y)| y.is_finite()) {
                let (from, to) = self.bar(at, number);
                let ends = [below[at], below[at] + y].map(|value| self.frame.y(value));
                self.pen.rectangle((from, ends[0].min(ends[1])), (to, ends[0].max(ends[1])), *look)?;
            }
            if self.chart.kind == Kind::Stacked {
                below.iter_mut().zip(&series.y).for_each(|(below, y)| *below += y);
            }
        }
        Ok(())
    }

    /// Returns the left and the right end of a series' bar at a place.
    fn bar(&self, place: usize, series: usize) -> (i32, i32) {
        let beside = if self.chart.kind == Kind::Stacked { 1 } else { self.chart.series.len() };
        let width = 0.8 / beside as f64;
        let left = place as f64 + 0.1 + if beside == 1 { 0.0 } else { series as f64 * width };
        (self.frame.x(left), self.frame.x(left + width) - 2)
    }

    /// Draws a value of the paper: above its series, or in the middle of its place.
    fn draw_paper(&self, value: &PaperValue) -> Drawn<()> {
        let Some(place) = self.chart.x.iter().position(|name| *name == value.x) else { return Ok(()) };
        let series = value.series.as_ref().and_then(|name| self.chart.series.iter().position(|s| s.name == *name));
        let color = series.map_or(OF_ALL, |series| self.looks[series].color);
        let x = match (self.chart.kind, series) {
            (Kind::Bars, Some(series)) => {
                let (from, to) = self.bar(place, series);
                (from + to) / 2
            }
            _ => self.frame.middle(place),
        };
        match value.is_range() {
            true => self.pen.range(x, self.frame.y(value.low), self.frame.y(value.high), color),
            false => self.pen.diamond((x, self.frame.y(value.low)), color),
        }
    }

    fn draw_legend(&self) -> Drawn<()> {
        let left = self.frame.right + 14;
        let mut y = self.frame.top + LEGEND_LINE / 2;
        for (series, look) in self.chart.series.iter().zip(&self.looks) {
            if self.chart.kind == Kind::Lines {
                self.pen.stroke(vec![(left, y), (left + 30, y)], *look)?;
                self.pen.mark((left + 15, y), *look)?;
            } else {
                self.pen.rectangle((left + 8, y - 6), (left + 22, y + 6), *look)?;
            }
            self.pen.text(&series.name, SMALL, HPos::Left, (left + SYMBOL - 16, y))?;
            y += LEGEND_LINE;
        }
        let given = &self.chart.paper;
        if given.is_empty() {
            return Ok(());
        }
        let (ranges, values) = (given.iter().any(PaperValue::is_range), given.iter().any(|value| !value.is_range()));
        if values {
            self.pen.diamond((left + if ranges { 8 } else { 15 }, y), OF_ALL)?;
        }
        if ranges {
            self.pen.range(left + if values { 24 } else { 15 }, y + 7, y - 7, OF_ALL)?;
        }
        self.pen.text("paper", SMALL, HPos::Left, (left + SYMBOL - 16, y))
    }
}

/// Splits a name that is wider than its place at a space, into two lines of similar length.
fn in_two_lines(name: &str, room: i32) -> Vec<String> {
    if width(name, SMALL) + 8 <= room {
        return vec![name.into()];
    }
    let middle = name.len() as i64 / 2;
    let cuts = name.match_indices(' ').map(|(at, _)| at);
    match cuts.min_by_key(|at| (*at as i64 - middle).abs()) {
        Some(at) => vec![name[..at].into(), name[at + 1..].into()],
        None => vec![name.into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(kind: Kind) -> Chart {
        let x = ["10 %", "a very long name of a place"].map(String::from);
        Chart::new(kind, "speed", "duplicates", "times off's", x)
            .with("off", [1.0, 1.0])
            .with("inline, ours", [0.5, 2.0])
            .with_paper(Some("inline, ours"), "10 %", 4.0, 4.0)
    }

    #[test]
    fn the_axis_ends_just_above_the_highest_drawn_value() {
        let top = |kind| Frame::new(&Chart { paper: Vec::new(), ..chart(kind) }, 0).axis.high;
        assert_eq!([top(Kind::Lines), top(Kind::Bars), top(Kind::Stacked)], [2.0, 2.0, 3.0]);
        assert_eq!(Frame::new(&chart(Kind::Bars), 0).axis.high, 4.0, "the paper's values are drawn too");
    }

    #[test]
    fn the_legend_is_next_to_the_plot() {
        let folder = tempfile::tempdir().unwrap();
        draw(&[chart(Kind::Lines), chart(Kind::Table)], &folder.path().join("figure")).unwrap();
        let svg = std::fs::read_to_string(folder.path().join("figure.svg")).unwrap();
        assert!(svg.contains(&format!("height=\"{HEIGHT}\"")), "a table is not drawn");
        let frame = Frame::new(&chart(Kind::Lines), SYMBOL + width("inline, ours", SMALL));
        // Each text is a tag with its attributes in one line, then the text on a separate line.
        let texts: Vec<(f64, &str)> = svg
            .split("<text ")
            .skip(1)
            .map(|text| {
                let x = text.split("x=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
                (x.parse().unwrap(), text.split('>').nth(1).unwrap().trim().trim_end_matches("</text").trim())
            })
            .collect();
        for name in ["off", "inline, ours", "paper"] {
            let (x, _) = texts.iter().find(|(_, text)| *text == name).unwrap_or_else(|| panic!("{name} in {texts:?}"));
            assert!(*x > f64::from(frame.right), "{name} at {x}");
            assert!(*x as i32 + width(name, SMALL) <= WIDTH - 2, "{name} is not cut off");
        }
    }

    #[test]
    fn a_label_wider_than_its_place_is_broken_at_a_space() {
        assert_eq!(in_two_lines("4 KiB, as in the paper", 120), ["4 KiB, as in", "the paper"]);
        assert_eq!(in_two_lines("4 KiB", 120), ["4 KiB"]);
        assert_eq!(in_two_lines("12345678901234567890", 10), ["12345678901234567890"]);
    }
}
