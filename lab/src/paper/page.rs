//! The page of a paper's results. It is made from the JSON files in its folder, so figures can be run one by one, on
//! one profile or on all, and the page shows the newest of each.

use super::chart::Chart;
use super::figure::{Aim, Figure, Judged, Row};
use super::folder::Folder;
use super::number::number;
use crate::{Doing, Result};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const LINE_CHARS: usize = 116;

/// The parts of a page that its figures do not contain.
pub(super) struct Page {
    /// Heading.
    pub title: &'static str,
    /// Paragraphs below the heading.
    pub introduction: &'static [&'static str],
    /// Ids of the figures, in order.
    pub figures: &'static [&'static str],
    /// Profiles, in order.
    pub profiles: &'static [&'static str],
    /// The profiles to which the paper's values apply.
    pub papers: &'static [&'static str],
}

/// Reads the figures in `out` and writes `README.md` next to them.
pub(super) fn write(page: &Page, out: &Path) -> Result<()> {
    let figures = read(page, out)?;
    let file = out.join("README.md");
    fs::write(&file, text(page, &figures)).doing(format!("write {}", file.display()))
}

/// Returns all figures of a folder, in the order of the page.
fn read(page: &Page, out: &Path) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for id in page.figures {
        for profile in page.profiles {
            figures.extend(Folder(out).load(profile, id)?);
        }
    }
    Ok(figures)
}

fn text(page: &Page, figures: &[Figure]) -> String {
    let mut text = format!("# {}\n\n", page.title);
    page.introduction.iter().for_each(|paragraph| text.push_str(&format!("{}\n\n", wrap(paragraph))));
    text.push_str(&commits(figures));
    text.push_str(&runs(figures));
    text.push_str(&aims(figures));
    for id in page.figures {
        let of_id: Vec<&Figure> = figures.iter().filter(|figure| figure.id == *id).collect();
        if let Some(first) = of_id.first() {
            write!(text, "## {}\n\n", first.title).expect("a string takes it");
            of_id.iter().for_each(|figure| text.push_str(&section(figure)));
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Returns the commits of the figures: one, or each with its number of figures.
fn commits(figures: &[Figure]) -> String {
    let mut counts: Vec<(Option<&str>, usize)> = Vec::new();
    for figure in figures {
        let commit = figure.commit.as_deref();
        match counts.iter_mut().find(|(known, _)| *known == commit) {
            Some((_, count)) => *count += 1,
            None => counts.push((commit, 1)),
        }
    }
    let name = |commit: Option<&str>| commit.map_or("unknown".into(), |commit| format!("`{commit}`"));
    let line = match counts[..] {
        [] => return String::new(),
        [(commit, _)] => format!("Commit of all figures: {}.", name(commit)),
        _ => {
            let of = |(commit, count): &(Option<&str>, usize)| format!("{} (of {count})", name(*commit));
            format!("Commits of the figures: {}.", counts.iter().map(of).collect::<Vec<String>>().join(", "))
        }
    };
    wrap(&line) + "\n\n"
}

/// Returns where and how the figures were made: each machine and command once.
fn runs(figures: &[Figure]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        let line = format!("- `{}`, nvfold {}, on a {}", figure.command, figure.nvfold, figure.machine.line());
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.iter().map(|line| wrap(line).replace('\n', "\n  ") + "\n").collect::<String>() + "\n"
}

/// Returns one table of all aims, met and missed.
fn aims(figures: &[Figure]) -> String {
    let all: Vec<(&Figure, &Aim)> =
        figures.iter().flat_map(|figure| figure.aims.iter().map(move |aim| (figure, aim))).collect();
    if all.is_empty() {
        return String::new();
    }
    let met = all.iter().filter(|(_, aim)| aim.met).count();
    let mut text = format!("## Aims: {met} of {} met\n\n", all.len());
    text.push_str("| aim | ours | judged by | | what bounds it | where |\n|---|---|---|---|---|---|\n");
    for (figure, aim) in all {
        let verdict = if aim.met { "met" } else { "**missed**" };
        let place = format!("[{}](#{}), {}", figure.id.replace('-', " "), anchor(&figure.title), figure.profile);
        let floor = aim.floor.as_deref().unwrap_or(if aim.met { "" } else { "-" });
        let Aim { aim, ours, by, .. } = aim;
        writeln!(text, "| {aim} | {ours} | {} | {verdict} | {floor} | {place} |", by.name())
            .expect("a string takes it");
    }
    text + "\n"
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept: String = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
    kept.replace(' ', "-")
}

fn section(figure: &Figure) -> String {
    let Figure { id, profile, title, .. } = figure;
    let mut text = format!("### {}, {profile}\n\n{}\n\n", short(title), wrap(&figure.reading));
    if figure.is_drawn() {
        write!(text, "![{title}, {profile}]({profile}/{id}.svg)\n\n").expect("a string takes it");
    }
    if !figure.rows.is_empty() {
        text.push_str("| | paper | ours | ours / paper | the paper's value is |\n|---|---|---|---|---|\n");
        figure.rows.iter().for_each(|row| text.push_str(&compared(row)));
        text.push('\n');
    }
    // Charts with many x positions are not printed; their values are in the JSON.
    figure.charts.iter().filter(|chart| chart.x.len() <= 10).for_each(|chart| text.push_str(&values(chart)));
    figure.left_out.iter().for_each(|why| text.push_str(&format!("{}\n\n", wrap(&format!("Left out: {why}.")))));
    text.push_str(&wrap(&format!("{} All of it: [{id}.json]({profile}/{id}.json).", figure.settings)));
    text + "\n\n"
}

/// Returns the heading up to its colon.
fn short(title: &str) -> &str {
    title.split(':').next().unwrap_or(title)
}

fn compared(row: &Row) -> String {
    let unit = if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) };
    let paper = match row.paper {
        None if row.picture_only => "picture only".to_string(),
        None => "-".to_string(),
        Some((low, high)) if low == high => format!("{}{unit}", number(low)),
        Some((low, high)) => format!("{} to {}{unit}", number(low), number(high)),
    };
    let ratio = row.ratio.map_or("-".into(), number);
    let judged = match &row.judged {
        None => String::new(),
        Some(Judged::Aim(_)) => "an aim".into(),
        Some(Judged::NotComparable(because)) => format!("not comparable, because {because}"),
    };
    format!("| {} | {paper} | {}{unit} | {ratio} | {judged} |\n", row.what, number(row.ours))
}

fn values(chart: &Chart) -> String {
    let about = chart.title.rsplit(": ").next().unwrap_or_default();
    let head = if about == chart.y_label { about.into() } else { format!("{about}, {}", chart.y_label) };
    let mut text = format!("| {head} | {} |\n|---|{}\n", chart.x.join(" | "), "---|".repeat(chart.x.len()));
    for series in &chart.series {
        let cells: Vec<String> = series.y.iter().map(|value| number(*value)).collect();
        writeln!(text, "| {} | {} |", series.name, cells.join(" | ")).expect("a string takes it");
    }
    text + "\n"
}

fn wrap(paragraph: &str) -> String {
    let mut lines = vec![String::new()];
    for word in paragraph.split_whitespace() {
        let last = lines.last_mut().expect("there is a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > LINE_CHARS {
            lines.push(word.into());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_made_one_by_one_share_one_page() {
        let page = Page {
            title: "A paper",
            introduction: &["Words."],
            figures: &["figure-1"],
            profiles: &["b", "a"],
            papers: &["b"],
        };
        let out = tempfile::tempdir().unwrap();
        Folder(out.path()).save(&Figure::example("a", true)).unwrap();
        write(&page, out.path()).unwrap();
        Folder(out.path()).save(&Figure::example("b", false)).unwrap();
        write(&page, out.path()).unwrap();
        let text = fs::read_to_string(out.path().join("README.md")).unwrap();
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
        assert!(place("### Figure 1, b") < place("### Figure 1, a"), "in the order of the page");
        place("Aims: 2 of 4 met");
        place("| be fast | 2 | cost | **missed** | Copying alone takes 3 us. | [figure 1](#figure-1-speed), b |");
        place("| be small | 2 | count | **missed** | - | [figure 1](#figure-1-speed), b |");
        place("| be fast | 2 | cost | met |  | [figure 1](#figure-1-speed), a |");
        assert_eq!(text.matches("0123456789ab").count(), 1, "one commit is named once");
        place("| ours to theirs | 1.00 to 1.50 x | 3.00 x | 2.00 | not comparable, because theirs is older |");
        place("| more | picture only | 1.00 | - |  |");
        place("| speed, requests/s | a |");
        for picture in ["a/figure-1.svg", "b/figure-1.svg"] {
            assert!(fs::metadata(out.path().join(picture)).unwrap().len() > 1000, "{picture} is drawn");
        }
    }

    #[test]
    fn a_page_lists_the_commits_of_its_figures() {
        let other = Figure { commit: None, ..Figure::example("a", true) };
        let told = commits(&[Figure::example("a", true), other, Figure::example("b", true)]);
        assert_eq!(told, "Commits of the figures: `0123456789ab` (of 2), unknown (of 1).\n\n");
    }
}
