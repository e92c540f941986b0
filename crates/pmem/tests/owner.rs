//! A device that another process owns.

use pmem::{DeviceSpec, OpenOptions, PmemError, Region};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn spec(path: &Path) -> DeviceSpec {
    DeviceSpec::Path(path.into())
}

/// Not a test: the other process of the next one. It holds the device that its environment names until its input ends.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_holds_a_device() {
    let Some(path) = std::env::var_os("PMEM_TEST_DEVICE") else { return };
    let options = OpenOptions::default();
    let _region = Region::open(&spec(Path::new(&path)), &options).unwrap();
    println!("holding");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn a_device_is_busy_until_its_owner_process_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let options = OpenOptions::default();
    let create = |bytes| Region::create(&spec(&path), bytes, &options);
    drop(create(8192).unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["owner::child_that_holds_a_device", "--exact", "--ignored", "--nocapture"])
        .env("PMEM_TEST_DEVICE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("holding")));
    let error = Region::open(&spec(&path), &options).unwrap_err();
    assert!(matches!(&error, PmemError::Busy { owner, .. } if owner.contains(&child.id().to_string())), "{error}");
    let resized = create(4096).unwrap_err();
    assert_eq!(resized.errno(), 16);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192, "nothing of another's device is changed");
    child.kill().unwrap();
    child.wait().unwrap();
    Region::open(&spec(&path), &options).unwrap();
}
