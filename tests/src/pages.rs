//! Pages of documentation whose commands are run, in their order, as a reader would run them.
//!
//! The problem: commands in a page go stale, and nobody notices. The idea: the page is the test. All its `sh` blocks are
//! one bash script, with `set -euo pipefail`, in a mount and a PID namespace of its own. Nothing outlives it.
//!
//! ````text
//! ```sh                          run; a command that fails fails the test, which names the line of its block
//! ```text                        after a `sh` block, before the next one or a heading: all that the block prints. In it
//!                                `...` stands for any text, and a line of `...` for any number of lines
//! <!-- test                      these lines are run too, where they stand: what a reader has already, and checks
//! commands
//! -->
//! <!-- test: fails -->           the next block must fail; it runs in a shell of its own
//! <!-- test: not run: REASON --> the next block is left out
//! <!-- test: needs A B -->       the page needs these programs
//! ````
//!
//! The script is root. `nvfold` and its helpers for mount(8) are found, /mnt, /srv, /media, /opt, /run and the home of root,
//! which is the working directory, are empty. /etc is a copy.

use crate::mount::{binary, in_own_namespace};
use crate::requires::{find_tool, met};
use crate::run::{self, Outcome};
use crate::scratch::Scratch;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Directories that a page finds empty.
const EMPTY: [&str; 6] = ["mnt", "srv", "media", "opt", "root", "run"];

/// What a part of a page is to its test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    Fails,
    NotRun,
}

/// A part of a page that is run.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// The line of the page where its commands begin, from 1.
    line: usize,
    kind: Kind,
    commands: String,
    /// The output, with `...`; `None`: any.
    output: Option<String>,
}

/// A page as its test sees it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    steps: Vec<Step>,
    needs: Vec<String>,
}

/// Returns the directory of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// Runs the commands of a page, by its path in the repository. Needs root, /dev/fuse and unshare(1).
///
/// # Panics
/// If a command fails, or prints anything else than the page says.
#[track_caller]
pub fn run(path: &str) {
    let text = std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"));
    let page = Page::parse(&text).unwrap_or_else(|error| panic!("{path}:{error}"));
    assert!(page.steps.iter().any(|step| step.kind != Kind::NotRun), "{path} has no commands that are run");
    if !has_tools(path, &page.needs) {
        return;
    }
    let scratch = Scratch::new();
    let outcome = run::run(&mut in_own_namespaces(&scratch, &page.script(scratch.path())));
    page.judge(path, scratch.path(), &outcome);
}

/// Returns true if the programs that a page needs are there.
fn has_tools(path: &str, needs: &[String]) -> bool {
    let missing: Vec<&String> = needs.iter().filter(|name| find_tool(name).is_none()).collect();
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(missing.is_empty() || !is_ci, "{path} needs the programs {missing:?}; run scripts/test-deps.sh");
    if !missing.is_empty() {
        eprintln!("skipped: {path} needs the programs {missing:?}; run scripts/test-deps.sh");
    }
    missing.is_empty() && met(&[])
}

/// Returns a command that runs a script in namespaces of its own. When it ends, all that it has started is killed.
fn in_own_namespaces(scratch: &Scratch, script: &str) -> std::process::Command {
    let file = scratch.join("script");
    std::fs::write(&file, script).expect("write the script");
    let start = "exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
                 env -u LIBMOUNT_UTAB bash script";
    in_own_namespace(scratch.path(), start)
}

impl Page {
    /// Parses the text of a page. An error begins with the number of its line.
    fn parse(text: &str) -> Result<Page, String> {
        let mut page = Page::default();
        let (mut next, mut said_at, mut may_print) = (Kind::Run, 0, false);
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        while let Some((line, content)) = lines.next() {
            let mut until = |end: &str| -> Result<String, String> {
                let mut taken = String::new();
                loop {
                    match lines.next() {
                        Some((_, content)) if content.trim_end() == end => return Ok(taken),
                        Some((_, content)) => writeln!(taken, "{content}").expect("a string grows"),
                        None => return Err(format!("{line}: there is no {end:?} after this line")),
                    }
                }
            };
            match content.trim_end() {
                "```sh" => {
                    let kind = std::mem::replace(&mut next, Kind::Run);
                    let commands = until("```")?;
                    page.steps.push(Step { line: line + 1, kind, commands, output: None });
                    may_print = kind != Kind::NotRun;
                }
                "```text" if may_print => {
                    page.steps.last_mut().expect("it prints").output = Some(until("```")?);
                    may_print = false;
                }
                "<!-- test" => {
                    let commands = until("-->")?;
                    page.steps.push(Step { line: line + 1, kind: Kind::Run, commands, output: None });
                    may_print = false;
                }
                comment if comment.starts_with("<!-- test:") => {
                    (next, said_at) = (page.take_comment(comment, line)?, line);
                }
                fence if fence.starts_with("```") => drop(until("```")?),
                heading if heading.starts_with('#') => may_print = false,
                _ => {}
            }
        }
        if next != Kind::Run {
            return Err(format!("{said_at}: no block of commands follows"));
        }
        Ok(page)
    }

    /// Takes a comment to the test, of one line. Returns what it says about the next block.
    fn take_comment(&mut self, comment: &str, line: usize) -> Result<Kind, String> {
        let text = comment.trim_start_matches("<!-- test:").trim_end_matches("-->").trim();
        if text == "fails" {
            return Ok(Kind::Fails);
        }
        if text.strip_prefix("not run:").is_some_and(|reason| !reason.trim().is_empty()) {
            return Ok(Kind::NotRun);
        }
        let needs =
            text.strip_prefix("needs ").ok_or_else(|| format!("{line}: unknown comment to the test: {text}"))?;
        self.needs.extend(needs.split_whitespace().map(str::to_owned));
        Ok(Kind::Run)
    }

    /// Returns the script of the page. The output of each step goes to a file `out.LINE` in a directory.
    fn script(&self, dir: &Path) -> String {
        let dir = dir.display();
        let mut script = prelude(&dir.to_string());
        for Step { line, kind, commands, .. } in self.steps.iter().filter(|step| step.kind != Kind::NotRun) {
            writeln!(script, "echo {line} >{dir}/at").expect("a string grows");
            let part = match kind {
                Kind::Fails => {
                    format!(
                        "set +e\n(\nset -e\n{commands}\n) >{dir}/out.{line} 2>&1\nfailed=$?\nset -e\n[ $failed != 0 ]\n"
                    )
                }
                _ => format!("{{\n{commands}\n}} >{dir}/out.{line} 2>&1\n"),
            };
            script.push_str(&part);
        }
        writeln!(script, "echo end >{dir}/at").expect("a string grows");
        script
    }

    /// Panics if the script has failed, or a step has printed anything else than the page says.
    #[track_caller]
    fn judge(&self, path: &str, dir: &Path, outcome: &Outcome) {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        let at = read("at");
        assert!(
            outcome.status.success() && at.trim() == "end",
            "{path}:{}: the commands from this line on have failed ({}), and printed:\n{}\n--- outside of them:\n{}{}",
            at.trim(),
            outcome.status,
            read(&format!("out.{}", at.trim())),
            outcome.stdout,
            outcome.stderr
        );
        for Step { line, output, .. } in &self.steps {
            let printed = read(&format!("out.{line}"));
            if let Some(output) = output {
                assert!(
                    is_like(output, &printed),
                    "{path}:{line}: the page says that this is printed:\n{output}\n--- and this was:\n{printed}"
                );
            }
        }
    }
}

/// Returns the beginning of each script: what a page finds.
fn prelude(dir: &str) -> String {
    let nvfold = std::fs::canonicalize(binary()).expect("the binary is there");
    let mut text = format!("set -euo pipefail\nNVFOLD={}\necho beginning >{dir}/at\n", nvfold.display());
    text.push_str(&format!("mkdir {dir}/sbin {dir}/helpers {dir}/etc\ncp -a /etc/. {dir}/etc\n"));
    text.push_str(&format!("mount --bind {dir}/etc /etc\nsbin=$(readlink -f /sbin)\nmount --bind $sbin {dir}/sbin\n"));
    text.push_str(&format!("mount -t tmpfs -o mode=755 none {dir}/helpers\n"));
    text.push_str(&format!("ln -s {dir}/sbin/* {dir}/helpers/\n"));
    text.push_str("for name in mount mount.fuse umount umount.fuse mkfs fsck; do\n");
    text.push_str(&format!("ln -sf $NVFOLD {dir}/helpers/$name.nvfold\ndone\n"));
    text.push_str(&format!("ln -s $NVFOLD {dir}/helpers/nvfold\nmount --bind {dir}/helpers $sbin\n"));
    for name in EMPTY {
        text.push_str(&format!("mount -t tmpfs -o mode=755 none /{name}\n"));
    }
    text.push_str("mkdir /run/lock /run/mount\nexport HOME=/root PATH=$sbin:$PATH LC_ALL=C.UTF-8\ncd /root\n");
    text
}

/// Returns true if a text is what a page says, where `...` stands for any text, and a line of `...` for any lines.
fn is_like(page: &str, text: &str) -> bool {
    let page: Vec<&str> = page.lines().map(str::trim_end).collect();
    let text: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines_are_like(&page, &text)
}

fn lines_are_like(page: &[&str], text: &[&str]) -> bool {
    match (page, text) {
        ([], []) => true,
        (["...", rest @ ..], _) => (0..=text.len()).any(|skipped| lines_are_like(rest, &text[skipped..])),
        ([wanted, page @ ..], [line, text @ ..]) => line_is_like(wanted, line) && lines_are_like(page, text),
        _ => false,
    }
}

fn line_is_like(page: &str, line: &str) -> bool {
    let Some((before, after)) = page.split_once("...") else { return page == line };
    let Some(rest) = line.strip_prefix(before) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_is_like(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n<!-- test: needs tar -->\n<!-- test\nmkdir a\n-->\n\n```sh\nls\n```\nprints\n\n```text\na\n```\n\n\
                        ```toml\n```\n<!-- test: not run: no systemd here -->\n```sh\nsystemctl\n```\n\n```text\nx\n```\n\
                        <!-- test: fails -->\n```sh\nfalse\n```\n";

    #[test]
    fn the_blocks_and_comments_of_a_page_become_steps() {
        let page = Page::parse(PAGE).expect("it is well-formed");
        let step = |line, kind, commands: &str, output: Option<&str>| Step {
            line,
            kind,
            commands: commands.into(),
            output: output.map(str::to_owned),
        };
        let wanted = [
            step(4, Kind::Run, "mkdir a\n", None),
            step(8, Kind::Run, "ls\n", Some("a\n")),
            step(20, Kind::NotRun, "systemctl\n", None),
            step(28, Kind::Fails, "false\n", None),
        ];
        assert_eq!(page, Page { steps: wanted.into(), needs: vec!["tar".into()] });
    }

    #[test]
    fn a_page_with_an_open_block_or_an_unknown_comment_is_refused() {
        for page in ["```sh\nls\n", "<!-- test\nls\n", "<!-- test: fails -->\n", "<!-- test: not run: -->\n"] {
            assert!(Page::parse(page).is_err_and(|error| error.starts_with("1: ")), "{page}");
        }
    }

    #[test]
    fn three_dots_stand_for_any_text() {
        assert!(is_like("a ... c\n...\nend\n", "a b and c\n1\n2\nend \n"));
        assert!(is_like("took ... ms, ...\n", "took 1.5 ms, fine\n") && is_like("...\n", "") && is_like("", ""));
        assert!(!is_like("a\n", "b\n") && !is_like("a\n", "a\nb\n") && !is_like("a...b\n", "ab c\n"));
    }

    #[test]
    fn a_command_that_fails_fails_the_page() {
        crate::requires!(root, tool("unshare"));
        let judged = |text: &str| {
            let page = Page::parse(text).expect("it is well-formed");
            let scratch = Scratch::new();
            let outcome = run::run(&mut in_own_namespaces(&scratch, &page.script(scratch.path())));
            std::panic::catch_unwind(|| page.judge("the page", scratch.path(), &outcome))
        };
        let fine = "```sh\nx=1\ncd /srv\n```\n```sh\necho $x $PWD\n```\n```text\n1 /srv\n```\n\
                    <!-- test: fails -->\n```sh\nfalse\ntrue\n```\n```sh\nsleep 1000 &\nexit 0\n```\n";
        let why = |judged: std::thread::Result<()>| *judged.expect_err("it fails").downcast::<String>().expect("text");
        assert!(why(judged(fine)).contains("the page:17"), "a script that ends itself has not run the page");
        let fine = fine.replace("exit 0", "");
        judged(&fine).expect("nothing fails");
        assert!(why(judged("\n\n```sh\ntrue\nls /nowhere\ntrue\n```\n")).contains("the page:4: "));
        assert!(why(judged("```sh\nfalse | true\n```\n")).contains("the page:2: "));
        assert!(why(judged("```sh\necho a\n```\n```text\nb\n```\n")).contains("the page:2: the page says"));
        assert!(why(judged("<!-- test: fails -->\n```sh\ntrue\n```\n")).contains("the page:3: "));
    }
}
