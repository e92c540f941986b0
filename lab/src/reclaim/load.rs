//! The writes: large and small files up to a share of the usable space, then random overwrites of whole pieces.
//!
//! ```text
//! group    one large file | 16 small files, 16 KiB each        every other group compressible
//!          16 pieces of 64 KiB
//! ```
//!
//! One write overwrites a piece completely, and no content is written twice, so the amount of live data is constant.

use crate::{Doing, LabError, Result};
use nvfold::{Error, File, FileKind, FileSystem, InodeNumber, NewInode, Victims};
use nvfold_bench::data::{Random, Unshared};
use pmem::clock::thread_cpu_ns;
use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

/// Bytes of a piece of a large file.
pub(super) const LARGE_BYTES: usize = 64 << 10;
/// Bytes of a small file.
pub(super) const SMALL_BYTES: usize = 16 << 10;
/// Pieces of a large file, and number of small files in a group.
const GROUP: usize = 16;
/// Bytes of overwrites between two runs of the background.
pub(super) const BACKGROUND_EVERY_BYTES: u64 = 16 << 20;
const SEED: u64 = 29;

/// The part of a file that one write overwrites.
struct Piece {
    file: usize,
    offset: u64,
    is_small: bool,
    is_compressible: bool,
    /// The number in its last content.
    number: u64,
}

/// The files of a device, and their content.
pub(super) struct Load {
    files: Vec<File>,
    pieces: Vec<Piece>,
    large: Unshared,
    small: Unshared,
    random: Random,
    /// Number of the next content.
    next: u64,
    /// Bytes of all files.
    pub live_bytes: u64,
    /// Available bytes of statfs after the files had been written.
    pub available_bytes: u64,
}

/// A duration by the wall clock and in processor time; other work on the machine changes only the former.
#[derive(Clone, Copy, Default)]
pub(super) struct Took {
    pub wall: Duration,
    pub processor: Duration,
}

impl Took {
    /// Measures `work`.
    fn by<T>(work: impl FnOnce() -> T) -> (T, Took) {
        let (begun, processor) = (Instant::now(), thread_cpu_ns());
        let done = work();
        let processor = Duration::from_nanos((thread_cpu_ns() - processor) as u64);
        (done, Took { wall: begun.elapsed(), processor })
    }
}

impl Add for Took {
    type Output = Took;

    fn add(self, other: Took) -> Took {
        Took { wall: self.wall + other.wall, processor: self.processor + other.processor }
    }
}

impl AddAssign for Took {
    fn add_assign(&mut self, other: Took) {
        *self = *self + other;
    }
}

/// The result of one part of the overwrites.
#[derive(Default)]
pub(super) struct Part {
    /// Bytes written.
    pub bytes: u64,
    /// All writes together.
    pub writes: Took,
    /// The background.
    pub background: Took,
    /// Each write of 64 KiB, and each of a small file.
    pub large: Vec<Took>,
    pub small: Vec<Took>,
    /// Writes that found no space.
    pub no_space: u64,
    /// Maximum bytes of data in blocks, for lack of a free segment.
    pub in_blocks_max_bytes: u64,
}

impl Load {
    /// Writes files up to a share of the usable space, which is their own bytes plus the available bytes of statfs.
    pub(super) fn fill(fs: &FileSystem, percent: u64) -> Result<Load> {
        let mut load = Load {
            files: Vec::new(),
            pieces: Vec::new(),
            large: Unshared::new(LARGE_BYTES, SEED),
            small: Unshared::new(SMALL_BYTES, SEED + 1),
            random: Random(SEED),
            next: 0,
            live_bytes: 0,
            available_bytes: available(fs),
        };
        for group in 0.. {
            if load.live_bytes * 100 >= percent * (load.live_bytes + load.available_bytes) {
                break;
            }
            load.add_group(fs, group)?;
        }
        Ok(load)
    }

    fn add_group(&mut self, fs: &FileSystem, group: usize) -> Result<()> {
        let is_compressible = group.is_multiple_of(2);
        let first = self.pieces.len();
        self.files.push(create(fs, self.files.len())?);
        for at in 0..GROUP {
            let (file, offset) = (self.files.len() - 1, (at * LARGE_BYTES) as u64);
            self.pieces.push(Piece { file, offset, is_small: false, is_compressible, number: 0 });
        }
        for _ in 0..GROUP {
            self.files.push(create(fs, self.files.len())?);
            let file = self.files.len() - 1;
            self.pieces.push(Piece { file, offset: 0, is_small: true, is_compressible, number: 0 });
        }
        for piece in first..self.pieces.len() {
            self.write(piece).doing("fill the device")?;
            self.live_bytes += self.content(piece).len() as u64;
        }
        self.available_bytes = available(fs);
        Ok(())
    }

    /// Overwrites pieces until `bytes` bytes are written.
    pub(super) fn overwrite(&mut self, fs: &FileSystem, bytes: u64, has_background: bool) -> Result<Part> {
        let mut part = Part::default();
        let mut since_background = 0;
        while part.bytes < bytes {
            let piece = self.random.next_u64() as usize % self.pieces.len();
            let before = self.pieces[piece].number;
            match self.write(piece) {
                Ok(took) => {
                    let is_small = self.pieces[piece].is_small;
                    let all = if is_small { &mut part.small } else { &mut part.large };
                    all.push(took);
                    part.writes += took;
                }
                Err(Error::NoSpace { .. }) => {
                    part.no_space += 1;
                    self.pieces[piece].number = before;
                }
                Err(error) => return Err(error).doing("overwrite a piece"),
            }
            let length = if self.pieces[piece].is_small { SMALL_BYTES } else { LARGE_BYTES } as u64;
            part.bytes += length;
            since_background += length;
            if since_background >= BACKGROUND_EVERY_BYTES {
                since_background = 0;
                part.in_blocks_max_bytes = part.in_blocks_max_bytes.max(in_blocks(fs));
                if has_background {
                    part.background += background(fs)?;
                }
            }
        }
        part.in_blocks_max_bytes = part.in_blocks_max_bytes.max(in_blocks(fs));
        Ok(part)
    }

    /// Writes a piece anew; returns the time of the write.
    fn write(&mut self, piece: usize) -> nvfold::Result<Took> {
        self.next += 1;
        self.pieces[piece].number = self.next;
        let (file, offset) = (self.pieces[piece].file, self.pieces[piece].offset);
        self.content(piece);
        let Piece { is_small, is_compressible, .. } = self.pieces[piece];
        let unshared = if is_small { &self.small } else { &self.large };
        let content = if is_compressible { &unshared.compressible } else { &unshared.random };
        let (written, took) = Took::by(|| self.files[file].write_at(offset, content));
        written.map(|_| took)
    }

    /// Returns the last content of a piece.
    fn content(&mut self, piece: usize) -> &[u8] {
        let Piece { is_small, is_compressible, number, .. } = self.pieces[piece];
        let unshared = if is_small { &mut self.small } else { &mut self.large };
        unshared.stamped(is_compressible, number)
    }

    /// Reads every piece back.
    ///
    /// # Errors
    /// [`wrong`] if a piece holds other bytes than were written.
    pub(super) fn verify(&mut self) -> Result<()> {
        let mut read = vec![0; LARGE_BYTES];
        for piece in 0..self.pieces.len() {
            let (file, offset) = (self.pieces[piece].file, self.pieces[piece].offset);
            let length = self.content(piece).len();
            let count = self.files[file].read_at(offset, &mut read[..length]).doing("read back")?;
            if read[..count] != *self.content(piece) {
                return Err(LabError::wrong(format!("file {file} at offset {offset}")));
            }
        }
        Ok(())
    }
}

/// Does the work of a mount's threads in a round, until nothing is left to do; returns its time.
pub(super) fn background(fs: &FileSystem) -> Result<Took> {
    let round = || {
        while !fs.fill_step().doing("work in the background")? {}
        while !fs.reclaim_step(Victims::Worthwhile).doing("reclaim space")? {}
        Ok(())
    };
    let (done, took) = Took::by(round);
    done.map(|()| took)
}

fn create(fs: &FileSystem, number: usize) -> Result<File> {
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
    let ino = fs.create(InodeNumber::ROOT, format!("f{number}").as_bytes(), &new).doing("create a file")?.ino;
    fs.open(ino).doing("open a file")
}

/// Returns the bytes that `df` reports as available.
fn available(fs: &FileSystem) -> u64 {
    let space = fs.statfs();
    space.blocks_available * u64::from(space.block_bytes)
}

fn in_blocks(fs: &FileSystem) -> u64 {
    fs.stats().data_blocks * nvfold::BLOCK_BYTES
}
