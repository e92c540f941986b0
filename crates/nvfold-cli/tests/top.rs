//! `nvfold top` on a real mount: on a pseudo-terminal, whose screen is read, and in lines.

use crate::common::{Scratch, can_mount, noise, process_lives, wait_until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{ControlModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// The command on a terminal of its own.
/// Bits of the control modes: the speed of the input.
const CIBAUD: u32 = 0o2_003_600_000;

pub(crate) struct Terminal {
    master: File,
    slave: File,
    before: Termios,
    child: Child,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts it on a terminal that is its controlling one: its size is asked for there, and a change of the size is told
    /// there.
    pub(crate) fn start(scratch: &Scratch, columns: u16, rows: u16, arguments: &[&str]) -> Terminal {
        Terminal::start_with(scratch, columns, rows, arguments, None)
    }

    /// The same, with this value of NO_COLOR.
    pub(crate) fn start_with(
        scratch: &Scratch,
        columns: u16,
        rows: u16,
        arguments: &[&str],
        no_color: Option<&str>,
    ) -> Terminal {
        let mut command = Command::new("setsid");
        command.env_remove("NO_COLOR");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_nvfold")).args(arguments);
        Terminal::run(scratch, columns, rows, &mut command)
    }

    fn run(scratch: &Scratch, columns: u16, rows: u16, command: &mut Command) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, window(columns, rows)).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let child = command
            .current_dir(scratch.path("."))
            .env("TERM", "xterm-256color")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave.try_clone().unwrap())
            .spawn()
            .expect("setsid, of util-linux, is needed");
        let flags = rustix::fs::fcntl_getfl(&master).unwrap();
        rustix::fs::fcntl_setfl(&master, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        let screen = vt100::Parser::new(rows, columns, 0);
        Terminal { master: master.into(), slave, before, child, screen }
    }

    /// Takes in what the command has written, and gives what the screen shows now.
    fn contents(&mut self) -> String {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.master.read(&mut buffer) {
            self.screen.process(&buffer[..length]);
        }
        self.screen.screen().contents()
    }

    /// Returns whether anything on the screen has a colour.
    pub(crate) fn has_colour(&self) -> bool {
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells.filter_map(|(row, column)| screen.cell(row, column)).any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    pub(crate) fn wait_for(&mut self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let mut contents = String::new();
        wait_until(what, || {
            contents = self.contents();
            is_shown(&contents)
        });
        contents
    }

    /// Waits until each text is shown in the row that begins with its name; without a name, anywhere. All at once: a screen may
    /// be looked at while it is drawn.
    fn wait_for_rows(&mut self, what: &str, expected: &[(&str, &str)]) -> String {
        let is_shown = |screen: &str, (name, text): &(&str, &str)| match *name {
            "" => screen.contains(text),
            name => row(screen, name).contains(text),
        };
        self.wait_for(what, |screen| expected.iter().all(|one| is_shown(screen, one)))
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, after which the terminal must be as it was.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let pid = self.child.id();
        wait_until("the command ends", || {
            self.contents();
            !process_lives(pid)
        });
        let left = self.contents();
        let status = self.child.wait().unwrap();
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen(), "the screen of before is back");
        assert!(!screen.hide_cursor(), "the cursor is back");
        let (before, after) = (&self.before, tcgetattr(&self.slave).unwrap());
        assert_eq!((before.local_modes, before.input_modes), (after.local_modes, after.input_modes));
        // The speed of the input may be said now, which was "that of the output" before.
        let control_modes = |modes: ControlModes| modes - ControlModes::from_bits_retain(CIBAUD);
        let (before_modes, after_modes) = (control_modes(before.control_modes), control_modes(after.control_modes));
        assert_eq!((before.output_modes, before_modes), (after.output_modes, after_modes));
        (status, left)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Only after a failed assertion is it still there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn window(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The row of the screen that begins with a name.
fn row<'a>(screen: &'a str, name: &str) -> &'a str {
    screen.lines().find(|line| line.starts_with(name)).unwrap_or_default()
}

fn write(path: impl AsRef<Path>, data: &[u8]) {
    fs::write(&path, data).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn top_follows_a_mount_and_restores_the_terminal() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=inline");
    let mut terminal = Terminal::start(&scratch, 100, 30, &["top", "mnt", "--interval", "0.2"]);
    let idle = [("writes", "0 B in all"), ("mem:", "64 MiB"), ("", "policy inline"), ("", "every 0.2 s")];
    terminal.wait_for_rows("figures are shown", &idle);

    let data = noise(4 << 20, 1);
    write(mount.path("one"), &data);
    write(mount.path("two"), &data);
    let busy = [("writes", "8 MiB in all"), ("", "4 MiB (50.0 %) of 8 MiB"), ("inline", "1024 of 2048 (50.0 %)")];
    terminal.wait_for_rows("the writes are seen", &busy);
    terminal.wait_for("it is quiet again", |screen| row(screen, "writes").contains(" 0/s"));

    terminal.press("q");
    let (status, _) = terminal.end();
    assert!(status.success(), "{status}");
    mount.unmount();
}

#[test]
fn top_shows_a_queue_that_grows_and_shrinks() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=denova,index=pm");
    scratch.nvfold(&["dedup", "--pause", "mnt"]).ok();
    let mut terminal = Terminal::start(&scratch, 100, 30, &["top", "mnt", "--interval", "0.2"]);
    let paused = [
        ("queue", "empty"),
        ("", "queue of policy denova, mode immediate, paused"),
        ("index", "pm by xxh3, 0 entries"),
    ];
    terminal.wait_for_rows("figures are shown", &paused);
    let data = noise(4 << 20, 1);
    write(mount.path("one"), &data);
    write(mount.path("two"), &data);
    terminal.wait_for("the queue has grown", |screen| row(screen, "queue").contains("entries, 8 MiB, the oldest"));
    scratch.nvfold(&["dedup", "--resume", "mnt"]).ok();
    let done = [
        ("queue", "empty"),
        ("since mount", "4 MiB shared"),
        ("", "4 MiB (50.0 %) of 8 MiB"),
        ("index", "1024 entries"),
        ("denova", "1024 of 2048 (50.0 %)"),
    ];
    let done = terminal.wait_for_rows("the queue is worked off", &done);
    assert!(!done.contains("paused"), "{done}");
    terminal.press("q");
    assert!(terminal.end().0.success());
    mount.unmount();
}

#[test]
fn top_restores_the_terminal_after_a_signal_and_after_an_unmount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    let mut terminal = Terminal::start(&scratch, 80, 24, &["top", "mnt", "--interval", "0.2"]);
    terminal.wait_for("figures are shown", |screen| row(screen, "writes").contains("in all"));
    let pid = rustix::process::Pid::from_raw(terminal.child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let (status, _) = terminal.end();
    assert_eq!(status.signal(), Some(rustix::process::Signal::TERM.as_raw()), "{status}");

    let mut terminal = Terminal::start(&scratch, 80, 24, &["top", "mnt", "--interval", "0.2"]);
    terminal.wait_for("figures are shown", |screen| row(screen, "writes").contains("in all"));
    mount.unmount();
    let (status, left) = terminal.end();
    assert_eq!(status.code(), Some(1));
    assert!(left.contains("no nvfold is mounted there"), "{left}");
}

#[test]
fn top_ends_when_its_terminal_is_gone_without_a_signal() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    // Not the controlling terminal, so the kernel sends no SIGHUP.
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfold"));
    let mut terminal = Terminal::run(&scratch, 80, 24, command.args(["top", "mnt", "--interval", "3600"]));
    terminal.wait_for("the screen is shown", |screen| row(screen, "writes").contains("in all"));
    let Terminal { child, master, .. } = &mut terminal;
    *master = File::open("/dev/null").unwrap();
    let mut status = None;
    wait_until("the command ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(rustix::process::Signal::HUP.as_raw()));
    mount.unmount();
}

#[test]
fn top_shows_text_on_a_small_terminal_until_it_grows() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    let mut terminal = Terminal::start(&scratch, 40, 10, &["top", "mnt", "--interval", "0.2"]);
    let is_whole = |screen: &str| screen.contains("q quit") && row(screen, "policy").contains("auto");
    terminal.wait_for("figures are shown as text", is_whole);
    tcsetwinsize(&terminal.master, window(80, 24)).unwrap();
    terminal.screen.screen_mut().set_size(24, 80);
    terminal.wait_for("figures are shown", |screen| row(screen, "writes").contains("in all"));
    terminal.press("\x03");
    assert!(terminal.end().0.success());
    mount.unmount();
}

#[test]
fn a_mount_can_be_opened_from_the_list_of_all_mounts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=off");
    let dir = mount.dir.display().to_string();
    let mut terminal = Terminal::start(&scratch, 120, 40, &["top", "--interval", "0.2"]);
    terminal.wait_for_rows("the mount is listed", &[(&dir, "off"), ("", "mounted on"), ("", "Enter")]);
    // Other tests mount too: ours is somewhere in the list.
    let mounts = std::iter::once("\r").chain(["\x1bOB\r"; 100]);
    for keys in mounts {
        terminal.press(keys);
        let opened = terminal.wait_for("one is shown", |screen| screen.contains("Esc back to the list"));
        if opened.contains(&format!("nvfold top: {dir} ")) {
            break;
        }
        terminal.press("\x1b");
        terminal.wait_for("the list is back", |screen| screen.contains("mounted on"));
    }
    assert!(terminal.contents().contains(&format!("nvfold top: {dir} ")));
    terminal.press("q");
    assert!(terminal.end().0.success());
    mount.unmount();
}

#[test]
fn top_prints_lines_and_json_for_scripts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=inline");
    write(mount.path("file"), &noise(1 << 20, 2));
    let once = scratch.nvfold(&["top", "mnt", "--once", "--interval", "0.1"]).ok().stdout;
    for name in ["mount", "writes", "reads", "saved", "index", "transactions", "lines", "wear", "inline", "nv-dedup"] {
        assert!(once.lines().any(|line| line.trim_start().starts_with(name)), "`{name}` is not in {once}");
    }
    let json = scratch.nvfold(&["top", "mnt", "--once", "--json", "--interval", "0.1"]).ok().json();
    let figures = &json["mounts"][0];
    assert_eq!(figures["mount_point"], mount.dir.to_str().unwrap());
    assert_eq!(figures["requests"]["bytes_written"], 1 << 20);
    assert_eq!(figures["policies"]["inline"]["offered"], 256);
    assert!(figures["wear"]["lines_written"].as_u64().unwrap() >= (1 << 20) / 64, "{figures}");

    // A stream of lines ends with its reader.
    let mut stream = Command::new(env!("CARGO_BIN_EXE_nvfold"))
        .args(["top", "mnt", "--json", "--interval", "0.1"])
        .current_dir(scratch.path("."))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&line["version"], &line["command"]), (&2.into(), &"top".into()));
        assert!(line["mounts"][0]["seconds"].as_f64().unwrap() >= 0.1, "{line}");
    }
    drop(lines);
    assert!(stream.wait().unwrap().success());
    mount.unmount();
}

/// 150 ns and 6 nJ a byte written (DeEXT Tables I and II), all from counters.
#[test]
fn stats_and_top_show_energy_and_wear_of_an_emulated_device() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.nvfold(&["mkfs", "device", "--size", "192M"]).ok();
    let mount = scratch.mount("device", "policy=deext,profile=pcm");
    for round in 0..3 {
        write(mount.path("file"), &noise(4 << 20, round));
    }
    let stats = scratch.nvfold(&["stats", "mnt", "--json"]).ok().json();
    let (traffic, wear) = (&stats["traffic"], &stats["wear"]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {stats}"));
    let written = number(&traffic["bytes_streamed"]) + 64.0 * number(&traffic["lines_flushed"]);
    let joules = (6.0 * written + number(&traffic["bytes_read"])) / 1e9;
    assert!(written >= (12 << 20) as f64 && (number(&traffic["joules"]) / joules - 1.0).abs() < 1e-9, "{traffic}");
    let charged_ns = 150.0 * written + 50.0 * number(&traffic["bytes_read"]);
    assert!((number(&traffic["charged_ns"]) / charged_ns - 1.0).abs() < 1e-6, "{traffic}");
    assert!(number(&wear["opened_max"]) >= 1.0 && number(&wear["opened"]) >= 6.0, "{wear}");
    assert_eq!(number(&wear["endurance_used"]), number(&wear["opened_max"]) / 1e10);
    assert!(number(&wear["lifetime_years"]) > 0.0, "{wear}");
    let text = scratch.nvfold(&["stats", "mnt"]).ok().stdout;
    for name in ["lines written", "time charged", "energy", "wear, segments", "wear, endurance"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(name)), "`{name}` is not in {text}");
    }
    let top = scratch.nvfold(&["top", "mnt", "--once", "--json", "--interval", "0.1"]).ok().json();
    assert!(number(&top["mounts"][0]["energy"]["joules"]) >= joules, "{top}");
    mount.unmount();
    // Wear outlives the mount; energy is of a mount.
    let stats = scratch.nvfold(&["stats", "device", "--json"]).ok().json();
    assert!(stats["wear"]["opened"].as_u64().unwrap() >= 6 && stats["traffic"].is_null(), "{stats}");
    assert!(stats["wear"]["endurance_writes"].is_null(), "{stats}");
}

#[test]
fn top_explains_wrong_usage() {
    let scratch = Scratch::new();
    scratch.nvfold(&["top", "."]).fails(1, "no nvfold is mounted there");
    scratch.nvfold(&["top", "all", "--interval", "0"]).code_is(2);
    if can_mount() {
        let mount = scratch.mount("mem:", "size=64M");
        let run = scratch.nvfold(&["top", "mnt"]).fails(2, "stdout is not a terminal");
        assert!(run.stderr.contains("--once"), "{run:#?}");
        mount.unmount();
    }
}
