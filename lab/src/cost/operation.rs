//! The measured operations, each with its preparation.
//!
//! The problem: the cost of an operation depends on the present state, and its first call does work that later calls
//! do not. The idea: an [`Operation`] prepares a fresh file system for a number of calls, so that each call finds
//! the state that its name says, and returns a closure that makes one call by its number. Everything except the
//! operation (names, data, open files) is made before.
//!
//! ```text
//! let stage = Stage::new(system, &device)?;
//! let mut calls = operation.prepare(&stage, WARM_UP + CALLS)?;
//! stage.forget_lines();
//! calls.run_warm_up(WARM_UP)?;
//! run_measured_calls(&mut *calls.call, WARM_UP..WARM_UP + CALLS)?;
//! ```

use super::system::System;
use crate::{Doing, Result};
use nvfold::{
    DedupMode, File, FileKind, FileSystem, IndexKind, InodeNumber, Method, MethodChoice, NewInode, Policy, RenameMode,
};
use nvfold_bench::data;
use pmem::OpenOptions;
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;

/// Bytes of a small write.
pub(super) const SMALL: usize = 4 << 10;
/// Bytes of a large write, of a file that is cloned or removed, and of a file that daemons process.
pub(super) const LARGE: usize = 128 << 10;
const BLOCK: usize = 4 << 10;
/// More bytes than the modelled cache holds.
const CACHE_BYTES: usize = 1 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };

/// The data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// Bytes that are not stored yet.
    New,
    /// Bytes that one other file has.
    Duplicate,
}

/// The target of a write, a clone or an unlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Onto {
    /// The end of one file.
    End,
    /// An empty file, one for each call.
    NewFile,
    /// A file of the same length whose blocks are not shared.
    Private,
    /// A file of the same length whose blocks another file shares.
    Shared,
}

/// The target of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    SameDirectory,
    OtherDirectory,
    ExistingFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Create,
    Mkdir,
    Symlink,
    Rename(To),
    Unlink(Onto),
    Clone(Onto),
    Write(usize, Data, Onto),
    /// With a pm index: writing new data over other data, and releasing that, which otherwise is done later.
    WriteAndRelease(usize, Onto),
    Fsync,
    Read,
    /// Policy `denova`: one step of the daemon, which is one queued write.
    Share(usize, Data),
    /// Policy `nv-dedup`: one step of the filler, which is one file.
    Fill,
}

/// A measured operation and its preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(Work);

/// A file system that an operation is prepared on.
pub struct Stage {
    /// The system that is mounted.
    pub system: System,
    /// The file system.
    pub fs: FileSystem,
    /// Number of contents that were made.
    contents: Cell<u64>,
}

/// Calls of one operation, ready to run.
pub struct Calls {
    /// Makes one call by its number; each number once, in order.
    pub call: Box<dyn FnMut(usize) -> nvfold::Result<()>>,
    /// Units of one call: 1, or the number of blocks that a step of a daemon handles.
    pub units: u64,
    /// Additional blocks that sharing saves after one call: proof that the call did what its name says.
    pub blocks_saved: i64,
}

/// Makes calls in a separate function, so that callgrind counts only it; no other code calls it.
#[inline(never)]
pub fn run_measured_calls(
    call: &mut dyn FnMut(usize) -> nvfold::Result<()>,
    numbers: Range<usize>,
) -> nvfold::Result<()> {
    for number in numbers {
        call(number)?;
    }
    Ok(())
}

impl Calls {
    /// Makes the first `count` calls, which are not measured.
    pub fn run_warm_up(&mut self, count: usize) -> Result<()> {
        (0..count).try_for_each(&mut self.call).doing("warm up")
    }
}

impl Stage {
    /// Makes an empty file system.
    pub fn new(system: System, device: &OpenOptions) -> Result<Stage> {
        Ok(Stage { system, fs: system.mount(device)?, contents: Cell::new(0) })
    }

    /// Returns bytes that no other call of this function returns.
    fn content(&self, bytes: usize) -> Vec<u8> {
        let number = self.contents.replace(self.contents.get() + 1);
        let mut content = vec![0; bytes];
        data::fill(&mut content, 0, number << 32);
        content
    }

    fn contents(&self, count: usize, bytes: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.content(bytes)).collect()
    }

    /// Makes new files in the root with these contents.
    fn files(&self, prefix: &str, contents: &[Vec<u8>]) -> Result<Vec<File>> {
        let one = |(name, content): (Vec<u8>, &Vec<u8>)| {
            let file = self.fs.create(ROOT, &name, &NEW).and_then(|attr| self.fs.open(attr.ino))?;
            file.write_at(0, content).map(|()| file)
        };
        let made: nvfold::Result<_> = names(prefix, contents.len()).into_iter().zip(contents).map(one).collect();
        made.doing("make files")
    }

    fn empty_files(&self, prefix: &str, count: usize) -> Result<Vec<File>> {
        self.files(prefix, &vec![Vec::new(); count])
    }

    /// Makes files of one content each, with unshared blocks, or with blocks that one other file shares.
    fn stored(&self, prefix: &str, count: usize, bytes: usize, shared: bool) -> Result<Vec<File>> {
        let files = self.files(prefix, &self.contents(count, bytes))?;
        if shared {
            let copies = self.empty_files(&format!("{prefix}-copy"), count)?;
            clone_all(&copies, &files).doing("clone files")?;
        }
        Ok(files)
    }

    /// Fills the modelled cache of the thread (`pmem`, module `cache`) with lines that no operation uses, so that the
    /// preparation does not make the operation cheaper.
    pub fn forget_lines(&self) {
        let region = self.fs.region();
        let mut unused = vec![0; CACHE_BYTES];
        region.read_into(region.len_bytes() - CACHE_BYTES as u64, &mut unused);
    }

    /// Completes all background work.
    fn settle(&self) -> Result<()> {
        while !self.fs.drain_step().doing("share what is queued")? {}
        while !self.fs.fill_step().doing("fill in fingerprints")? {}
        Ok(())
    }
}

fn names(prefix: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{prefix}-{number:04}").into_bytes()).collect()
}

fn clone_all(targets: &[File], sources: &[File]) -> nvfold::Result<()> {
    targets.iter().zip(sources).try_for_each(|(target, source)| clone_whole(target, source))
}

fn clone_whole(target: &File, source: &File) -> nvfold::Result<()> {
    target.clone_from(source, 0, 0, source.attr().size).map(drop)
}

impl Operation {
    /// Returns all operations, in the order of the table.
    pub fn all() -> Vec<Operation> {
        let mut all = vec![Work::Create, Work::Mkdir, Work::Symlink];
        all.extend([To::SameDirectory, To::OtherDirectory, To::ExistingFile].map(Work::Rename));
        for bytes in [SMALL, LARGE] {
            for data in [Data::New, Data::Duplicate] {
                all.extend(
                    [Onto::End, Onto::NewFile, Onto::Private, Onto::Shared].map(|onto| Work::Write(bytes, data, onto)),
                );
            }
        }
        for bytes in [SMALL, LARGE] {
            all.extend([Onto::Private, Onto::Shared].map(|onto| Work::WriteAndRelease(bytes, onto)));
        }
        all.extend([Work::Fsync, Work::Read]);
        all.extend([Onto::Private, Onto::Shared].map(Work::Clone));
        all.extend([Onto::NewFile, Onto::Private, Onto::Shared].map(Work::Unlink));
        for bytes in [SMALL, LARGE] {
            all.extend([Data::New, Data::Duplicate].map(|data| Work::Share(bytes, data)));
        }
        all.push(Work::Fill);
        all.into_iter().map(Operation).collect()
    }

    /// Returns the operation with this name.
    pub fn named(name: &str) -> Option<Operation> {
        Operation::all().into_iter().find(|operation| operation.name() == name)
    }

    /// Returns its name in words.
    pub fn name(self) -> String {
        let kib = |bytes: usize| format!("{} KiB", bytes >> 10);
        match self.0 {
            Work::Create => "create".into(),
            Work::Mkdir => "mkdir".into(),
            Work::Symlink => "symlink".into(),
            Work::Rename(To::SameDirectory) => "rename, same directory".into(),
            Work::Rename(To::OtherDirectory) => "rename, to another directory".into(),
            Work::Rename(To::ExistingFile) => "rename, over an existing file".into(),
            Work::Unlink(Onto::NewFile) => "unlink, empty file".into(),
            Work::Unlink(onto) => format!("unlink, {} of {} data", kib(LARGE), onto.name()),
            Work::Clone(onto) => format!("clone, {} of {} data", kib(LARGE), onto.name()),
            Work::Write(bytes, data, onto) => format!("write {}, {}, {}", kib(bytes), data.name(), onto.target()),
            Work::WriteAndRelease(bytes, onto) => {
                format!("write {}, {}, {}, and its release", kib(bytes), Data::New.name(), onto.target())
            }
            Work::Fsync => "fsync".into(),
            Work::Read => format!("read {}", kib(SMALL)),
            Work::Share(bytes, data) => format!("dedup daemon, {} in writes of {}", data.name(), kib(bytes)),
            Work::Fill => format!("background filler, files of {}", kib(LARGE)),
        }
    }

    /// Returns the unit of the figures: one call, or a block if a call handles several.
    pub fn unit(self) -> &'static str {
        if matches!(self.0, Work::Share(..) | Work::Fill) { "block" } else { "call" }
    }

    /// Returns whether the system supports it.
    pub fn applies_to(self, system: &System) -> bool {
        match self.0 {
            Work::Share(..) => system.policy == Policy::DeNova && system.mode != DedupMode::Inline,
            // The cost is the same for all methods that fill in fingerprints.
            Work::Fill => system.policy == Policy::NvDedup && system.method == Method::WBFin,
            Work::WriteAndRelease(..) => system.index == IndexKind::Pm && system.policy != Policy::NvDedup,
            _ => true,
        }
    }

    /// Prepares `count` calls on a fresh file system.
    pub fn prepare(self, stage: &Stage, count: usize) -> Result<Calls> {
        match self.0 {
            Work::Create => make_names(stage, count, |fs, name| fs.create(ROOT, name, &NEW).map(drop)),
            Work::Mkdir => make_names(stage, count, |fs, name| fs.mkdir(ROOT, name, &NEW).map(drop)),
            Work::Symlink => make_names(stage, count, |fs, name| fs.symlink(ROOT, name, b"target", &NEW).map(drop)),
            Work::Rename(to) => rename(stage, count, to),
            Work::Unlink(onto) => unlink(stage, count, onto),
            Work::Clone(onto) => clone(stage, count, onto),
            Work::Write(bytes, data, onto) => write(stage, count, bytes, data, onto),
            Work::WriteAndRelease(bytes, onto) => write_and_release(stage, count, bytes, onto),
            Work::Fsync => fsync(stage, count),
            Work::Read => read(stage, count),
            Work::Share(bytes, data) => share(stage, count, bytes, data),
            Work::Fill => fill(stage, count),
        }
    }
}

impl Data {
    fn name(self) -> &'static str {
        match self {
            Data::New => "new data",
            Data::Duplicate => "duplicate data",
        }
    }
}

impl Onto {
    fn name(self) -> &'static str {
        match self {
            Onto::End | Onto::NewFile => "no",
            Onto::Private => "private",
            Onto::Shared => "shared",
        }
    }

    fn target(self) -> String {
        match self {
            Onto::End => "at the end of a file".into(),
            Onto::NewFile => "into a new file".into(),
            Onto::Private | Onto::Shared => format!("over {} data", self.name()),
        }
    }
}

/// Makes calls that are counted one by one and change the saved blocks by `blocks_saved` each.
fn calls(blocks_saved: i64, call: impl FnMut(usize) -> nvfold::Result<()> + 'static) -> Result<Calls> {
    Ok(Calls { call: Box::new(call), units: 1, blocks_saved })
}

fn blocks_of(bytes: usize) -> i64 {
    (bytes / BLOCK) as i64
}

fn make_names(
    stage: &Stage,
    count: usize,
    make: impl Fn(&FileSystem, &[u8]) -> nvfold::Result<()> + 'static,
) -> Result<Calls> {
    let (fs, names) = (stage.fs.clone(), names("name", count));
    calls(0, move |number| make(&fs, &names[number]))
}

fn rename(stage: &Stage, count: usize, to: To) -> Result<Calls> {
    stage.empty_files("from", count)?;
    let directory = match to {
        To::OtherDirectory => stage.fs.mkdir(ROOT, b"directory", &NEW).doing("make a directory")?.ino,
        To::SameDirectory | To::ExistingFile => ROOT,
    };
    if to == To::ExistingFile {
        stage.empty_files("to", count)?;
    }
    let (fs, from, to) = (stage.fs.clone(), names("from", count), names("to", count));
    calls(0, move |number| fs.rename(ROOT, &from[number], directory, &to[number], RenameMode::Replace))
}

fn unlink(stage: &Stage, count: usize, onto: Onto) -> Result<Calls> {
    let shared = onto == Onto::Shared;
    let bytes = if onto == Onto::NewFile { 0 } else { LARGE };
    stage.stored("file", count, bytes, shared)?;
    stage.settle()?;
    let (fs, names) = (stage.fs.clone(), names("file", count));
    let blocks_saved = if shared { -blocks_of(bytes) } else { 0 };
    calls(blocks_saved, move |number| fs.unlink(ROOT, &names[number]))
}

fn clone(stage: &Stage, count: usize, onto: Onto) -> Result<Calls> {
    let sources = stage.stored("source", count, LARGE, onto == Onto::Shared)?;
    let targets = stage.empty_files("target", count)?;
    stage.settle()?;
    calls(blocks_of(LARGE), move |number| targets[number].clone_from(&sources[number], 0, 0, LARGE as u64).map(drop))
}

fn write(stage: &Stage, count: usize, bytes: usize, data: Data, onto: Onto) -> Result<Calls> {
    let contents = stage.contents(count, bytes);
    if data == Data::Duplicate {
        stage.files("source", &contents)?;
    }
    let files = match onto {
        Onto::End => stage.empty_files("file", 1)?,
        Onto::NewFile => stage.empty_files("file", count)?,
        Onto::Private | Onto::Shared => stage.stored("file", count, bytes, onto == Onto::Shared)?,
    };
    stage.settle()?;
    let gained = if data == Data::Duplicate && stage.system.shares_at_once() { blocks_of(bytes) } else { 0 };
    let lost = if onto == Onto::Shared { blocks_of(bytes) } else { 0 };
    calls(gained - lost, move |number| match onto {
        Onto::End => files[0].write_at((number * bytes) as u64, &contents[number]),
        _ => files[number].write_at(0, &contents[number]),
    })
}

fn write_and_release(stage: &Stage, count: usize, bytes: usize, onto: Onto) -> Result<Calls> {
    let Calls { call: mut write, blocks_saved, .. } = write(stage, count, bytes, Data::New, onto)?;
    let fs = stage.fs.clone();
    // Who asks for the free space is told the truth, so this releases what the write has dropped.
    calls(blocks_saved, move |number| write(number).map(|()| _ = fs.statfs()))
}

fn fsync(stage: &Stage, count: usize) -> Result<Calls> {
    let files = stage.stored("file", count, SMALL, false)?;
    calls(0, move |number| files[number].sync())
}

/// The target of a read, aligned as in a page cache. A copy to an address within a line takes more instructions, and
/// the heap returns any address.
#[repr(align(4096))]
struct Page([u8; SMALL]);

fn read(stage: &Stage, count: usize) -> Result<Calls> {
    let files = stage.stored("file", count, LARGE, false)?;
    stage.settle()?;
    let mut page = Box::new(Page([0; SMALL]));
    calls(0, move |number| {
        let offset = number * SMALL % LARGE;
        files[number].read_at(offset as u64, &mut page.0)?;
        black_box(&mut page);
        Ok(())
    })
}

fn share(stage: &Stage, count: usize, bytes: usize, data: Data) -> Result<Calls> {
    let contents = stage.contents(count, bytes);
    if data == Data::Duplicate {
        stage.files("source", &contents)?;
    }
    stage.settle()?;
    // These stay queued: each call takes one.
    stage.files("file", &contents)?;
    let fs = stage.fs.clone();
    let saved = if data == Data::Duplicate { blocks_of(bytes) } else { 0 };
    let step = move |_| fs.drain_step().map(drop);
    Ok(Calls { call: Box::new(step), units: blocks_of(bytes) as u64, blocks_saved: saved })
}

fn fill(stage: &Stage, count: usize) -> Result<Calls> {
    stage.settle()?;
    stage.fs.set_method(MethodChoice::Fixed(Method::NonFin));
    stage.stored("file", count, LARGE, false)?;
    stage.fs.set_method(MethodChoice::Fixed(Method::WBFin));
    let fs = stage.fs.clone();
    let step = move |_| fs.fill_step().map(drop);
    Ok(Calls { call: Box::new(step), units: blocks_of(LARGE) as u64, blocks_saved: 0 })
}
