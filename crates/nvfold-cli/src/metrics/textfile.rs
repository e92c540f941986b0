//! A file with metrics, for the textfile collector of Prometheus' node exporter: written beside and renamed, so that a
//! reader never sees a part.

use super::endpoint::File as Wanted;
use super::{Format, Scrape, encode};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use nvfold_mount::Reader;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use tracing::{info, warn};

const TARGET: &str = "nvfold::metrics";
/// Readable by all users, or by the owner and the group: that of the folder, if it has the set-group-ID bit.
const FOR_ALL: u32 = 0o644;
const FOR_GROUP: u32 = 0o640;

/// A file that can be written.
pub(crate) struct Textfile {
    wanted: Wanted,
    written: Written,
}

/// A thread that writes the file. It ends, and the file is removed, when this is dropped.
pub(crate) struct Writing {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _written: Written,
}

/// Removes the file when it is dropped: figures of a mount that has ended would look like those of one that does nothing.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Textfile {
    /// Checks that the file can be written.
    pub(crate) fn open(wanted: &Wanted) -> Outcome<Textfile> {
        let doing = || format!("write metrics to {}", mounts::show(&wanted.path));
        if wanted.path.is_dir() {
            return Err(Failure::new(doing(), "it is a directory").hint("name a file in it that ends in .prom"));
        }
        // An empty file is a scrape without figures.
        write(wanted, "").doing(doing())?;
        Ok(Textfile { wanted: wanted.clone(), written: Written(wanted.path.clone()) })
    }

    /// Writes it now, and then at each interval.
    pub(crate) fn serve(self, scrape: Scrape) -> Outcome<Writing> {
        let Textfile { wanted, written } = self;
        let (over, is_over) = mpsc::channel();
        let work = move || {
            let mut fails = false;
            loop {
                let result = write(&wanted, &encode(&scrape(Reader::Manager), Format::Prometheus));
                tell(&mut fails, &wanted.path, result);
                match is_over.recv_timeout(wanted.interval) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        };
        let named = thread::Builder::new().name("nvfold-metrics".into());
        let thread = pmem::with_signals_blocked(|| named.spawn(work)).doing("write metrics")?;
        Ok(Writing { over: Some(over), thread: Some(thread), _written: written })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes a scrape to a file once.
pub(crate) fn write(wanted: &Wanted, text: &str) -> io::Result<()> {
    let beside = beside(&wanted.path);
    let written = fill(&beside, text, if wanted.all { FOR_ALL } else { FOR_GROUP })
        .and_then(|()| fs::rename(&beside, &wanted.path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn fill(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    // What a process of this number left that was killed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(mode).open(path)?;
    // Whatever the umask says.
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode))?;
    file.write_all(text.as_bytes())
}

/// Returns the path of the file that is renamed. Its name does not end in .prom, so the collector passes it over.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

/// Tells of the first failure, and of the end of failures.
fn tell(fails: &mut bool, path: &Path, written: io::Result<()>) {
    let path = mounts::show(path);
    match written {
        Err(error) if !*fails => {
            warn!(target: TARGET, "metrics cannot be written to {path}: {error}; it is tried again");
            *fails = true;
        }
        Ok(()) if *fails => {
            info!(target: TARGET, "metrics are written to {path} again");
            *fails = false;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = |all| Wanted { path: dir.path().join("x.prom"), all, interval: Duration::from_secs(1) };
        for (all, mode) in [(false, 0o640), (true, 0o644)] {
            write(&wanted(all), "a\n").unwrap();
            let metadata = fs::metadata(dir.path().join("x.prom")).unwrap();
            assert_eq!((metadata.permissions().mode() & 0o777, metadata.len()), (mode, 2));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let lost = Wanted { path: dir.path().join("no/x.prom"), all: false, interval: Duration::from_secs(1) };
        assert!(write(&lost, "").is_err() && Textfile::open(&lost).is_err());
    }
}
