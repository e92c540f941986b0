//! Whose files are opened as a device, and with which permissions.

use pmem::{DeviceSpec, OpenOptions, PmemError, Region, Trust};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const ME: u32 = 65534;
const OTHER: u32 = 4711;

fn open(path: &Path, trust: Trust) -> Result<Region, PmemError> {
    Region::open(&DeviceSpec::Path(path.into()), &OpenOptions { trust, read_only: true, ..OpenOptions::default() })
}

/// Owner, mode, and what `Any`, `Owner` and `OwnerAlone` say: `.` opened, `f` foreign, `o` open to others.
const FILES: [(u32, u32, &str); 14] = [
    (ME, 0o600, "..."),
    (ME, 0o400, "..."),
    (ME, 0o700, "..."),
    (ME, 0o640, "..o"),
    (ME, 0o620, "..o"),
    (ME, 0o610, "..."),
    (ME, 0o604, "..o"),
    (ME, 0o602, "..o"),
    (ME, 0o644, "..o"),
    (ME, 0o666, "..o"),
    (0, 0o644, "..o"),
    (0, 0o666, "..o"),
    (OTHER, 0o644, ".ff"),
    (OTHER, 0o666, ".ff"),
];

#[test]
#[cfg_attr(miri, ignore = "it makes files")]
fn the_trust_in_a_device_file_follows_its_owner_and_mode() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "only root makes files of others");
        return eprintln!("skipped: only root makes files of others");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = |path: &Path| {
        let of = |trust| match open(path, trust) {
            Ok(_) => '.',
            Err(PmemError::ForeignOwner { uid: OTHER, .. }) => 'f',
            Err(PmemError::OpenToOthers { .. }) => 'o',
            Err(error) => panic!("{}: {error}", path.display()),
        };
        [Trust::Any, Trust::Owner, Trust::OwnerAlone].map(of).iter().collect::<String>()
    };
    let check = |me: u32| {
        // This thread, and no other, becomes that user.
        let uid = rustix::thread::Uid::from_raw(me);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        for (owner, mode, expected) in FILES {
            let path = dir.path().join(format!("{owner}-{mode:o}"));
            let (is_mine, is_link) = (owner == me || owner == 0, dir.path().join(format!("link-{owner}-{mode:o}")));
            // Root trusts root alone; user ME is another to it.
            let expected = if is_mine || owner == OTHER { expected } else { "" };
            if expected.is_empty() {
                let error = open(&path, Trust::Owner).unwrap_err();
                assert!(matches!(error, PmemError::ForeignOwner { uid: ME, .. }), "{error}");
                continue;
            }
            assert_eq!(said(&path), expected, "user {me}, {owner}, mode {mode:o}");
            assert_eq!(said(&is_link), ".ff", "user {me}, {owner}, mode {mode:o}: a link that another user made");
        }
    };
    for (owner, mode, _) in FILES {
        let path = dir.path().join(format!("{owner}-{mode:o}"));
        fs::write(&path, [0; 4096]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
        let link = dir.path().join(format!("link-{owner}-{mode:o}"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(OTHER), None).unwrap();
    }
    for me in [ME, 0] {
        std::thread::scope(|scope| scope.spawn(|| check(me)).join().unwrap());
    }
}

#[test]
#[cfg_attr(miri, ignore = "it makes files")]
fn a_new_device_file_is_private_and_never_created_through_a_symlink() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let create = |path: &Path| Region::create(&DeviceSpec::Path(path.into()), 8192, &OpenOptions::default());
    drop(create(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("missing"), &link).unwrap();
    assert_eq!(create(&link).unwrap_err().errno(), 2);
    assert!(!dir.path().join("missing").exists(), "nothing is made where a link leads");
}
