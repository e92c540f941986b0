//! Hints: a process says where the bytes come from that it is going to write to a file of a mount. A true hint saves
//! space, a wrong one costs only a compare, and no hint reveals data that the process may not read.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nvfold_tests::mount::{Mount, nvfold_json};
use nvfold_tests::probe::compiled;
use nvfold_tests::random::Seed;
use nvfold_tests::{requires, run};

/// A mount with a file of random bytes in it, and the program that sends hints.
struct House {
    mount: Mount,
    program: PathBuf,
    source: PathBuf,
    bytes: Vec<u8>,
    /// Bytes shared before any hint: a page that the kernel writes twice is a copy of itself, which the samples find.
    shared_before: u64,
}

const SOURCE_BYTES: usize = 1 << 20;

impl House {
    fn new(options: &str) -> House {
        let mount = Mount::with_options(64, options);
        let program = compiled("hints", mount.scratch());
        let source = mount.join("source");
        let mut bytes = vec![0; SOURCE_BYTES];
        // No zeros, which would become holes.
        Seed::new("hints").generator().fill(&mut bytes);
        fs::write(&source, &bytes).expect("write the source");
        let mut house = House { mount, program, source, bytes, shared_before: 0 };
        house.shared_before = house.shared();
        house
    }

    /// Runs the program and returns what it printed.
    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        run::ok(Command::new(&self.program).args(words)).stdout.trim().to_owned()
    }

    /// Copies bytes of the source to a file, with a hint that they were copied from `claimed` on.
    #[track_caller]
    fn copy(&self, from: usize, length: usize, target: &Path, at: usize, claimed: u64) -> String {
        let number = |number: usize| number.to_string();
        let (source, target) = (self.source.to_str().unwrap(), target.to_str().unwrap());
        self.run(&["copy", source, &number(from), &number(length), target, &number(at), &claimed.to_string()])
    }

    /// Returns the bytes of files that are shared through hints, after the kernel has written its cached data to the
    /// server.
    fn shared(&self) -> u64 {
        run::ok(Command::new("sync").arg("-f").arg(self.mount.path()));
        nvfold_json(&["stats", "--json"], &[self.mount.path()])["origins"]["shared_bytes"]
            .as_u64()
            .expect("origins in stats")
            - self.shared_before
    }

    /// Checks the content of the files, also when they are read from the device.
    fn check(mut self, target: &Path, expected: &[u8]) {
        assert!(fs::read(target).unwrap() == expected, "as written");
        self.mount.remount();
        assert!(fs::read(target).unwrap() == expected, "as stored");
        self.mount.check();
    }
}

#[test]
fn bytes_with_a_hint_are_shared_at_any_offset() {
    requires!(fuse, tool("cc"));
    for writeback in ["on", "off"] {
        let house = House::new(&format!("policy=icid,writeback={writeback}"));
        let target = house.mount.join("target");
        fs::write(&target, b"a few bytes in front").unwrap();
        assert_eq!(house.copy(1001, 300_000, &target, 20, 1001), "");
        assert_eq!(house.shared(), 300_000, "writeback={writeback}");
        let expected = [&b"a few bytes in front"[..], &house.bytes[1001..301_001]].concat();
        house.check(&target, &expected);
    }
}

#[test]
fn a_hint_may_use_a_file_as_its_own_source() {
    requires!(fuse, tool("cc"));
    let house = House::new("policy=icid");
    let source = house.source.clone();
    assert_eq!(house.copy(7, 100_000, &source, 500_003, 7), "");
    assert_eq!(house.shared(), 100_000);
    let mut expected = house.bytes.clone();
    expected.copy_within(7..100_007, 500_003);
    house.check(&source, &expected);
}

#[test]
fn a_wrong_hint_costs_only_a_compare() {
    requires!(fuse, tool("cc"));
    // Each write goes to the server once, unchanged.
    let house = House::new("policy=icid,writeback=off");
    let target = house.mount.join("target");
    for (n, claimed) in [5000, SOURCE_BYTES as u64 - 10, SOURCE_BYTES as u64, (1 << 48) - 1].into_iter().enumerate() {
        assert_eq!(house.copy(n * 1000, 1000, &target, n * 1000, claimed), "");
    }
    assert_eq!(house.shared(), 0);
    let expected = house.bytes[..4000].to_vec();
    house.check(&target, &expected);
}

#[test]
fn a_source_changed_or_removed_after_its_hint_is_not_shared() {
    requires!(fuse, tool("cc"));
    for gone in [true, false] {
        let house = House::new("policy=icid,writeback=on");
        let target = house.mount.join("target");
        // The bytes of the target wait in the kernel's cache meanwhile.
        house.copy(0, 100_000, &target, 0, 0);
        if gone {
            fs::remove_file(&house.source).unwrap();
        } else {
            fs::write(&house.source, vec![7; SOURCE_BYTES]).unwrap();
        }
        let expected = house.bytes[..100_000].to_vec();
        house.check(&target, &expected);
    }
}

#[test]
fn malformed_hints_are_refused() {
    requires!(fuse, tool("cc"));
    let house = House::new("policy=icid");
    let source = house.source.to_str().unwrap();
    for bytes in ["0", "1", "15", "16", "100", "16383"] {
        assert_eq!(house.run(&["pass", source, bytes]), "EINVAL", "{bytes} bytes");
    }
    for number in ["0x4030e602", "0x8030e601", "0x40300001"] {
        assert_eq!(house.run(&["ask", source, number]), "ENOTTY", "{number}");
    }
    assert_eq!(house.run(&["token", source]), "told");
    let attribute = |how: &[&str]| run::run(Command::new("setfattr").args(how).arg(&house.source)).code();
    assert_ne!(attribute(&["-n", "user.nvfold.token", "-v", "x"]), 0, "a token cannot be set");
    assert_ne!(attribute(&["-x", "user.nvfold.token"]), 0, "a token cannot be removed");
}

#[test]
fn a_hint_for_a_file_whose_policy_ignores_origins_is_refused() {
    requires!(fuse, tool("cc"));
    let house = House::new("policy=inline");
    let target = house.mount.join("target");
    assert_eq!(house.copy(1, 10_000, &target, 0, 1), "EOPNOTSUPP");
    let expected = house.bytes[1..10_001].to_vec();
    house.check(&target, &expected);
}

#[test]
fn a_user_without_read_permission_gets_no_token_of_a_file() {
    requires!(root, fuse, tool("cc"), tool("setpriv"));
    use std::os::unix::fs::PermissionsExt;
    let house = House::new("policy=icid,allow_other");
    fs::set_permissions(&house.source, fs::Permissions::from_mode(0o622)).unwrap();
    let program = house.mount.join("program");
    // A separate process copies the program: a child of another test could inherit a descriptor open for writing, and
    // executing the program would fail.
    run::ok(Command::new("install").args(["-m", "755"]).args([&house.program, &program]));
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).arg("token").arg(&house.source);
    let told = run::ok(&mut stranger);
    assert_eq!(told.stdout.trim(), "EACCES", "{}", told.report());
    let mut house = house;
    house.mount.check();
}

/// The users who try to learn what a file of root holds.
const USER: u32 = 65534;
const OTHER_USER: u32 = 65533;

/// A file of root that everybody may read at first, and what is equal to its content: the guess of another user.
struct Secret {
    house: House,
    program: PathBuf,
    guess: PathBuf,
}

impl Secret {
    fn new(options: &str) -> Secret {
        let house = House::new(&format!("policy=icid,origin_min=64,allow_other,{options}"));
        let (program, guess) = (house.mount.join("program"), house.mount.join("guess"));
        run::ok(Command::new("install").args(["-m", "755"]).args([&house.program, &program]));
        fs::write(&guess, &house.bytes[..GUESS_BYTES]).unwrap();
        // What is equal to the guess is not to be found by samples, only by the hint.
        let mut secret = Secret { house, program, guess };
        secret.house.mount.remount();
        secret.house.shared_before = 0;
        secret.house.shared_before = secret.house.shared();
        secret
    }

    /// Returns a call of the program by a user.
    fn command_as(&self, user: u32) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
        command.arg(&self.program);
        command
    }

    fn token(&self) -> String {
        run::ok(self.command_as(USER).arg("issue").arg(&self.house.source)).stdout.trim().to_owned()
    }

    /// Writes the guess with a token to a new file of a user. The kernel may keep the bytes until the file is closed.
    #[track_caller]
    fn guess_and(&self, user: u32, token: &str, before_close: impl FnOnce()) {
        let dir = self.house.mount.join(format!("of-{user}"));
        if !dir.exists() {
            fs::create_dir(&dir).unwrap();
            std::os::unix::fs::chown(&dir, Some(user), Some(user)).unwrap();
        }
        let target = dir.join("target");
        let _ = fs::remove_file(&target);
        let mut command = self.command_as(user);
        command.args(["guess", token]).args([&self.guess, &target]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the program");
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told, "written\n");
        before_close();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[track_caller]
    fn guess(&self, user: u32, token: &str) {
        self.guess_and(user, token, || {});
    }

    fn chmod(&self, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&self.house.source, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Fewer bytes than lie between two samples.
const GUESS_BYTES: usize = 200;

#[test]
fn a_token_reveals_nothing_once_its_user_may_no_longer_read_the_file() {
    requires!(root, fuse, tool("cc"), tool("setpriv"));
    for writeback in ["on", "off"] {
        let mut secret = Secret::new(&format!("share=all,writeback={writeback}"));
        let mut expected = 0;
        let mut holds = |secret: &Secret, is_shared: bool, when: &str| {
            expected += GUESS_BYTES as u64 * u64::from(is_shared);
            assert_eq!(secret.house.shared(), expected, "writeback={writeback}: {when}");
        };
        let token = secret.token();
        secret.guess(USER, &token);
        holds(&secret, true, "while the file may be read");
        secret.guess(OTHER_USER, &token);
        holds(&secret, false, "the token of another user");
        secret.chmod(0o600);
        secret.guess(USER, &token);
        holds(&secret, false, "the file became private");
        secret.chmod(0o644);
        secret.guess(USER, &token);
        holds(&secret, true, "the file may be read again");
        if writeback == "on" {
            secret.guess_and(USER, &token, || secret.chmod(0o600));
            holds(&secret, false, "the file became private while the bytes waited in the kernel's cache");
            secret.chmod(0o644);
        }
        std::os::unix::fs::chown(&secret.house.source, Some(OTHER_USER), None).unwrap();
        secret.guess(USER, &token);
        holds(&secret, false, "the file has another owner");
        secret.house.mount.check();
    }
}

#[test]
fn with_share_owner_the_token_of_another_owner_shares_nothing() {
    requires!(root, fuse, tool("cc"), tool("setpriv"));
    let mut secret = Secret::new("share=owner");
    secret.guess(USER, &secret.token());
    assert_eq!(secret.house.shared(), 0);
    secret.house.mount.check();
}
