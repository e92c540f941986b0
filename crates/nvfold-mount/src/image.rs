//! The device as it was at one moment, for a copy that is made while the mount goes on.
//!
//! The problem: to copy a device takes seconds, and writers change it meanwhile.
//!
//! The idea: the moment lies between two operations ([`FileSystem::at_rest`]), and takes as long as it takes to note which
//! blocks are in use. From then on, each store to one of them that is not copied yet keeps the block first:
//!
//! ```text
//! in use, not copied --+-- the copy comes to it:  read, and sent
//!        (a bit)       +-- a store comes first:   read into memory, sent soon       -> the bit is cleared
//! ```
//!
//! New data goes to free blocks, which nobody needs to keep. So what is kept is tables, inodes, logs and ends of files that
//! grow, and the memory for it is bounded. When it is full, a store waits until some of it is sent. If that takes longer
//! than [`Patience::for_room`], the copy is given up, and not the mount: its target may itself wait for this mount. So is
//! one that nobody asks for any more.

use nvfold::{BLOCK_BYTES, FileSystem};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pmem::Region;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most blocks of a piece: it fits into an answer.
pub(crate) const PIECE_BLOCKS: u64 = 15;

/// What a store may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The most bytes that are kept, not counting one piece.
    pub kept_bytes: usize,
    /// How long a store waits for room.
    pub for_room: Duration,
}

/// A part of the device: where it is, in bytes, and what was there.
pub(crate) type Piece = (u64, Vec<u8>);

/// Why there is no next piece of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All pieces were taken.
    Done,
    /// A store has waited too long, so later stores are no longer kept apart.
    GivenUp,
    /// The device is lost.
    Lost,
}

/// What an image has cost by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The longest time that an operation has waited, in nanoseconds.
    pub waited_ns: u64,
    /// Bytes that could not be read, because they lie in bad memory. In the image they are zeros.
    pub unreadable_bytes: u64,
}

/// A device as it was; see the module.
pub(crate) struct Image {
    region: Region,
    kept: Arc<Kept>,
    has_ended: AtomicBool,
}

/// What is still to be copied of an image.
struct Kept {
    /// The length of the device at that moment.
    blocks: u64,
    /// One bit for each block: it was in use, and is not copied yet.
    left: Box<[AtomicU64]>,
    left_blocks: AtomicU64,
    patience: Patience,
    given_up: AtomicBool,
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    /// What was kept for stores, and not sent yet.
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// No block before this one is left, except those that stores keep.
    reached: u64,
    cost: Cost,
}

impl Image {
    /// Makes the image of a mounted device. A device has one at a time: an earlier one must have ended.
    pub(crate) fn of(fs: &FileSystem, patience: Patience) -> nvfold::Result<Image> {
        let began = Instant::now();
        let kept = fs.at_rest(|rest| {
            let kept = Arc::new(Kept::of(rest.region().len_bytes() / BLOCK_BYTES, rest.used_blocks(), patience));
            if !rest.region().is_read_only() {
                let keeping = kept.clone();
                rest.region().keep_before_stores(Some(Arc::new(move |region, offset, length| {
                    keeping.before_store(region, offset, length);
                    true
                })));
            }
            kept
        })?;
        kept.state.lock().cost.waited_ns = began.elapsed().as_nanos() as u64;
        Ok(Image { region: fs.region().clone(), kept, has_ended: AtomicBool::new(false) })
    }

    /// Returns the length of the device.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.kept.blocks * BLOCK_BYTES
    }

    /// Returns how many bytes are still to be copied, at most: some may be holes.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.kept.left_blocks.load(Ordering::Relaxed) * BLOCK_BYTES + self.kept.state.lock().bytes as u64
    }

    /// Takes the next piece, in no order. What no piece holds is zeros.
    pub(crate) fn next_piece(&self) -> Result<Piece, Ended> {
        if self.region.is_lost() {
            return Err(Ended::Lost);
        }
        if self.kept.given_up.load(Ordering::Acquire) {
            return Err(Ended::GivenUp);
        }
        let mut state = self.kept.state.lock();
        let piece = match state.pieces.pop_front() {
            Some(piece) => {
                state.bytes -= piece.1.len();
                self.kept.room.notify_all();
                Some(piece)
            }
            None => self.kept.next_left(&self.region, &mut state),
        };
        drop(state);
        // Behind the end of a device that was cut off, zeros were read.
        if self.region.is_lost() { Err(Ended::Lost) } else { piece.ok_or(Ended::Done) }
    }

    /// Ends it: stores are no longer kept apart, and the device may have another image.
    pub(crate) fn end(&self) {
        // Not twice: the second time, the device may have another one already.
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.kept.give_up();
        if !self.region.is_read_only() {
            self.region.keep_before_stores(None);
        }
    }

    /// Returns what it has cost.
    pub(crate) fn cost(&self) -> Cost {
        self.kept.state.lock().cost
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.end();
    }
}

impl Kept {
    fn of(blocks: u64, used: Vec<u64>, patience: Patience) -> Kept {
        let words = used.into_iter().take(blocks.div_ceil(64) as usize);
        // A device may be longer than the file system on it, which may grow meanwhile.
        let words = words.chain(std::iter::repeat(0)).take(blocks.div_ceil(64) as usize);
        let left: Box<[AtomicU64]> = words.map(AtomicU64::new).collect();
        if let Some(last) = left.last().filter(|_| !blocks.is_multiple_of(64)) {
            last.fetch_and((1 << (blocks % 64)) - 1, Ordering::Relaxed);
        }
        let left_blocks = left.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum();
        Kept {
            blocks,
            left,
            left_blocks: AtomicU64::new(left_blocks),
            patience,
            given_up: AtomicBool::new(false),
            state: Mutex::default(),
            room: Condvar::new(),
        }
    }

    fn is_left(&self, block: u64) -> bool {
        self.left[(block / 64) as usize].load(Ordering::Acquire) >> (block % 64) & 1 != 0
    }

    /// Returns the first block from this one on that is left.
    fn first_left(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.blocks {
            let word = self.left[(at / 64) as usize].load(Ordering::Acquire) >> (at % 64);
            if word != 0 {
                return Some(at + u64::from(word.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Returns the run of blocks that are left and begins with this one, as far as a piece may go.
    fn run_of_left(&self, first: u64, end: u64) -> Range<u64> {
        let end = end.min(first + PIECE_BLOCKS).min(self.blocks);
        first..(first..end).find(|block| !self.is_left(*block)).unwrap_or(end)
    }

    /// Takes the bits of these blocks. The lock is held: only so are bits cleared.
    fn take(&self, blocks: Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let bits = (64 - at % 64).min(blocks.end - at);
            let mask = (!0 >> (64 - bits)) << (at % 64);
            let before = self.left[(at / 64) as usize].fetch_and(!mask, Ordering::AcqRel);
            self.left_blocks.fetch_sub(u64::from((before & mask).count_ones()), Ordering::Relaxed);
            at += bits;
        }
    }

    /// Reads blocks that are left, and then takes their bits: a store that sees none may go on.
    fn read(&self, region: &Region, blocks: Range<u64>, state: &mut MutexGuard<'_, State>) -> Piece {
        let (offset, length) = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        let bytes = region.to_vec(offset, length);
        // An error of this thread would become that of the operation that stores.
        if !region.sound_or_forget(offset, length) {
            let bad = |range: &Range<u64>| range.end.min(offset + length).saturating_sub(range.start.max(offset));
            state.cost.unreadable_bytes += region.bad_ranges().iter().map(bad).sum::<u64>();
        }
        self.take(blocks);
        (offset, bytes)
    }

    /// Reads the next blocks that are left. Holes are passed over, so that no memory is taken for them.
    fn next_left(&self, region: &Region, state: &mut MutexGuard<'_, State>) -> Option<Piece> {
        loop {
            let first = self.first_left(state.reached)?;
            let (offset, end) = (first * BLOCK_BYTES, self.blocks * BLOCK_BYTES);
            let held = region.next_allocated(offset, end) / BLOCK_BYTES;
            if held > first {
                self.take(first..held);
                state.reached = held;
                continue;
            }
            let ranges = region.allocated_ranges(offset, PIECE_BLOCKS * BLOCK_BYTES);
            let held = ranges.first().map_or(self.blocks, |range| range.end.div_ceil(BLOCK_BYTES));
            let blocks = self.run_of_left(first, held.max(first + 1));
            state.reached = blocks.end;
            return Some(self.read(region, blocks, state));
        }
    }

    /// Keeps what a store is about to overwrite.
    fn before_store(&self, region: &Region, offset: u64, length: u64) {
        let blocks = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES).min(self.blocks);
        if self.given_up.load(Ordering::Acquire) || !blocks.clone().any(|block| self.is_left(block)) {
            return;
        }
        let mut state = self.state.lock();
        let mut at = blocks.start;
        while let Some(first) = (at..blocks.end).find(|block| self.is_left(*block)) {
            if state.bytes >= self.patience.kept_bytes {
                if !self.wait_for_room(&mut state) {
                    return;
                }
                // The copy may have come to these blocks meanwhile.
                continue;
            }
            let run = self.run_of_left(first, blocks.end);
            at = run.end;
            let piece = self.read(region, run, &mut state);
            state.bytes += piece.1.len();
            state.pieces.push_back(piece);
        }
    }

    /// Waits until there is room for a piece. Returns false if the image is given up.
    fn wait_for_room(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let began = Instant::now();
        let until = began + self.patience.for_room;
        while state.bytes >= self.patience.kept_bytes && !self.given_up.load(Ordering::Acquire) {
            if self.room.wait_until(state, until).timed_out() && state.bytes >= self.patience.kept_bytes {
                self.forget(state);
            }
        }
        state.cost.waited_ns = state.cost.waited_ns.max(began.elapsed().as_nanos() as u64);
        !self.given_up.load(Ordering::Acquire)
    }

    /// Keeps nothing any more.
    fn give_up(&self) {
        self.forget(&mut self.state.lock());
    }

    fn forget(&self, state: &mut MutexGuard<'_, State>) {
        self.given_up.store(true, Ordering::Release);
        state.pieces.clear();
        state.bytes = 0;
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{FileKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy};
    use pmem::{DeviceSpec, OpenOptions};
    use std::thread;

    const PATIENT: Patience = Patience { kept_bytes: 1 << 30, for_room: Duration::from_secs(600) };

    fn region() -> Region {
        Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap()
    }

    fn mounted(policy: Policy) -> FileSystem {
        let region = region();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        FileSystem::mount(region, MountOptions { policy, ..MountOptions::default() }).unwrap()
    }

    fn new_file(fs: &FileSystem, name: &[u8]) -> nvfold::File {
        let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
        fs.open(fs.create(InodeNumber::ROOT, name, &new).unwrap().ino).unwrap()
    }

    /// Takes all pieces; `between` is called before each.
    fn copied(image: &Image, mut between: impl FnMut()) -> Result<Region, Ended> {
        let copy = region();
        loop {
            between();
            match image.next_piece() {
                Ok((offset, bytes)) => drop(copy.fence(copy.stream(offset, &bytes))),
                Err(Ended::Done) => return Ok(copy),
                Err(ended) => return Err(ended),
            }
        }
    }

    fn content(copy: Region, name: &[u8]) -> Vec<u8> {
        let fs = FileSystem::mount(copy, MountOptions::default()).unwrap();
        let file = fs.open(fs.lookup(InodeNumber::ROOT, name).unwrap().ino).unwrap();
        let mut bytes = vec![0; file.attr().size as usize];
        file.read_at(0, &mut bytes).unwrap();
        fs.unmount().unwrap();
        bytes
    }

    /// Between any two pieces, operations change everything: the image is of the moment when it was made.
    #[test]
    fn an_image_keeps_what_stores_overwrite_while_it_is_copied() {
        for policy in Policy::ALL {
            let fs = mounted(policy);
            let file = new_file(&fs, b"file");
            file.write_at(0, &[1; 3_000_000]).unwrap();
            let image = Image::of(&fs, PATIENT).unwrap();
            let mut round = 2u8;
            let copy = copied(&image, || {
                file.write_at(0, &vec![round; 300_000 + usize::from(round)]).unwrap();
                fs.unlink(InodeNumber::ROOT, b"other").unwrap_or_default();
                new_file(&fs, b"other").write_at(0, &[round; 5000]).unwrap();
                round = round.wrapping_add(1);
            });
            assert!(content(copy.unwrap(), b"file") == [1; 3_000_000], "{policy:?}");
            drop(image);
            let image = Image::of(&fs, PATIENT).unwrap();
            let copy = copied(&image, || ()).unwrap();
            assert_eq!(content(copy, b"other").len(), 5000, "{policy:?}: a later image");
        }
    }

    /// With a device that is longer than its file system, and with one that becomes longer.
    #[test]
    fn an_image_of_a_file_system_that_grows_has_its_old_size() {
        for (bytes, grown) in [(64 << 20, None), (32 << 20, Some(64 << 20))] {
            let small = region();
            FileSystem::mkfs(&small, &MkfsOptions::default()).unwrap();
            let options = OpenOptions { can_grow: true, ..OpenOptions::default() };
            let region = Region::create(&DeviceSpec::Memory, bytes, &options).unwrap();
            for range in small.allocated_ranges(0, 32 << 20) {
                let content = small.to_vec(range.start, range.end - range.start);
                let _ = region.fence(region.stream(range.start, &content));
            }
            let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
            let file = new_file(&fs, b"file");
            file.write_at(0, &[1; 3_000_000]).unwrap();
            let image = Image::of(&fs, PATIENT).unwrap();
            assert_eq!(fs.grow(grown).unwrap().after_bytes, 64 << 20);
            file.write_at(0, &vec![2; 40 << 20]).unwrap();
            let copy = copied(&image, || ()).unwrap();
            let report = nvfold::check::check(&copy, &nvfold::check::CheckOptions::default()).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            assert_eq!(nvfold::read_superblock(&copy).unwrap().0.device_bytes, 32 << 20);
            assert!(content(copy, b"file") == [1; 3_000_000]);
            drop(image);
            assert_eq!(file.attr().size, 40 << 20);
        }
    }

    #[test]
    fn a_store_waits_for_room_and_goes_on_when_a_piece_is_taken() {
        let fs = mounted(Policy::Off);
        let file = new_file(&fs, b"file");
        let image = Image::of(&fs, Patience { kept_bytes: 1, ..PATIENT }).unwrap();
        let writes = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..100 {
                    file.write_at(0, &[round; 10]).unwrap();
                    writes.fetch_add(1, Ordering::SeqCst);
                }
            });
            let copy = copied(&image, thread::yield_now).unwrap();
            assert!(content(copy, b"file").is_empty());
        });
        assert_eq!(writes.into_inner(), 100);
    }

    #[test]
    fn an_image_without_a_reader_is_given_up() {
        let fs = mounted(Policy::Off);
        let file = new_file(&fs, b"file");
        let image = Image::of(&fs, Patience { kept_bytes: 1, for_room: Duration::from_millis(20) }).unwrap();
        for round in 0..10 {
            file.write_at(0, &[round; 10_000]).unwrap();
        }
        assert_eq!(image.next_piece(), Err(Ended::GivenUp));
        assert!(image.cost().waited_ns >= 20_000_000 && image.left_bytes() > 0);
        drop(image);
        fs.unmount().unwrap();
    }

    #[test]
    fn holes_and_free_blocks_are_no_part_of_an_image() {
        let fs = mounted(Policy::Off);
        new_file(&fs, b"file").write_at(0, &[7; 100_000]).unwrap();
        let image = Image::of(&fs, PATIENT).unwrap();
        let before = fs.region().allocated_bytes();
        let mut bytes = 0;
        while let Ok((_, piece)) = image.next_piece() {
            bytes += piece.len();
        }
        assert!((100_000..3 << 20).contains(&bytes), "{bytes} bytes of a device of 32 MiB");
        assert_eq!(
            (image.left_bytes(), fs.region().allocated_bytes()),
            (0, before),
            "reading takes no memory of the device"
        );
    }
}
