//! Which memory of this process came from which file: the rec-tree of ICID (`nvfold_causality`), one a process, and the
//! files of its tokens.
//!
//! ```text
//! read, map   file -> memory         noted: these bytes are the file's from this offset on
//! copy        memory -> memory       noted: so are these then
//! write       memory -> file         asked: origins, which the file system compares and shares, or finds wrong
//! ```
//!
//! An open file is followed when its device follows origins (its policy does, or the option `origins` says so). What is noted of
//! it is forgotten when its last descriptor is closed, or in a program that does not know of it ([`keep_closed`]) some files
//! later; a mapping is followed by itself, until it is unmapped. Without a
//! device that follows origins there is no tree, and a copy is a copy.
//!
//! What the tree says is a hint, so nothing here needs to be exact: memory that is freed and used for something else, or
//! stored to, costs a compare when it is written.
#![forbid(unsafe_code)]

use nvfold::{File, Origin};
use nvfold_causality::{CopySource, FileToken, RecTree, TreeOptions};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Made when the first device that follows origins is opened.
static TREE: OnceLock<RecTree> = OnceLock::new();
/// Followed files by the number of their token.
static FOLLOWED: RwLock<Option<HashMap<u32, Weak<Followed>>>> = RwLock::new(None);

/// Whether files are followed for a while after they were closed.
static KEEPS: AtomicBool = AtomicBool::new(false);
/// Those that are, the newest last. None of them is without a name: its space would not be free.
static KEPT: Mutex<VecDeque<Arc<Followed>>> = Mutex::new(VecDeque::new());
/// How many at most.
const KEPT_MAX: usize = 64;

/// Files of which bytes lie in memory. While there are none a copy has nothing to tell.
static READ: AtomicUsize = AtomicUsize::new(0);

/// Which of a program's copies are worth a record.
static SHORT_COPIES: ShortCopies = ShortCopies::new();

/// So many written bytes are watched, to learn whether short copies pay.
const WATCHED_BYTES: u64 = 4 << 20;
/// For so many written bytes, short copies are not recorded; then they are watched again.
const SKIPPED_BYTES: u64 = 64 << 20;

/// Which copies are recorded: all, or only those as long as a run that devices share.
///
/// The problem: a shorter copy pays only if others continue it, as when a program copies a file by lines. The values that
/// the compaction of an LSM tree merges lie in another order than before, and none of them is shared: then a record costs
/// more than the copy itself.
///
/// The idea: the bytes of writes tell. If not a fourth of those with a known source lie in runs that are long enough,
/// short copies are not recorded for a while. Counts are relaxed: a lost one moves the decision by a request.
struct ShortCopies {
    /// The shortest run that a device shares, bytes; of several devices the least. 0: no device yet.
    bytes_min: AtomicUsize,
    /// Shorter copies are not recorded, bytes.
    noted_from: AtomicUsize,
    written: AtomicU64,
    in_long: AtomicU64,
    in_short: AtomicU64,
}

impl ShortCopies {
    const fn new() -> ShortCopies {
        ShortCopies {
            bytes_min: AtomicUsize::new(0),
            noted_from: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            in_long: AtomicU64::new(0),
            in_short: AtomicU64::new(0),
        }
    }

    fn device_shares_from(&self, bytes_min: usize) {
        let before = self.bytes_min.load(Ordering::Relaxed);
        if before == 0 || bytes_min < before {
            self.bytes_min.store(bytes_min, Ordering::Relaxed);
            self.noted_from.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_noted(&self, length: usize) -> bool {
        length >= self.noted_from.load(Ordering::Relaxed)
    }

    /// A request of `length` bytes is written, and these are its known sources.
    fn written(&self, length: u64, sources: &[CopySource]) {
        let least = self.bytes_min.load(Ordering::Relaxed);
        let in_all: u64 = sources.iter().map(|source| source.length).sum();
        let in_long: u64 = sources.iter().map(|source| source.length).filter(|length| *length >= least as u64).sum();
        self.in_long.fetch_add(in_long, Ordering::Relaxed);
        self.in_short.fetch_add(in_all - in_long, Ordering::Relaxed);
        let written = self.written.fetch_add(length, Ordering::Relaxed) + length;
        let skips = self.noted_from.load(Ordering::Relaxed) > 0;
        if written < if skips { SKIPPED_BYTES } else { WATCHED_BYTES } {
            return;
        }
        let [_, in_long, in_short] =
            [&self.written, &self.in_long, &self.in_short].map(|count| count.swap(0, Ordering::Relaxed));
        let pays = skips || in_long * 3 >= in_short;
        self.noted_from.store(if pays { 0 } else { least }, Ordering::Relaxed);
    }
}

/// A file of which the bytes are followed. Dropped, they are forgotten.
pub struct Followed {
    token: FileToken,
    file: File,
    /// Counted in `READ`.
    is_read: AtomicBool,
    /// Handle of its device.
    pub device: usize,
}

/// Whether a device follows origins: its handle, if it does.
#[derive(Clone, Copy, Debug)]
pub struct Follows(Option<usize>);

impl Follows {
    /// A device with this handle is opened. `bytes_min`: the shortest run that it shares with what it was copied from;
    /// `None` if it follows no origins.
    pub fn begin(device: usize, bytes_min: Option<u64>) -> Follows {
        if let Some(bytes_min) = bytes_min {
            TREE.get_or_init(RecTree::default);
            SHORT_COPIES.device_shares_from(bytes_min as usize);
        }
        Follows(bytes_min.map(|_| device))
    }
}

impl Followed {
    /// Follows a file, if its device does, and unless too many are followed.
    pub fn new(device: Follows, file: &File) -> Option<Arc<Followed>> {
        let device = device.0?;
        let token = TREE.get()?.open_file()?;
        let followed = Arc::new(Followed { token, file: file.clone(), is_read: AtomicBool::new(false), device });
        FOLLOWED.write().get_or_insert_default().insert(token.number(), Arc::downgrade(&followed));
        Some(followed)
    }

    /// Bytes of it come into memory.
    fn is_being_read(&self) {
        if !self.is_read.load(Ordering::Relaxed) && !self.is_read.swap(true, Ordering::Relaxed) {
            READ.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // First out of the table: once it is forgotten another file may get the number.
        if let Some(files) = FOLLOWED.write().as_mut() {
            files.remove(&self.token.number());
        }
        if let Some(tree) = TREE.get() {
            tree.forget_file(self.token);
        }
        if *self.is_read.get_mut() {
            READ.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// From now on files that were read are followed beyond their closing: of a program that reads a file into memory, closes it and
/// writes a changed copy, as patch does, nothing would be known otherwise. One that calls this library says with `close` that it
/// is done with the bytes (ICID 4.3), and nothing is kept.
pub fn keep_closed() {
    KEEPS.store(true, Ordering::Relaxed);
}

/// The last descriptor of a file was closed.
pub fn closed(file: Arc<Followed>) {
    if !KEEPS.load(Ordering::Relaxed) || !file.is_read.load(Ordering::Relaxed) {
        return;
    }
    let mut kept = KEPT.lock();
    kept.push_back(file.clone());
    let oldest = if kept.len() > KEPT_MAX { kept.pop_front() } else { None };
    // Without the lock, for forgetting a file takes others.
    drop(kept);
    drop(oldest);
    // After that, so that a thread which removes its name now finds it here, or has removed it already.
    if file.file.attr().nlink == 0 {
        name_removed();
    }
}

/// A name was removed or replaced: files that have none any more are not kept.
pub fn name_removed() {
    if KEEPS.load(Ordering::Relaxed) {
        forget_kept(|file| file.file.attr().nlink == 0);
    }
}

/// A device is closed.
pub fn leave(device: usize) {
    forget_kept(|file| file.device == device);
}

fn forget_kept(is_forgotten: impl Fn(&Followed) -> bool) {
    let mut kept = KEPT.lock();
    let (forgotten, rest): (VecDeque<_>, VecDeque<_>) = kept.drain(..).partition(|file| is_forgotten(file));
    *kept = rest;
    drop(kept);
    drop(forgotten);
}

/// Memory was filled with bytes of a file from an offset on; `None`: one that is not followed.
pub fn note_read(address: usize, length: usize, file: Option<&Followed>, offset: u64) {
    let Some(tree) = TREE.get() else { return };
    match file {
        Some(file) => {
            file.is_being_read();
            tree.record_read(address as u64, length as u64, file.token, offset);
        }
        None => tree.forget_range(address as u64, length as u64),
    }
}

/// Memory was copied.
pub fn note_copy(target: usize, source: usize, length: usize) {
    if let Some(tree) = TREE.get() {
        tree.record_copy(target as u64, source as u64, length as u64);
    }
}

/// Whether a copy may have something to tell: one relaxed load.
#[inline]
pub fn has_sources() -> bool {
    READ.load(Ordering::Relaxed) != 0
}

/// As `note_copy`, from within a program's own memcpy: neither waits nor allocates, and drops what it cannot note so. Short
/// copies are left out where they do not pay.
pub fn try_note_copy(target: usize, source: usize, length: usize) {
    if let Some(tree) = TREE.get().filter(|_| SHORT_COPIES.is_noted(length)) {
        tree.try_record_copy(target as u64, source as u64, length as u64);
    }
}

/// Makes the tree with all of its memory, for a process whose copies are noted by `try_note_copy`. To be called before the
/// first device is opened.
pub fn reserve(options: TreeOptions) {
    TREE.get_or_init(|| RecTree::reserved(options));
}

/// What the tree holds and has done, if there is one.
pub fn stats() -> Option<nvfold_causality::TreeStats> {
    TREE.get().map(RecTree::stats)
}

/// For files that no device of this process has (`nvfold run` on a mount): a token that notes name such a file by. It is never
/// forgotten, and `None` when there are no more. Waits for others who do the same; to be called after `reserve`.
pub fn follow_foreign_file() -> Option<FileToken> {
    TREE.get()?.open_file()
}

/// Memory was filled with bytes of such a file. Neither waits nor allocates, and drops what it cannot note so.
pub fn try_note_foreign_read(address: usize, length: usize, file: FileToken, offset: u64) {
    let Some(tree) = TREE.get() else { return };
    if !has_sources() {
        READ.fetch_add(1, Ordering::Relaxed);
    }
    tree.try_record_read(address as u64, length as u64, file, offset);
}

/// Where memory came from, as far as can be told without waiting or allocating; how many parts `sources` has then.
pub fn try_sources(address: usize, length: usize, sources: &mut [CopySource]) -> usize {
    TREE.get().map_or(0, |tree| tree.try_origins(address as u64, length as u64, sources))
}

/// Memory is a mapping of a file from an offset on.
pub fn note_map(address: usize, length: usize, file: &Followed, offset: u64) {
    if let Some(tree) = TREE.get() {
        file.is_being_read();
        tree.map_area(address as u64, length as u64, file.token, offset);
    }
}

/// Memory is given back.
pub fn note_unmap(address: usize, length: usize) {
    if let Some(tree) = TREE.get() {
        tree.unmap_area(address as u64, length as u64);
    }
}

/// Where the bytes of a request came from, and the files that they came from.
#[derive(Default)]
pub struct Sources(Vec<(CopySource, Arc<Followed>)>);

impl Sources {
    /// Of a request to a device whose bytes lie in these ranges of memory, one after the other.
    pub fn of(device: Follows, ranges: impl Iterator<Item = (usize, usize)>) -> Sources {
        let mut sources = Sources::default();
        let (Some(device), Some(tree)) = (device.0, TREE.get()) else { return sources };
        let (mut found, mut before) = (Vec::new(), 0);
        for (address, length) in ranges {
            tree.origins(address as u64, length as u64, &mut found);
            SHORT_COPIES.written(length as u64, &found);
            if !found.is_empty() {
                let upgrade = |source: &CopySource| {
                    let files = FOLLOWED.read();
                    let file = files.as_ref()?.get(&source.file.number())?.upgrade()?;
                    Some((CopySource { at: before + source.at, ..*source }, file))
                };
                // Without the lock, which dropping the last user of a file takes.
                let followed = found.iter().filter_map(upgrade);
                // A file that was closed since, or is on another device, is no source.
                let is_source =
                    |(source, file): &(CopySource, Arc<Followed>)| file.token == source.file && file.device == device;
                sources.0.extend(followed.filter(is_source));
            }
            before += length as u64;
        }
        sources
    }

    /// Returns the origins in the form that the file system takes.
    pub fn origins<'s>(&'s self) -> Vec<Origin<'s>> {
        let origin = |(source, followed): &'s (CopySource, Arc<Followed>)| {
            let CopySource { at, length, file_offset: source_offset, .. } = *source;
            Origin { at, length, source: &followed.file, source_offset }
        };
        self.0.iter().map(origin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(length: u64, count: u64) -> Vec<CopySource> {
        (0..count).map(|at| CopySource { at: at * 2 * length, length, ..CopySource::NONE }).collect()
    }

    #[test]
    fn short_copies_are_left_out_while_they_join_to_no_long_run() {
        let copies = ShortCopies::new();
        copies.device_shares_from(2048);
        assert!(copies.is_noted(1));
        let watched = WATCHED_BYTES / 65_536;
        let write = |sources: &[CopySource], requests: u64| (0..requests).for_each(|_| copies.written(65_536, sources));
        // Three of four bytes lie in long runs; then a fourth; then less.
        write(&[sources(3 * 2048, 1), sources(512, 4)].concat(), watched);
        assert!(copies.is_noted(32), "a program that copies by lines");
        write(&[sources(2048, 2), sources(1024, 12)].concat(), watched);
        assert!(copies.is_noted(32), "a fourth is enough");
        write(&sources(100, 300), watched - 1);
        assert!(copies.is_noted(32), "not yet");
        write(&sources(100, 300), 1);
        assert!(!copies.is_noted(32) && !copies.is_noted(2047) && copies.is_noted(2048));
        // They are watched again some time later.
        write(&sources(4096, 1), SKIPPED_BYTES / 65_536 - 1);
        assert!(!copies.is_noted(32));
        write(&[], 1);
        assert!(copies.is_noted(32));
    }

    #[test]
    fn the_shortest_run_of_several_devices_counts() {
        let copies = ShortCopies::new();
        copies.device_shares_from(2048);
        copies.device_shares_from(64);
        copies.device_shares_from(512);
        (0..WATCHED_BYTES / 65_536).for_each(|_| copies.written(65_536, &sources(100, 300)));
        assert!(copies.is_noted(32), "64 bytes are long enough");
    }
}
