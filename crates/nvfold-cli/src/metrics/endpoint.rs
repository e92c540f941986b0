//! Where metrics are to be read: a Unix socket, a port, or a file. The same words for the mount option and the command.

use crate::mounts;
use nvfold_mount::Reader;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What can be given.
const SYNTAX: &str = "unix:PATH[+group=NAME], 127.0.0.1:PORT[+all], ADDRESS:PORT+remote[+all] or \
                                 textfile:PATH[+all][+interval=SECONDS]";

/// How often a file is written anew, if nothing else is said.
const INTERVAL: Duration = Duration::from_secs(15);

/// A place where metrics can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Unix {
        path: PathBuf,
        /// Members of this group may read them, too: its name or number.
        group: Option<String>,
    },
    Tcp {
        address: SocketAddr,
        /// All figures for whoever can connect; else those that every user may see.
        all: bool,
    },
    Textfile(File),
}

/// A file that is written again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub path: PathBuf,
    /// All users may read it; else its owner and the group of its folder.
    pub all: bool,
    pub interval: Duration,
}

/// The words that follow a place.
#[derive(Default)]
struct Words {
    all: bool,
    remote: bool,
    group: Option<String>,
    interval: Option<Duration>,
}

impl Endpoint {
    /// Parses one. The error is part of a sentence.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, String> {
        let (place, words) = Words::split(text)?;
        if let Some(path) = place.strip_prefix("unix:") {
            words.check_only("unix:PATH", false, true, false)?;
            return Ok(Endpoint::Unix { path: absolute(path)?, group: words.group });
        }
        if let Some(path) = place.strip_prefix("textfile:") {
            words.check_only("textfile:PATH", true, false, true)?;
            let interval = words.interval.unwrap_or(INTERVAL);
            return Ok(Endpoint::Textfile(File { path: absolute(path)?, all: words.all, interval }));
        }
        words.check_only("a port", true, false, false)?;
        let numeric = place.replacen("localhost:", "127.0.0.1:", 1);
        let address: SocketAddr = numeric.parse().map_err(|_| format!("must be {SYNTAX}"))?;
        if !address.ip().is_loopback() && !words.remote {
            return Err(format!(
                "{} can be reached from other machines, and nothing protects what is read: say {place}+remote if that \
                 is meant, or use 127.0.0.1 or unix:PATH",
                address.ip()
            ));
        }
        Ok(Endpoint::Tcp { address, all: words.all })
    }

    /// Returns the path of the socket or file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Unix { path, .. } | Endpoint::Textfile(File { path, .. }) => Some(path),
            Endpoint::Tcp { .. } => None,
        }
    }

    /// Returns what those who can read here may see.
    pub(crate) fn reader(&self) -> Reader {
        match self {
            Endpoint::Tcp { all: false, .. } => Reader::Other,
            _ => Reader::Manager,
        }
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix { path, .. } => write!(f, "unix:{}", mounts::show(path)),
            Endpoint::Tcp { address, .. } => write!(f, "{address}"),
            Endpoint::Textfile(File { path, .. }) => write!(f, "textfile:{}", mounts::show(path)),
        }
    }
}

impl Words {
    /// Splits the words off the end. What is no word belongs to the path.
    fn split(text: &str) -> Result<(&str, Words), String> {
        let (mut place, mut words) = (text, Words::default());
        while let Some((before, word)) = place.rsplit_once('+') {
            match word.split_once('=') {
                None if word == "all" => words.all = true,
                None if word == "remote" => words.remote = true,
                Some(("group", group)) => words.group = Some(group.to_owned()),
                Some(("interval", seconds)) => words.interval = Some(interval(seconds)?),
                _ => break,
            }
            place = before;
        }
        Ok((place, words))
    }

    fn check_only(&self, of: &str, all: bool, group: bool, interval: bool) -> Result<(), String> {
        let refused = [
            ("all", self.all && !all),
            ("group=", self.group.is_some() && !group),
            ("interval=", self.interval.is_some() && !interval),
        ];
        match refused.iter().find(|(_, is_refused)| *is_refused) {
            Some((word, _)) => Err(format!("+{word} is not for {of}")),
            None => Ok(()),
        }
    }
}

/// Parses a number of seconds between two writes of a file.
pub(crate) fn interval(seconds: &str) -> Result<Duration, String> {
    let seconds = seconds.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "the interval must be a number of seconds from 1 to 86400".into())
}

/// Makes a path absolute: a mount changes its directory.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|_| "a path is missing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_parsed_with_their_words() {
        let parse = |text: &str| Endpoint::parse(text).unwrap();
        let unix = |group: Option<&str>| Endpoint::Unix { path: "/run/a+b".into(), group: group.map(str::to_owned) };
        assert_eq!(parse("unix:/run/a+b"), unix(None), "a path may contain a plus");
        assert_eq!(parse("unix:/run/a+b+group=adm"), unix(Some("adm")));
        let file = |all, seconds| {
            Endpoint::Textfile(File { path: "/x.prom".into(), all, interval: Duration::from_secs(seconds) })
        };
        assert_eq!(parse("textfile:/x.prom"), file(false, 15));
        assert_eq!(parse("textfile:/x.prom+all+interval=60"), file(true, 60));
        assert_eq!(
            parse("localhost:9617+all"),
            Endpoint::Tcp { address: "127.0.0.1:9617".parse().unwrap(), all: true }
        );
        assert_eq!(parse("[::1]:9617").reader(), Reader::Other);
        assert_eq!(parse("10.0.0.1:9617+remote+all").reader(), Reader::Manager);
        assert_eq!(parse("unix:x").reader(), Reader::Manager);
    }

    #[test]
    fn addresses_that_other_machines_reach_are_refused_without_the_word_remote() {
        for address in ["0.0.0.0:9617", "10.0.0.1:9617+all", "[::]:1"] {
            assert!(Endpoint::parse(address).unwrap_err().contains("+remote"), "{address}");
        }
        for wrong in [
            "",
            "unix:",
            "textfile:",
            "9617",
            ":9617",
            "127.0.0.1",
            "host:1",
            "127.0.0.1:1+group=x",
            "unix:/x+all",
            "127.0.0.1:1+interval=5",
            "textfile:/x+interval=0",
            "127.0.0.1:1+every",
        ] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
