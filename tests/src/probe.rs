//! Small C programs of `tests/programs`, for system calls that safe Rust lacks. Each is compiled where it is used.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::requires::tool;
use crate::run;

/// Compiles `tests/programs/NAME.c` into a directory. Tests that use it name `tool("cc")` among their needs.
#[track_caller]
pub fn compiled(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = into.join(name);
    run::ok(Command::new(tool("cc")).args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source));
    program
}

/// A program that writes when it is told to, and never closes or syncs.
pub struct Writer {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Writer {
    /// Starts it; it has written for the first time then.
    #[track_caller]
    pub fn start(command: &mut Command) -> Writer {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the writer");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut writer = Writer { child, said };
        writer.wait();
        writer
    }

    fn wait(&mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("read");
        assert_eq!(line, "done\n");
    }

    /// Makes it write once more; it has when this returns.
    pub fn write_again(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("tell the writer");
        self.wait();
    }

    /// Ends it.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        let status = run::wait_at_most(&mut self.child, run::limit());
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}
