//! `-o share=owner`: what one user of a mount stores cannot be found out by another one who guesses it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvfold_tests::mount::{Mount, nvfold_json};
use nvfold_tests::random::Seed;
use nvfold_tests::{requires, run};

/// Two users that need no account.
const VICTIM: u32 = 64_001;
const ATTACKER: u32 = 64_002;

/// A mount with a directory for each of the two.
struct House {
    mount: Mount,
}

impl House {
    fn new(options: &str) -> House {
        // Ends of files are packed on devices of this size.
        let house = House { mount: Mount::with_options(256, options) };
        fs::set_permissions(house.mount.scratch(), fs::Permissions::from_mode(0o711)).expect("let the users in");
        for uid in [VICTIM, ATTACKER] {
            let home = house.mount.join(uid.to_string());
            fs::create_dir(&home).expect("make a home");
            chown(&home, Some(uid), Some(uid)).expect("give it away");
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("close it");
        }
        house
    }

    /// A user stores this content in a file of his own.
    fn store(&self, uid: u32, name: &str, content: &[u8]) -> PathBuf {
        let given = self.mount.scratch().join(format!("given to {uid}"));
        fs::write(&given, content).expect("write what a user is to store");
        fs::set_permissions(&given, fs::Permissions::from_mode(0o644)).expect("let him read it");
        let path = self.mount.join(uid.to_string()).join(name);
        let mut copy = Command::new("dd");
        copy.arg(format!("if={}", given.display())).arg(format!("of={}", path.display()));
        copy.args(["bs=1M", "conv=fsync", "status=none"]);
        run::ok(copy.uid(uid).gid(uid));
        assert_eq!(fs::read(&path).expect("read as root"), content);
        path
    }

    /// Lets the daemon finish what it has to do.
    fn drain(&self) {
        nvfold_json(&["dedup", "--drain", "--json"], &[self.mount.path()]);
    }

    fn share(&self) -> String {
        nvfold_json(&["info", "--json"], &[self.mount.path()])["share"].as_str().expect("the mount tells").to_owned()
    }
}

/// Returns whether anybody shares what the file holds: root may ask.
fn is_shared(path: &Path) -> bool {
    let mut answer = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(path, "user.nvfold.extents.0", &mut answer[..]).expect("ask for the extents");
    let lines = String::from_utf8_lossy(&answer[..length]).into_owned();
    lines.lines().any(|line| line.split(' ').nth(4).expect("references").parse::<u32>().expect("a number") > 1)
}

/// Contents that a user could guess: a short one, which is packed, a block, and many blocks of noise.
fn secrets() -> [Vec<u8>; 3] {
    let mut noise = vec![0; 300 << 10];
    Seed::new("share").generator().fill(&mut noise);
    [b"My PIN is 4711.\nBye\n".to_vec(), b"The PIN is 4711, and nobody knows. ".repeat(200)[..4096].to_vec(), noise]
}

#[test]
fn a_guessed_block_is_not_shared_with_the_data_of_another_user() {
    requires!(root, fuse);
    for policy in ["auto", "inline", "nv-dedup", "denova", "deext", "icid+inline"] {
        let mut house = House::new(&format!("allow_other,policy={policy}"));
        assert_eq!(house.share(), "owner", "the default of a mount for all");
        for (nth, secret) in secrets().iter().enumerate() {
            let name = |what: &str| format!("{what} {nth}");
            let kept = house.store(VICTIM, &name("secret"), secret);
            for round in ["at once", "drained", "mounted again", "guessed before"] {
                match round {
                    "drained" => house.drain(),
                    "mounted again" => house.mount.remount(),
                    _ => {}
                }
                let guess = house.store(ATTACKER, &name("guess"), secret);
                assert!(!is_shared(&guess) && !is_shared(&kept), "{policy}, {nth}: {round}");
                if round != "mounted again" {
                    fs::remove_file(&guess).expect("remove the guess");
                }
            }
            fs::remove_file(&kept).expect("remove the secret");
        }
        house.mount.check();
    }
}

#[test]
fn equal_data_of_one_user_is_stored_once() {
    requires!(root, fuse);
    for policy in ["inline", "denova", "deext", "icid+inline"] {
        let mut house = House::new(&format!("allow_other,policy={policy}"));
        for (nth, content) in secrets().iter().enumerate() {
            house.store(VICTIM, &format!("one {nth}"), content);
            let two = house.store(VICTIM, &format!("two {nth}"), content);
            house.drain();
            // Short files are packed, and not shared by a policy that shares later.
            assert!(is_shared(&two) || policy == "denova" && nth == 0, "{policy}, {nth}");
        }
        house.mount.check();
    }
}

/// The same guess where sharing across owners was asked for, so that the first test can fail.
#[test]
fn a_mount_may_share_across_owners() {
    requires!(root, fuse);
    let mut house = House::new("allow_other,policy=inline,share=all");
    assert_eq!(house.share(), "all");
    for (nth, secret) in secrets().iter().enumerate() {
        house.store(VICTIM, &format!("secret {nth}"), secret);
        assert!(is_shared(&house.store(ATTACKER, &format!("guess {nth}"), secret)), "{nth}");
    }
    house.mount.check();
    drop(house);
    let house = House::new("noallow_other,policy=inline");
    assert_eq!(house.share(), "all", "one user's own mount");
}

#[test]
fn the_previous_owner_of_a_file_no_longer_finds_its_blocks() {
    requires!(root, fuse);
    for policy in ["inline", "denova", "deext"] {
        let mut house = House::new(&format!("allow_other,policy={policy}"));
        for (nth, content) in secrets().iter().enumerate() {
            let given = house.store(ATTACKER, &format!("given {nth}"), content);
            house.drain();
            chown(&given, Some(VICTIM), Some(VICTIM)).expect("give it away");
            let guess = house.store(ATTACKER, &format!("guess {nth}"), content);
            house.drain();
            assert!(!is_shared(&given) && !is_shared(&guess), "{policy}, {nth}");
        }
        house.mount.check();
    }
}
