//! A panic in work beside the calls costs this work on this inode: everything else goes on, and the next mount finds
//! everything whole.

use super::{ROOT, content, create, mount_with, noise, text_of};
use crate::api::{Daemon, File, FileSystem};
use crate::check::{CheckOptions, check};
use crate::dedup::policy::Policy;
use crate::error::{Error, errno};
use crate::jobs::Effort;
use crate::media::{BLOCK_BYTES, Location};
use crate::mount::MkfsOptions;
use crate::panics::{Job, Moment};
use crate::words::{IndexKind, InodeNumber, XattrMode};
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A mount with work to do, and what its files hold.
struct Scene {
    region: Region,
    fs: FileSystem,
    policy: Policy,
    files: Vec<(String, Vec<u8>)>,
    /// Those that stay open.
    open: Vec<File>,
    /// An extended attribute that all files have; empty if none has.
    value: Vec<u8>,
}

impl Scene {
    fn new(policy: Policy) -> Scene {
        Scene::with(policy, &MkfsOptions::default())
    }

    fn with(policy: Policy, options: &MkfsOptions) -> Scene {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, options).unwrap();
        let fs = mount_with(&region, policy);
        Scene { region, fs, policy, files: Vec::new(), open: Vec::new(), value: Vec::new() }
    }

    fn add(&mut self, name: &str, data: Vec<u8>) {
        create(&self.fs, name, &data);
        self.files.push((name.into(), data));
    }

    fn number(&self, file: usize) -> u64 {
        number(&self.fs, &self.files[file].0).0
    }

    /// Where the data of a file lies.
    fn places(&self, file: usize) -> Vec<(u64, u64, Location)> {
        let inode = self.fs.core().inode(self.number(file)).unwrap();
        let state = inode.peek();
        state.extents().unwrap().iter().map(|(at, extent)| (at, extent.length, extent.location)).collect()
    }

    fn log_lines(&self, file: usize) -> u64 {
        self.fs.core().inode(self.number(file)).unwrap().peek().log.lines
    }

    /// Makes a panic in the work of a job on a file (`None`: in the job as a whole), does the work, and sees what
    /// became of everything. `goes_on` sees that the work on the other files was done.
    fn panics(self, job: Job, file: Option<usize>, moment: Moment, work: &dyn Fn(&Scene), goes_on: &dyn Fn(&Scene)) {
        let number = file.map(|file| self.number(file));
        self.fs.core().panics.plan(job, number, moment);
        work(&self);
        let panicked = self.fs.panicked();
        assert_eq!(panicked.count, 1, "{job:?} {moment:?}: the panic was made and caught once");
        let last = panicked.last.unwrap();
        let at = number.map_or("made by a test".into(), |number| format!("at inode {number} (made by a test)"));
        assert!(last.contains(&at), "{last}");
        goes_on(&self);
        work(&self);
        assert_eq!(self.fs.panicked().count, 1, "{job:?}: it is not tried again");
        let cut_off = file.filter(|_| moment == Moment::Committed);
        self.see(cut_off);
        match cut_off {
            Some(file) => self.keep_only(file).see_next_mount(),
            None => self.see_next_mount(),
        }
    }

    /// Removes all files but one, and writes others where they were. What that one names must not be free.
    fn keep_only(mut self, file: usize) -> Scene {
        let number = number(&self.fs, &self.files[file].0).0;
        assert!(self.fs.core().inode(number).unwrap().is_cut_off(), "it stays unusable");
        let kept = self.files.swap_remove(file);
        self.open.clear();
        self.files.iter().for_each(|(name, _)| self.fs.unlink(ROOT, name.as_bytes()).unwrap());
        do_all(&self);
        self.files = vec![kept];
        let value = std::mem::take(&mut self.value);
        (0..24).for_each(|nth| self.add(&format!("over {nth}"), text_of(50 + nth)));
        (0..24).for_each(|nth| self.add(&format!("over block {nth}"), vec![nth as u8; 100 * BLOCK]));
        self.files.truncate(1);
        Scene { value, ..self }
    }

    fn see_value(&self, fs: &FileSystem, name: &str) {
        if !self.value.is_empty() {
            assert!(fs.get_xattr(number(fs, name), b"user.value").unwrap() == self.value, "the value of {name}");
        }
    }

    /// Sees that the mount lives, and what its files say.
    fn see(&self, cut_off: Option<usize>) {
        for (nth, (name, data)) in self.files.iter().enumerate() {
            if Some(nth) == cut_off {
                let file = self.fs.open(number(&self.fs, name));
                let error = file.and_then(|file| file.read_at(0, &mut [0; 1])).expect_err("it was cut off in a change");
                assert!(matches!(error, Error::Panicked { .. }) && error.errno() == errno::EIO, "{error}");
                let set = self.fs.set_xattr(number(&self.fs, name), b"user.a", b"1", XattrMode::Set);
                assert_eq!(set.unwrap_err().errno(), errno::EIO);
            } else {
                assert!(content(&self.fs, name) == *data, "{name}");
                self.see_value(&self.fs, name);
            }
        }
        let data = noise(3 * BLOCK + 100);
        create(&self.fs, "new", &data);
        assert!(content(&self.fs, "new") == data);
        self.fs.unlink(ROOT, b"new").unwrap();
    }

    /// The unmount leaves the device as a crash does; the next one leaves it clean.
    fn see_next_mount(self) {
        let Scene { region, fs, policy, files, open, value } = self;
        drop(open);
        fs.unmount().unwrap();
        Scene { fs: mount_with(&region, policy), region, policy, files, open: Vec::new(), value }.see_recovered();
    }

    /// Recovers a device that was not left clean, and leaves it clean.
    fn see_recovered(self) {
        let fs = &self.fs;
        assert!(!fs.stats().recovery.reconciled, "it was not left clean");
        fs.reconcile().unwrap();
        assert_eq!(fs.panicked().count, 0);
        for (name, data) in &self.files {
            assert!(content(fs, name) == *data, "{name}");
            self.see_value(fs, name);
        }
        let Scene { region, fs, .. } = self;
        fs.unmount().unwrap();
        let found = check(&region, &CheckOptions::default()).unwrap();
        assert!(found.findings.is_empty() && found.clean, "{found:#?}");
    }
}

fn number(fs: &FileSystem, name: &str) -> InodeNumber {
    fs.entry(ROOT, name.as_bytes()).unwrap().ino
}

/// Does all that waits, as the threads of a front end do.
fn do_all(scene: &Scene) {
    let fs = &scene.fs;
    while !(fs.drain_step().unwrap() & fs.fill_step().unwrap()) {}
}

const FILES: usize = 4;
/// The file in the work on which tests make a panic.
const HIT: usize = 2;
const MOMENTS: [Moment; 3] = [Moment::Begin, Moment::Staged, Moment::Committed];

/// Makes a panic at each moment of the work on one file, and sees that the data of exactly the others lie elsewhere
/// after the work.
fn panics_at_each_moment(job: Job, scene: impl Fn() -> Scene, work: &dyn Fn(&Scene), changes: &[usize]) {
    for moment in MOMENTS {
        let scene = scene();
        let before: Vec<_> = (0..FILES).map(|file| scene.places(file)).collect();
        let goes_on = |scene: &Scene| {
            for file in (0..FILES).filter(|file| *file != HIT) {
                let has_changed = scene.places(file) != before[file];
                assert_eq!(has_changed, changes.contains(&file), "{job:?} {moment:?}: file {file}");
            }
            assert_eq!(scene.places(HIT), before[HIT], "{job:?} {moment:?}: it stays");
        };
        scene.panics(job, Some(HIT), moment, work, &goes_on);
    }
}

/// Makes a panic in a job as a whole, which nothing goes on with.
fn panics_as_a_whole(job: Job, scene: Scene, work: &dyn Fn(&Scene)) {
    let before: Vec<_> = (0..scene.files.len()).map(|file| scene.places(file)).collect();
    let stays = |scene: &Scene| before.iter().enumerate().for_each(|(at, places)| assert!(scene.places(at) == *places));
    scene.panics(job, None, Moment::Begin, work, &stays);
}

/// A mount whose files equal one another.
fn with_equal_files(policy: Policy) -> Scene {
    let mut scene = Scene::new(policy);
    (0..FILES).for_each(|file| scene.add(&format!("file {file}"), noise(20 * BLOCK)));
    scene
}

#[test]
fn a_panic_in_sharing_later_costs_one_file() {
    panics_at_each_moment(Job::Share, || with_equal_files(Policy::DeNova), &do_all, &[1, 3]);
    panics_as_a_whole(Job::Share, with_equal_files(Policy::DeNova), &do_all);
}

#[test]
fn a_panic_in_filling_in_fingerprints_costs_one_file() {
    let scene = || {
        let mut scene = Scene::new(Policy::Off);
        (0..FILES).for_each(|file| scene.add(&format!("file {file}"), text_of(file)));
        let Scene { region, fs, files, open, value, .. } = scene;
        fs.unmount().unwrap();
        Scene { fs: mount_with(&region, Policy::Inline), policy: Policy::Inline, region, files, open, value }
    };
    let blocks = |file: &(String, Vec<u8>)| file.1.len().div_ceil(BLOCK) as u64;
    let filled = |scene: &Scene| {
        let all: u64 = scene.files.iter().map(blocks).sum();
        let of_others = all - blocks(&scene.files[HIT]);
        assert_eq!(scene.fs.stats().chunks_filled, of_others);
    };
    scene().panics(Job::Fill, Some(HIT), Moment::Begin, &do_all, &filled);
    scene().panics(Job::Fill, None, Moment::Begin, &do_all, &|scene| assert_eq!(scene.fs.stats().chunks_filled, 0));
}

#[test]
fn a_panic_at_the_end_of_a_stream_costs_one_file() {
    let scene = || {
        let mut scene = Scene::new(Policy::DeExt);
        let data = text_of(0)[..13_000].to_vec();
        for file in 0..FILES {
            // A stream that goes on does not look up its tail before it ends.
            let name = format!("file {file}");
            let file = create(&scene.fs, &name, &data[..12_000]);
            file.write_at(12_000, &data[12_000..]).unwrap();
            // A close would end it.
            scene.open.push(file);
            scene.files.push((name, data.clone()));
        }
        scene
    };
    panics_at_each_moment(Job::EndStream, scene, &do_all, &[1, 3]);
}

/// A mount whose files were cut in two parts.
fn with_seams() -> Scene {
    let mut scene = Scene::new(Policy::DeExt);
    for file in 0..FILES {
        let (name, data) = (format!("file {file}"), text_of(file));
        let file = create(&scene.fs, &name, b"");
        file.write_at(50_001, &data[50_001..]).unwrap();
        file.write_at(0, &data[..50_001]).unwrap();
        scene.files.push((name, data));
    }
    scene
}

#[test]
fn a_panic_in_cutting_a_seam_again_costs_one_file() {
    panics_at_each_moment(Job::CutSeam, with_seams, &do_all, &[0, 1, 3]);
    panics_as_a_whole(Job::CutSeam, with_seams(), &do_all);
}

/// A mount whose files map 200 bytes of each of many chunks.
fn with_parts() -> Scene {
    let mut scene = Scene::new(Policy::DeExt);
    for file in 0..FILES {
        let (name, mut parts) = (format!("file {file}"), Vec::new());
        let clone = create(&scene.fs, &name, b"");
        for nth in 0..8 {
            let text = text_of(10 * file + nth);
            let source = create(&scene.fs, "source", &text);
            for at in (0..text.len() - 4096).step_by(4096) {
                assert_eq!(clone.clone_from(&source, at as u64 + 100, parts.len() as u64, 200).unwrap(), 200);
                parts.extend_from_slice(&text[at + 100..at + 300]);
            }
            drop(source);
            scene.fs.unlink(ROOT, b"source").unwrap();
        }
        scene.files.push((name, parts));
    }
    do_all(&scene);
    scene
}

#[test]
fn a_panic_in_collecting_costs_one_file() {
    let collect = |scene: &Scene| _ = scene.fs.jobs().collect_for_space(&Effort::of(1_000_000));
    panics_at_each_moment(Job::Collect, with_parts, &collect, &[0, 1, 3]);
    panics_as_a_whole(Job::Collect, with_parts(), &collect);
}

#[test]
fn a_panic_in_emptying_packed_segments_costs_only_space() {
    let scene = || {
        let mut scene = Scene::new(Policy::DeExt);
        (0..60).for_each(|file| scene.add(&format!("file {file}"), text_of(file)));
        do_all(&scene);
        let is_gone = |file: usize| !file.is_multiple_of(3);
        (0..60).filter(|file| is_gone(*file)).for_each(|file| {
            scene.fs.unlink(ROOT, format!("file {file}").as_bytes()).unwrap();
        });
        let mut file = 0..;
        scene.files.retain(|_| !is_gone(file.next().unwrap()));
        scene
    };
    let empty_all = |scene: &Scene| while scene.fs.jobs().reclaim_segment(&Effort::of(1_000_000)) {};
    for moment in MOMENTS {
        let none = |scene: &Scene| assert_eq!(scene.fs.stats().reclaim.segments, 0, "{moment:?}");
        scene().panics(Job::Reclaim, None, moment, &empty_all, &none);
    }
    let scene = scene();
    empty_all(&scene);
    assert!(scene.fs.stats().reclaim.segments > 0, "there was work");
}

/// A mount whose files lie in all segments of blocks, most of which are free.
fn with_scattered_blocks() -> Scene {
    let mut scene = Scene::new(Policy::Off);
    let name = |file: usize| format!("file {file}");
    let files: Vec<_> = (0..4 * FILES).map(|file| create(&scene.fs, &name(file), b"")).collect();
    let data = |file: usize| noise(200 * BLOCK + file);
    for at in (0..200).map(|block| block * BLOCK) {
        for (nth, file) in files.iter().enumerate() {
            let data = data(nth);
            let end = if at == 199 * BLOCK { data.len() } else { at + BLOCK };
            file.write_at(at as u64, &data[at..end]).unwrap();
        }
    }
    drop(files);
    (FILES..4 * FILES).for_each(|file| scene.fs.unlink(ROOT, name(file).as_bytes()).unwrap());
    scene.files = (0..FILES).map(|file| (name(file), data(file))).collect();
    scene
}

#[test]
fn a_panic_in_emptying_segments_of_blocks_costs_one_file() {
    let empty = |scene: &Scene| _ = scene.fs.empty_segments_of_blocks();
    panics_at_each_moment(Job::Evacuate, with_scattered_blocks, &empty, &[0, 1, 3]);
    panics_as_a_whole(Job::Evacuate, with_scattered_blocks(), &empty);
}

#[test]
fn a_panic_in_moving_an_attribute_costs_one_file() {
    let scene = || {
        let mut scene = Scene::new(Policy::Off);
        scene.value = noise(60_000);
        for file in 0..FILES {
            let name = format!("file {file}");
            scene.add(&name, noise(BLOCK + file));
            scene.fs.set_xattr(number(&scene.fs, &name), b"user.value", &scene.value, XattrMode::Set).unwrap();
        }
        scene
    };
    let empty = |scene: &Scene| _ = scene.fs.empty_segments_of_blocks();
    panics_at_each_moment(Job::Evacuate, scene, &empty, &[0, 1, 3]);
}

#[test]
fn a_panic_in_rewriting_a_log_costs_one_file() {
    let overwrite = |scene: &Scene| {
        for (name, data) in &scene.files {
            // One that is cut off in a change cannot be opened.
            let Ok(file) = scene.fs.open(number(&scene.fs, name)) else { continue };
            (0..300).for_each(|_| _ = file.write_at(0, &data[..BLOCK]));
        }
    };
    for moment in MOMENTS {
        let mut scene = Scene::new(Policy::Off);
        (0..FILES).for_each(|file| scene.add(&format!("file {file}"), noise(20 * BLOCK + file)));
        let goes_on = |scene: &Scene| {
            assert!((0..FILES).filter(|file| *file != HIT).all(|file| scene.log_lines(file) < 150));
            assert!(moment == Moment::Committed || scene.log_lines(HIT) >= 300, "{}", scene.log_lines(HIT));
        };
        scene.panics(Job::Compact, Some(HIT), moment, &overwrite, &goes_on);
    }
}

#[test]
fn a_panic_in_sharing_on_request_is_the_error_of_the_request() {
    let share = |scene: &Scene| {
        for (nth, (name, _)) in scene.files.iter().enumerate() {
            let file = scene.fs.open(number(&scene.fs, name));
            match file.and_then(|file| file.dedup_range(0, u64::MAX)) {
                Err(error) if nth == HIT => assert_eq!(error.errno(), errno::EIO, "{error}"),
                done => assert!(nth != HIT && done.is_ok(), "{done:?}"),
            }
        }
    };
    panics_at_each_moment(Job::Reshare, || with_equal_files(Policy::Off), &share, &[1, 3]);
}

#[test]
fn a_panic_in_housekeeping_stops_only_that_job() {
    let reorder = |scene: &Scene| assert!(scene.fs.reorder_step().unwrap());
    panics_as_a_whole(Job::Reorder, with_equal_files(Policy::Inline), &reorder);
    let trim = |scene: &Scene| assert!(scene.fs.trim_step().unwrap());
    panics_as_a_whole(Job::Trim, with_equal_files(Policy::Inline), &trim);
}

#[test]
fn a_panic_in_a_late_release_leaves_the_references_to_calls_and_the_next_mount() {
    let mut scene = Scene::with(Policy::Inline, &MkfsOptions { index: IndexKind::Pm, ..MkfsOptions::default() });
    (0..FILES).for_each(|file| scene.add(&format!("file {file}"), noise(20 * BLOCK)));
    create(&scene.fs, "dropped", &noise(20 * BLOCK));
    scene.fs.unlink(ROOT, b"dropped").unwrap();
    let mut daemon = Daemon::new(scene.fs.clone());
    scene.fs.core().panics.plan(Job::Release, None, Moment::Begin);
    daemon.turn().unwrap();
    assert!(scene.fs.panicked().last.is_some_and(|last| last.contains("releasing dropped references")));
    daemon.turn().unwrap();
    assert_eq!(scene.fs.panicked().count, 1, "it is not tried again");
    scene.see(None);
    scene.see_next_mount();
}

#[test]
fn a_panic_in_recovery_stops_reconcile_and_keeps_all_files() {
    let Scene { region, fs, files, policy, open, value } = with_equal_files(Policy::Inline);
    drop(fs);
    let scene = Scene { fs: mount_with(&region, policy), region, files, policy, open, value };
    scene.fs.core().panics.plan(Job::Reconcile, None, Moment::Begin);
    let error = scene.fs.reconcile().unwrap_err();
    assert!(matches!(error, Error::NotReconciled { .. }) && error.to_string().contains("made by a test"), "{error}");
    assert!(scene.fs.stats().recovery.stalled && scene.fs.panicked().count == 1);
    scene.see(None);
    let Scene { region, fs, files, policy, open, value } = scene;
    assert_eq!(fs.unmount().unwrap_err().to_string(), error.to_string());
    // Dropped as it is, the next mount recovers it again.
    Scene { fs: mount_with(&region, policy), region, files, policy, open, value }.see_recovered();
}

/// Outside of tests that make one, a contained panic fails the test.
#[test]
#[should_panic(expected = "giving memory back to the host (of this test)")]
fn an_unexpected_contained_panic_fails_the_test() {
    let scene = Scene::new(Policy::Off);
    let _ = scene.fs.jobs().contain_all(Job::Trim, true, || panic!("of this test"));
}
