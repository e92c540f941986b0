//! Import and export of trees without the command: progress, stopping, and failures.

use super::*;
use crate::check::{CheckOptions, check};
use crate::{MkfsOptions, MountOptions};
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
fn a_tree_goes_in_is_equal_and_comes_out_and_the_caller_is_told() {
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
fn a_difference_is_a_problem_with_its_path() {
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
fn a_stop_before_anything_is_done_leaves_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let (_, fs) = file_system(DEVICE_BYTES, "native");
    let stopped = import(&fs, &import_of(tree), &mut |_| ControlFlow::Break(()));
    let Err(Error::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert_eq!(*done, Report::default());
    assert_eq!(entries(&fs, InodeNumber::ROOT).unwrap(), []);
}

/// The device writes at most 16 MB per second, so the second call of the callback comes long before the end.
#[test]
fn a_stop_in_the_middle_keeps_what_was_done_and_the_device_whole() {
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
    let Err(Error::Stopped { done, .. }) = stopped else { panic!("{stopped:?}") };
    assert!(done.bytes > 0 && done.bytes < 64 << 20, "{done:?}");
    assert_eq!(done.problem_count, 0);
    let there = fs.resolve(b"/in").unwrap();
    assert!(entries(&fs, there.ino).unwrap().len() as u64 >= done.files);
    fs.unmount().unwrap();
    let report = check(&region, &CheckOptions::default()).unwrap();
    assert!(report.is_consistent(), "{:?}", report.findings);
}

#[test]
fn a_full_device_ends_an_import_with_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let block = |at: u64| at.to_le_bytes();
    for number in 0..40u64 {
        let content = (number << 20..(number << 20) + (1 << 17)).flat_map(block).collect::<Vec<u8>>();
        fs::write(dir.path().join(number.to_string()), content).unwrap();
    }
    let (_, fs) = file_system(24 << 20, "native");
    let full = import(&fs, &import_of(dir.path().to_owned()), &mut go_on).unwrap_err();
    assert_eq!(full.errno(), crate::errno::ENOSPC);
    let Error::Full { path, done, .. } = full else { panic!("{full:?}") };
    assert!(path.starts_with(dir.path()) && done.files > 0 && done.files < 40, "{done:?}");
}

#[test]
fn what_cannot_begin_says_what_was_being_done_to_what_and_why() {
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
