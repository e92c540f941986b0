//! Random data operations on three files against vectors of bytes, with clean and crash remounts between, and with
//! operations while counts are found anew after a crash.

use crate::deext::Random;
use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
const OFFSET_MAX: u64 = 200_000;
const LENGTH_MAX: u64 = 30_000;

struct Exerciser {
    region: Region,
    policy: Policy,
    fs: FileSystem,
    files: Vec<File>,
    model: Vec<Vec<u8>>,
    random: Random,
}

fn open_all(fs: &FileSystem) -> Vec<File> {
    let open = |name: &&[u8]| fs.open(fs.lookup(InodeNumber::ROOT, name).unwrap().ino).unwrap();
    NAMES.iter().map(open).collect()
}

impl Exerciser {
    fn new(seed: u64, policy: Policy) -> Exerciser {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap();
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        for name in NAMES {
            fs.create(InodeNumber::ROOT, name, &new).unwrap();
        }
        let files = open_all(&fs);
        Exerciser { region, policy, fs, files, model: vec![Vec::new(); 3], random: Random(seed) }
    }

    fn range(&mut self) -> (u64, u64) {
        let (offset, length) = (self.random.below(OFFSET_MAX), 1 + self.random.below(LENGTH_MAX));
        match self.random.below(2) {
            0 => (offset / 4096 * 4096, length.next_multiple_of(4096)),
            _ => (offset, length),
        }
    }

    fn grow(&mut self, file: usize, end: u64) {
        let size = self.model[file].len().max(end as usize);
        self.model[file].resize(size, 0);
    }

    fn zero(&mut self, file: usize, offset: u64, end: u64) {
        let end = self.model[file].len().min(end as usize);
        if (offset as usize) < end {
            self.model[file][offset as usize..end].fill(0);
        }
    }

    fn step(&mut self) {
        if self.random.below(20) == 0 {
            self.fs.reconcile_step().unwrap();
        }
        if self.random.below(10) == 0 {
            self.fs.fill_step().unwrap();
        }
        let file = self.random.below(3) as usize;
        let (offset, length) = self.range();
        let end = offset + length;
        match self.random.below(9) {
            0..=2 => {
                // Few different blocks, so that whole ones are often equal.
                let kind = self.random.below(3) as u8;
                let byte = |at: u64| if kind == 0 { 7 } else { (at / 4096 % 5) as u8 + kind };
                let data: Vec<u8> = (offset..end).map(byte).collect();
                self.files[file].write_at(offset, &data).unwrap();
                self.grow(file, end);
                self.model[file][offset as usize..end as usize].copy_from_slice(&data);
            }
            3 => {
                self.files[file].set_len(offset).unwrap();
                self.model[file].resize(offset as usize, 0);
            }
            4 => {
                self.files[file].allocate(offset, length, AllocateMode::PunchHole).unwrap();
                self.zero(file, offset, end);
            }
            5 => {
                self.files[file].allocate(offset, length, AllocateMode::Reserve).unwrap();
                self.grow(file, end);
            }
            6 => {
                self.files[file].allocate(offset, length, AllocateMode::ZeroRange).unwrap();
                self.grow(file, end);
                self.zero(file, offset, end);
            }
            7 => self.clone_step(file, offset, length),
            _ => {
                let mut buffer = vec![1; length as usize];
                let read = self.files[file].read_at(offset, &mut buffer).unwrap();
                let model = self.model[file].get(offset as usize..).unwrap_or_default();
                assert_eq!(read, model.len().min(length as usize));
                assert!(buffer[..read] == model[..read]);
            }
        }
    }

    fn clone_step(&mut self, file: usize, offset: u64, length: u64) {
        let source = self.random.below(3) as usize;
        let from = self.random.below(OFFSET_MAX);
        let result = self.files[file].clone_from(&self.files[source], from, offset, length);
        if file == source && offset < from + length && from < offset + length {
            assert_eq!(result.unwrap_err().errno(), errno::EINVAL);
            return;
        }
        let bytes: Vec<u8> = self.model[source].iter().skip(from as usize).take(length as usize).copied().collect();
        assert_eq!(result.unwrap(), bytes.len() as u64);
        if !bytes.is_empty() {
            self.grow(file, offset + bytes.len() as u64);
            self.model[file][offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn compare(&self) {
        for (file, model) in self.files.iter().zip(&self.model) {
            let mut buffer = vec![1; model.len() + 10];
            assert_eq!(file.attr().size, model.len() as u64);
            assert_eq!(file.read_at(0, &mut buffer).unwrap(), model.len());
            assert!(buffer[..model.len()] == model[..]);
        }
    }

    /// Mounts again, after a clean unmount or as after a crash of the process: nothing may have changed.
    fn remount(mut self) -> Exerciser {
        let sizes = |fs: &FileSystem| {
            let stats = fs.stats();
            (stats.logical_bytes, stats.stored_bytes, stats.saved_bytes)
        };
        // The last crash may still be reconciled beside the operations.
        self.fs.reconcile().unwrap();
        let before = sizes(&self.fs);
        let usage = self.fs.usage().unwrap().expect("reconciled");
        assert!(usage.adds_up(), "{usage:?}");
        self.files.clear();
        let orderly = self.random.below(3) == 0;
        if orderly {
            self.fs.unmount().unwrap();
        } else {
            drop(self.fs);
        }
        let found = check(&self.region, &CheckOptions::default()).unwrap();
        assert!(found.findings.is_empty() && found.clean == orderly, "{found:?}");
        let options = MountOptions { policy: self.policy, ..MountOptions::default() };
        self.fs = FileSystem::mount(self.region.clone(), options).unwrap();
        assert_eq!(self.fs.stats().recovery.loaded, orderly);
        if orderly || self.random.below(2) == 0 {
            self.fs.reconcile().unwrap();
            assert_eq!(sizes(&self.fs), before, "recovery found other counts than the running system kept");
        }
        self.files = open_all(&self.fs);
        self
    }
}

fn exercise(policy: Policy) {
    for seed in 1..=20 {
        let seed = seed * 0x9E37_79B9;
        let mut exerciser = Exerciser::new(seed, policy);
        for step in 0..3000 {
            let here = std::panic::AssertUnwindSafe(&mut exerciser);
            let result = std::panic::catch_unwind(|| {
                let here = here;
                here.0.step()
            });
            assert!(result.is_ok(), "seed {seed} step {step}");
            if step % 500 == 499 {
                exerciser.compare();
                exerciser = exerciser.remount();
                exerciser.compare();
            }
        }
        exerciser.files.clear();
        exerciser.fs.reconcile().unwrap();
        NAMES.iter().for_each(|name| exerciser.fs.unlink(InodeNumber::ROOT, name).unwrap());
        let stats = exerciser.fs.stats();
        assert_eq!((stats.stored_bytes, stats.logical_bytes, stats.saved_bytes), (0, 0, 0), "seed {seed}");
        assert_eq!((stats.chunks, stats.index.entries), (0, 0), "seed {seed}");
    }
}

#[test]
fn random_operations_without_sharing_match_the_model() {
    exercise(Policy::Off);
}

#[test]
fn random_operations_with_inline_sharing_match_the_model() {
    exercise(Policy::Inline);
}

#[test]
fn random_operations_in_packed_chunks_match_the_model() {
    exercise(Policy::DeExt);
}

#[test]
fn a_huge_sparse_device_is_made_and_mounted_without_memory() {
    let region = Region::create(&DeviceSpec::Memory, 1 << 42, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    assert!(region.allocated_bytes() < 1 << 20, "{} bytes", region.allocated_bytes());
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &new).unwrap().ino).unwrap();
    file.write_at(1 << 40, b"far").unwrap();
    drop(file);
    let region = fs.region().clone();
    fs.unmount().unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert_eq!(fs.stats().stored_bytes, 3, "a short end is packed");
}
