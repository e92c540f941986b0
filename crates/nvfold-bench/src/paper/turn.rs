//! A paper's run: what its figures have in common, which of them are made, and where they go.
//!
//! Figures come in groups that share their passes. A run takes one device profile after the other and makes of each
//! group what was asked for; the page is written anew behind every group, so a run that is cut short leaves one.

use super::figure::{Figure, Report, VERSION};
use super::folder::Folder;
use super::machine::Machine;
use super::page::{self, Page};
use crate::origin::{command, commit};
use crate::{BenchError, Result};
use pmem::Profile;
use std::path::Path;
use std::time::Instant;

/// One profile's turn in a run.
pub struct Turn {
    /// Name of the profile.
    pub name: String,
    /// What it charges.
    pub profile: Profile,
    /// Whether nothing but that it runs is to be seen.
    pub smoke: bool,
    paper: &'static str,
    machine: Machine,
    began: Instant,
}

impl Turn {
    /// Of a paper, on the profile of this name, in a run that began then.
    pub fn new(paper: &'static str, name: &str, smoke: bool, began: Instant) -> Result<Turn> {
        let profile = name.parse().expect("the names of profiles are checked");
        Ok(Turn { name: name.into(), profile, smoke, paper, machine: Machine::here()?, began })
    }

    /// Makes a figure without anything in it.
    pub fn figure(&self, id: &str, title: &str, settings: String) -> Figure {
        Figure {
            version: VERSION,
            paper: self.paper.into(),
            id: id.into(),
            title: title.into(),
            nvfold: env!("CARGO_PKG_VERSION").into(),
            commit: commit(),
            command: command(),
            machine: self.machine.clone(),
            profile: self.name.clone(),
            settings,
            charts: Vec::new(),
            rows: Vec::new(),
            aims: Vec::new(),
            reading: String::new(),
            left_out: Vec::new(),
        }
    }

    /// Says on stderr how far it is.
    pub fn say(&self, what: &str) {
        eprintln!("[{:>4.0} s] {}: {what}", self.began.elapsed().as_secs_f64(), self.name);
    }
}

/// Figures that come from the same passes; `R` is what the paper's module needs to make them.
pub struct Group<R: 'static> {
    /// Their ids.
    pub ids: &'static [&'static str],
    /// Makes them.
    pub run: fn(&R) -> Result<Vec<Figure>>,
    /// Whether they are the same on every profile: run on the first one only.
    pub once: bool,
}

/// What a run makes, and where it goes.
pub struct Plan<'a, R: 'static> {
    /// Which paper.
    pub paper: &'static str,
    /// Its page.
    pub page: &'a Page,
    /// All of its figures.
    pub groups: &'a [Group<R>],
    /// Ids of the figures to make; all if there are none.
    pub figures: &'a [String],
    /// Folder for JSON, pictures and the page.
    pub out: &'a Path,
    /// Whether what the folder has from this commit is left as it is.
    pub resume: bool,
}

impl<R: AsRef<Turn>> Plan<'_, R> {
    /// Makes the figures that are asked for, profile by profile, and the page; says where they are, or prints them as
    /// JSON.
    pub fn make(&self, turns: impl Iterator<Item = Result<R>>, json: bool) -> Result<()> {
        let began = Instant::now();
        let resumed = self.resume.then(|| commit().ok_or(BenchError::NoCommit)).transpose()?;
        let mut report = Report { version: VERSION, command: command(), paper: self.paper, figures: Vec::new() };
        let (folder, mut skipped) = (Folder(self.out), 0);
        for (turn, run) in turns.enumerate() {
            let run = run?;
            for group in self.groups.iter().filter(|group| turn == 0 || !group.once) {
                let ids = self.wanted_of(group);
                if ids.is_empty() {
                    continue;
                }
                let is_there = |commit: &String| self.are_there(run.as_ref(), &ids, commit);
                if resumed.as_ref().is_some_and(is_there) {
                    run.as_ref().say(&format!("skipped, made from this commit already: {}", ids.join(", ")));
                    for id in &ids {
                        folder.load(&run.as_ref().name, id)?.map_or(Ok(()), |figure| folder.draw(&figure))?;
                    }
                    skipped += ids.len();
                    continue;
                }
                for figure in (group.run)(&run)?.into_iter().filter(|figure| ids.contains(&figure.id.as_str())) {
                    folder.save(&figure)?;
                    report.figures.push(figure);
                }
                page::write(self.page, self.out)?;
            }
        }
        page::write(self.page, self.out)?;
        if json {
            println!("{}", serde_json::to_string_pretty(&report).expect("numbers and strings have a JSON form"));
            return Ok(());
        }
        let aims: Vec<bool> = report.figures.iter().flat_map(|figure| &figure.aims).map(|aim| aim.met).collect();
        let met = aims.iter().filter(|met| **met).count();
        let (made, all, seconds) = (report.figures.len(), aims.len(), began.elapsed().as_secs());
        println!("figures made: {made}; skipped: {skipped}; aims met: {met} of {all}; time: {seconds} s");
        println!("page: {}", self.out.join("README.md").display());
        Ok(())
    }

    /// Ids of a group's figures that are asked for.
    fn wanted_of(&self, group: &Group<R>) -> Vec<&'static str> {
        let is_wanted = |id: &&str| self.figures.is_empty() || self.figures.iter().any(|figure| figure == id);
        group.ids.iter().copied().filter(is_wanted).collect()
    }

    /// Whether all of these figures lie in the folder, made from this commit.
    fn are_there(&self, turn: &Turn, ids: &[&str], commit: &str) -> bool {
        ids.iter().all(|id| Folder(self.out).has(&turn.name, id, commit))
    }
}

/// The id of a figure as it is given on the command line: a number alone is that of a figure.
pub fn figure_id(text: &str, known: &[&str]) -> std::result::Result<String, String> {
    let id = if text.parse::<u32>().is_ok() { format!("figure-{text}") } else { text.to_string() };
    match known.contains(&id.as_str()) {
        true => Ok(id),
        false => Err(format!("there is no such figure; use one of {}", known.join(", "))),
    }
}

/// The name of a profile as it is given on the command line.
pub fn profile_name(text: &str, known: &[&str]) -> std::result::Result<String, String> {
    match known.contains(&text) {
        true => Ok(text.into()),
        false => Err(format!("use one of {}", known.join(", "))),
    }
}
