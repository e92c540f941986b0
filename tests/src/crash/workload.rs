//! The workloads before a crash: a small tree, every operation on it, pairs of operations, and random sequences.
//!
//! The tree is small but has one of everything that an operation can meet: shared and unshared blocks, a file with
//! two names, extended attributes in the log and in blocks, a log whose inline lines are full, logs that the next
//! entry makes too long, reserved blocks, directories empty and not.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use nvfold::{AllocateMode, DedupMode, MkfsOptions, MountOptions, Policy, RenameMode, XattrMode};
use pmem::{Action, Event, Pending};

use super::Subject as Setting;
use super::disk::{Disk, Image};
use super::tree::{Space, Tree};
use crate::model::library::Library;
use crate::model::op::{self, Kind, NodePath, Op};
use crate::model::{Subject, oracle::Oracle};
use crate::shared::Named;

/// Size of the devices: the smallest size that can be formatted, plus a free segment for the live chunks of a segment
/// that is emptied.
pub const DEVICE_BYTES: u64 = 18 << 20;
/// Size of the devices on which the file system grows: a segment of tables and two of data more.
pub const GROWN_DEVICE_BYTES: u64 = 24 << 20;
/// The beginning of the names of the workloads in which it grows.
pub const GROWTH: &str = "growth";

const BLOCK: u64 = 4096;
/// Lines that a log may have before compaction is considered.
const LOG_LINES_MAX: u64 = 126;

/// The seed of incompressible data.
const NOISE: u64 = 1;

/// Names of the tree.
const UNSHARED: u8 = 0;
const SHARED: u8 = 1;
const CLONE: u8 = 2;
const DIR: u8 = 3;
const EMPTY_DIR: u8 = 4;
const LONG_NAME: u8 = 5;
const SYMLINK: u8 = 7;
const TWO_NAMES: u8 = 8;
const XATTRS: u8 = 9;
const FULL_INLINE: u8 = 10;
const LONG_LOG: u8 = 11;
const LONG_DIR: u8 = 12;
const RESERVED: u8 = 13;
const EMPTY: u8 = 15;
/// Takes the rest of a full device.
const FILLER: u8 = 16;
/// The file whose rename a crash interrupts before some workloads begin.
const MOVED: u8 = 17;
const MOVED_TO: u8 = 18;
/// Its end grows in a block of its own.
const GROWN: u8 = 24;
/// Its size.
const GROWN_BYTES: u64 = 1100;
/// An unused name.
const NEW: u8 = 14;
/// A second unused name.
const MORE: u8 = 19;
/// Number of blocks that contains an aligned 64 KiB, wherever they begin.
const RUN_BLOCKS: u64 = 32;
/// Free blocks on a full device: the reserve, and as many as the operations need.
const FREE_BLOCKS: u64 = 64 + 48;

/// Operations that belong together.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Their name.
    pub name: String,
    /// The operations.
    pub ops: Vec<Op>,
    /// Crashes are made from this operation on; the operations before it have their own workload.
    pub crashes_from: usize,
    /// The only policies for which this workload tests something specific.
    pub only: Option<&'static [Policy]>,
}

impl Workload {
    /// Returns whether references that the operations drop, and that may be released later, wait until the last operation
    /// is done. Otherwise they are released after each one.
    pub fn releases_late(&self) -> bool {
        self.name.starts_with(LATE)
    }

    /// Returns whether the file system grows.
    pub fn grows(&self) -> bool {
        self.ops.contains(&Op::Grow) || self.ops.contains(&Op::GrowMounted)
    }

    /// Returns the workload with growth after it.
    pub fn then_growth(mut self) -> Workload {
        self.ops.push(Op::Grow);
        self
    }
}

/// A step of a recorded workload.
#[derive(Clone)]
pub enum Step {
    /// An event on the media.
    Event(Event),
    /// From here on a crash must leave one of these trees.
    Outcomes(Vec<Arc<Tree>>),
}

/// The recording of a workload.
pub struct Trace {
    /// Its name.
    pub name: String,
    /// The steps, beginning with the outcomes.
    pub steps: Vec<Step>,
    /// Crashes are made from this step on.
    pub crashes_from: usize,
}

impl Trace {
    /// Makes the trace of a recovery, which may be interrupted anywhere and leads to the same outcomes.
    pub fn of_recovery(name: String, allowed: &[Arc<Tree>], events: &[Event]) -> Trace {
        let outcomes = Step::Outcomes(allowed.to_vec());
        let steps = std::iter::once(outcomes).chain(events.iter().cloned().map(Step::Event)).collect();
        Trace { name, steps, crashes_from: 0 }
    }

    /// Iterates over the events, without the outcomes.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.steps.iter().filter_map(|step| match step {
            Step::Event(event) => Some(event),
            Step::Outcomes(_) => None,
        })
    }
}

/// An unmounted device with the tree, and the model of the tree.
pub struct Base {
    setting: &'static Setting,
    /// The device.
    pub image: Image,
    model: Oracle,
}

/// Returns a clock that ticks at each call, so that times are the same in every run.
pub fn clock_from(first: i64) -> nvfold::Clock {
    let next = AtomicI64::new(first);
    Arc::new(move || next.fetch_add(1, Ordering::Relaxed))
}

/// The trees of a workload.
struct Trees {
    /// Before the first operation, and after each.
    after: Vec<Arc<Tree>>,
    /// Within each operation, after each of those that are done meanwhile.
    between: Vec<Vec<Arc<Tree>>>,
}

impl Base {
    /// Makes the tree.
    pub fn new(setting: &'static Setting) -> Base {
        nvfold::internals::number_this_thread(0);
        let region = Image::default().region(DEVICE_BYTES);
        let options =
            MkfsOptions { uuid: *b"a uuid for tests", now: 1, index: setting.index, ..MkfsOptions::default() };
        nvfold::FileSystem::mkfs(&region, &options).expect("mkfs");
        let options = MountOptions { clock: clock_from(1 << 20), ..setting.options(setting.made_by) };
        let mut library = Library::on(region.clone(), options);
        let mut model = Oracle::new();
        let mut apply = |library: &mut Library, op: Op| {
            let answer = library.apply(&op);
            assert!(answer == op::Answer::Done && answer == model.apply(&op), "{op:?}: {answer:?}");
        };
        tree().into_iter().for_each(|op| apply(&mut library, op));
        if setting.full {
            let free = library.fs().statfs().blocks_free - FREE_BLOCKS;
            apply(&mut library, allocate(FILLER, 0, free * BLOCK, AllocateMode::ReserveKeepSize));
        }
        let image = if setting.after_crash {
            // Two operations are interrupted: an append before its commit word, which fills a block behind what the
            // file maps, and three others; and a rename that is in the journal.
            region.take_recording();
            let before = Image::of(&region);
            library.apply(&append(GROWN, 3 * BLOCK, distinct(17)));
            let write = region.take_recording().events;
            apply(&mut library, Op::Rename { from: at(MOVED), to: at(MOVED_TO), mode: RenameMode::NoReplace });
            crashed(before, &write, &region.take_recording().events)
        } else {
            library.unmount();
            Image::of(&region)
        };
        let image = if setting.grows { longer(&image) } else { image };
        Base { setting, image, model }
    }

    /// Returns the size of the device.
    pub fn device_bytes(&self) -> u64 {
        self.setting.device_bytes()
    }

    /// Carries out a workload on a copy of the tree. Every answer must equal the model's.
    pub fn trace(&self, workload: &Workload) -> Trace {
        let mut trees = self.trees(workload);
        let region = self.image.region(self.device_bytes());
        let mut trace = Trace { name: workload.name.clone(), steps: Vec::new(), crashes_from: 0 };
        let record = |trace: &mut Trace| {
            trace.steps.extend(region.take_recording().events.into_iter().map(Step::Event));
        };
        trace.steps.push(Step::Outcomes(vec![trees.after[0].clone()]));
        let mut library = Library::on(region.clone(), self.options());
        record(&mut trace);
        for (number, op) in workload.ops.iter().enumerate() {
            if number == workload.crashes_from && number > 0 {
                trace.crashes_from = trace.steps.len();
            }
            let between = std::mem::take(&mut trees.between[number]);
            let (before, after) = (&trees.after[number], &trees.after[number + 1]);
            let during = match self.growth_bytes(&workload.ops[..number], op) {
                _ if matches!(op, Op::RemoveTree { .. }) => {
                    vec![before.clone(), Arc::new(after.copy_before_links_go(before)), after.clone()]
                }
                _ if in_steps(op) => vec![Arc::new(before.copy_without_space())],
                0 => [vec![before.clone(), after.clone()], between].concat(),
                growth => vec![Arc::new(before.copy_with_growth(growth)), after.clone()],
            };
            trace.steps.push(Step::Outcomes(during));
            // Each operation has its own thread, so that no fence of a later one covers stores of an earlier one.
            let apply = || {
                nvfold::internals::number_this_thread(number);
                library.apply(op)
            };
            std::thread::scope(|scope| scope.spawn(apply).join()).expect("it answered before");
            record(&mut trace);
            trace.steps.push(Step::Outcomes(vec![after.clone()]));
            if !workload.releases_late() || number + 1 == workload.ops.len() {
                let fs = library.fs().clone();
                let release = move || {
                    nvfold::internals::number_this_thread(number);
                    fs.statfs()
                };
                std::thread::scope(|scope| scope.spawn(release).join()).expect("it does not panic");
                record(&mut trace);
            }
        }
        let end = Tree::of(library.fs()).expect("a mounted file system can be read").without_space();
        assert!(end.agrees_with(&trees.after[workload.ops.len()]), "{}: it is not the same each time", workload.name);
        trace
    }

    /// Returns how many chunks a workload collects.
    pub fn collected(&self, workload: &Workload) -> u64 {
        let mut library = Library::on(self.image.region(self.device_bytes()), self.options());
        for op in &workload.ops {
            // As in a recording, what an operation has dropped is released after it.
            let _ = (library.apply(op), library.fs().statfs());
        }
        library.fs().stats().reclaim.collected_chunks
    }

    /// Returns the trees before, between and after the operations of a workload. A separate run reads them, because
    /// reading fills caches that must be cold in the recorded run.
    fn trees(&self, workload: &Workload) -> Trees {
        let mut library = Library::on(self.image.region(self.device_bytes()), self.options());
        let mut model = self.model.clone();
        let between: Arc<Mutex<Vec<Arc<Tree>>>> = Arc::default();
        let seen = between.clone();
        // How much a crash leaves to share is not known here.
        let drained = (self.setting.policy == Policy::DeNova).then_some(0);
        library.look_between(Box::new(move |fs| {
            let tree = Tree::of(fs).expect("a mounted file system can be read");
            seen.lock().expect("no panic").push(Arc::new(tree.without_space().with_drained(drained)));
        }));
        let mut trees = Trees { after: vec![self.tree_now(&library, &[])], between: Vec::new() };
        for (number, op) in workload.ops.iter().enumerate() {
            let (answer, expected) = (library.apply(op), model.apply(op));
            let name = &workload.name;
            assert!(answer.agrees_with(&expected), "{name}, {op:?}: {answer:?}, the model expects {expected:?}");
            for question in model.questions() {
                let (answer, expected) = (library.apply(&question), model.apply(&question));
                assert!(answer.agrees_with(&expected), "{name}, {question:?}: {answer:?}, the model has {expected:?}");
            }
            trees.after.push(self.tree_now(&library, &workload.ops[..=number]));
            trees.between.push(std::mem::take(&mut *between.lock().expect("no panic")));
        }
        trees
    }

    /// Returns the tree after these operations, which `library` holds. If the library does not know its totals after
    /// a crash, a separate run finds them: nothing may be reconciled yet, a crash frees files without a name, and it ends
    /// a round of collecting, with the references of that round.
    fn tree_now(&self, library: &Library, ops: &[Op]) -> Arc<Tree> {
        let tree = Tree::of(library.fs()).expect("a mounted file system can be read");
        let queues = self.setting.policy == Policy::DeNova;
        if library.collects() && library.has_open_slots() {
            // A crash of the model closes them, which ends streams; a real one does not.
            return Arc::new(tree.without_space());
        }
        if !self.setting.after_crash && !library.holds_nameless() && !queues && !library.collects() {
            return Arc::new(tree);
        }
        let mut settled = Library::on(self.image.region(self.device_bytes()), self.options());
        // Closing a file that has a name ends its stream, which no crash does.
        let slots = if library.holds_nameless() { 0..op::SLOTS } else { 0..0 };
        let close = slots.map(|slot| Op::Close { slot });
        let ends_round = library.collects().then_some(Op::Crash);
        let last = close.chain(ends_round).chain([Op::Reconcile]);
        ops.iter().cloned().chain(last).for_each(|op| drop(settled.apply(&op)));
        let space = Space::of(settled.fs());
        let drained = queues.then(|| {
            settled.apply(&Op::Fill);
            settled.apply(&Op::Drain);
            Named::of(settled.fs()).expect("a mounted file system can be read").saved()
        });
        Arc::new(tree.with_space(space).with_drained(drained))
    }

    /// Returns the bytes by which an operation, with these before it, may lengthen the tail of a stream before its
    /// commit word. A crash between the two leaves those bytes behind the end of the file, in its chunk, until the
    /// chunk is freed.
    fn growth_bytes(&self, before: &[Op], op: &Op) -> u64 {
        let has_streams = self.setting.policy.without_origins() == Policy::DeExt;
        let opens = |op: &Op| matches!(op, Op::Open { .. } | Op::Tmpfile { .. });
        match op {
            _ if !has_streams || !before.iter().any(opens) => 0,
            Op::Append { len, .. } | Op::Write { len, .. } | Op::SlotWrite { len, .. } => *len,
            _ => 0,
        }
    }

    fn options(&self) -> MountOptions {
        MountOptions { clock: clock_from(1 << 40), ..self.setting.options(self.setting.policy) }
    }
}

/// Returns the image in which a write misses only its commit word, and a rename is in the journal and nowhere else.
fn crashed(before: Image, write: &[Event], rename: &[Event]) -> Image {
    let (_, geometry) = nvfold::read_superblock(&before.region(DEVICE_BYTES)).expect("it was mounted");
    let journal = geometry.journal_offset..geometry.segment_table_offset;
    let mut disk = Disk::new(before, DEVICE_BYTES);
    // Behind the commit word a pm index issues more fences.
    let staged = write.iter().position(|event| event.action == Action::Fence).expect("a write fences");
    let mut pending = Pending::default();
    write[..=staged].iter().for_each(|event| disk.settle(&pending.play(event)));
    let mut pending = Pending::default();
    for event in rename {
        let settled = pending.play(event);
        disk.settle(&settled);
        if settled.iter().any(|word| journal.contains(&word.offset)) {
            return disk.image().clone();
        }
    }
    unreachable!("a rename goes through the journal")
}

/// Returns the image on a longer device, which has other bytes in what will be tables.
fn longer(image: &Image) -> Image {
    let region = image.region(GROWN_DEVICE_BYTES);
    let _ = region.fence(region.stream(DEVICE_BYTES, &[0xA5; 128 << 10]));
    Image::of(&region)
}

/// Returns whether an operation changes only the stored form, not the content, and does so in several steps.
fn in_steps(op: &Op) -> bool {
    let moves = matches!(op, Op::DrainStep | Op::Drain | Op::Reclaim | Op::EmptySegments | Op::CollectSteps { .. });
    moves || matches!(op, Op::Convert | Op::Grow | Op::GrowMounted)
}

/// Returns the operations that make the tree.
fn tree() -> Vec<Op> {
    let mut ops = vec![
        create(UNSHARED),
        write(UNSHARED, 0, 3 * BLOCK + 1000, distinct(0)),
        create(SHARED),
        write(SHARED, 0, 2 * BLOCK, distinct(1)),
        create(CLONE),
        clone(SHARED, 0, CLONE, 0, 2 * BLOCK),
        Op::Mkdir { path: at(DIR), mode: 0o755 },
        Op::Create { path: vec![DIR, 0], mode: 0o600 },
        Op::Write { path: vec![DIR, 0], offset: 0, len: 100, seed: distinct(2) },
        Op::Mkdir { path: vec![DIR, 1], mode: 0o700 },
        Op::Mkdir { path: at(EMPTY_DIR), mode: 0o755 },
        Op::Symlink { path: at(SYMLINK), target_len: 30 },
        create(TWO_NAMES),
        write(TWO_NAMES, 0, 10, distinct(3)),
        Op::Link { from: at(TWO_NAMES), to: vec![DIR, 2] },
        create(XATTRS),
        xattr(XATTRS, 0, 100),
        xattr(XATTRS, 1, 9000),
        create(FULL_INLINE),
    ];
    ops.extend((0..5).map(|extent| write(FULL_INLINE, extent * 2 * BLOCK, 50, distinct(4 + extent as usize))));
    ops.push(create(LONG_LOG));
    ops.extend((0..LOG_LINES_MAX).map(|line| write(LONG_LOG, 0, 8, line)));
    ops.push(Op::Mkdir { path: at(LONG_DIR), mode: 0o755 });
    for _ in 0..LOG_LINES_MAX / 2 {
        ops.push(Op::Create { path: vec![LONG_DIR, 0], mode: 0o644 });
        ops.push(Op::Unlink { path: vec![LONG_DIR, 0] });
    }
    ops.extend([create(EMPTY), create(FILLER), create(MOVED), create(RESERVED)]);
    ops.push(allocate(RESERVED, 0, 3 * BLOCK, AllocateMode::Reserve));
    ops.extend([create(GROWN), append(GROWN, 1000, distinct(21)), append(GROWN, GROWN_BYTES - 1000, distinct(22))]);
    ops
}

/// Returns all sequences of length 1: each is one operation, or one with the operations that it needs.
pub fn singles() -> Vec<Workload> {
    let mut all: Vec<(&str, Vec<Op>)> = vec![
        ("create", vec![create(NEW)]),
        ("create with the longest name", vec![create(LONG_NAME)]),
        ("create in a directory whose log is long", vec![Op::Create { path: vec![LONG_DIR, 1], mode: 0o644 }]),
        ("fifo", vec![Op::Fifo { path: at(NEW) }]),
        ("mkdir", vec![Op::Mkdir { path: at(NEW), mode: 0o700 }]),
        ("symlink", vec![Op::Symlink { path: at(NEW), target_len: 50 }]),
        ("symlink with a long target", vec![Op::Symlink { path: at(NEW), target_len: 1000 }]),
        ("symlink with a target in blocks", vec![Op::Symlink { path: at(NEW), target_len: 4095 }]),
        ("link", vec![Op::Link { from: at(UNSHARED), to: at(NEW) }]),
        ("link into another directory", vec![Op::Link { from: at(SHARED), to: vec![DIR, 7] }]),
        ("unlink of unshared data", vec![Op::Unlink { path: at(UNSHARED) }]),
        ("unlink of shared data", vec![Op::Unlink { path: at(SHARED) }]),
        ("unlink of both that share", vec![Op::Unlink { path: at(SHARED) }, Op::Unlink { path: at(CLONE) }]),
        ("unlink of one of two names", vec![Op::Unlink { path: at(TWO_NAMES) }]),
        ("unlink of both names", vec![Op::Unlink { path: at(TWO_NAMES) }, Op::Unlink { path: vec![DIR, 2] }]),
        ("unlink of a symlink", vec![Op::Unlink { path: at(SYMLINK) }]),
        ("unlink with attributes in blocks", vec![Op::Unlink { path: at(XATTRS) }]),
        ("unlink with log pages", vec![Op::Unlink { path: at(LONG_LOG) }]),
        ("unlink of reserved blocks", vec![Op::Unlink { path: at(RESERVED) }]),
        ("rmdir", vec![Op::Rmdir { path: at(EMPTY_DIR) }]),
        ("rmdir with log pages", vec![Op::Rmdir { path: at(LONG_DIR) }]),
        ("rmdir of what is not empty", vec![Op::Rmdir { path: at(DIR) }]),
        ("remove of an empty tree", vec![Op::RemoveTree { path: at(EMPTY_DIR) }]),
        ("remove of a tree", vec![Op::RemoveTree { path: at(DIR) }]),
        ("remove of a tree with both names of a file", {
            let moved = Op::Rename { from: at(TWO_NAMES), to: vec![DIR, 1, 8], mode: RenameMode::Replace };
            vec![moved, Op::RemoveTree { path: at(DIR) }]
        }),
        ("remove of a tree with shared data and attributes in blocks", {
            let into = |name, to| Op::Rename { from: at(name), to: vec![DIR, 1, to], mode: RenameMode::Replace };
            vec![into(XATTRS, 3), into(SHARED, 4), into(RESERVED, 5), Op::RemoveTree { path: at(DIR) }]
        }),
        ("remove of a tree with a directory whose log is long", {
            let moved = Op::Rename { from: at(LONG_DIR), to: vec![DIR, 1, 3], mode: RenameMode::Replace };
            vec![moved, Op::RemoveTree { path: at(DIR) }, create(NEW)]
        }),
        ("remove of a tree in which a file is open", {
            let open = Op::Open { path: vec![DIR, 0], slot: 0 };
            let write = Op::SlotWrite { slot: 0, offset: 50, len: 100, seed: distinct(23) };
            vec![open, Op::RemoveTree { path: at(DIR) }, write, Op::Close { slot: 0 }]
        }),
        ("unlink of what is open", vec![open(SHARED), Op::Unlink { path: at(SHARED) }, Op::Close { slot: 0 }]),
        (
            "write to what was unlinked",
            vec![
                open(UNSHARED),
                Op::Unlink { path: at(UNSHARED) },
                Op::SlotWrite { slot: 0, offset: 100, len: 3000, seed: distinct(12) },
            ],
        ),
        ("tmpfile", vec![Op::Tmpfile { slot: 0, mode: 0o600 }, Op::Close { slot: 0 }]),
        (
            "tmpfile, written and linked",
            vec![
                Op::Tmpfile { slot: 0, mode: 0o600 },
                Op::SlotWrite { slot: 0, offset: 0, len: 5000, seed: distinct(13) },
                Op::SlotLink { slot: 0, to: at(NEW) },
            ],
        ),
        ("chmod", vec![Op::Chmod { path: at(UNSHARED), mode: 0o400 }]),
        ("chmod of a directory", vec![Op::Chmod { path: at(DIR), mode: 0o711 }]),
        ("chown", vec![Op::Chown { path: at(SYMLINK), uid: 3, gid: 4 }]),
        ("set times", vec![Op::SetTimes { path: at(SHARED), atime: 77, mtime: 78 }]),
        (
            "set two attributes after another",
            vec![Op::Chmod { path: at(UNSHARED), mode: 0o400 }, Op::Chown { path: at(UNSHARED), uid: 3, gid: 4 }],
        ),
        ("sync", vec![Op::Sync { path: at(UNSHARED) }]),
        ("unmount and mount", vec![Op::Remount]),
    ];
    all.extend(renames());
    all.extend(xattrs());
    all.extend(together());
    all.extend(writes());
    all.extend(zeros());
    all.extend(ranges());
    all.extend(sharing());
    all.extend(follow_ups());
    let of_all =
        all.into_iter().map(|(name, ops)| Workload { name: name.to_owned(), ops, crashes_from: 0, only: None });
    let of_trim = given_back()
        .into_iter()
        .chain(growing())
        .chain(appends())
        .map(|(name, crashes_from, ops)| Workload { name: name.to_owned(), ops, crashes_from, only: None });
    let of_fragments = fragments()
        .into_iter()
        .chain(collected())
        .chain(emptied())
        .chain(absent())
        .map(|(name, crashes_from, ops)| Workload { name: name.to_owned(), ops, crashes_from, only: None });
    let of_late = released_late().into_iter().map(|(name, ops)| Workload {
        name: format!("{LATE}{name}"),
        ops,
        crashes_from: 0,
        only: None,
    });
    let of_clones = of_trees().into_iter().map(|(name, crashes_from, ops)| Workload {
        name: format!("{OF_TREES}{name}"),
        ops,
        crashes_from,
        only: None,
    });
    let of_denova = offline().into_iter().map(|(name, crashes_from, ops)| Workload {
        name: name.to_owned(),
        ops,
        crashes_from,
        only: Some(&[Policy::DeNova]),
    });
    let of_deext = streams().into_iter().chain(reclaimed()).map(|(name, crashes_from, ops)| Workload {
        name: name.to_owned(),
        ops,
        crashes_from,
        only: Some(&[Policy::DeExt]),
    });
    let of_pieces = parts_of_pieces().into_iter().map(|(name, crashes_from, ops)| Workload {
        name: name.to_owned(),
        ops,
        crashes_from,
        only: Some(&[Policy::DeExt, Policy::IcidDeExt]),
    });
    let of_icid = copied().into_iter().chain(appends()).map(|(name, crashes_from, ops)| Workload {
        name: name.to_owned(),
        ops,
        crashes_from,
        only: Some(&FOLLOWING),
    });
    let of_collections = collected_between().into_iter().map(|(name, ops)| Workload {
        name: format!("{COLLECTED_BETWEEN}{name}"),
        ops: [parts_of_blocks(), ops].concat(),
        crashes_from: parts_of_blocks().len(),
        only: Some(&FOLLOWING),
    });
    of_all
        .chain(of_late)
        .chain(of_clones)
        .chain(of_trim)
        .chain(of_fragments)
        .chain(of_denova)
        .chain(of_deext)
        .chain(of_pieces)
        .chain(of_icid)
        .chain(of_collections)
        .collect()
}

fn renames() -> Vec<(&'static str, Vec<Op>)> {
    use RenameMode::{Exchange, NoReplace, Replace};
    let alone = RenameMode::Whiteout { uid: 3, gid: 4, replaces: false };
    let rename = |from: &[u8], to: &[u8], mode| vec![Op::Rename { from: from.to_vec(), to: to.to_vec(), mode }];
    vec![
        ("rename", rename(&[UNSHARED], &[NEW], Replace)),
        ("rename that may not replace", rename(&[UNSHARED], &[NEW], NoReplace)),
        ("rename into another directory", rename(&[UNSHARED], &[DIR, 7], Replace)),
        ("rename over a file", rename(&[UNSHARED], &[SHARED], Replace)),
        ("rename over a file in another directory", rename(&[DIR, 0], &[UNSHARED], Replace)),
        ("rename over one of two names", rename(&[UNSHARED], &[DIR, 2], Replace)),
        ("rename of one name over the other", rename(&[TWO_NAMES], &[DIR, 2], Replace)),
        ("rename of a directory", rename(&[DIR], &[NEW], Replace)),
        ("rename of a directory into another", rename(&[DIR, 1], &[EMPTY_DIR, 0], Replace)),
        ("rename of a directory over an empty one", rename(&[DIR], &[EMPTY_DIR], Replace)),
        ("rename of a directory over an empty one elsewhere", rename(&[DIR, 1], &[EMPTY_DIR], Replace)),
        ("rename into a directory whose log is long", rename(&[UNSHARED], &[LONG_DIR, 1], Replace)),
        ("exchange", rename(&[UNSHARED], &[SHARED], Exchange)),
        ("exchange between directories", rename(&[UNSHARED], &[DIR, 0], Exchange)),
        ("exchange of a file and a directory", rename(&[UNSHARED], &[DIR, 1], Exchange)),
        ("exchange of directories", rename(&[EMPTY_DIR], &[DIR, 1], Exchange)),
        ("whiteout", rename(&[UNSHARED], &[NEW], op::WHITEOUT)),
        ("whiteout that may not replace", rename(&[DIR, 0], &[DIR, 7], alone)),
        ("whiteout, over a file elsewhere", rename(&[SHARED], &[DIR, 0], op::WHITEOUT)),
        ("whiteout of a directory that moves into another", rename(&[DIR, 1], &[EMPTY_DIR, 0], op::WHITEOUT)),
        ("whiteout in a directory whose log is long", {
            [vec![Op::Create { path: vec![LONG_DIR, 1], mode: 0o644 }], rename(&[LONG_DIR, 1], &[NEW], alone)].concat()
        }),
        ("whiteout in the slot of a file that is gone", {
            [vec![Op::Unlink { path: at(FULL_INLINE) }], rename(&[CLONE], &[NEW], op::WHITEOUT)].concat()
        }),
    ]
}

fn xattrs() -> Vec<(&'static str, Vec<Op>)> {
    vec![
        ("xattr", vec![xattr(UNSHARED, 0, 100)]),
        ("xattr of no bytes", vec![xattr(UNSHARED, 0, 0)]),
        ("xattr in many lines", vec![xattr(UNSHARED, 0, 1000)]),
        ("xattr in blocks", vec![xattr(UNSHARED, 0, 6000)]),
        ("xattr replaced", vec![xattr(XATTRS, 0, 60)]),
        ("xattr in blocks replaced", vec![xattr(XATTRS, 1, 5000)]),
        ("xattr in blocks replaced by a short one", vec![xattr(XATTRS, 1, 10)]),
        ("xattr of a directory", vec![xattr(DIR, 2, 20)]),
        ("xattr removed", vec![Op::RemoveXattr { path: at(XATTRS), name: 0 }]),
        ("xattr in blocks removed", vec![Op::RemoveXattr { path: at(XATTRS), name: 1 }]),
    ]
}

/// Returns calls that change several attributes of one inode: all or none.
fn together() -> Vec<(&'static str, Vec<Op>)> {
    let seed = distinct(20);
    let set = |name, mode, size, mtime, xattr| vec![Op::SetTogether { path: at(name), mode, size, mtime, xattr }];
    let make = |path: &[u8], kind, xattrs: &[u64]| {
        let xattrs = xattrs.iter().enumerate().map(|(name, len)| (name as u8, seed, *len)).collect();
        Op::CreateWith { path: path.to_vec(), kind, mode: 0o750, xattrs }
    };
    let (file, directory) = (Kind::Regular, Kind::Directory);
    let mode = Some(0o640);
    vec![
        ("set together: size and mode", set(UNSHARED, mode, Some(BLOCK + 9), None, None)),
        ("set together: no size and times", set(SHARED, None, Some(0), Some(77), None)),
        ("set together: a greater size and mode", set(CLONE, mode, Some(9 * BLOCK), None, None)),
        ("set together: size and an attribute", set(UNSHARED, None, Some(100), None, Some((0, Some((seed, 60)))))),
        ("set together: mode and an attribute", set(UNSHARED, mode, None, None, Some((0, Some((seed, 60)))))),
        ("set together: mode and one in blocks", set(XATTRS, mode, None, Some(78), Some((1, Some((seed, 5000)))))),
        ("set together: mode and one taken away", set(XATTRS, mode, None, None, Some((1, None)))),
        ("set together: mode and one that is not there", set(UNSHARED, mode, None, None, Some((2, None)))),
        ("set together: all", set(CLONE, mode, Some(5), Some(79), Some((0, Some((seed, 6000)))))),
        ("set together: all of a full log", set(FULL_INLINE, mode, Some(5), Some(80), Some((0, Some((seed, 90)))))),
        (
            "set together: all of a log that is long",
            set(LONG_LOG, mode, Some(5), Some(81), Some((0, Some((seed, 90))))),
        ),
        ("create with an attribute", vec![make(&[NEW], file, &[44])]),
        ("create with three attributes", vec![make(&[NEW], file, &[44, 5000, 200])]),
        ("create with more than is inline", vec![make(&[NEW], file, &[300, 300])]),
        ("mkdir with two attributes", vec![make(&[NEW], directory, &[44, 60])]),
        (
            "create with an attribute and a policy in a used slot",
            vec![
                Op::SetPolicy { path: at(DIR), policy: Some(Policy::Off) },
                Op::Unlink { path: at(FULL_INLINE) },
                make(&[DIR, 7], file, &[44, 300]),
            ],
        ),
    ]
}

fn writes() -> Vec<(&'static str, Vec<Op>)> {
    let new = distinct(14);
    vec![
        ("write of a new file", vec![create(NEW), write(NEW, 0, BLOCK, new)]),
        ("write of equal blocks", vec![create(NEW), write(NEW, 0, 3 * BLOCK, twins())]),
        ("write of what is there already", vec![create(NEW), write(NEW, 0, 2 * BLOCK, distinct(1))]),
        ("write of what is there once", vec![create(NEW), write(NEW, 0, 3 * BLOCK, distinct(0))]),
        ("write of new blocks of two chains", vec![create(NEW), write(NEW, 0, 4 * BLOCK, distinct(16))]),
        ("write of no bytes", vec![write(UNSHARED, 5, 0, new)]),
        ("write of a few bytes", vec![write(UNSHARED, 10, 20, new)]),
        ("overwrite of unshared data", vec![write(UNSHARED, BLOCK, BLOCK, new)]),
        ("overwrite over two blocks", vec![write(UNSHARED, BLOCK - 100, 200, new)]),
        ("overwrite of parts and a whole block", vec![write(UNSHARED, 3000, 2 * BLOCK, new)]),
        ("overwrite with the same bytes", vec![write(UNSHARED, 0, BLOCK, distinct(0))]),
        ("overwrite of shared data", vec![write(SHARED, 0, BLOCK, new)]),
        ("overwrite of a part of shared data", vec![write(CLONE, 1000, 50, new)]),
        ("overwrite of all that is shared", vec![write(SHARED, 0, 2 * BLOCK, new)]),
        ("write past the end", vec![write(UNSHARED, 6 * BLOCK + 5, 100, new)]),
        ("write into a hole", vec![write(FULL_INLINE, BLOCK, 100, new)]),
        ("write that needs a log page", vec![write(FULL_INLINE, 0, 50, new)]),
        ("write that makes the log too long", vec![write(LONG_LOG, 0, 8, new)]),
        ("write to reserved blocks", vec![write(RESERVED, BLOCK, BLOCK, new)]),
        ("write to parts of reserved blocks", vec![write(RESERVED, BLOCK - 10, 20, new)]),
        ("write to reserved blocks of what is there already", vec![write(RESERVED, 0, 2 * BLOCK, distinct(1))]),
        ("append", vec![Op::Append { path: at(UNSHARED), len: 500, seed: new }]),
        ("append to a new file", vec![create(NEW), Op::Append { path: at(NEW), len: 5000, seed: new }]),
        ("two writes to one block", vec![write(UNSHARED, 0, 100, new), write(UNSHARED, 50, 100, distinct(15))]),
    ]
}

/// Returns appends to a file whose end grows in its block: name, the operation from which on crashes are made,
/// operations.
fn appends() -> Vec<(&'static str, usize, Vec<Op>)> {
    use AllocateMode::{PunchHole, ReserveKeepSize};
    let (new, other) = (distinct(14), distinct(15));
    let grow = |len| append(GROWN, len, new);
    let truncate = |size| Op::Truncate { path: at(GROWN), size };
    let fills = BLOCK - GROWN_BYTES;
    // The same appends as to the file that grows, up to a whole block.
    let same = |name: u8| {
        let parts = [(1000, distinct(21)), (GROWN_BYTES - 1000, distinct(22)), (fills, new)];
        std::iter::once(create(name)).chain(parts.map(|(len, seed)| append(name, len, seed))).collect::<Vec<_>>()
    };
    let unlink = |name| Op::Unlink { path: at(name) };
    let whole = || clone(GROWN, 0, EMPTY, 0, GROWN_BYTES);
    vec![
        ("append inside a block, twice", 0, vec![grow(200), append(GROWN, 300, other)]),
        ("append over the end of a block", 0, vec![grow(BLOCK), append(GROWN, 70, other)]),
        ("append over whole blocks", 0, vec![grow(2 * BLOCK + 500), append(GROWN, 70, other)]),
        ("append that fills a block", 0, vec![grow(fills), append(GROWN, 50, other)]),
        ("append that fills a block with what is there already", 1, [vec![grow(fills)], same(NEW)].concat()),
        ("append that fills a block with what grew elsewhere", 3, [same(NEW), vec![grow(fills)]].concat()),
        ("append to both of a clone", 1, vec![whole(), grow(50), append(EMPTY, 60, other), append(GROWN, 9, other)]),
        ("append beside a clone of a part", 1, vec![clone(GROWN, 100, EMPTY, 0, 500), grow(50), grow(60)]),
        ("append after the clone is gone", 2, vec![whole(), unlink(EMPTY), grow(50), grow(60)]),
        ("append after truncate inside the block", 0, vec![truncate(1050), grow(30), append(GROWN, 90, other)]),
        ("append after truncate to nothing", 0, vec![truncate(0), grow(30), append(GROWN, 90, other)]),
        ("append behind a hole", 0, vec![grow(30), truncate(2000), append(GROWN, 90, other), truncate(BLOCK + 5)]),
        ("write behind the end that grows", 0, vec![write(GROWN, 2000, 100, new), append(GROWN, 90, other)]),
        ("write over the end that grows", 0, vec![write(GROWN, 1050, 300, new), append(GROWN, 90, other)]),
        (
            "write of the page again, and more",
            3,
            vec![create(NEW), write(NEW, 0, 700, NOISE), write(NEW, 0, 900, NOISE), write(NEW, 0, 1300, NOISE)],
        ),
        (
            "append to reserved blocks",
            1,
            vec![allocate(GROWN, 0, 3 * BLOCK, ReserveKeepSize), grow(200), grow(fills), append(GROWN, 90, other)],
        ),
        ("append after a punch inside the block", 1, vec![allocate(GROWN, 500, 100, PunchHole), grow(50), grow(60)]),
        ("unlink of a file that grows", 0, vec![unlink(GROWN), append(UNSHARED, 10, new)]),
        ("unmount and append", 1, vec![Op::Remount, grow(20), grow(30)]),
        (
            "append after dedup",
            1,
            vec![Op::Dedup { path: at(GROWN), offset: 0, len: BLOCK }, grow(20), grow(fills - 20)],
        ),
        ("append after segments were emptied", 2, vec![Op::Reconcile, Op::EmptySegments, grow(20), grow(fills - 20)]),
        ("append after collection", 1, vec![whole(), Op::Reclaim, grow(20), grow(30)]),
        ("append that outgrows the inline log", 4, vec![grow(1), grow(2), grow(3), grow(4), grow(5), grow(6)]),
    ]
}

/// Returns writes of zeros, alone and beside data. They become holes, but under policy `off`.
fn zeros() -> Vec<(&'static str, Vec<Op>)> {
    let zeros = |name, offset, len| write(name, offset, len, op::ZEROS);
    let beside_data = |name, offset| write(name, offset, 4 * BLOCK, zeros_beside_data());
    let stored = || {
        let off = Op::SetPolicy { path: at(NEW), policy: Some(Policy::Off) };
        vec![create(NEW), off, write(NEW, 0, 3 * BLOCK, op::ZEROS)]
    };
    let dedup = Op::Dedup { path: at(NEW), offset: 0, len: 8 * BLOCK };
    vec![
        ("zeros in a new file", vec![create(NEW), zeros(NEW, 0, 9 * BLOCK + 5)]),
        ("zeros over data", vec![zeros(UNSHARED, 0, 3 * BLOCK + 1000)]),
        ("zeros over parts of data", vec![zeros(UNSHARED, 1000, 2 * BLOCK)]),
        ("zeros over shared data", vec![zeros(SHARED, 0, 2 * BLOCK)]),
        ("zeros over a part of shared data", vec![zeros(CLONE, 300, 77)]),
        ("zeros over reserved blocks", vec![zeros(RESERVED, BLOCK - 10, BLOCK + 20)]),
        ("zeros past the end", vec![zeros(UNSHARED, 6 * BLOCK + 5, 2 * BLOCK)]),
        ("zeros appended", vec![Op::Append { path: at(UNSHARED), len: BLOCK, seed: op::ZEROS }]),
        ("zeros over a log that is long", vec![zeros(LONG_LOG, 0, 8)]),
        ("zeros beside data, over data", vec![beside_data(UNSHARED, 0)]),
        ("zeros beside data, over parts of a clone", vec![beside_data(CLONE, 100)]),
        ("zeros beside data, over reserved blocks", vec![beside_data(RESERVED, 0)]),
        (
            "zeros beside data, then data over them",
            vec![beside_data(EMPTY, 0), write(EMPTY, 0, 4 * BLOCK, distinct(16))],
        ),
        ("zeros stored, then dedup", [stored(), vec![dedup]].concat()),
    ]
}

fn ranges() -> Vec<(&'static str, Vec<Op>)> {
    use AllocateMode::{PunchHole, Reserve, ReserveKeepSize, ZeroRange, ZeroRangeKeepSize};
    let truncate = |name: u8, size: u64| vec![Op::Truncate { path: at(name), size }];
    let range = |name, offset, len, mode| vec![allocate(name, offset, len, mode)];
    vec![
        ("truncate to nothing", truncate(UNSHARED, 0)),
        ("truncate of shared data", truncate(SHARED, BLOCK)),
        ("truncate inside a block", truncate(UNSHARED, BLOCK + 7)),
        ("truncate inside a shared block", truncate(CLONE, 100)),
        ("truncate to the same size", truncate(UNSHARED, 3 * BLOCK + 1000)),
        ("truncate to more", truncate(UNSHARED, 5 * BLOCK)),
        ("truncate a hole", truncate(FULL_INLINE, 9 * BLOCK)),
        ("truncate and grow", [truncate(UNSHARED, 50), truncate(UNSHARED, BLOCK)].concat()),
        ("punch a block", range(UNSHARED, BLOCK, BLOCK, PunchHole)),
        ("punch inside a block", range(UNSHARED, 100, 200, PunchHole)),
        ("punch over blocks", range(UNSHARED, 100, 2 * BLOCK, PunchHole)),
        ("punch shared data", range(SHARED, 0, BLOCK, PunchHole)),
        ("punch inside a shared block", range(CLONE, BLOCK + 100, 50, PunchHole)),
        ("punch a hole", range(FULL_INLINE, BLOCK, BLOCK, PunchHole)),
        ("zero a block", range(UNSHARED, BLOCK, BLOCK, ZeroRange)),
        ("zero parts of blocks", range(UNSHARED, 100, BLOCK, ZeroRange)),
        ("zero past the end", range(UNSHARED, 3 * BLOCK, 2 * BLOCK, ZeroRange)),
        ("zero past the end and keep the size", range(UNSHARED, 3 * BLOCK, 2 * BLOCK, ZeroRangeKeepSize)),
        ("zero shared data", range(SHARED, 0, 2 * BLOCK, ZeroRange)),
        ("reserve past the end", range(UNSHARED, 4 * BLOCK, 2 * BLOCK, Reserve)),
        ("reserve and keep the size", range(UNSHARED, 4 * BLOCK, BLOCK, ReserveKeepSize)),
        ("reserve holes", range(FULL_INLINE, 0, 8 * BLOCK, Reserve)),
        ("reserve what is there", range(UNSHARED, 0, BLOCK, Reserve)),
        ("clone a file", vec![create(NEW), clone(UNSHARED, 0, NEW, 0, 4 * BLOCK)]),
        ("clone what is shared", vec![create(NEW), clone(SHARED, 0, NEW, 0, 2 * BLOCK)]),
        ("clone over data", vec![clone(SHARED, 0, UNSHARED, BLOCK, BLOCK)]),
        ("clone bytes", vec![clone(UNSHARED, 100, SHARED, 3000, 5000)]),
        ("clone within a file", vec![clone(UNSHARED, 0, UNSHARED, 2 * BLOCK, BLOCK)]),
        ("clone over the same data", vec![clone(SHARED, 0, CLONE, 0, 2 * BLOCK)]),
        ("clone of a hole", vec![clone(FULL_INLINE, 0, SHARED, 0, 2 * BLOCK)]),
        ("clone of reserved blocks", vec![clone(RESERVED, 0, SHARED, 0, BLOCK)]),
        ("clone over reserved blocks", vec![clone(SHARED, 0, RESERVED, 0, BLOCK)]),
    ]
}

/// Returns workloads with policies of directories and files, sharing of stored data, and undedup.
fn sharing() -> Vec<(&'static str, Vec<Op>)> {
    let policy = |path: &[u8], policy| Op::SetPolicy { path: path.to_vec(), policy };
    let off = |path: &[u8]| policy(path, Some(Policy::Off));
    let dedup = |name| Op::Dedup { path: at(name), offset: 0, len: 8 * BLOCK };
    let undedup = |name| Op::Undedup { path: at(name), offset: 0, len: 8 * BLOCK };
    // Two blocks that exist already, stored once more.
    let stored_twice = || vec![dedup(SHARED), create(NEW), off(&[NEW]), write(NEW, 0, 2 * BLOCK, distinct(1))];
    vec![
        ("policy of a file", vec![off(&[UNSHARED]), write(UNSHARED, 0, BLOCK, distinct(1))]),
        ("policy taken away", vec![off(&[DIR]), policy(&[DIR], None)]),
        ("policy of a directory, then create", vec![off(&[DIR]), Op::Create { path: vec![DIR, 7], mode: 0o644 }]),
        (
            "policy of a directory, then mkdir and create in it",
            vec![
                policy(&[DIR], Some(Policy::Inline)),
                Op::Mkdir { path: vec![DIR, 7], mode: 0o755 },
                Op::Create { path: vec![DIR, 7, 0], mode: 0o644 },
                Op::Write { path: vec![DIR, 7, 0], offset: 0, len: BLOCK, seed: distinct(0) },
            ],
        ),
        ("dedup of what nothing equals", vec![dedup(UNSHARED)]),
        ("dedup of what is shared", vec![dedup(SHARED), dedup(CLONE)]),
        ("dedup of what is stored twice", [stored_twice(), vec![dedup(NEW)]].concat()),
        ("dedup within a file", vec![create(NEW), off(&[NEW]), write(NEW, 0, 2 * BLOCK, twins()), dedup(NEW)]),
        ("dedup of reserved blocks", vec![dedup(RESERVED)]),
        ("dedup of a hole", vec![dedup(FULL_INLINE)]),
        ("undedup of what nobody shares", vec![undedup(UNSHARED)]),
        ("undedup of shared data", vec![undedup(SHARED)]),
        ("undedup of both that share", vec![undedup(SHARED), undedup(CLONE)]),
        ("undedup of cloned bytes", vec![clone(UNSHARED, 100, EMPTY, 3000, 900), undedup(EMPTY)]),
        ("undedup of one block", vec![Op::Undedup { path: at(CLONE), offset: BLOCK, len: 1 }]),
        ("undedup, then dedup again", vec![dedup(SHARED), undedup(SHARED), dedup(SHARED)]),
        ("undedup, then write", vec![undedup(SHARED), write(SHARED, 0, BLOCK, distinct(14))]),
        (
            "unlink, then a write that is not fingerprinted",
            vec![off(&[EMPTY]), Op::Fill, Op::Unlink { path: at(UNSHARED) }, write(EMPTY, 0, 8 * BLOCK, distinct(19))],
        ),
        ("fill", vec![Op::Fill]),
        (
            "writes without and with fingerprints, then fill",
            vec![
                write(UNSHARED, 0, 3 * BLOCK, distinct(15)),
                write(SHARED, 0, 3 * BLOCK, distinct(17)),
                Op::Fill,
                write(EMPTY, 0, 3 * BLOCK, distinct(15)),
                Op::Fill,
            ],
        ),
        (
            "fill of cloned bytes, then write",
            vec![clone(LONG_LOG, 0, EMPTY, 0, BLOCK), Op::Fill, write(EMPTY, 0, BLOCK, distinct(18))],
        ),
        ("fill, then unlink", vec![Op::Fill, Op::Unlink { path: at(UNSHARED) }]),
        ("dedup of an end that is stored twice", {
            let of_tree = write(NEW, 0, 3 * BLOCK + 1000, distinct(0));
            let dedup = Op::Dedup { path: at(NEW), offset: 3 * BLOCK, len: 1000 };
            vec![create(NEW), off(&[NEW]), of_tree, dedup]
        }),
        ("dedup, then unlink", [stored_twice(), vec![dedup(NEW), Op::Unlink { path: at(NEW) }]].concat()),
    ]
}

/// The beginning of the names of the workloads in which dropped references wait until the last operation is done.
const LATE: &str = "released late: ";

/// Returns operations that drop references, and others that come before those are released: what is still found is shared,
/// what is still counted is dropped once more, and nothing that is on the list is written over.
fn released_late() -> Vec<(&'static str, Vec<Op>)> {
    let unlink = |name| Op::Unlink { path: at(name) };
    let dropped = |name, bytes| write(name, 0, bytes, distinct(16));
    let again = || write(EMPTY, 0, 3 * BLOCK, distinct(0));
    let reconciled = |ops: &[Op]| [&[Op::Reconcile], ops].concat();
    vec![
        ("overwrite, then what was there in another file", reconciled(&[dropped(UNSHARED, 3 * BLOCK), again()])),
        ("unlink, then what was there in another file", reconciled(&[unlink(UNSHARED), again()])),
        ("unlink, then what was there in another file, twice", reconciled(&[unlink(UNSHARED), again(), unlink(EMPTY)])),
        ("overwrite of both that share", reconciled(&[dropped(SHARED, 2 * BLOCK), dropped(CLONE, 2 * BLOCK)])),
        (
            "overwrite of one that shares, then unlink",
            reconciled(&[dropped(SHARED, BLOCK), unlink(CLONE), unlink(SHARED)]),
        ),
        ("unlink, then unmount", reconciled(&[unlink(UNSHARED), again(), unlink(SHARED), Op::Remount])),
        ("truncate, then a clone of the rest", {
            let shorter = Op::Truncate { path: at(SHARED), size: BLOCK };
            reconciled(&[shorter, clone(SHARED, 0, EMPTY, 0, BLOCK), dropped(SHARED, BLOCK)])
        }),
    ]
}

/// The beginning of the names of the workloads with clones and snapshots.
pub const OF_TREES: &str = "tree: ";

/// Returns clones and snapshots of a directory with one of everything, by themselves and while it is changed; and what
/// comes after them. The first number is that of the operation from which on crashes are made.
fn of_trees() -> Vec<(&'static str, usize, Vec<Op>)> {
    let into_dir = |name: u8| Op::Rename { from: at(name), to: vec![DIR, 20 + name], mode: RenameMode::NoReplace };
    let furnished = || [UNSHARED, SHARED, XATTRS, RESERVED, FULL_INLINE, LONG_DIR, SYMLINK].map(into_dir).to_vec();
    let clone = |from: u8, meanwhile| Op::CloneTree { from: at(from), to: at(NEW), meanwhile };
    let snapshot = |from: u8, name| Op::Snapshot { from: at(from), name };
    let within = |name: u8| vec![DIR, 20 + name];
    let writer = vec![
        Op::Write { path: within(UNSHARED), offset: 100, len: BLOCK, seed: distinct(17) },
        Op::Unlink { path: within(SHARED) },
        Op::Truncate { path: within(FULL_INLINE), size: 3 * BLOCK },
        Op::Rename { from: vec![DIR, 0], to: at(MORE), mode: RenameMode::NoReplace },
        Op::RemoveXattr { path: within(XATTRS), name: 1 },
        Op::Unlink { path: at(TWO_NAMES) },
    ];
    let then = |op: Op| vec![clone(DIR, Vec::new()), op];
    let mut all = vec![
        ("clone of an empty directory", 0, vec![clone(EMPTY_DIR, Vec::new())]),
        ("clone of a directory", 0, vec![clone(DIR, Vec::new())]),
        ("clone of a tree, then a write to it", 1, then(write(SHARED, 0, BLOCK, distinct(18)))),
        ("clone of a tree, then removals in it", 1, then(Op::Unlink { path: vec![DIR, 2] })),
        ("clone of a tree, then a write to the copy", 1, {
            then(Op::Write { path: vec![NEW, 0], offset: 10, len: 50, seed: distinct(18) })
        }),
        ("a clone of a clone", 1, then(Op::CloneTree { from: at(NEW), to: at(MORE), meanwhile: Vec::new() })),
        ("snapshot when there is another", 1, vec![snapshot(EMPTY_DIR, 0), snapshot(DIR, 1)]),
        ("snapshot, then its end", 1, vec![snapshot(DIR, 0), Op::DeleteSnapshot { name: 0 }]),
    ];
    all.extend(of_limits());
    let mut of_all = furnished();
    of_all.push(clone(DIR, Vec::new()));
    all.push(("clone of a tree with one of everything", of_all.len() - 1, of_all));
    let mut written = furnished();
    written.push(clone(DIR, writer));
    all.push(("clone of a tree under a writer", written.len() - 1, written));
    all
}

/// Returns what is done with the limits of a tree, in the form of [`of_trees`].
fn of_limits() -> Vec<(&'static str, usize, Vec<Op>)> {
    let limits = |path: &[u8], inodes, logical_bytes| Op::SetLimits { path: path.to_vec(), inodes, logical_bytes };
    let set = || limits(&[DIR], Some(50), Some(1 << 30));
    let new = |ops: &[Op]| [&[limits(&[EMPTY_DIR], Some(3), Some(2 * BLOCK))], ops].concat();
    let file = vec![EMPTY_DIR, 0];
    let made = Op::Create { path: file.clone(), mode: 0o600 };
    let written = Op::Write { path: file.clone(), offset: 0, len: 2 * BLOCK, seed: distinct(17) };
    let below = Op::Mkdir { path: vec![DIR, 30], mode: 0o700 };
    let in_below = Op::Create { path: vec![DIR, 30, 0], mode: 0o600 };
    let clone = Op::CloneTree { from: at(DIR), to: vec![EMPTY_DIR, 1], meanwhile: Vec::new() };
    vec![
        ("limits of an empty directory", 0, new(&[])),
        ("limits of a tree", 2, vec![below.clone(), in_below.clone(), set()]),
        ("limits of a tree are removed", 3, vec![below.clone(), in_below.clone(), set(), limits(&[DIR], None, None)]),
        ("limits within limits", 2, vec![below, set(), limits(&[DIR, 30], Some(1), None), limits(&[DIR], None, None)]),
        ("limits, then what fills them", 1, new(&[made, written, Op::Truncate { path: file, size: BLOCK }])),
        ("clone into a limited tree", 1, vec![limits(&[EMPTY_DIR], Some(99), Some(1 << 30)), clone]),
        ("limits, then an unmount", 1, vec![set(), Op::Remount, limits(&[DIR], Some(9), None)]),
    ]
}

/// Returns operations that meet leftovers of the previous one: a used slot of the journal, freed blocks, counts.
fn follow_ups() -> Vec<(&'static str, Vec<Op>)> {
    let new = distinct(16);
    let chmod = |name| Op::Chmod { path: at(name), mode: 0o440 };
    let rename = |from, to| Op::Rename { from: at(from), to: at(to), mode: RenameMode::Replace };
    vec![
        ("rename, then chmod", vec![rename(UNSHARED, NEW), chmod(NEW)]),
        ("rename, then create", vec![rename(UNSHARED, NEW), create(UNSHARED)]),
        ("link, then write", vec![Op::Link { from: at(SHARED), to: at(NEW) }, write(SHARED, 0, 10, new)]),
        ("create, then chmod of what was moved", vec![create(NEW), chmod(MOVED_TO)]),
        ("unlink of shared data, then unmount", vec![Op::Unlink { path: at(SHARED) }, Op::Remount]),
        ("overwrite, then unmount", vec![write(UNSHARED, 0, 2 * BLOCK, new), Op::Remount]),
        ("clone, then unmount", vec![clone(UNSHARED, 0, EMPTY, 0, BLOCK), Op::Remount]),
        ("unlink, then write to its blocks", vec![Op::Unlink { path: at(UNSHARED) }, write(EMPTY, 0, 3 * BLOCK, new)]),
        (
            "unlink of both that share, then write to their blocks",
            vec![Op::Unlink { path: at(SHARED) }, Op::Unlink { path: at(CLONE) }, write(EMPTY, 0, 3 * BLOCK, new)],
        ),
        ("unlink, then attributes in its blocks", vec![Op::Unlink { path: at(UNSHARED) }, xattr(EMPTY, 0, 9000)]),
        (
            "unlink, then reserve its blocks",
            vec![Op::Unlink { path: at(UNSHARED) }, allocate(EMPTY, 0, 3 * BLOCK, AllocateMode::Reserve)],
        ),
        ("truncate, then write", vec![Op::Truncate { path: at(UNSHARED), size: 0 }, write(EMPTY, 0, 3 * BLOCK, new)]),
        (
            "attributes removed, then write to their blocks",
            vec![Op::RemoveXattr { path: at(XATTRS), name: 1 }, write(EMPTY, 0, 3 * BLOCK, new)],
        ),
        ("reconcile, then write", vec![Op::Reconcile, write(EMPTY, 0, 3 * BLOCK, new)]),
        ("reconcile, then reserve", vec![Op::Reconcile, allocate(EMPTY, 0, 3 * BLOCK, AllocateMode::Reserve)]),
        ("tmpfile, linked", vec![Op::Tmpfile { slot: 0, mode: 0o600 }, Op::SlotLink { slot: 0, to: at(NEW) }]),
        ("rmdir, then create", vec![Op::Rmdir { path: at(LONG_DIR) }, create(NEW)]),
        (
            "unlink, then mkdir in its slot",
            vec![Op::Unlink { path: at(UNSHARED) }, Op::Mkdir { path: at(NEW), mode: 0o700 }],
        ),
        (
            "unlink, write to its blocks, then create with a policy in its slot",
            vec![
                Op::SetPolicy { path: at(DIR), policy: Some(Policy::Off) },
                Op::Unlink { path: at(UNSHARED) },
                write(EMPTY, 0, 4 * BLOCK, new),
                Op::Create { path: vec![DIR, 7], mode: 0o644 },
            ],
        ),
        (
            "unlink, attributes in its blocks, then symlink in its slot",
            vec![
                Op::Unlink { path: at(UNSHARED) },
                xattr(EMPTY, 0, 9000),
                Op::Symlink { path: at(NEW), target_len: 50 },
            ],
        ),
        ("compaction, then write to its pages", vec![write(LONG_LOG, 0, 8, new), write(EMPTY, 0, 3 * BLOCK, new)]),
        ("compaction, then a log page there", vec![write(LONG_LOG, 0, 8, new), write(FULL_INLINE, 0, 50, new)]),
        ("the other index", vec![Op::Convert]),
        ("the other index, then this one", vec![Op::Convert, Op::Convert]),
        ("the other index, then write of what is there", vec![Op::Convert, write(EMPTY, 0, 3 * BLOCK, distinct(0))]),
        ("unlink of shared data, then the other index", vec![Op::Unlink { path: at(SHARED) }, Op::Convert]),
        ("growth", vec![Op::Grow]),
        ("growth, then data in the new part", vec![Op::Grow, write(EMPTY, 0, 64 * BLOCK, new)]),
        ("growth, then reserved space in the new part", {
            vec![Op::Grow, allocate(EMPTY, 0, 600 * BLOCK, AllocateMode::Reserve), Op::Unlink { path: at(EMPTY) }]
        }),
        ("growth after an unlink", vec![Op::Unlink { path: at(SHARED) }, Op::Grow, write(EMPTY, 0, BLOCK, new)]),
        ("growth, then the other index", vec![Op::Grow, Op::Convert]),
        ("growth while mounted", vec![Op::GrowMounted]),
        (
            "growth while mounted, between writes",
            vec![write(EMPTY, 0, 3 * BLOCK, new), Op::GrowMounted, write(EMPTY, 2 * BLOCK, 64 * BLOCK, distinct(18))],
        ),
        ("growth while mounted, then reserved space in the new part", {
            let reserved = allocate(EMPTY, 0, 600 * BLOCK, AllocateMode::Reserve);
            vec![Op::GrowMounted, reserved, Op::Unlink { path: at(EMPTY) }]
        }),
        (
            "growth while mounted, after an unlink",
            vec![Op::Unlink { path: at(SHARED) }, Op::GrowMounted, write(EMPTY, 0, BLOCK, new)],
        ),
        (
            "growth while mounted, then unmount, and a write",
            vec![Op::GrowMounted, write(EMPTY, 0, 64 * BLOCK, new), Op::Remount, write(EMPTY, 0, BLOCK, distinct(18))],
        ),
    ]
}

/// Returns workloads with logs that outgrow their slot, then their areas, and with slots that alternate between an
/// inode and a log: name, the operation from which on crashes are made, operations.
fn growing() -> Vec<(&'static str, usize, Vec<Op>)> {
    let new = distinct(17);
    let mkdir = Op::Mkdir { path: at(NEW), mode: 0o755 };
    let name = |number: u8| Op::Create { path: vec![NEW, number], mode: 0o644 };
    // A directory whose log has so many lines, all but one of them dead.
    let directory = |lines: usize| {
        let line = |at: usize| if at.is_multiple_of(2) { name(0) } else { Op::Unlink { path: vec![NEW, 0] } };
        [vec![mkdir.clone()], (0..lines).map(line).collect()].concat()
    };
    let then = |mut before: Vec<Op>, ops: Vec<Op>| {
        let from = before.len();
        before.extend(ops);
        (from, before)
    };
    let rename =
        |from: &[u8], to: &[u8]| Op::Rename { from: from.to_vec(), to: to.to_vec(), mode: RenameMode::Replace };
    let all = [
        ("areas: a directory takes its first area", then(directory(5), vec![name(1)])),
        ("areas: a directory takes its second area", then(directory(12), vec![name(1)])),
        ("areas: a directory takes its first page", then(directory(61), vec![name(1)])),
        ("areas: a file takes its first page", then(vec![], vec![write(FULL_INLINE, 0, 50, new)])),
        (
            "areas: a rename takes an area",
            then(directory(5), vec![write(FULL_INLINE, 0, 50, new), rename(&[DIR, 0], &[NEW, 1])]),
        ),
        ("areas: rename of a file with attributes", then(directory(5), vec![rename(&[XATTRS], &[NEW, 1])])),
        ("areas: rmdir with an area", then(directory(6), vec![Op::Rmdir { path: at(NEW) }])),
        ("areas: rmdir with areas and a page", then(directory(62), vec![Op::Rmdir { path: at(NEW) }])),
        (
            "areas: rmdir with areas, then inodes in their slots",
            then(directory(14), vec![Op::Rmdir { path: at(NEW) }, create(NEW), create(MORE)]),
        ),
        (
            "areas: unlink, then an area in its slot",
            then(directory(5), vec![Op::Unlink { path: at(UNSHARED) }, name(1)]),
        ),
        (
            "areas: rmdir with one, then its slots the other way round",
            then(
                directory(6),
                vec![
                    Op::Rmdir { path: at(NEW) },
                    create(MORE),
                    Op::Mkdir { path: at(NEW), mode: 0o755 },
                    xattr(NEW, 0, 400),
                ],
            ),
        ),
        ("areas: unmount, then a name", then(directory(6), vec![Op::Remount, name(1)])),
    ];
    all.into_iter().map(|(name, (from, ops))| (name, from, ops)).collect()
}

/// Returns workloads that give memory back to the host, from segments that had content: name, the operation from
/// which on crashes are made, operations.
fn given_back() -> Vec<(&'static str, usize, Vec<Op>)> {
    let unlink = |path: &[u8]| Op::Unlink { path: path.to_vec() };
    // The segment of the data is then free, and so are the log segments except the root's.
    let names: [&[u8]; 12] = [
        &[UNSHARED],
        &[SHARED],
        &[DIR, 0],
        &[TWO_NAMES],
        &[DIR, 2],
        &[XATTRS],
        &[FULL_INLINE],
        &[LONG_LOG],
        &[RESERVED],
        &[FILLER],
        &[GROWN],
        &[CLONE],
    ];
    let all_but_the_last = || names[..names.len() - 1].iter().map(|path| unlink(path)).collect::<Vec<_>>();
    let last = names.len() - 1;
    let trimmed = || [all_but_the_last(), vec![Op::Reconcile, unlink(&[CLONE]), Op::Trim]].concat();
    let new = |blocks| write(EMPTY, 0, blocks * BLOCK, distinct(16));
    // Free blocks with old content behind used blocks.
    let random = |name| write(name, 0, RUN_BLOCKS * BLOCK, 5);
    let run = || vec![create(NEW), random(NEW), unlink(&[NEW]), Op::Trim];
    vec![
        ("unlink of all, then trim", last + 1, trimmed()),
        ("trim, then write", last + 3, [trimmed(), vec![new(3)]].concat()),
        (
            "trim, then write of what was there",
            last + 3,
            [trimmed(), vec![write(EMPTY, 0, BLOCK, distinct(1))]].concat(),
        ),
        ("trim, then unmount", last + 3, [trimmed(), vec![Op::Remount]].concat()),
        ("unlink, then trim of a run", 2, run()),
        ("trim of a run, then write to it", 4, [run(), vec![new(3), create(MORE), random(MORE)]].concat()),
        ("trim of a run, then attributes there", 4, [run(), vec![xattr(EMPTY, 0, 9000)]].concat()),
        ("trim of a run, then a log page there", 4, [run(), vec![write(FULL_INLINE, 0, 50, 3)]].concat()),
        ("trim of a run, then unmount", 4, [run(), vec![Op::Remount, new(3)]].concat()),
        ("trim of a run, then of all", 4, [run(), trimmed()].concat()),
        ("write, then trim", last + 1, [trimmed(), vec![new(3), Op::Trim]].concat()),
    ]
}

/// Returns operations that name many extents in one log entry: name, the operation from which on crashes are made,
/// operations. A policy that shares turns the writes into five runs of shared blocks, or into shared and new blocks
/// in turn.
fn fragments() -> Vec<(&'static str, usize, Vec<Op>)> {
    let scattered = |runs: usize, blocks: u64| {
        let run = |at: usize| write(NEW, at as u64 * 4 * BLOCK, blocks * BLOCK, distinct(20 - 4 * at));
        [vec![create(NEW)], (0..runs).map(run).collect(), vec![create(MORE)]].concat()
    };
    let (runs, singles) = (|| scattered(5, 4), || scattered(4, 1));
    // Eight fragments with holes between them.
    let fragmented = || {
        let block = |at: u64| write(NEW, (7 - at) * 2 * BLOCK, BLOCK, distinct(at as usize));
        [vec![create(NEW)], (0..8).map(block).collect(), vec![create(MORE)]].concat()
    };
    let clone_all = |to| clone(NEW, 0, to, 0, 16 * BLOCK);
    let from = |ops: &[Op]| ops.len();
    vec![
        (
            "write of what lies scattered",
            from(&runs()),
            [runs(), vec![write(MORE, 0, 20 * BLOCK, distinct(4))]].concat(),
        ),
        (
            "write of which a part lies scattered, over data",
            from(&singles()) + 1,
            [singles(), vec![write(MORE, 0, 16 * BLOCK, 5), write(MORE, 0, 16 * BLOCK, distinct(8))]].concat(),
        ),
        ("clone of fragments", from(&fragmented()), [fragmented(), vec![clone_all(MORE)]].concat()),
        ("clone of fragments over data", from(&fragmented()), [fragmented(), vec![clone_all(UNSHARED)]].concat()),
        (
            "clone of fragments, then write into it",
            from(&fragmented()) + 1,
            [fragmented(), vec![clone_all(MORE), write(MORE, 100, 3 * BLOCK, distinct(9))]].concat(),
        ),
        (
            "clone of fragments, then unlink",
            from(&fragmented()) + 1,
            [fragmented(), vec![clone_all(MORE), Op::Unlink { path: at(NEW) }]].concat(),
        ),
    ]
}

/// Returns workloads that policy denova queues and shares: name, the operation from which on crashes are made,
/// operations.
fn offline() -> Vec<(&'static str, usize, Vec<Op>)> {
    use Op::{Drain, DrainStep};
    let unlink = |name| Op::Unlink { path: at(name) };
    let duplicate = || write(EMPTY, 0, 3 * BLOCK, distinct(0));
    let mode = |mode| Op::SetMode { mode };
    let off = |name| Op::SetPolicy { path: at(name), policy: Some(Policy::Off) };
    // Six files whose blocks are all in the chains of the tree's blocks, or all in one chain.
    let reorder = || vec![Op::ReorderStep; 5];
    let long_chain = || {
        let file =
            |number: u8| [create(20 + number), write(20 + number, 0, 4 * BLOCK, distinct(4 * usize::from(number)))];
        (1..4).flat_map(file).collect::<Vec<_>>()
    };
    vec![
        ("drain of the tree", 0, vec![Drain]),
        ("drain of a block that was filled", 1, vec![append(GROWN, BLOCK - GROWN_BYTES, distinct(14)), Drain]),
        (
            "drain of a block that was filled, cut short and filled again",
            2,
            vec![
                append(GROWN, BLOCK - GROWN_BYTES, distinct(14)),
                Op::Truncate { path: at(GROWN), size: 500 },
                append(GROWN, BLOCK - 500, distinct(15)),
                DrainStep,
                Drain,
            ],
        ),
        (
            "drain, cut short and append",
            2,
            vec![
                append(GROWN, BLOCK - GROWN_BYTES, distinct(14)),
                Drain,
                Op::Truncate { path: at(GROWN), size: 500 },
                append(GROWN, 90, distinct(15)),
                Drain,
            ],
        ),
        (
            "drain of a write that names many extents",
            5,
            // Reserved blocks stay in place, so the write names reserved and new blocks in turn.
            [
                vec![create(NEW)],
                (0..4).map(|at| allocate(NEW, at * 2 * BLOCK, BLOCK, AllocateMode::Reserve)).collect(),
                vec![write(NEW, 0, 8 * BLOCK, distinct(0)), DrainStep, Drain],
            ]
            .concat(),
        ),
        ("drain of what is there already", 1, vec![Drain, create(NEW), write(NEW, 0, 2 * BLOCK, distinct(1)), Drain]),
        ("drain of equal blocks", 1, vec![Drain, create(NEW), write(NEW, 0, 3 * BLOCK, twins()), DrainStep, Drain]),
        ("drain of new blocks", 1, vec![Drain, create(NEW), write(NEW, 0, 4 * BLOCK, distinct(16)), DrainStep]),
        ("drain of duplicates of what is queued", 0, vec![duplicate(), DrainStep, DrainStep, Drain]),
        ("drain of a part that is there", 1, vec![Drain, write(EMPTY, 0, 4 * BLOCK, distinct(0)), Drain]),
        (
            "drain of what is in two places",
            1,
            vec![Drain, write(EMPTY, 0, 2 * BLOCK, distinct(1)), write(EMPTY, 2 * BLOCK, BLOCK, distinct(0)), Drain],
        ),
        ("drain of what was overwritten", 1, vec![Drain, duplicate(), write(EMPTY, 0, BLOCK, distinct(14)), Drain]),
        ("drain, then overwrite", 2, vec![duplicate(), Drain, write(UNSHARED, 0, BLOCK, distinct(15))]),
        ("drain, then the same again", 1, vec![Drain, write(UNSHARED, 0, 3 * BLOCK, distinct(0)), Drain]),
        (
            "drain of what was truncated",
            1,
            vec![Drain, duplicate(), Op::Truncate { path: at(EMPTY), size: 5000 }, Drain],
        ),
        ("drain of what was unlinked", 1, vec![Drain, duplicate(), unlink(EMPTY), Drain]),
        (
            "drain of what was unlinked, in a new file",
            1,
            vec![Drain, duplicate(), unlink(EMPTY), create(NEW), write(NEW, 0, BLOCK, distinct(1)), Drain],
        ),
        ("drain, then unlink of both that share", 2, vec![duplicate(), Drain, unlink(UNSHARED), unlink(EMPTY)]),
        (
            "drain, then unlink, then write to its blocks",
            2,
            vec![
                duplicate(),
                Drain,
                unlink(UNSHARED),
                unlink(EMPTY),
                create(NEW),
                write(NEW, 0, 3 * BLOCK, distinct(16)),
                Drain,
            ],
        ),
        ("drain of a clone", 0, vec![create(NEW), clone(UNSHARED, 0, NEW, 0, 4 * BLOCK), Drain]),
        ("drain of cloned bytes", 1, vec![Drain, clone(SHARED, 100, EMPTY, 3000, 5000), duplicate(), Drain]),
        ("clone of what is queued", 1, vec![Drain, duplicate(), clone(EMPTY, 0, EMPTY, 4 * BLOCK, 2 * BLOCK), Drain]),
        ("drain of reserved blocks", 1, vec![Drain, write(RESERVED, 0, 2 * BLOCK, distinct(1)), Drain]),
        ("compaction of what is queued", 0, vec![write(LONG_LOG, 0, 8, distinct(14)), Drain]),
        ("compaction by the drain", 1, vec![Drain, write(LONG_LOG, BLOCK, 2 * BLOCK, distinct(1)), Drain]),
        ("drain of a log that is full", 1, vec![Drain, write(FULL_INLINE, 0, 3 * BLOCK, distinct(0)), Drain]),
        (
            "rename over what is queued",
            1,
            vec![Drain, duplicate(), Op::Rename { from: at(SHARED), to: at(EMPTY), mode: RenameMode::Replace }, Drain],
        ),
        ("unmount with a queue", 1, vec![Drain, duplicate(), Op::Remount, Drain]),
        ("unmount with half a queue", 1, vec![duplicate(), DrainStep, Op::Remount, DrainStep, Op::Remount, Drain]),
        (
            "dedup of what is queued",
            1,
            vec![Drain, duplicate(), Op::Dedup { path: at(EMPTY), offset: 0, len: 8 * BLOCK }, Drain],
        ),
        (
            "undedup of what was drained",
            2,
            vec![duplicate(), Drain, Op::Undedup { path: at(EMPTY), offset: 0, len: BLOCK }, Drain],
        ),
        ("drain beside a file of another policy", 1, vec![Drain, off(EMPTY), duplicate(), Drain]),
        (
            "inline, then immediate",
            1,
            vec![
                Drain,
                mode(DedupMode::Inline),
                duplicate(),
                mode(DedupMode::Immediate),
                write(EMPTY, 3 * BLOCK, 2 * BLOCK, distinct(1)),
                Drain,
            ],
        ),
        (
            "inline while something is queued",
            0,
            vec![
                write(EMPTY, 0, BLOCK, distinct(1)),
                mode(DedupMode::Inline),
                write(EMPTY, BLOCK, 2 * BLOCK, distinct(0)),
                Drain,
            ],
        ),
        ("delayed", 1, vec![Drain, mode(DedupMode::Delayed { interval_ms: 5, entries: 1 }), duplicate(), DrainStep]),
        ("a long chain", 0, [long_chain(), vec![Drain]].concat()),
        ("a long chain in order", 10, {
            // The last entries of the chain, which entered first, are found again: a reorder moves them to the front,
            // where they are found again.
            let again = |name| vec![create(name), write(name, 0, 4 * BLOCK, distinct(4)), Drain];
            [long_chain(), vec![Drain], again(NEW), reorder(), again(25), reorder()].concat()
        }),
        ("a long chain between two orders", 10, {
            // Searches, additions and removals in the middle of a reorder.
            let steps = |count: usize| vec![Op::ReorderStep; count];
            let again = vec![create(NEW), write(NEW, 0, 4 * BLOCK, distinct(4)), Drain];
            let more = |number| vec![write(EMPTY, 0, BLOCK, distinct(number)), Drain];
            [long_chain(), vec![Drain], again, steps(1), more(16), reorder(), more(4), steps(3), vec![unlink(23)]]
                .concat()
        }),
        ("a long chain in order, then unlinked", 14, {
            let again = vec![create(NEW), write(NEW, 0, 4 * BLOCK, distinct(4)), Drain];
            let unlinks = vec![unlink(NEW), unlink(21), unlink(23), unlink(UNSHARED)];
            [long_chain(), vec![Drain], again, reorder(), unlinks].concat()
        }),
        ("drain, then the other index", 1, vec![Drain, Op::Convert]),
        ("the other index with a queue, then drain", 1, vec![Drain, duplicate(), Op::Convert, Drain]),
    ]
}

/// Returns workloads on files that stay open while they are written to, so that policy deext continues their streams:
/// name, the operation from which on crashes are made, operations. The first request leaves a tail, the second stores
/// it anew with room to grow, and the third makes it grow. Incompressible pieces end at 16 KiB.
fn streams() -> Vec<(&'static str, usize, Vec<Op>)> {
    let append = |name: u8, len: u64| Op::Append { path: at(name), len, seed: NOISE };
    let open = |name: u8, slot: u8| Op::Open { path: at(name), slot };
    let close = |slot| Op::Close { slot };
    let appends = |name: u8, lens: &[u64]| lens.iter().map(|len| append(name, *len)).collect::<Vec<_>>();
    let opened = |lens: &[u64]| [vec![open(EMPTY, 0)], appends(EMPTY, lens)].concat();
    let second = |lens: &[u64]| [vec![create(NEW), open(NEW, 1)], appends(NEW, lens)].concat();
    const GROWS: [u64; 3] = [1000, 901, 77];
    // The last append ends a piece and begins another.
    const CUT: [u64; 3] = [15_000, 701, 1503];
    vec![
        ("stream: a tail grows", 1, [opened(&GROWS), appends(EMPTY, &[130]), vec![close(0)]].concat()),
        ("stream: a tail grows over a cut", 3, [opened(&CUT), appends(EMPTY, &[300, 201]), vec![close(0)]].concat()),
        (
            "stream: a second one has the piece of the first",
            7,
            [opened(&CUT), vec![close(0)], second(&CUT), vec![close(1)]].concat(),
        ),
        (
            "stream: a tail is given up for an equal piece",
            4,
            [opened(&GROWS), vec![close(0)], second(&GROWS), vec![close(1)]].concat(),
        ),
        (
            // On a full device the open segment is nearly full and no other is free, so the request is written to
            // blocks.
            "stream: a tail grows, and what follows has no room",
            6,
            {
                let fill = |len, seed| Op::Append { path: at(MORE), len, seed };
                let nearly = vec![create(MORE), fill(1_966_080, NOISE + 1), fill(380_000, NOISE + 2)];
                [nearly, opened(&GROWS[..2]), appends(EMPTY, &[88_000, 90])].concat()
            },
        ),
        (
            "stream: a tail that was cloned",
            3,
            [opened(&GROWS[..2]), vec![clone(EMPTY, 0, SHARED, 0, 1901)], appends(EMPTY, &[77, 78])].concat(),
        ),
        (
            "stream: a tail with another chunk behind it",
            4,
            [opened(&GROWS[..2]), vec![write(UNSHARED, 0, 100, 5)], appends(EMPTY, &[77, 78])].concat(),
        ),
        (
            "stream: a tail that was written over",
            3,
            [opened(&GROWS), vec![write(EMPTY, 1100, 50, 7)], appends(EMPTY, &[77, 78, 79])].concat(),
        ),
        (
            "stream: a tail that was cut short",
            4,
            [opened(&GROWS), vec![Op::Truncate { path: at(EMPTY), size: 1950 }], appends(EMPTY, &[77, 78])].concat(),
        ),
        ("stream: unlink of a tail", 4, [opened(&GROWS), vec![Op::Unlink { path: at(EMPTY) }, close(0)]].concat()),
        ("stream: unmount with a tail", 4, [opened(&GROWS), vec![Op::Remount], appends(EMPTY, &[77])].concat()),
        ("text: a piece, an equal one, parts of them written over and cut off", 1, {
            let text = |name: u8, offset, len| write(name, offset, len, op::TEXT);
            let pieces = vec![create(NEW), text(NEW, 0, 9000), create(MORE), text(MORE, 0, 9000)];
            [pieces, vec![write(NEW, 3000, 2000, 7), Op::Truncate { path: at(MORE), size: 5000 }]].concat()
        }),
        ("text: a tail grows, rests, and is looked at again", 1, {
            let append = |number| Op::Append { path: at(EMPTY), len: 700, seed: op::TEXT + number };
            let look = Op::Dedup { path: at(EMPTY), offset: 0, len: BLOCK };
            vec![open(EMPTY, 0), append(0), append(1), append(2), close(0), look, append(3), Op::Remount]
        }),
        ("stream: a seam is cut anew", 3, [vec![create(NEW)], appends(NEW, &[3000, 2001]), vec![Op::Fill]].concat()),
    ]
}

/// Returns workloads with files that map a part of a piece of another file, which is not the beginning of it: name, the
/// operation from which on crashes are made, operations. A cut at the seam behind the part, or a request to share,
/// replaces it.
fn parts_of_pieces() -> Vec<(&'static str, usize, Vec<Op>)> {
    /// Two incompressible pieces of 16 KiB and a part of one.
    const LEN: u64 = 40_000;
    let piece = |seed| vec![create(NEW), write(NEW, 0, LEN, seed)];
    let append = |len| Op::Append { path: at(EMPTY), len, seed: NOISE + 1 };
    // It lies 3,616 bytes behind the beginning of its piece, and further than that from the beginning of the file.
    let part = || clone(NEW, 20_000, EMPTY, 0, BLOCK);
    let then = |ops: Vec<Op>| [piece(NOISE), ops].concat();
    let dedup = Op::Dedup { path: at(EMPTY), offset: 0, len: 1 };
    vec![
        ("part of a piece", 2, then(vec![part()])),
        ("part of a piece, appended to and cut anew", 2, then(vec![part(), append(3000), Op::Fill])),
        ("part of a piece, far from the beginning, cut anew", 4, {
            then(vec![
                write(EMPTY, 0, 20_000, NOISE + 2),
                clone(NEW, 20_000, EMPTY, 20_000, BLOCK),
                append(3000),
                Op::Fill,
            ])
        }),
        ("part of a piece of text, appended to and cut anew", 4, {
            let part = clone(NEW, 5000, EMPTY, 0, 3000);
            [piece(op::TEXT), vec![part, append(3000), Op::Fill]].concat()
        }),
        ("part of a piece behind that piece, cut anew", 3, {
            let append = Op::Append { path: at(NEW), len: 2000, seed: NOISE + 3 };
            let cut_off = Op::Truncate { path: at(NEW), size: 30_000 };
            then(vec![cut_off, clone(NEW, 20_000, NEW, 30_000, BLOCK), append, Op::Fill])
        }),
        ("part of a piece, shared on request", 3, then(vec![part(), dedup])),
        ("part of a piece, then a copy of its own", 3, {
            then(vec![part(), Op::Undedup { path: at(EMPTY), offset: 0, len: 1 }])
        }),
        ("part of a piece, cut anew after its source is gone", 4, {
            then(vec![part(), append(3000), Op::Unlink { path: at(NEW) }, Op::Fill])
        }),
        ("part of a piece, cut anew, then unmount", 5, then(vec![part(), append(3000), Op::Fill, Op::Remount])),
    ]
}

/// Returns workloads that empty segments which the mount after a crash finds closed.
fn reclaimed() -> Vec<(&'static str, usize, Vec<Op>)> {
    let unlink = |name| Op::Unlink { path: at(name) };
    let begin = |ops: &[Op]| [&[Op::Reconcile], ops].concat();
    vec![
        ("reclaim", 1, begin(&[Op::Reclaim])),
        ("unlink, then reclaim", 2, begin(&[unlink(UNSHARED), Op::Reclaim])),
        ("reclaim, then write over what moved", 2, begin(&[Op::Reclaim, write(UNSHARED, 0, 3 * BLOCK, distinct(15))])),
        ("reclaim, then unlink what moved", 2, begin(&[Op::Reclaim, unlink(SHARED), unlink(CLONE), unlink(UNSHARED)])),
        (
            "reclaim, then share what moved",
            2,
            begin(&[Op::Reclaim, create(NEW), write(NEW, 0, 2 * BLOCK, distinct(1))]),
        ),
        (
            "reclaim, then blocks in the place of what moved",
            2,
            begin(&[
                Op::Reclaim,
                create(NEW),
                Op::SetPolicy { path: at(NEW), policy: Some(Policy::Off) },
                write(NEW, 0, 3 * BLOCK, distinct(15)),
            ]),
        ),
        ("reclaim, then unmount", 2, begin(&[Op::Reclaim, Op::Remount, unlink(UNSHARED)])),
    ]
}

/// Returns workloads that write data copied from files, unchanged and with bytes changed.
fn copied() -> Vec<(&'static str, usize, Vec<Op>)> {
    let copy = changed_copy;
    let whole = |changed| copy(UNSHARED, 0, EMPTY, 0, 3 * BLOCK + 1000, changed);
    let unlink = |name| Op::Unlink { path: at(name) };
    let reclaimed = |ops: &[Op]| [&[Op::Reconcile], ops, &[unlink(UNSHARED), Op::Reclaim]].concat();
    vec![
        ("copy", 0, vec![whole(0)]),
        ("copy with a change", 0, vec![whole(1)]),
        ("copy with many changes", 0, vec![whole(7)]),
        ("copy to an odd place", 0, vec![copy(UNSHARED, 77, TWO_NAMES, 10, 2 * BLOCK + 5, 1)]),
        ("copy of what is packed", 0, vec![copy(TWO_NAMES, 0, EMPTY, 0, 10, 0), copy(XATTRS, 0, EMPTY, 5, 100, 0)]),
        ("copy of what has holes", 0, vec![copy(FULL_INLINE, 0, EMPTY, 100, 4 * BLOCK, 0)]),
        ("copy of reserved blocks", 0, vec![copy(RESERVED, 0, EMPTY, 0, 2 * BLOCK, 0)]),
        ("copy over a part of what is shared", 0, vec![copy(UNSHARED, 100, CLONE, 300, BLOCK + 200, 1)]),
        ("copy within a file", 0, vec![copy(UNSHARED, 0, UNSHARED, 700, 2 * BLOCK, 1)]),
        ("copy to where it lies", 0, vec![copy(UNSHARED, 0, UNSHARED, 0, 3 * BLOCK, 0)]),
        ("copy to the other of two that share", 0, vec![copy(SHARED, 0, CLONE, 0, 2 * BLOCK, 2)]),
        ("copy to a log that is long", 0, vec![copy(UNSHARED, 0, LONG_LOG, 3, 2 * BLOCK, 5)]),
        ("copy to a log that is full", 0, vec![copy(UNSHARED, 0, FULL_INLINE, 50, 2 * BLOCK, 5)]),
        ("copy, then unlink the source", 1, vec![whole(1), unlink(UNSHARED)]),
        ("copy, then unlink both", 1, vec![whole(1), unlink(UNSHARED), unlink(EMPTY)]),
        ("copy, then write over the source", 1, vec![whole(1), write(UNSHARED, 500, 2 * BLOCK, distinct(15))]),
        ("copy, then write over the copy", 1, vec![whole(7), write(EMPTY, 500, 2 * BLOCK, distinct(15))]),
        ("copy of a copy", 1, vec![whole(1), create(NEW), copy(EMPTY, 9, NEW, 0, 3 * BLOCK, 1)]),
        ("copy, then cut it short", 1, vec![whole(7), Op::Truncate { path: at(EMPTY), size: 5000 }]),
        ("copy, then unmount", 1, vec![whole(7), Op::Remount, unlink(UNSHARED)]),
        ("copy, then give it copies of its own", 1, {
            vec![whole(1), Op::Undedup { path: at(EMPTY), offset: 0, len: BLOCK }]
        }),
        ("copy, then collect", 3, reclaimed(&[whole(7)])),
        ("write into a shared block", 0, vec![write(CLONE, 300, 77, distinct(9))]),
        ("write into a shared block, again and at its end", 1, {
            vec![write(CLONE, 300, 77, distinct(9)), write(CLONE, 350, 99, 5), write(CLONE, BLOCK - 20, 40, 6)]
        }),
        ("write into a shared block, then unlink the other", 1, {
            vec![write(CLONE, 300, 77, distinct(9)), unlink(SHARED)]
        }),
    ]
}

/// Returns workloads in which a few bytes of a deleted file are still referenced, here and there, and are moved to
/// new chunks. The mount after a crash is reconciled first, because nothing is collected before that.
fn collected() -> Vec<(&'static str, usize, Vec<Op>)> {
    let parts = || {
        let new = vec![Op::Reconcile, create(NEW), write(NEW, 0, 4 * BLOCK, distinct(20)), create(MORE)];
        let clones =
            vec![clone(NEW, 100, MORE, 0, 700), clone(NEW, 3000, MORE, 700, BLOCK), clone(NEW, 200, EMPTY, 9, 300)];
        [new, clones, vec![Op::Unlink { path: at(NEW) }]].concat()
    };
    let then = |ops: &[Op]| [parts(), vec![Op::Reclaim], ops.to_vec()].concat();
    let (collects, follows) = (parts().len(), parts().len() + 1);
    vec![
        ("collect parts of what is gone", collects, then(&[])),
        ("collect, then write over a part", follows, then(&[write(MORE, 300, 900, distinct(9))])),
        ("collect, then unlink", follows, then(&[Op::Unlink { path: at(MORE) }, Op::Unlink { path: at(EMPTY) }])),
    ]
}

/// The policies that share data with what it was copied from.
const FOLLOWING: [Policy; 3] = [Policy::Icid, Policy::IcidInline, Policy::IcidDeExt];

/// The beginning of the names of the workloads that do something between the steps of a collection.
pub const COLLECTED_BETWEEN: &str = "collected between writes: ";

/// Returns what comes before them: parts of the blocks of a file are shared with three others.
fn parts_of_blocks() -> Vec<Op> {
    vec![
        Op::Reconcile,
        create(NEW),
        write(NEW, 0, 4 * BLOCK, distinct(20)),
        create(MORE),
        copy(NEW, 100, MORE, 0, 700),
        copy(NEW, 3000, MORE, 700, BLOCK),
        copy(NEW, 200, EMPTY, 9, 300),
        copy(NEW, 250, CLONE, 100, 400),
        // New chunks need whole segments, which a full device does not have.
        Op::Unlink { path: at(FILLER) },
    ]
}

/// Returns a workload whose last operation is a whole collection, with crashes only in that.
pub fn collection_alone() -> Workload {
    let overwrite = write(NEW, 0, 4 * BLOCK, distinct(21));
    let before = [parts_of_blocks(), vec![overwrite]].concat();
    let crashes_from = before.len();
    let ops = [before, vec![Op::CollectSteps { steps: u8::MAX }]].concat();
    Workload { name: "a collection".to_owned(), ops, crashes_from, only: Some(&FOLLOWING) }
}

/// Returns what is done then. A collection has these steps: it marks (1), it chooses (2), it re-points the three files
/// that map parts, one after the other (3: `CLONE`, 4: `EMPTY`, 5: `MORE`), and it ends.
fn collected_between() -> Vec<(&'static str, Vec<Op>)> {
    let unlink = |name| Op::Unlink { path: at(name) };
    let overwrite = |blocks| write(NEW, 0, blocks * BLOCK, distinct(21));
    let steps = |steps| Op::CollectSteps { steps };
    let rest = || steps(u8::MAX);
    let truncate = |name, size| Op::Truncate { path: at(name), size };
    vec![
        (
            "the source dies after the marks",
            vec![overwrite(1), steps(1), overwrite(4), steps(1), unlink(NEW), rest(), rest()],
        ),
        (
            "into what is chosen, and into what has moved",
            vec![
                unlink(NEW),
                steps(2),
                write(MORE, 300, 900, distinct(9)),
                steps(1),
                write(CLONE, 200, 100, distinct(22)),
                truncate(EMPTY, 100),
                steps(1),
                truncate(CLONE, 150),
                rest(),
            ],
        ),
        (
            "what is chosen and what has moved is unlinked",
            vec![overwrite(4), steps(2), unlink(EMPTY), steps(1), unlink(CLONE), rest()],
        ),
        (
            "a clone of what is chosen, a copy of what has moved",
            vec![
                unlink(NEW),
                steps(2),
                clone(MORE, 50, SHARED, 10, 500),
                steps(1),
                copy(CLONE, 120, SHARED, BLOCK, 300),
                unlink(MORE),
                rest(),
            ],
        ),
        (
            "what was overwritten is written again",
            vec![overwrite(4), steps(3), write(SHARED, 0, 4 * BLOCK, distinct(20)), rest()],
        ),
        (
            "segments are emptied",
            vec![unlink(NEW), steps(3), Op::EmptySegments, write(MORE, 300, 900, distinct(9)), rest()],
        ),
        ("unmount", vec![unlink(NEW), steps(3), Op::Remount, write(MORE, 300, 900, distinct(9)), rest()]),
    ]
}

/// Returns workloads that empty segments of blocks: log pages, values, reserved, private and shared blocks move.
fn emptied() -> Vec<(&'static str, usize, Vec<Op>)> {
    let then = |ops: &[Op]| [&[Op::Reconcile, Op::EmptySegments], ops].concat();
    let unlink = |name| Op::Unlink { path: at(name) };
    vec![
        ("empty segments", 1, then(&[])),
        ("empty segments, then write over what moved", 2, then(&[write(SHARED, 0, 2 * BLOCK, distinct(15))])),
        ("empty segments, then unlink what moved", 2, then(&[unlink(SHARED), unlink(CLONE), unlink(UNSHARED)])),
        ("empty segments, then unmount", 2, then(&[Op::Remount, unlink(CLONE)])),
    ]
}

/// The beginning of the names of the workloads with absent parts.
pub const ABSENT_PARTS: &str = "absent parts";

/// Returns workloads in which a part of the inode table is given back that has a part after it, and made again.
fn absent() -> Vec<(&'static str, usize, Vec<Op>)> {
    let unlink = |name| Op::Unlink { path: at(name) };
    let grow = |part| Op::GrowTable { part };
    // Part 1 is empty, and part 2 is not.
    let gap = || vec![unlink(FILLER), Op::Reconcile, grow(2), create(NEW)];
    let then = |ops: &[Op]| [gap(), vec![Op::Trim], ops.to_vec()].concat();
    let (gives_back, follows) = (gap().len(), gap().len() + 1);
    let again = || vec![grow(1), create(LONG_NAME)];
    vec![
        ("absent parts: trim", gives_back, then(&[])),
        ("absent parts: write in their place", follows, then(&[write(EMPTY, 0, 3 * BLOCK, distinct(16))])),
        ("absent parts: one is made again", follows, then(&again())),
        ("absent parts: one is made again, then unmount", follows, then(&[again(), vec![Op::Remount]].concat())),
        ("absent parts: one goes again", follows + 2, then(&[again(), vec![unlink(LONG_NAME), Op::Trim]].concat())),
        ("absent parts: the last one goes", follows, then(&[unlink(NEW), Op::Trim])),
        ("absent parts: unmount", follows, then(&[Op::Remount, unlink(NEW), create(LONG_NAME)])),
    ]
}

/// Returns the sequence of two workloads.
pub fn pair(first: &Workload, second: &Workload) -> Workload {
    let crashes_from = first.ops.len();
    let ops = [&first.ops[..], &second.ops].concat();
    let only = first.only.or(second.only);
    Workload { name: format!("{}, {}", first.name, second.name), ops, crashes_from, only }
}

/// Returns a random sequence of `count` operations.
pub fn random(random: &mut fastrand::Rng, count: usize) -> Workload {
    let seed = random.u64(..);
    let mut steps = fastrand::Rng::with_seed(!seed);
    // Drawn by itself, so that the other operations of a seed stay the same.
    let collects = |op| match steps.u8(0..16) {
        drawn @ 1..4 => vec![Op::CollectSteps { steps: drawn }, op],
        _ => vec![op],
    };
    let ops = op::generate(&mut fastrand::Rng::with_seed(seed), count, 0).into_iter().map(in_one_step);
    let ops = ops.flat_map(collects).collect();
    let name = format!("random operations of seed {seed}");
    Workload {
        name: if seed.is_multiple_of(2) { name } else { format!("{LATE}{name}") },
        ops,
        crashes_from: 0,
        only: None,
    }
}

/// Returns a random sequence of about `count` operations that share parts of blocks, replace them and collect, in any
/// order.
pub fn random_collected(random: &mut fastrand::Rng, count: usize) -> Workload {
    let seed = random.u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let before = parts_of_blocks();
    let crashes_from = before.len();
    let ops = before.into_iter().chain((0..count).flat_map(|_| one_collected(&mut random))).collect();
    let name = format!("{COLLECTED_BETWEEN}random operations of seed {seed}");
    Workload { name, ops, crashes_from, only: Some(&FOLLOWING) }
}

/// Draws what is done next in a file, after a few steps of a collection or none.
fn one_collected(random: &mut fastrand::Rng) -> Vec<Op> {
    const FILES: [u8; 5] = [NEW, MORE, EMPTY, CLONE, SHARED];
    let [from, to] = [random.usize(0..FILES.len()), random.usize(0..FILES.len())].map(|at| FILES[at]);
    let [from_offset, to_offset] = [random.u64(0..5 * BLOCK), random.u64(0..3 * BLOCK)];
    let (len, seed) = (random.u64(64..2 * BLOCK), random.usize(18..24));
    let op = match random.u8(0..16) {
        0..3 => write(to, to_offset, len, distinct(seed)),
        3 => write(to, to_offset / BLOCK * BLOCK, 2 * BLOCK, distinct(seed)),
        4 => append(to, len, distinct(seed)),
        5..9 => changed_copy(from, from_offset, to, to_offset, len, random.u8(0..2)),
        9 => clone(from, from_offset, to, to_offset, len),
        10..12 => Op::Truncate { path: at(to), size: to_offset },
        12 => allocate(to, to_offset, len, AllocateMode::PunchHole),
        13..15 => Op::Unlink { path: at(to) },
        _ => create(to),
    };
    match random.u8(0..5) {
        steps @ 1..4 => vec![Op::CollectSteps { steps }, op],
        4 => vec![Op::CollectSteps { steps: u8::MAX }, op],
        _ => vec![op],
    }
}

/// Reduces operations that run in several atomic steps to one step, because between two steps the totals match
/// neither end.
fn in_one_step(op: Op) -> Op {
    match op {
        Op::Dedup { path, offset, .. } => Op::Dedup { path, offset: offset / BLOCK * BLOCK, len: BLOCK },
        Op::Undedup { path, offset, .. } => Op::Undedup { path, offset: offset / BLOCK * BLOCK, len: BLOCK },
        op => op,
    }
}

fn at(name: u8) -> NodePath {
    vec![name]
}

fn append(name: u8, len: u64, seed: u64) -> Op {
    Op::Append { path: at(name), len, seed }
}

fn create(name: u8) -> Op {
    Op::Create { path: at(name), mode: 0o644 }
}

fn open(name: u8) -> Op {
    Op::Open { path: at(name), slot: 0 }
}

fn write(name: u8, offset: u64, len: u64, seed: u64) -> Op {
    Op::Write { path: at(name), offset, len, seed }
}

fn allocate(name: u8, offset: u64, len: u64, mode: AllocateMode) -> Op {
    Op::Allocate { path: at(name), offset, len, mode }
}

fn clone(from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64) -> Op {
    Op::Clone { from: at(from), from_offset, to: at(to), to_offset, len }
}

/// Returns the write of data that was copied from a file.
fn copy(from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64) -> Op {
    changed_copy(from, from_offset, to, to_offset, len, 0)
}

/// As `copy`, with so many bytes changed.
fn changed_copy(from: u8, from_offset: u64, to: u8, to_offset: u64, len: u64, changed: u8) -> Op {
    Op::Copy { from: at(from), from_offset, to: at(to), to_offset, len, changed }
}

fn xattr(name: u8, xattr: u8, len: u64) -> Op {
    Op::SetXattr { path: at(name), name: xattr, seed: distinct(20), len, mode: XattrMode::Set }
}

/// Returns the seed of the `number`-th data whose blocks all differ, also from those of the other numbers.
fn distinct(number: usize) -> u64 {
    op::IN_CHAINS + number as u64
}

/// Returns the seed of four blocks that begin and end with data and have zeros in between.
fn zeros_beside_data() -> u64 {
    let has_both = |seed: &u64| {
        let blocks = op::data(*seed, 4 * BLOCK);
        let is_zero: Vec<bool> =
            blocks.chunks(BLOCK as usize).map(|block| block.iter().all(|byte| *byte == 0)).collect();
        matches!(is_zero[..], [false, true, _, false])
    };
    (op::ZEROS..).find(has_both).expect("runs have any length")
}

/// Returns the seed of data whose first two blocks are equal.
fn twins() -> u64 {
    let are_equal = |seed: &u64| {
        let blocks = op::data(*seed, 2 * BLOCK);
        let (first, second) = blocks.split_at(BLOCK as usize);
        first == second && first[0] != 0
    };
    (0..).find(are_equal).expect("blocks repeat")
}
