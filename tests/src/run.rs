//! Programs with a time limit, their output shown on failure.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::random::soak_factor;

/// The output of a program and its exit status.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub command: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Panics with the whole output unless the program succeeded.
    #[track_caller]
    pub fn success(self) -> Outcome {
        assert!(self.status.success(), "{}", self.report());
        self
    }

    /// Returns the exit code; panics if a signal ended the program.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{}", self.report()))
    }

    /// Returns both outputs and the exit status as text.
    pub fn report(&self) -> String {
        format!(
            "{}\n  ended with {}\n--- stdout\n{}\n--- stderr\n{}",
            self.command, self.status, self.stdout, self.stderr
        )
    }
}

/// Returns the time after which any program counts as hung. It is far longer than a program needs, even while the
/// crash states use all processors for minutes: no test depends on speed.
pub fn limit() -> Duration {
    Duration::from_secs(900 * soak_factor())
}

/// Runs a program to its end; kills it and panics past [`limit`].
#[track_caller]
pub fn run(command: &mut Command) -> Outcome {
    run_watching(command, |_| {})
}

/// The same; calls `watch` with the child again and again while it runs.
#[track_caller]
pub fn run_watching(command: &mut Command, watch: impl FnMut(&Child)) -> Outcome {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("starting {line}: {error}"));
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait_watching(&mut child, limit(), watch);
    let outcome = Outcome {
        command: line,
        status: status.unwrap_or_else(|| ExitStatus::from_raw(9)),
        stdout: stdout.join().expect("the reader of stdout"),
        stderr: stderr.join().expect("the reader of stderr"),
    };
    assert!(status.is_some(), "killed after {:?}: {}", limit(), outcome.report());
    outcome
}

/// Runs a program and panics with its output unless it succeeds.
#[track_caller]
pub fn ok(command: &mut Command) -> Outcome {
    run(command).success()
}

/// Runs a line of shell in a directory and panics with its output unless it succeeds.
#[track_caller]
pub fn shell(dir: &std::path::Path, script: &str) -> Outcome {
    ok(Command::new("bash").args(["-euo", "pipefail", "-c", script]).current_dir(dir))
}

/// Waits for a child; kills it past the limit and returns `None`.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    wait_watching(child, limit, |_| {})
}

fn wait_watching(child: &mut Child, limit: Duration, mut watch: impl FnMut(&Child)) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        watch(child);
        if let Some(status) = child.try_wait().expect("wait for a child") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
