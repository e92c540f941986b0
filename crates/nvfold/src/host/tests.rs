//! Import and export of trees without the command: progress, stopping, and failures.

use super::*;
use crate::check::{CheckOptions, check};
use crate::{FileKind, MkfsOptions, MountOptions, NewInode, SetAttr};
use pmem::{DeviceSpec, Region};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const DEVICE_BYTES: u64 = 64 << 20;

fn file_system(bytes: u64, profile: &str) -> (Region, FileSystem) {
    let options = pmem::OpenOptions { profile: profile.parse().unwrap(), ..Default::default() };
    let region = Region::create(&DeviceSpec::Memory, bytes, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    (region.clone(), FileSystem::mount(region, MountOptions::default()).unwrap())
}

/// Makes a directory with 3 files of 1 MiB and 5 bytes, one of them with two names, and one file of every other kind.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("below")).unwrap();
    for (number, name) in ["one", "two", "below/three"].iter().enumerate() {
        fs::write(root.join(name), vec![number as u8 + 1; (1 << 20) + 5]).unwrap();
    }
    fs::hard_link(root.join("one"), root.join("below/linked")).unwrap();
    symlink("../one", root.join("below/link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 8 << 20).unwrap();
    fs::set_permissions(root.join("two"), fs::Permissions::from_mode(0o4711)).unwrap();
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn import_of(source: PathBuf) -> ImportOptions {
    ImportOptions { sources: vec![source], threads: 2, ..ImportOptions::default() }
}

#[test]
fn a_tree_is_equal_after_import_and_export_and_progress_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    make_tree(&tree);
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    let mut told = Vec::new();
    let mut watch = |so_far| {
        told.push(so_far);
        ControlFlow::Continue(())
    };

    let options = import_of(tree.clone());
    let imported = import(&fs, &options, &mut watch).unwrap();
    assert_eq!((imported.files, imported.directories, imported.symlinks, imported.hard_links), (4, 2, 1, 1));
    assert_eq!((imported.problem_count, &imported.problems[..], &imported.skipped[..]), (0, &[][..], &[][..]));
    assert!(imported.bytes > 3 << 20 && imported.bytes <= options.total_bytes(), "holes are not read");

    let verify_options = VerifyOptions { source: tree.clone(), ..VerifyOptions::default() };
    let compared = verify(&fs, &verify_options, &mut watch).unwrap();
    assert_eq!((compared.problems, compared.files), (Vec::new(), 4));

    let export_options = ExportOptions { from: "/tree".into(), to: out.clone(), threads: 2 };
    let exported = export(&fs, &export_options, &mut watch).unwrap();
    assert_eq!((exported.problem_count, exported.files, exported.hard_links), (0, 4, 1));
    assert_eq!(fs::read(out.join("below/three")).unwrap(), fs::read(tree.join("below/three")).unwrap());
    assert_eq!(fs::metadata(out.join("two")).unwrap().mode(), fs::metadata(tree.join("two")).unwrap().mode());
    let again = verify(&fs, &VerifyOptions { source: out, at: Some("/tree".into()), ..verify_options }, &mut watch);
    assert_eq!(again.unwrap().problems, []);

    let first = Progress::default();
    let last = Progress { bytes: imported.bytes, files: imported.files };
    assert_eq!(told[0], first, "before anything is done");
    assert!(told.contains(&last), "when all is done: {told:?}");
}

#[test]
fn verify_reports_each_difference_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    import(&fs, &import_of(tree.clone()), &mut go_on).unwrap();
    fs::write(tree.join("new"), b"").unwrap();
    let options = VerifyOptions { source: tree.clone(), threads: 1, ..VerifyOptions::default() };
    let report = verify(&fs, &options, &mut go_on).unwrap();
    let missing = Problem { path: tree.join("new"), problem: "is not on the device".into() };
    assert!(report.problems.contains(&missing), "{report:?}");
}

#[test]
fn an_import_stopped_at_its_start_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    let stopped = import(&fs, &import_of(tree), &mut |_| ControlFlow::Break(()));
    let Err(TreeError::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert_eq!(*done, TreeReport::default());
    assert_eq!(entries(&fs, InodeNumber::ROOT).unwrap(), []);
}

/// The device writes at most 16 MB per second, so the second call of the callback comes long before the end.
#[test]
fn a_stopped_import_keeps_its_files_and_a_consistent_device() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..64u64 {
        let block = |at: u64| (number << 32 | at).to_le_bytes();
        fs::write(dir.path().join(number.to_string()), (0..1 << 17).flat_map(block).collect::<Vec<u8>>()).unwrap();
    }
    let (region, fs) = file_system(256 << 20, "custom:write_mb_s=16");
    let options = ImportOptions { to: Some("/in".into()), ..import_of(dir.path().to_owned()) };
    let stopped = import(&fs, &options, &mut |so_far| match so_far.bytes {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let Err(TreeError::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert!(done.bytes > 0 && done.bytes < 64 << 20, "{done:?}");
    assert_eq!(done.problem_count, 0);
    let there = fs.resolve(b"/in").unwrap();
    assert!(entries(&fs, there.ino).unwrap().len() as u64 >= done.files);
    fs.unmount().unwrap();
    let report = check(&region, &CheckOptions::default()).unwrap();
    assert!(report.is_consistent(), "{:?}", report.findings);
}

#[test]
fn an_import_to_a_full_device_ends_with_a_report_of_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let block = |at: u64| at.to_le_bytes();
    for number in 0..40u64 {
        let content = (number << 20..(number << 20) + (1 << 17)).flat_map(block).collect::<Vec<u8>>();
        fs::write(dir.path().join(number.to_string()), content).unwrap();
    }
    let (_, fs) = file_system(24 << 20, "native");
    let full = import(&fs, &import_of(dir.path().to_owned()), &mut go_on).unwrap_err();
    assert_eq!(full.errno(), crate::errno::ENOSPC);
    let TreeError::Full { path, done, .. } = full else { panic!("{full:?}") };
    assert!(path.starts_with(dir.path()) && done.files > 0 && done.files < 40, "{done:?}");
}

#[test]
fn an_error_before_the_start_contains_action_object_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"x").unwrap();
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    import(&fs, &import_of(file.clone()), &mut go_on).unwrap();

    let import_to = |to: &str| {
        let options = ImportOptions { to: Some(to.into()), ..import_of(file.clone()) };
        import(&fs, &options, &mut go_on).unwrap_err()
    };
    let export_from = |from: &str| {
        let options = ExportOptions { from: from.into(), to: dir.path().to_owned(), threads: 1 };
        export(&fs, &options, &mut go_on).unwrap_err()
    };
    let verify_with = |source: PathBuf, at: Option<PathBuf>| {
        let options = VerifyOptions { source, at, ..VerifyOptions::default() };
        verify(&fs, &options, &mut go_on).unwrap_err()
    };
    let stopped = import(&fs, &import_of(file.clone()), &mut |_| ControlFlow::Break(())).unwrap_err();
    let here = dir.path().display();
    for (error, errno, says) in [
        (
            import_to("/a/../b"),
            22,
            "import to /a/../b: a path on the device has no .. in it; name the place itself".into(),
        ),
        (import_to("/file/below/x"), 20, "import to /file/below of the device: ".into()),
        (export_from("/nothing"), 2, "export /nothing of the device: ".into()),
        (export_from("/file"), 21, format!("export to {here}: is a directory; name the new file")),
        (verify_with(dir.path().join("no"), None), 2, format!("verify {here}/no: No such file or directory")),
        (verify_with(file.clone(), Some("/no".into())), 2, "verify /no of the device: ".into()),
        (stopped, 4, "import: stopped by the caller; what was done so far stays".into()),
    ] {
        assert!(error.to_string().starts_with(&says), "`{error}` does not begin with `{says}`");
        assert_eq!(error.errno(), errno, "{error}");
    }
}

// --- trees and destinations that others change ----------------------------------------------------

/// Imports `tree` while `swap` is called once, after `at` was looked at and before it is opened.
fn import_with_swap(tree: &Path, at: &Path, swap: impl FnOnce() + Send) -> (FileSystem, TreeReport) {
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    let swap = parking_lot::Mutex::new(Some(swap));
    let looked = |path: &Path| {
        if path == at
            && let Some(swap) = swap.lock().take()
        {
            swap();
        }
    };
    let report = super::import::import_with(&fs, &import_of(tree.to_owned()), &mut go_on, &looked).unwrap();
    assert!(swap.lock().is_none(), "{} was looked at", at.display());
    (fs, report)
}

fn content(fs: &FileSystem, path: &[u8]) -> Vec<u8> {
    let file = fs.open(fs.resolve(path).unwrap().ino).unwrap();
    let mut bytes = vec![0; file.attr().size as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A tree with a file, a file of two names and a directory with a file; beside it what others may not read.
fn make_tree_and_secret(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, secret) = (dir.join("tree"), dir.join("secret"));
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::create_dir(&secret).unwrap();
    for mine in ["d/key", "file", "twin"] {
        fs::write(tree.join(mine), b"mine, mine").unwrap();
    }
    fs::hard_link(tree.join("twin"), tree.join("twin 2")).unwrap();
    fs::write(secret.join("key"), b"the secret").unwrap();
    (tree, secret)
}

/// Of what was replaced between being looked at and being opened nothing is stored, and nobody waits.
#[test]
fn a_file_replaced_during_an_import_is_reported_and_not_stored() {
    let swaps: [(&str, fn(&Path, &Path)); 4] = [
        ("a link to a directory", |path, secret| symlink(secret, path).unwrap()),
        ("a link to a file", |path, secret| symlink(secret.join("key"), path).unwrap()),
        ("a fifo", |path, _| {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        }),
        ("another file", |path, _| fs::write(path, b"another").unwrap()),
    ];
    for (what, swap) in swaps {
        for name in ["d", "file", "twin"] {
            let dir = tempfile::tempdir().unwrap();
            let (tree, secret) = make_tree_and_secret(dir.path());
            let at = tree.join(name);
            let (fs, report) = import_with_swap(&tree, &at, || {
                fs::rename(&at, dir.path().join("aside")).unwrap();
                swap(&at, &secret);
            });
            let problem = Problem { path: at.clone(), problem: "was replaced after it was listed".into() };
            assert_eq!(report.problems, [problem], "{what} for {name}");
            let there = fs.resolve(format!("tree/{name}").as_bytes());
            assert!(there.is_err_and(|error| error.errno() == crate::errno::ENOENT), "{what} for {name}");
        }
    }
}

/// The file of a directory waits to be opened while the directory becomes a link to another one.
#[test]
fn a_file_is_read_from_the_directory_in_which_it_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, secret) = make_tree_and_secret(dir.path());
    let (fs, report) = import_with_swap(&tree, &tree.join("d/key"), || {
        fs::rename(tree.join("d"), dir.path().join("aside")).unwrap();
        symlink(&secret, tree.join("d")).unwrap();
    });
    assert_eq!((report.problems, report.files), (Vec::new(), 3));
    assert_eq!(content(&fs, b"tree/d/key"), b"mine, mine");
}

/// What is stored of a file says what its descriptor said, not what an earlier look did.
#[test]
fn import_reads_attributes_from_the_opened_file() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, _) = make_tree_and_secret(dir.path());
    let file = tree.join("file");
    let (fs, report) = import_with_swap(&tree, &file, || {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&file, b"mine, longer").unwrap();
    });
    assert_eq!(report.problems, []);
    assert_eq!(fs.resolve(b"tree/file").unwrap().mode, 0o600);
    assert_eq!(content(&fs, b"tree/file"), b"mine, longer");
}

#[test]
fn exported_files_are_private_until_they_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    make_tree(&tree);
    fs::set_permissions(tree.join("below"), fs::Permissions::from_mode(0o755)).unwrap();
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    import(&fs, &import_of(tree.clone()), &mut go_on).unwrap();
    let seen = parking_lot::Mutex::new(Vec::new());
    let filled = |path: &Path| {
        let metadata = fs::symlink_metadata(path).unwrap();
        let size = if metadata.is_dir() { 0 } else { metadata.len() };
        seen.lock().push((path.strip_prefix(&out).unwrap().to_owned(), metadata.mode() & 0o7777, size));
    };
    let options = ExportOptions { from: "/tree".into(), to: out.clone(), threads: 2 };
    let exported = super::export::export_with(&fs, &options, &mut go_on, &filled).unwrap();
    assert_eq!(exported.problems, []);
    let mut seen = seen.into_inner();
    seen.sort();
    let size = (1 << 20) + 5;
    let before = [("", 0o700, 0), ("below", 0o700, 0), ("below/linked", 0o600, size), ("below/three", 0o600, size)];
    let before = before.into_iter().chain([("sparse", 0o600, (8 << 20) + 3), ("two", 0o600, size)]);
    assert_eq!(seen, before.map(|(path, mode, size)| (path.into(), mode, size)).collect::<Vec<_>>());
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("two"), mode("below")), (0o4711, 0o755));
}

#[test]
fn exporting_a_file_whose_owner_cannot_be_set_clears_its_set_id_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    let new = NewInode { kind: FileKind::Regular, mode: 0o6755, uid: u32::MAX, gid: 0, rdev: 0 };
    fs.create(InodeNumber::ROOT, b"su", &new).unwrap();
    let options = ExportOptions { from: "/".into(), to: dir.path().join("out"), threads: 1 };
    assert_eq!(export(&fs, &options, &mut go_on).unwrap().problems, []);
    assert_eq!(fs::metadata(dir.path().join("out/su")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn export_treats_a_symlink_in_the_destination_as_an_existing_name() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, out, elsewhere) = (dir.path().join("tree"), dir.path().join("out"), dir.path().join("elsewhere"));
    make_tree(&tree);
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    import(&fs, &import_of(tree.clone()), &mut go_on).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(&out).unwrap();
    symlink(&elsewhere, out.join("below")).unwrap();
    symlink(elsewhere.join("new"), out.join("two")).unwrap();
    let (link, link_mode) = (dir.path().join("link"), fs::metadata(&elsewhere).unwrap().mode());
    symlink(&out, &link).unwrap();
    // The destination itself may be a link: it is the caller's own word.
    let options = ExportOptions { from: "/tree".into(), to: link.clone(), threads: 2 };
    let exported = export(&fs, &options, &mut go_on).unwrap();
    let taken = |name: &str| Problem { path: link.join(name), problem: "File exists (os error 17)".into() };
    assert_eq!(exported.problems, [taken("below"), taken("two")]);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing was written behind the links");
    assert_eq!(fs::metadata(&elsewhere).unwrap().mode(), link_mode);
    assert_eq!(fs::read(out.join("one")).unwrap(), fs::read(tree.join("one")).unwrap());
}

/// The first copy of a file with two names is replaced before the second name is made.
#[test]
fn an_exported_hard_link_leads_to_the_exported_file() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    fs::create_dir_all(tree.join("a")).unwrap();
    fs::write(tree.join("a/first"), b"content").unwrap();
    fs::hard_link(tree.join("a/first"), tree.join("second")).unwrap();
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    import(&fs, &import_of(tree), &mut go_on).unwrap();
    let filled = |path: &Path| {
        // The directory is complete: its file was made, and the other name was not.
        if path.ends_with("a") {
            fs::rename(path.join("first"), path.join("moved")).unwrap();
            fs::write(path.join("first"), b"another").unwrap();
        }
    };
    let options = ExportOptions { from: "/tree".into(), to: out.clone(), threads: 1 };
    let exported = super::export::export_with(&fs, &options, &mut go_on, &filled).unwrap();
    let problem = Problem { path: out.join("second"), problem: "a/first: was replaced meanwhile".into() };
    assert_eq!(exported.problems, [problem]);
    assert!(!out.join("second").exists());
}

/// Deeper than a path can be long, than a process may have descriptors, and than its stack has room for.
#[test]
fn a_tree_of_fifty_thousand_levels_can_be_imported_and_exported() {
    const DEPTH: u64 = 50_000;
    // In memory if there is such a place: on a disk it would take minutes.
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = Removed(tempfile::tempdir_in(parent).unwrap().keep());
    let out = dir.0.join("out");
    let (_, fs) = file_system(256 << 20, "native");
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
    let mut at = InodeNumber::ROOT;
    for _ in 1..DEPTH {
        at = fs.mkdir(at, b"d", &new).unwrap().ino;
    }
    let third = fs.resolve(b"d/d/d").unwrap().ino;
    fs.setattr(third, &SetAttr { mtime: Some(7_000_000_000), ..SetAttr::default() }).unwrap();
    let file = fs.create(at, b"deepest", &NewInode { kind: FileKind::Regular, ..new }).unwrap();
    fs.open(file.ino).unwrap().write_at(0, b"content").unwrap();
    let options = ExportOptions { from: "/".into(), to: out.clone(), threads: 2 };
    let exported = export(&fs, &options, &mut go_on).unwrap();
    assert_eq!((exported.problem_count, exported.directories, exported.files), (0, DEPTH, 1));
    assert_eq!(fs::metadata(out.join("d/d/d")).unwrap().mtime(), 7, "times are set on the way back");

    let (_, again) = file_system(256 << 20, "native");
    let imported = import(&again, &import_of(out.clone()), &mut go_on).unwrap();
    assert_eq!((imported.problem_count, imported.directories, imported.files), (0, DEPTH, 1));
    let compared = verify(&again, &VerifyOptions { source: out.clone(), ..VerifyOptions::default() }, &mut go_on);
    let compared = compared.unwrap();
    assert_eq!((compared.problem_count, compared.directories, compared.files), (0, DEPTH, 1));
    let options = EstimateOptions { paths: vec![out.clone()], ..EstimateOptions::default() };
    assert_eq!(estimate(&options, &mut go_on).unwrap().total.counts.directories, DEPTH);
}

/// A directory that is removed on drop. The standard library would call itself for each level of it.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        assert!(std::process::Command::new("rm").arg("-rf").arg(&self.0).status().unwrap().success());
    }
}
