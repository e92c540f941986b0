//! The shapes of pictures: text, lines, markers, bars, and the marks of a paper's values.
//!
//! A pen draws at pixels, without knowing charts. Shapes must stay visible on others: hollow ones have an edge, and
//! the marks of a paper's values have a white edge.

use super::look::{Look, Marker};
use crate::font::font;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

// Pixels.
const MARKER_RADIUS: i32 = 4;
const DIAMOND_RADIUS: i32 = 7;

/// Result of drawing.
pub(super) type Drawn<T> = std::result::Result<T, Box<dyn Error>>;
/// The area to draw on.
pub(super) type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
/// Pixels from the left and from the top.
pub(super) type Point = (i32, i32);

/// Draws on an area.
pub(super) struct Pen<'a, 's> {
    /// The area.
    pub area: &'a Area<'s>,
}

impl Pen<'_, '_> {
    /// Draws a line of text whose middle is at this height.
    pub(super) fn text(&self, text: &str, size: u32, side: HPos, at: Point) -> Drawn<()> {
        let style = TextStyle::from(font(size)).pos(Pos::new(side, VPos::Center));
        Ok(self.area.draw_text(text, &style, at)?)
    }

    /// Draws a line through points.
    pub(super) fn line(&self, points: Vec<Point>, color: RGBColor, width: u32) -> Drawn<()> {
        Ok(self.area.draw(&PathElement::new(points, color.stroke_width(width)))?)
    }

    /// Draws the line of a series.
    pub(super) fn stroke(&self, points: Vec<Point>, look: Look) -> Drawn<()> {
        if !look.is_hollow {
            return self.line(points, look.color, 2);
        }
        Ok(self.area.draw(&DashedPathElement::new(points, 6, 4, look.color.stroke_width(2)))?)
    }

    /// Draws the marker of a series.
    pub(super) fn mark(&self, (x, y): Point, look: Look) -> Drawn<()> {
        let fill = if look.is_hollow { WHITE } else { look.color };
        let r = MARKER_RADIUS;
        let corners: &[Point] = match look.marker {
            Marker::Nothing => return Ok(()),
            Marker::Circle => {
                self.area.draw(&Circle::new((x, y), r, fill.filled()))?;
                return Ok(self.area.draw(&Circle::new((x, y), r, look.color.stroke_width(2)))?);
            }
            Marker::Square => &[(-r, -r), (r, -r), (r, r), (-r, r)],
            Marker::Triangle => &[(0, -r - 1), (r + 1, r), (-r - 1, r)],
            Marker::Wedge => &[(0, r + 1), (r + 1, -r), (-r - 1, -r)],
            Marker::Hexagon => &[(-r, 0), (-r / 2, -r), (r / 2, -r), (r, 0), (r / 2, r), (-r / 2, r)],
        };
        let corners: Vec<Point> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        self.area.draw(&Polygon::new(corners.clone(), fill.filled()))?;
        self.outline(corners, look.color)
    }

    /// Draws a bar: filled, or pale with an edge.
    pub(super) fn rectangle(&self, (left, top): Point, (right, bottom): Point, look: Look) -> Drawn<()> {
        let corners = [(left, top), (right.max(left + 1), bottom)];
        if !look.is_hollow {
            return Ok(self.area.draw(&Rectangle::new(corners, look.color.filled()))?);
        }
        self.area.draw(&Rectangle::new(corners, look.color.mix(0.2).filled()))?;
        let [(left, top), (right, bottom)] = corners;
        self.outline(vec![(left, top), (right, top), (right, bottom), (left, bottom)], look.color)
    }

    /// Draws a paper's value, with a white edge, because it may be on a bar of the same colour.
    pub(super) fn diamond(&self, (x, y): Point, color: RGBColor) -> Drawn<()> {
        let r = DIAMOND_RADIUS;
        let corners = vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y), (x, y - r)];
        self.line(corners.clone(), WHITE, 6)?;
        self.line(corners, color, 2)
    }

    /// Draws a paper's range: a bar with ends, and a white edge.
    pub(super) fn range(&self, x: i32, low: i32, high: i32, color: RGBColor) -> Drawn<()> {
        for (color, width) in [(WHITE, 6), (color, 2)] {
            self.line(vec![(x, low), (x, high)], color, width)?;
            [low, high].into_iter().try_for_each(|y| self.line(vec![(x - 6, y), (x + 6, y)], color, width))?;
        }
        Ok(())
    }

    /// Draws the edge of a shape.
    fn outline(&self, mut corners: Vec<Point>, color: RGBColor) -> Drawn<()> {
        corners.push(corners[0]);
        self.line(corners, color, 2)
    }
}
