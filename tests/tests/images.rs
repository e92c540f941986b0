//! Devices that released versions have made (tests/images, by tests/images/make.sh): every later version mounts them.
//! Each is read, checked, changed, and made longer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nvfold::check::{CheckOptions, check};
use nvfold::{Attr, CloneOptions, FileKind, FileSystem, InodeNumber, MountOptions, NewInode, Policy, Victims};
use pmem::{DeviceSpec, OpenOptions, Region};
use sha2::{Digest, Sha256};

use nvfold_tests::device::POLICIES;

const MIB: u64 = 1 << 20;
/// The size of the images.
const IMAGE_BYTES: u64 = 16 * MIB;
/// What they are made longer to.
const LONGER_BYTES: u64 = 40 * MIB;
/// The largest that an image may be, compressed.
const STORED_BYTES_MAX: u64 = 100 << 10;

struct Image {
    name: String,
    bytes: Vec<u8>,
    manifest: String,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("images")
}

fn images() -> Vec<Image> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "zst"));
    paths.sort();
    let read = |path: &PathBuf| {
        let stored = fs::read(path).unwrap();
        assert!(stored.len() as u64 <= STORED_BYTES_MAX, "{}: {} bytes", path.display(), stored.len());
        let bytes = zstd::stream::decode_all(&stored[..]).unwrap();
        assert_eq!(bytes.len() as u64, IMAGE_BYTES);
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        Image { name, bytes, manifest: fs::read_to_string(path.with_extension("manifest")).unwrap() }
    };
    paths.iter().map(read).collect()
}

/// Puts an image on a device in memory, which may be longer.
fn device(image: &Image, bytes: u64) -> Region {
    let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap();
    for (at, block) in (0..).step_by(4096).zip(image.bytes.chunks(4096)) {
        if block.iter().any(|byte| *byte != 0) {
            let _ = region.fence(region.stream(at, block));
        }
    }
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn content(fs: &FileSystem, attr: &Attr) -> Vec<u8> {
    if attr.kind == FileKind::Symlink {
        return fs.readlink(attr.ino).unwrap();
    }
    let mut bytes = vec![0; attr.size as usize];
    let read = fs.open(attr.ino).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(read as u64, attr.size);
    bytes
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a line of a manifest for a path, without the path.
fn described(fs: &FileSystem, attr: &Attr) -> String {
    let (kind, bytes, sum) = match attr.kind {
        FileKind::Directory => ("dir", 0, "-".to_owned()),
        FileKind::Regular => ("file", attr.size, hash(&content(fs, attr))),
        FileKind::Symlink => ("link", attr.size, hash(&content(fs, attr))),
        _ => ("fifo", 0, "-".to_owned()),
    };
    format!("{kind}\t{:o}\t{bytes}\t{sum}", attr.mode & 0o7777)
}

/// Compares every file, directory and attribute with the manifest, and looks for others.
fn compare(fs: &FileSystem, image: &Image) {
    let mut told = BTreeMap::new();
    for line in image.manifest.lines() {
        let (what, path) = line.rsplit_once('\t').unwrap();
        if let Some(rest) = what.strip_prefix("xattr\t") {
            let (name, value) = rest.split_once('\t').unwrap();
            let ino = fs.resolve(path.as_bytes()).unwrap().ino;
            assert_eq!(fs.get_xattr(ino, name.as_bytes()).unwrap(), value.as_bytes(), "{}: {path}", image.name);
        } else {
            told.insert(path, what);
        }
    }
    for (path, what) in &told {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        // The last name may be a symlink, which is not followed.
        let dir = fs.resolve(dir.as_bytes()).unwrap().ino;
        let attr = fs.lookup(dir, name.as_bytes()).unwrap_or_else(|error| panic!("{}: {path}: {error}", image.name));
        assert_eq!(described(fs, &attr), *what, "{}: {path}", image.name);
    }
    let in_root = told.keys().filter(|path| !path.starts_with(".nvfold")).count();
    assert_eq!(names_below(fs, InodeNumber::ROOT), in_root, "{}: names that the manifest does not have", image.name);
}

/// Counts the names below a directory, without those of snapshots.
fn names_below(fs: &FileSystem, dir: InodeNumber) -> usize {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push((entry.ino, entry.kind, entry.name.clone()));
        true
    })
    .unwrap();
    entries.retain(|(_, _, name)| ![&b"."[..], b"..", b".nvfold"].contains(&&name[..]));
    let below =
        entries.iter().filter(|(_, kind, _)| *kind == FileKind::Directory).map(|(ino, ..)| names_below(fs, *ino));
    entries.len() + below.sum::<usize>()
}

fn check_whole(region: &Region, image: &Image, when: &str) {
    let report = check(region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(report.findings.is_empty(), "{}, {when}: {:?}", image.name, report.findings);
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

fn write(fs: &FileSystem, name: &str, data: &[u8]) -> nvfold::Result<()> {
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let file = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).unwrap().ino;
    fs.open(file).unwrap().write_at(0, data)
}

fn read(fs: &FileSystem, name: &str) -> Vec<u8> {
    content(fs, &fs.resolve(name.as_bytes()).unwrap())
}

#[test]
fn every_image_of_a_released_version_mounts_and_holds_its_files() {
    let images = images();
    assert!(images.len() >= 10, "only {} images", images.len());
    for image in &images {
        let region = device(image, IMAGE_BYTES);
        check_whole(&region, image, "as it was left");
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        if image.name.ends_with("-clean") {
            compare(&FileSystem::mount(region.clone(), options).unwrap(), image);
        }
        for policy in POLICIES {
            let fs = mount(&region, policy);
            compare(&fs, image);
            fs.reconcile().unwrap();
            assert_eq!(fs.stats().recovery.unreadable, 0, "{}", image.name);
            fs.unmount().unwrap();
            check_whole(&region, image, policy.name());
        }
    }
}

#[test]
fn every_image_of_a_released_version_can_be_changed_and_grown() {
    for image in &images() {
        for policy in POLICIES {
            let region = device(image, LONGER_BYTES);
            let (large, copy) = (noise(1, 3 * MIB as usize), noise(2, MIB as usize));
            let fs = mount(&region, policy);
            write(&fs, "new", &large).unwrap();
            let dir = fs.resolve(b"dir").unwrap().ino;
            fs.clone_tree(dir, InodeNumber::ROOT, b"cloned", &CloneOptions::default()).unwrap();
            fs.reconcile().unwrap();
            fs.unmount().unwrap();
            check_whole(&region, image, "changed");

            let grown = nvfold::grow(&region).unwrap();
            assert_eq!((grown.before_bytes, grown.after_bytes), (IMAGE_BYTES, LONGER_BYTES), "{}", image.name);
            check_whole(&region, image, "grown");
            let fs = mount(&region, policy);
            assert!(fs.stats().recovery.loaded, "{}: growth keeps what the unmount saved", image.name);
            // More than the image had room for.
            (0..16).for_each(|at| write(&fs, &format!("more {at}"), &noise(10 + at, MIB as usize)).unwrap());
            write(&fs, "same", &copy).unwrap();
            while !fs.reclaim_step(Victims::Worthwhile).unwrap() {}
            fs.unmount().unwrap();
            check_whole(&region, image, "filled");

            let fs = mount(&region, policy);
            assert!(read(&fs, "new") == large && read(&fs, "same") == copy, "{}", image.name);
            for at in 0..16 {
                assert!(read(&fs, &format!("more {at}")) == noise(10 + at, MIB as usize), "{}: {at}", image.name);
            }
            for name in ["new", "same"].map(str::to_owned).into_iter().chain((0..16).map(|at| format!("more {at}"))) {
                fs.unlink(InodeNumber::ROOT, name.as_bytes()).unwrap();
            }
            fs.remove_tree(InodeNumber::ROOT, b"cloned").unwrap();
            compare(&fs, image);
        }
    }
}
