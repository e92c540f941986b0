//! A folder of results: the figures of a paper, made one by one, each with its JSON and its picture.
//!
//! ```text
//! <folder>/<profile>/<id>.json    the figure
//! <folder>/<profile>/<id>.svg     its picture, where there is something to draw
//! ```
//!
//! The problem: a run takes hours and may be interrupted. The idea: the JSON is written last and moved into place as
//! a whole, so a figure with a JSON file is complete. The JSON names its commit, so a resumed run knows which figures
//! it can keep.

use super::figure::{Figure, VERSION};
use super::picture;
use crate::{Doing, LabError, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The folder of the figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folder<'a>(pub &'a Path);

impl Folder<'_> {
    /// Returns the path of the JSON of a figure on a profile.
    fn json(self, profile: &str, id: &str) -> PathBuf {
        self.0.join(profile).join(format!("{id}.json"))
    }

    /// Returns whether the folder has the figure of this id and profile, made from this commit.
    pub(super) fn has(self, profile: &str, id: &str, commit: &str) -> bool {
        /// The fields that are checked; the rest may have an older schema.
        #[derive(Deserialize)]
        struct Origin {
            version: u32,
            commit: Option<String>,
        }
        let text = std::fs::read_to_string(self.json(profile, id));
        let origin: Option<Origin> = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        origin.is_some_and(|origin| origin.version == VERSION && origin.commit.as_deref() == Some(commit))
    }

    /// Loads the figure of this id and profile; returns `None` if there is none.
    pub(super) fn load(self, profile: &str, id: &str) -> Result<Option<Figure>> {
        let file = self.json(profile, id);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).doing(format!("read {}", file.display())),
        };
        let stale = |why: String| LabError::Stale { file: file.display().to_string(), why };
        let figure: Figure = serde_json::from_str(&text).map_err(|error| stale(error.to_string()))?;
        match figure.version {
            VERSION => Ok(Some(figure)),
            version => Err(stale(format!("version {version} of its schema"))),
        }
    }

    /// Draws the picture of a figure, if it has one.
    pub(super) fn draw(self, figure: &Figure) -> Result<()> {
        if !figure.is_drawn() {
            return Ok(());
        }
        picture::draw(&figure.charts, &self.0.join(&figure.profile).join(&figure.id))
    }

    /// Writes a figure and, if it has one, its picture.
    pub(super) fn save(self, figure: &Figure) -> Result<()> {
        let file = self.json(&figure.profile, &figure.id);
        let folder = self.0.join(&figure.profile);
        std::fs::create_dir_all(&folder).doing(format!("make {}", folder.display()))?;
        self.draw(figure)?;
        let unfinished = file.with_extension("json.tmp");
        let json = serde_json::to_string_pretty(figure).expect("numbers and strings have a JSON form");
        std::fs::write(&unfinished, json + "\n").doing(format!("write {}", unfinished.display()))?;
        std::fs::rename(&unfinished, &file).doing(format!("write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_reused_only_for_the_same_commit_and_schema_version() {
        let out = tempfile::tempdir().unwrap();
        let folder = Folder(out.path());
        let is_there = |profile: &str, commit: &str| folder.has(profile, "figure-1", commit);
        assert!(!is_there("a", "0123456789ab"));
        folder.save(&Figure::example("a", true)).unwrap();
        assert!(is_there("a", "0123456789ab"));
        assert!(!is_there("a", "ba9876543210") && !is_there("b", "0123456789ab"));
        folder.save(&Figure { version: VERSION - 1, ..Figure::example("a", true) }).unwrap();
        assert!(!is_there("a", "0123456789ab"));
        std::fs::write(out.path().join("a/figure-1.json"), "{").unwrap();
        assert!(!is_there("a", "0123456789ab"));
    }

    #[test]
    fn an_error_for_a_figure_of_another_schema_contains_its_path() {
        let out = tempfile::tempdir().unwrap();
        let folder = Folder(out.path());
        folder.save(&Figure { version: VERSION + 1, ..Figure::example("a", true) }).unwrap();
        let error = folder.load("a", "figure-1").unwrap_err().to_string();
        assert!(error.contains("figure-1.json") && error.contains("schema"), "{error}");
    }
}
