//! The font of all pictures: one that the program carries.
//!
//! With the fonts of the machine a picture would look different wherever it is made, and there may be none.

use plotters::style::{FontDesc, FontStyle, IntoFont, register_font};
use std::sync::Once;

/// The font in letters so many pixels high.
pub fn font(size: u32) -> FontDesc<'static> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let known = register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
        assert!(known.is_ok(), "the font that the program carries is one");
    });
    ("sans-serif", size).into_font()
}

/// Pixels that a text takes from left to right; the font's letters are all as wide as one another.
pub fn width(text: &str, size: u32) -> i32 {
    let (width, _) = font(size).box_size(text).unwrap_or((text.len() as u32 * size, size));
    width as i32
}
