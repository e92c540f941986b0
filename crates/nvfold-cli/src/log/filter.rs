//! Which messages are logged: a level, for all targets or by target.

use crate::failure::{Failure, Outcome};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The targets: the short name, and what goes there.
const TARGETS: [(&str, &str); 5] = [
    ("mount", "that it was mounted and unmounted"),
    ("event", "what an operator must know: damage, no space, limits, policies"),
    ("background", "work beside the requests"),
    ("request", "requests of the kernel: those that failed (debug), all (trace)"),
    ("metrics", "who reads the metrics (debug)"),
];

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// A level for all targets, and those of single targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    all: LevelFilter,
    by_target: Vec<(&'static str, LevelFilter)>,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { all: LevelFilter::INFO, by_target: Vec::new() }
    }
}

impl Filter {
    /// Parses `LEVEL` and `TARGET=LEVEL`, with `+` between them: a comma ends a mount option. A later part overrides an
    /// earlier one.
    pub(crate) fn parse(text: &str) -> Result<Filter, String> {
        let mut filter = Filter::default();
        for part in text.split(['+', ',']) {
            match part.split_once('=') {
                None => filter.all = level(part)?,
                Some((name, of_target)) => {
                    let name = name.strip_prefix("nvfold::").unwrap_or(name);
                    let known = TARGETS.iter().find(|(target, _)| *target == name);
                    let (target, _) = known.ok_or_else(|| {
                        format!(
                            "there is no target {name:?}; those are {}",
                            TARGETS.map(|(target, _)| target).join(", ")
                        )
                    })?;
                    filter.by_target.push((target, level(of_target)?));
                }
            }
        }
        Ok(filter)
    }

    /// Returns what a variable of the environment says; `None` if it is not set, or empty.
    pub(super) fn of_environment(variable: &str) -> Outcome<Option<Filter>> {
        let Some(text) = std::env::var_os(variable).filter(|text| !text.is_empty()) else { return Ok(None) };
        Filter::parse(&text.to_string_lossy()).map(Some).map_err(|why| Failure::usage(variable, why))
    }

    /// Returns it in the form that `tracing` takes. Other crates log nothing but errors.
    pub(super) fn targets(&self) -> Targets {
        let by_target = self.by_target.iter().map(|(target, level)| (format!("nvfold::{target}"), *level));
        Targets::new().with_default(LevelFilter::ERROR).with_target("nvfold", self.all).with_targets(by_target)
    }
}

fn level(name: &str) -> Result<LevelFilter, String> {
    let found = LEVELS.iter().find(|(level, _)| *level == name).map(|(_, level)| *level);
    found.ok_or_else(|| format!("{name:?} is no level; those are {}", LEVELS.map(|(level, _)| level).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn logs(text: &str, target: &str, level: Level) -> bool {
        Filter::parse(text).unwrap().targets().would_enable(target, &level)
    }

    #[test]
    fn a_level_holds_for_all_targets_without_a_level_of_their_own() {
        assert!(logs("warn", "nvfold::event", Level::WARN) && !logs("warn", "nvfold::event", Level::INFO));
        assert!(logs("warn+request=trace", "nvfold::request", Level::TRACE));
        assert!(!logs("warn+request=trace", "nvfold::background", Level::INFO));
        assert!(logs("request=debug", "nvfold::event", Level::INFO), "the default stays");
        assert!(!logs("off", "nvfold::event", Level::ERROR));
        assert!(logs("info,nvfold::request=debug", "nvfold::request", Level::DEBUG), "as in other programs");
        assert!(!logs("trace", "mio", Level::WARN), "other crates");
    }

    #[test]
    fn unknown_levels_and_targets_are_refused_with_the_known_ones() {
        for (wrong, known) in
            [("", "off, error"), ("loud", "off, error"), ("x=info", "mount, event"), ("event=", "off")]
        {
            assert!(Filter::parse(wrong).unwrap_err().contains(known), "{wrong}");
        }
    }
}
