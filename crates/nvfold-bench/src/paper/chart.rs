//! Drawing charts: one picture a figure, its charts below one another, as SVG and as PNG.
//!
//! Text is drawn with a font that the program carries, so a picture looks the same wherever it is made and no font
//! needs to be installed. Places on the x axis are names at equal distances, as in the papers.

use super::figure::{Chart, Kind};
use crate::{BenchError, Result};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;
use std::sync::Once;

const WIDTH: u32 = 760;
const HEIGHT: u32 = 380;
/// Told apart also by those who do not see all colours (Okabe and Ito).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(150, 150, 150),
];

type Drawn<T> = std::result::Result<T, Box<dyn Error>>;
type Plane<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The font of all pictures.
pub fn font(size: u32) -> FontDesc<'static> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let known = plotters::style::register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
        assert!(known.is_ok(), "the font that the program carries is one");
    });
    ("sans-serif", size).into_font()
}

/// Draws `<stem>.svg` and `<stem>.png`.
pub fn draw(charts: &[Chart], stem: &Path) -> Result<()> {
    let charts: Vec<&Chart> = charts.iter().filter(|chart| chart.kind != Kind::Table).collect();
    let size = (WIDTH, HEIGHT * charts.len() as u32);
    let failed = |error: Box<dyn Error>| BenchError::Plot(format!("{}: {error}", stem.display()));
    let (svg, png) = (stem.with_extension("svg"), stem.with_extension("png"));
    draw_all(&charts, SVGBackend::new(&svg, size).into_drawing_area()).map_err(failed)?;
    draw_all(&charts, BitMapBackend::new(&png, size).into_drawing_area()).map_err(failed)
}

fn draw_all<B: DrawingBackend>(charts: &[&Chart], root: DrawingArea<B, Shift>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    root.fill(&WHITE)?;
    for (chart, area) in charts.iter().zip(root.split_evenly((charts.len(), 1))) {
        draw_one(chart, &area)?;
    }
    root.present()?;
    Ok(())
}

fn draw_one<B: DrawingBackend>(chart: &Chart, area: &DrawingArea<B, Shift>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    let highest = (0..chart.x.len()).map(|at| height_at(chart, at)).fold(0.0, f64::max);
    // Room above for the legend: 18 of some 290 pixels a line of it.
    let room = 290.0 / (270.0 - 18.0 * chart.series.len().min(10) as f64);
    let top = if highest > 0.0 { highest * room } else { 1.0 };
    let mut plane = ChartBuilder::on(area)
        .caption(&chart.title, font(18))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(74)
        .build_cartesian_2d(0.0..chart.x.len() as f64, 0.0..top)?;
    plane
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(&chart.y_label)
        .axis_desc_style(font(15))
        .y_label_style(font(13))
        .y_label_formatter(&|value| axis_number(*value, top))
        .light_line_style(WHITE)
        .draw()?;
    name_places(chart, area, &plane)?;
    match chart.kind {
        Kind::Lines => draw_lines(chart, &mut plane)?,
        Kind::Bars | Kind::Stacked => draw_bars(chart, &mut plane)?,
        Kind::Table => return Ok(()),
    }
    plane
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(font(13))
        .draw()?;
    Ok(())
}

/// The highest that is drawn at a place.
fn height_at(chart: &Chart, at: usize) -> f64 {
    let values = chart.series.iter().map(|series| series.y[at]);
    if chart.kind == Kind::Stacked { values.sum() } else { values.fold(0.0, f64::max) }
}

fn axis_number(value: f64, top: f64) -> String {
    if top < 8.0 {
        format!("{value:.1}")
    } else if top < 20_000.0 {
        format!("{value:.0}")
    } else {
        format!("{:.0} k", value / 1000.0)
    }
}

/// Writes the names of the places and of the axis below it.
fn name_places<B: DrawingBackend>(chart: &Chart, area: &DrawingArea<B, Shift>, plane: &Plane<'_, B>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    let centered = |size| TextStyle::from(font(size)).pos(Pos::new(HPos::Center, VPos::Top));
    let (base_x, base_y) = area.get_base_pixel();
    // Every name, or every second or third where they would run into one another.
    let longest = chart.x.iter().map(String::len).max().unwrap_or(1);
    let fit = ((WIDTH - 110) as usize / (7 * longest + 8)).max(1);
    for (at, name) in chart.x.iter().enumerate().step_by(chart.x.len().div_ceil(fit)) {
        let (x, y) = plane.backend_coord(&(at as f64 + 0.5, 0.0));
        area.draw_text(name, &centered(13), (x - base_x, y - base_y + 6))?;
    }
    let (x, y) = plane.backend_coord(&(chart.x.len() as f64 / 2.0, 0.0));
    area.draw_text(&chart.x_label, &centered(15), (x - base_x, y - base_y + 24))?;
    Ok(())
}

fn draw_lines<B: DrawingBackend>(chart: &Chart, plane: &mut Plane<'_, B>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    for (series, color) in chart.series.iter().zip(COLORS.into_iter().cycle()) {
        let points: Vec<(f64, f64)> = (0..).zip(&series.y).map(|(at, y)| (f64::from(at) + 0.5, *y)).collect();
        plane
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
        if chart.x.len() < 20 {
            plane.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
        }
    }
    Ok(())
}

fn draw_bars<B: DrawingBackend>(chart: &Chart, plane: &mut Plane<'_, B>) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    let stacked = chart.kind == Kind::Stacked;
    let width = 0.8 / if stacked { 1.0 } else { chart.series.len() as f64 };
    let mut below = vec![0.0; chart.x.len()];
    for (number, (series, color)) in chart.series.iter().zip(COLORS.into_iter().cycle()).enumerate() {
        let bars = series.y.iter().enumerate().map(|(at, y)| {
            let left = at as f64 + 0.1 + if stacked { 0.0 } else { number as f64 * width };
            Rectangle::new([(left, below[at]), (left + width * 0.95, below[at] + y)], color.filled())
        });
        plane
            .draw_series(bars)?
            .label(&series.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
        if stacked {
            below.iter_mut().zip(&series.y).for_each(|(below, y)| *below += y);
        }
    }
    Ok(())
}
