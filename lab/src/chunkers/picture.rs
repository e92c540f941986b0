//! The report as a picture: one bar per chunker for its speed, and one for its saving.

use super::Report;
use crate::font::font;
use crate::{LabError, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::RGBColor;
use std::path::Path;

const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREY: RGBColor = RGBColor(140, 140, 140);

const WIDTH: i32 = 1000;
const ROW: i32 = 30;
const TOP: i32 = 70;
/// Left end and maximum length of the bars of speed, and of those of saving.
const SPEED: (i32, i32) = (130, 330);
const SAVING: (i32, i32) = (580, 320);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// One chunker.
struct Bar {
    name: String,
    /// `None`: it reads no byte.
    gigabytes_per_second: Option<f64>,
    net_percent: Option<f64>,
}

/// Draws the picture.
pub(super) fn draw(report: &Report, file: &Path) -> Result<()> {
    paint(report, file).map_err(|error| LabError::Plot(error.to_string()))
}

fn paint(report: &Report, file: &Path) -> Drawn {
    let (bars, speed_data, saving_data) = bars(report);
    let size = (WIDTH as u32, (TOP + ROW * bars.len() as i32 + 20) as u32);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(format!("GB/s of one thread ({speed_data})"), (SPEED.0, 24), font(15)))?;
    area.draw(&Text::new(format!("% saved, net ({saving_data})"), (SAVING.0, 24), font(15)))?;
    let longest = |values: &mut dyn Iterator<Item = f64>| values.fold(1e-9, f64::max);
    let fastest = longest(&mut bars.iter().filter_map(|bar| bar.gigabytes_per_second));
    let best = longest(&mut bars.iter().filter_map(|bar| bar.net_percent));
    for (number, bar) in bars.iter().enumerate() {
        let top = TOP + ROW * number as i32;
        area.draw(&Text::new(bar.name.clone(), (16, top + 2), font(15)))?;
        let color = if bar.net_percent.is_some() { BLUE } else { GREY };
        let speed = bar.gigabytes_per_second.map(|rate| (rate, format!("{rate:.1}")));
        draw_bar(&area, SPEED, top, speed, fastest, color, "looks at no byte")?;
        let saving = bar.net_percent.map(|percent| (percent, format!("{percent:.1}")));
        draw_bar(&area, SAVING, top, saving, best, ORANGE, "")?;
    }
    area.present()?;
    Ok(())
}

/// Draws a bar with its value, or words if there is no value.
fn draw_bar(
    area: &Area,
    (left, longest): (i32, i32),
    top: i32,
    value: Option<(f64, String)>,
    greatest: f64,
    color: RGBColor,
    none: &str,
) -> Drawn {
    let Some((value, label)) = value else {
        return Ok(area.draw(&Text::new(none.to_owned(), (left, top + 2), font(14)))?);
    };
    let right = left + ((value.max(0.0) / greatest * f64::from(longest)) as i32).max(1);
    area.draw(&Rectangle::new([(left, top), (right, top + 20)], color.filled()))?;
    Ok(area.draw(&Text::new(label, (right + 6, top + 2), font(15)))?)
}

/// Returns the bars for the last data of each kind: real data in memory, and all packages, if there are any.
fn bars(report: &Report) -> (Vec<Bar>, &str, &str) {
    let speeds = &report.speeds[report.speeds.len() - 1];
    let savings = report.savings_by_mean.last().unwrap_or(&report.savings[report.savings.len() - 1]);
    let rate = |name: &str| speeds.rows.iter().find(|row| row.name == name).map(|row| row.gigabytes_per_second);
    let compared = ["reading", "memcpy", "the fastcdc crate"].map(|name| Bar {
        name: name.trim_start_matches("the ").into(),
        gigabytes_per_second: rate(name),
        net_percent: None,
    });
    let chunkers = savings.rows.iter().map(|row| Bar {
        name: row.chunker.into(),
        gigabytes_per_second: rate(row.chunker),
        net_percent: Some(row.net_percent),
    });
    (compared.into_iter().chain(chunkers).collect(), &speeds.data, &savings.data)
}
