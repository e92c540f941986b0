//! `nvfold remove`, of a mount and of a device.

use crate::common::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Makes a tree with files, directories and links in `dir`.
fn plant(dir: &Path) {
    fs::create_dir_all(dir.join("one/two/three")).unwrap();
    for at in 0..200 {
        fs::write(dir.join(format!("one/file {at}")), noise(5000, at + 1)).unwrap();
    }
    fs::write(dir.join("one/two/three/leaf"), noise(9000, 7)).unwrap();
    fs::hard_link(dir.join("one/two/three/leaf"), dir.join("one/leaf")).unwrap();
}

fn removing(scratch: &Scratch, target: &str) -> (u64, u64) {
    let stats = scratch.nvfold(&["stats", target, "--json"]).ok().json();
    let figure = |name: &str| stats["space"][name].as_u64().unwrap();
    (figure("removing_directories") + figure("removing_files"), figure("inodes"))
}

#[test]
fn a_tree_is_removed_from_a_device_and_nothing_of_it_stays() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("in")).unwrap();
    plant(&scratch.path("in"));
    scratch.nvfold(&["import", "dev", "in"]).ok();
    let told = scratch.nvfold(&["remove", "dev", "--at", "/in/one/two", "--at", "/in"]).ok();
    assert!(told.stdout.contains("removed 2 directories: /in/one/two, /in"), "{told:#?}");
    assert_eq!(removing(&scratch, "dev"), (0, 1));
    scratch.nvfold(&["remove", "dev"]).fails(1, "the root stays");
    scratch.nvfold(&["remove", "dev", "--at", "/none"]).fails(1, "/none");
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn a_tree_is_removed_from_a_mount_at_once_and_what_is_open_lives_on() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=inline");
    plant(&mount.path(""));
    fs::hard_link(mount.path("one/file 3"), mount.path("kept")).unwrap();
    assert_eq!(fs::metadata(mount.path("kept")).unwrap().nlink(), 2);
    let mut open = fs::File::open(mount.path("one/two/three/leaf")).unwrap();
    symlink("one", mount.path("link")).unwrap();
    scratch.nvfold(&["remove", "mnt/link"]).fails(1, "is a symbolic link");
    scratch.nvfold(&["remove", "mnt/kept"]).fails(1, "is no directory");
    scratch.nvfold(&["remove", "mnt"]).fails(1, "remove what is in it");
    let told = scratch.nvfold(&["remove", "mnt/one", "--json"]).ok();
    assert_eq!(told.json()["removed"][0], "mnt/one");
    // The name is free at once.
    assert_eq!(fs::metadata(mount.path("one")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    fs::create_dir(mount.path("one")).unwrap();
    // The root, `one`, `kept`, `link`, and what is open with the directories that lead to it.
    wait_until("the tree is freed", || removing(&scratch, "mnt") == (0, 8));
    wait_until("the kernel knows the link count", || fs::metadata(mount.path("kept")).unwrap().nlink() == 1);
    assert!(fs::read(mount.path("kept")).unwrap() == noise(5000, 4));
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert!(bytes == noise(9000, 7));
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    drop(open);
    wait_until("the last file is freed", || removing(&scratch, "mnt") == (0, 4));
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

/// As `rm -r` could.
#[test]
fn a_user_removes_trees_that_are_his_and_no_others() {
    if !can_mount() || fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,allow_other");
    let nobody = |words: &[&str]| {
        let command = env!("CARGO_BIN_EXE_nvfold");
        scratch.run("setpriv", &[&["--reuid=65534", "--regid=65534", "--clear-groups", command], words].concat())
    };
    let mode = |path: &str, bits| fs::set_permissions(mount.path(path), fs::Permissions::from_mode(bits)).unwrap();
    let own = |path: &str| std::os::unix::fs::chown(mount.path(path), Some(65534), Some(65534)).unwrap();
    for top in ["theirs", "his", "open"] {
        plant(&mount.path(top));
    }
    mode("", 0o755);
    nobody(&["remove", "mnt/theirs"]).fails(1, "write permission is needed");
    // The parent allows it, and a directory below does not.
    mode("", 0o777);
    for path in ["his", "his/one", "his/one/two"] {
        own(path);
    }
    nobody(&["remove", "mnt/his"]).fails(1, "write permission is needed");
    own("his/one/two/three");
    nobody(&["remove", "mnt/his"]).ok();
    for path in ["open", "open/one", "open/one/two", "open/one/two/three"] {
        mode(path, 0o777);
    }
    mode("", 0o1777);
    nobody(&["remove", "mnt/open"]).fails(1, "sticky bit");
    mode("", 0o777);
    mode("open/one", 0o1777);
    nobody(&["remove", "mnt/open"]).fails(1, "sticky bit");
    mode("open/one", 0o777);
    // The ACL decides: user 65534 may not write, and then he may, and all others may not.
    let acl = |entry: &str| scratch.run("setfacl", &["-m", entry, "mnt/open/one/two"]).ok();
    acl("u:65534:rx");
    nobody(&["remove", "mnt/open"]).fails(1, "write permission is needed");
    acl("u:65534:rwx,o::-");
    nobody(&["remove", "mnt/open"]).ok();
    assert!(mount.path("theirs/one/two/three/leaf").is_file() && !mount.path("open").exists());
    scratch.nvfold(&["remove", "mnt/theirs"]).ok();
    mount.unmount();
}
