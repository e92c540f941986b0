//! The font of all pictures, built into the program.
//!
//! With the fonts of the machine a picture would look different on each, and a machine may have none.

use plotters::style::{FontDesc, FontStyle, IntoFont, register_font};
use std::sync::Once;

/// Returns the font with letters of this height in pixels.
pub(crate) fn font(size: u32) -> FontDesc<'static> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let known = register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
        assert!(known.is_ok(), "the font that the program carries is one");
    });
    ("sans-serif", size).into_font()
}

/// Returns the width of a text in pixels; all letters of the font have the same width.
pub(crate) fn width(text: &str, size: u32) -> i32 {
    let (width, _) = font(size).box_size(text).unwrap_or((text.len() as u32 * size, size));
    width as i32
}
