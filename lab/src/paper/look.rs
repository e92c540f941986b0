//! The look of a series: a system has the same colour and the same marker in every picture of all papers.
//!
//! One table has the looks of all systems. "As in the paper" and "ours" of one mode share colour and marker: the
//! former is dashed and hollow, the latter solid and filled. Other series (hash functions, parts of a time, settings)
//! take, in order, the colours that no system in the same picture uses. The palette can be distinguished with colour
//! blindness (Okabe and Ito).

use plotters::style::RGBColor;

const BLACK: RGBColor = RGBColor(0, 0, 0);
const GREY: RGBColor = RGBColor(140, 140, 140);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const SKY_BLUE: RGBColor = RGBColor(86, 180, 233);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const PURPLE: RGBColor = RGBColor(204, 121, 167);

/// Colours of other series, in order.
const PALETTE: [RGBColor; 7] = [BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY_BLUE, GREY];
/// Markers of other series, in order.
const MARKERS: [Marker; 5] = [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Wedge, Marker::Hexagon];

/// The marker at a point of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A triangle that points upwards.
    Triangle,
    /// A triangle that points downwards.
    Wedge,
    /// A hexagon.
    Hexagon,
    /// No marker, because a bound is not a measurement.
    Nothing,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Colour of the line, the marker and the bar.
    pub color: RGBColor,
    /// Marker at the points of its line.
    pub marker: Marker,
    /// Dashed line, hollow marker, pale bar.
    pub is_hollow: bool,
}

const fn solid(color: RGBColor, marker: Marker) -> Look {
    Look { color, marker, is_hollow: false }
}

const fn hollow(color: RGBColor, marker: Marker) -> Look {
    Look { color, marker, is_hollow: true }
}

/// The systems of all pictures.
const SYSTEMS: [(&str, Look); 21] = [
    ("No_dedup", solid(BLACK, Marker::Circle)),
    ("Dedup_block", solid(ORANGE, Marker::Square)),
    ("Dedup_fine_grained", solid(SKY_BLUE, Marker::Triangle)),
    ("NV-Dedup (as in the paper)", hollow(VERMILION, Marker::Circle)),
    ("NV-Dedup (ours)", solid(VERMILION, Marker::Circle)),
    ("NV-Dedup (ours, bytes)", solid(VERMILION, Marker::Circle)),
    ("NV-Dedup (ours, one a core)", solid(VERMILION, Marker::Circle)),
    ("NV-Dedup (ours, one generator)", solid(PURPLE, Marker::Wedge)),
    ("off", solid(BLACK, Marker::Circle)),
    ("off, again", solid(GREY, Marker::Hexagon)),
    ("inline, as in the paper", hollow(BLUE, Marker::Square)),
    ("inline, ours", solid(BLUE, Marker::Square)),
    ("immediate, as in the paper", hollow(GREEN, Marker::Triangle)),
    ("immediate, ours", solid(GREEN, Marker::Triangle)),
    ("delayed, as in the paper", hollow(PURPLE, Marker::Wedge)),
    ("delayed, ours", solid(PURPLE, Marker::Wedge)),
    ("ext4", solid(BLACK, Marker::Circle)),
    ("DeEXT (as in the paper)", hollow(GREEN, Marker::Triangle)),
    ("DeEXT (ours)", solid(GREEN, Marker::Triangle)),
    ("fixed-only", solid(ORANGE, Marker::Square)),
    ("content-only", solid(BLUE, Marker::Wedge)),
];

/// The limit of a system: drawn as a line without markers.
const BOUND: (&str, Look) = ("1 / (1 - r)", hollow(GREY, Marker::Nothing));

/// Returns the look of a system by its name, which may have a prefix that ends in a colon.
pub(super) fn of_system(name: &str) -> Option<Look> {
    let is_named =
        |system: &str| name == system || name.strip_suffix(system).is_some_and(|before| before.ends_with(": "));
    SYSTEMS.iter().chain([&BOUND]).find(|(system, _)| is_named(system)).map(|(_, look)| *look)
}

/// Returns the looks of all series of a picture.
pub(super) fn of_all<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Look> {
    let known: Vec<Option<Look>> = names.map(of_system).collect();
    let is_taken = |color: &RGBColor| known.iter().flatten().any(|look| look.color == *color);
    let free: Vec<RGBColor> = PALETTE.into_iter().filter(|color| !is_taken(color)).collect();
    let colors = if free.is_empty() { &PALETTE[..] } else { &free };
    let mut others = (0..).map(|at: usize| Look {
        color: colors[at % colors.len()],
        marker: MARKERS[at % MARKERS.len()],
        is_hollow: at / colors.len() % 2 == 1,
    });
    known.into_iter().map(|look| look.unwrap_or_else(|| others.next().expect("there is always another"))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::system::Kind;
    use super::*;

    fn is_alike(one: Look, other: Look) -> bool {
        one.color == other.color && one.is_hollow == other.is_hollow
    }

    /// Returns the systems of each paper, by their part of the table. No picture has two variants of one system.
    fn pictures() -> [Vec<&'static str>; 4] {
        let [nv_dedup, denova, deext] = [0..8, 8..16, 16..21].map(|part| SYSTEMS[part].iter().map(|(name, _)| *name));
        let without = |left_out: &[&str]| -> Vec<&'static str> {
            nv_dedup.clone().filter(|name| !left_out.contains(name)).chain([BOUND.0]).collect()
        };
        let threads = without(&["NV-Dedup (ours)", "NV-Dedup (ours, bytes)"]);
        [
            without(&["NV-Dedup (ours, bytes)", "NV-Dedup (ours, one a core)"]),
            threads,
            denova.collect(),
            deext.collect(),
        ]
    }

    #[test]
    fn no_two_systems_in_a_picture_look_the_same() {
        for names in pictures() {
            let looks = of_all(names.iter().copied());
            for (at, (name, look)) in names.iter().zip(&looks).enumerate() {
                let twin = names[..at].iter().zip(&looks).find(|(_, other)| is_alike(*look, **other));
                assert!(twin.is_none(), "{name} and {twin:?}");
            }
        }
    }

    #[test]
    fn every_competitor_of_nv_dedup_is_in_the_table() {
        for kind in Kind::ALL {
            assert!(of_system(kind.name()).is_some(), "{}", kind.name());
        }
    }

    #[test]
    fn a_system_as_in_the_paper_is_drawn_as_the_hollow_twin_of_ours() {
        for (name, ours) in SYSTEMS.iter().filter(|(name, _)| name.ends_with("ours") || name.ends_with("(ours)")) {
            let look = of_system(&name.replace("ours", "as in the paper")).unwrap();
            assert_eq!(look, Look { is_hollow: true, ..*ours }, "{name}");
        }
    }

    #[test]
    fn names_without_a_fixed_colour_get_one_that_is_unused_in_the_picture() {
        let names = ["off", "SHA-1", "inline, ours", "MD5", "SHA-256", "BLAKE3", "XXH3", "CRC-32"];
        let looks = of_all(names.into_iter());
        assert_eq!((looks[0].color, looks[2].color), (BLACK, BLUE));
        for (at, look) in looks.iter().enumerate() {
            assert!(!looks[..at].iter().any(|other| is_alike(*look, *other)), "{} in {looks:?}", names[at]);
        }
        assert_eq!(of_system("detected: NV-Dedup (ours)"), of_system("NV-Dedup (ours)"));
        assert_eq!(of_system("on and off"), None);
    }
}
