//! The run of a paper: common parts of its figures, the selection of figures, and the output.
//!
//! Figures come in groups that share their passes. A run processes one device profile after the other and makes the
//! requested figures of each group. It writes the page again after every group, so an interrupted run leaves a page.

use super::figure::{Figure, Report, VERSION};
use super::folder::Folder;
use super::machine::Machine;
use super::page::{self, Page};
use crate::experiment::command;
use crate::{LabError, Result};
use nvfold_bench::origin::commit;
use pmem::Profile;
use std::path::Path;
use std::time::Instant;

/// One profile's turn in a run.
pub(super) struct Turn {
    /// Name of the profile.
    pub name: String,
    /// The emulated device.
    pub profile: Profile,
    /// True if it is a profile of the paper, to which its values apply.
    pub is_the_papers: bool,
    /// True for a smoke test, which only checks that the code runs.
    pub smoke: bool,
    paper: &'static str,
    machine: Machine,
    began: Instant,
}

impl Turn {
    /// Makes an empty figure.
    pub(super) fn figure(&self, id: &str, title: &str, settings: String) -> Figure {
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

    /// Prints progress on stderr.
    pub(super) fn say(&self, what: &str) {
        eprintln!("[{:>4.0} s] {}: {what}", self.began.elapsed().as_secs_f64(), self.name);
    }
}

/// Figures that come from the same passes. The paper's module makes them from its run, an `R`.
pub(super) struct Group<R: 'static> {
    /// Their ids.
    pub ids: &'static [&'static str],
    /// Makes them.
    pub run: fn(&R) -> Result<Vec<Figure>>,
    /// True if they do not depend on the profile; then only the first profile makes them.
    pub once: bool,
}

/// The figures of a run, and the output.
pub(super) struct Plan<'a, R: 'static> {
    /// Name of the paper.
    pub paper: &'static str,
    /// Its page.
    pub page: &'a Page,
    /// All of its figures.
    pub groups: &'a [Group<R>],
    /// Ids of the figures to make; all if there are none.
    pub figures: &'a [String],
    /// Folder for JSON, pictures and the page.
    pub out: &'a Path,
    /// True to keep the figures in the folder that were made from this commit.
    pub resume: bool,
    /// True for a smoke test.
    pub smoke: bool,
}

impl<R: AsRef<Turn> + Sync> Plan<'_, R> {
    /// Makes the requested figures, profile by profile, and the page; prints where they are, or their JSON. The paper's
    /// module makes the run of each turn.
    pub(super) fn make<N: AsRef<str>>(
        &self,
        profiles: &[N],
        run_of: impl Fn(Turn) -> Result<R>,
        json: bool,
    ) -> Result<()> {
        let began = Instant::now();
        let resumed = self.resume.then(|| commit().ok_or(LabError::NoCommit)).transpose()?;
        let mut report = Report { version: VERSION, command: command(), paper: self.paper, figures: Vec::new() };
        let (folder, mut skipped) = (Folder(self.out), 0);
        for (turn, profile) in profiles.iter().enumerate() {
            let run = run_of(self.turn(profile.as_ref(), began)?)?;
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
                let made = on_a_new_thread(|| (group.run)(&run))?;
                for mut figure in made.into_iter().filter(|figure| ids.contains(&figure.id.as_str())) {
                    judge(&mut figure, self.page.papers)?;
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

    /// Starts the turn of the named profile; `began` is the start of the whole run.
    fn turn(&self, name: &str, began: Instant) -> Result<Turn> {
        Ok(Turn {
            name: name.into(),
            profile: name.parse().expect("the names of profiles are checked"),
            is_the_papers: self.page.papers.contains(&name),
            smoke: self.smoke,
            paper: self.paper,
            machine: Machine::here()?,
            began,
        })
    }

    /// Returns the ids of a group's requested figures.
    fn wanted_of(&self, group: &Group<R>) -> Vec<&'static str> {
        let is_wanted = |id: &&str| self.figures.is_empty() || self.figures.iter().any(|figure| figure == id);
        group.ids.iter().copied().filter(is_wanted).collect()
    }

    /// Returns whether the folder has all of these figures, made from this commit.
    fn are_there(&self, turn: &Turn, ids: &[&str], commit: &str) -> bool {
        ids.iter().all(|id| Folder(self.out).has(&turn.name, id, commit))
    }
}

/// Refuses a figure with a value of the paper that is neither an aim nor explained. On another profile than the paper's,
/// its values are explained by that.
fn judge(figure: &mut Figure, papers: &[&str]) -> Result<()> {
    if !papers.contains(&figure.profile.as_str()) {
        figure.explain(&format!("the paper's device is {}", papers.join(" or ")));
    }
    let unjudged = figure.unjudged().next().map(|row| row.what.clone());
    let refuse = |row| LabError::Unjudged { figure: figure.id.clone(), row };
    unjudged.map_or(Ok(()), |row| Err(refuse(row)))
}

/// Does the work on a new thread. A thread keeps what emulated devices have charged it, and its clock of device time
/// runs ahead by that, so a figure must not inherit the thread of another.
fn on_a_new_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Parses the id of a figure on the command line: a number alone stands for a figure.
pub(super) fn figure_id(text: &str, known: &[&str]) -> std::result::Result<String, String> {
    let id = if text.parse::<u32>().is_ok() { format!("figure-{text}") } else { text.to_string() };
    match known.contains(&id.as_str()) {
        true => Ok(id),
        false => Err(format!("there is no such figure; use one of {}", known.join(", "))),
    }
}

/// Parses the name of a profile on the command line.
pub(super) fn profile_name(text: &str, known: &[&str]) -> std::result::Result<String, String> {
    match known.contains(&text) {
        true => Ok(text.into()),
        false => Err(format!("use one of {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold_bench::device::Device;

    fn device_time_ahead() -> Result<std::time::Duration> {
        Ok(std::time::Duration::from_nanos(pmem::clock::device_ns(Instant::now())))
    }

    #[test]
    fn a_figure_with_a_value_of_the_paper_that_nothing_judges_is_refused() {
        use super::super::figure::Row;
        let mut figure = Figure::example("native", true);
        judge(&mut figure, &["native"]).unwrap();
        figure.rows.push(Row::value("forgotten", 2.0, 3.0, "us"));
        let error = judge(&mut figure, &["native"]).unwrap_err().to_string();
        assert!(error.contains("figure-1") && error.contains("forgotten"), "{error}");
        judge(&mut figure, &["optane"]).unwrap();
        assert_eq!(figure.unjudged().count(), 0, "another device explains it");
    }

    /// It had: Figure 10 of DeNOVA counted every wait as 0, because an earlier figure had used a slow device.
    #[test]
    fn a_figure_does_not_inherit_the_charges_of_an_earlier_one() {
        let hour = std::time::Duration::from_secs(3600);
        let use_a_slow_device = || {
            let device = Device::new(&"custom:write_line_ns=1000000000".parse().unwrap(), 4 << 20);
            let region = device.create()?;
            let _ = region.fence(region.stream(0, &vec![7; 1 << 20]));
            device_time_ahead()
        };
        assert!(on_a_new_thread(use_a_slow_device).unwrap() > hour, "it is charged 16,384 s");
        assert!(on_a_new_thread(device_time_ahead).unwrap() < hour);
    }
}
