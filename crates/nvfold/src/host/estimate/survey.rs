//! The survey: reads every file below the given paths once, and counts the pieces that could be shared.
//!
//! ```text
//!   paths -> walk -> data ranges of each file -> 1 MiB slabs -+-> 4 KiB blocks, packed tails -> DistinctSample
//!                    (holes are skipped)                      +-> pieces of `deext`          -> DistinctSample
//! ```
//!
//! Zeros, which become holes on the device, are counted and not sampled.
//!
//! Nothing is changed: files are opened for reading only, and without changing their access times if the kernel
//! permits it. Memory is bounded by the samples, one slab, and the set of hard-linked inodes.

use super::EstimateOptions;
use super::cut::{DeextStream, ENTRY_BYTES, PACKED_METADATA_BYTES, inline_bytes, is_packed_tail, packed_bytes};
use super::sample::DistinctSample;
use crate::FileKind;
use crate::chunking::{FIXED_BYTES, Verdict, ZeroRanges, fixed, is_zero, trailing_zeros, zero_runs};
use crate::compression::Compression;
use crate::fingerprint::weak64;
use crate::host::files::{identity, size};
use crate::host::walk::{HostEntry, problem, walk};
use crate::host::{Problem, Progress, TreeError, TreeReport, TreeResult, Watch};
use crate::media::BLOCK_BYTES;
use crate::media::inode::{INLINE_LOG, INODE_BYTES};
use crate::media::log_entry::{LINE, NAME_OFFSET};
use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes read at a time; a multiple of 4 KiB.
const SLAB_BYTES: usize = 1 << 20;

/// Number of problems that are kept; further ones are only counted.
const PROBLEMS_KEPT: usize = 100;

/// Log lines in an inode slot.
const INLINE_LINES: u64 = (INODE_BYTES - INLINE_LOG) / LINE;

/// Memory of one inode in the set of hard links: a slot, its control byte, and spare room for the table's growth.
const LINK_BYTES: u64 = 32;

/// Counts of the files below one path.
#[derive(Clone, Debug, Default)]
pub struct PathCounts {
    /// Regular files, each inode once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, devices, fifos and sockets.
    pub others: u64,
    /// Additional names of inodes that were counted before.
    pub hard_links: u64,
    /// Sizes of the files.
    pub file_bytes: u64,
    /// Bytes in holes, which need no space.
    pub hole_bytes: u64,
    /// Bytes read: everything outside of holes.
    pub data_bytes: u64,
    /// Bytes of blocks and tails of zeros, which only policy `off` stores.
    pub zero_bytes: u64,
    /// Number of 4 KiB blocks of zeros.
    pub zero_blocks: u64,
    /// Bytes in runs of zeros that policy `deext` leaves out.
    pub zero_run_bytes: u64,
    /// Number of 4 KiB blocks of the data if nothing is packed or shared.
    pub blocks: u64,
    /// Last blocks of files that are short enough to be packed.
    pub tails: u64,
    /// Bytes in them.
    pub tail_bytes: u64,
    /// Number of pieces that policy `deext` cuts the data into.
    pub pieces: u64,
    /// Log bytes that the names need in their directories.
    pub name_bytes: u64,
    /// Files whose extents may need more log than an inode slot holds.
    pub long_files: u64,
}

impl PathCounts {
    /// Adds the counts of another path.
    pub(super) fn add(&mut self, other: &PathCounts) {
        let PathCounts { files, directories, others, hard_links, file_bytes, hole_bytes, data_bytes, .. } = other;
        let PathCounts { zero_bytes, zero_blocks, zero_run_bytes, .. } = other;
        let PathCounts { blocks, tails, tail_bytes, pieces, name_bytes, long_files, .. } = other;
        self.files += files;
        self.directories += directories;
        self.others += others;
        self.hard_links += hard_links;
        // A single sparse file may have 2^63 - 1 bytes.
        self.file_bytes = self.file_bytes.saturating_add(*file_bytes);
        self.hole_bytes = self.hole_bytes.saturating_add(*hole_bytes);
        self.data_bytes += data_bytes;
        self.zero_bytes += zero_bytes;
        self.zero_blocks += zero_blocks;
        self.zero_run_bytes += zero_run_bytes;
        self.blocks += blocks;
        self.tails += tails;
        self.tail_bytes += tail_bytes;
        self.pieces += pieces;
        self.name_bytes += name_bytes;
        self.long_files += long_files;
    }

    /// Returns the bytes that the data needs in whole blocks.
    pub(super) fn whole_block_bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES
    }

    /// Returns the bytes that policy `off` needs: blocks, and packed tails.
    pub(super) fn off_bytes(&self) -> u64 {
        (self.blocks - self.tails) * BLOCK_BYTES + self.tail_bytes + self.tails * PACKED_METADATA_BYTES
    }

    /// Returns the bytes that policy `inline` needs if nothing can be shared.
    pub(super) fn inline_bytes_max(&self) -> u64 {
        let stored = self.blocks - self.tails - self.zero_blocks;
        self.off_bytes() + stored * ENTRY_BYTES - self.zero_blocks * BLOCK_BYTES
    }

    /// Returns the bytes that policy `deext` needs if nothing can be shared.
    pub(super) fn deext_bytes_max(&self) -> u64 {
        self.data_bytes - self.zero_run_bytes + self.pieces * PACKED_METADATA_BYTES
    }
}

/// The state of a survey, and at the end its result.
pub(super) struct EstimateSurvey<'a> {
    options: &'a EstimateOptions,
    /// Blocks and packed tails, with the bytes that policy `inline` needs for each. Groups are positions in
    /// `by_path`.
    pub blocks: DistinctSample,
    /// Pieces of policy `deext`, with the bytes that it needs for each.
    pub pieces: DistinctSample,
    /// The same pieces with compression, if requested.
    pub compressed: Option<DistinctSample>,
    /// Counts, one per path.
    pub by_path: Vec<PathCounts>,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// Number of all problems.
    pub problem_count: u64,
    /// Hard-linked inodes that did not fit in memory; their additional names count as files.
    pub links_forgotten: u64,
    links_seen: HashSet<(u64, u64)>,
    links_capacity: usize,
    slab: Vec<u8>,
    /// Bytes that policy `deext` has not cut yet.
    uncut: Vec<u8>,
    watch: &'a mut Watch<'a>,
    done: Progress,
    is_stopped: bool,
}

impl<'a> EstimateSurvey<'a> {
    /// Returns an empty survey.
    pub(super) fn new(options: &'a EstimateOptions, watch: &'a mut Watch<'a>) -> EstimateSurvey<'a> {
        let links_bytes = options.memory_bytes / 8;
        let is_compressed = options.compression != Compression::Off;
        let sample_bytes = (options.memory_bytes - links_bytes) / (2 + u64::from(is_compressed));
        EstimateSurvey {
            blocks: DistinctSample::new(sample_bytes),
            pieces: DistinctSample::new(sample_bytes),
            compressed: is_compressed.then(|| DistinctSample::new(sample_bytes)),
            by_path: Vec::new(),
            problems: Vec::new(),
            problem_count: 0,
            links_forgotten: 0,
            links_seen: HashSet::new(),
            links_capacity: (links_bytes / LINK_BYTES) as usize,
            slab: vec![0; SLAB_BYTES],
            uncut: Vec::new(),
            watch,
            done: Progress::default(),
            is_stopped: false,
            options,
        }
    }

    /// Surveys the paths, one after the other.
    pub(super) fn read(&mut self, paths: &[PathBuf]) -> TreeResult<()> {
        self.tell(0, 0);
        paths.iter().for_each(|path| self.add_path(path));
        if self.is_stopped {
            return Err(TreeError::Stopped { doing: "estimate", done: Box::new(self.report()) });
        }
        // This last call cannot stop the survey any more.
        self.tell(0, 0);
        Ok(())
    }

    /// Surveys one more path. Symbolic links below it are counted, not followed.
    fn add_path(&mut self, path: &Path) {
        if self.is_stopped {
            return;
        }
        self.by_path.push(PathCounts::default());
        let _ = walk(path, self.options.one_file_system, &mut |found| {
            match found {
                Ok(found) => self.add_inode(&found),
                Err(problem) => self.add_problem(problem),
            }
            if self.is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    /// Reports more completed work to the caller, who may stop the survey.
    fn tell(&mut self, bytes: u64, files: u64) {
        self.done.bytes += bytes;
        self.done.files += files;
        self.is_stopped |= (self.watch)(self.done).is_break();
    }

    /// Returns a report of the work so far.
    fn report(&self) -> TreeReport {
        let sum = |count: fn(&PathCounts) -> u64| self.by_path.iter().map(count).sum();
        TreeReport {
            files: self.done.files,
            bytes: self.done.bytes,
            directories: sum(|counts| counts.directories),
            hard_links: sum(|counts| counts.hard_links),
            problem_count: self.problem_count,
            problems: self.problems.clone(),
            ..TreeReport::default()
        }
    }

    fn counts(&mut self) -> &mut PathCounts {
        self.by_path.last_mut().expect("add_path pushes before it walks")
    }

    fn group(&self) -> u32 {
        self.by_path.len() as u32 - 1
    }

    /// Records that a file could not be read.
    pub(super) fn add_problem(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(problem);
        }
    }

    fn add_inode(&mut self, found: &HostEntry<'_>) {
        let name_len = found.path.file_name().map_or(0, |name| name.len() as u64);
        self.counts().name_bytes += (NAME_OFFSET + name_len).next_multiple_of(LINE);
        let kind = found.kind();
        if kind == Some(FileKind::Directory) {
            self.counts().directories += 1;
        } else if self.was_seen(&found.stat) {
            self.counts().hard_links += 1;
        } else if kind != Some(FileKind::Regular) {
            self.counts().others += 1;
        } else if let Err(error) = self.add_file(found) {
            self.add_problem(problem(found.path.to_owned(), &error));
        }
    }

    /// Returns true if another name of this inode was counted before.
    fn was_seen(&mut self, stat: &Stat) -> bool {
        let inode = identity(stat);
        if stat.st_nlink < 2 || self.links_seen.contains(&inode) {
            return stat.st_nlink >= 2;
        }
        if self.links_seen.len() < self.links_capacity {
            self.links_seen.insert(inode);
        } else {
            self.links_forgotten += 1;
        }
        false
    }

    fn add_file(&mut self, found: &HostEntry<'_>) -> io::Result<()> {
        let (file, stat) = found.open()?;
        let size = size(&stat);
        self.counts().files += 1;
        self.counts().file_bytes = self.counts().file_bytes.saturating_add(size);
        self.counts().long_files += u64::from(size > INLINE_LINES * FIXED_BYTES as u64);
        let added = self.add_content(&file, size);
        if !self.is_stopped {
            self.tell(0, 1);
        }
        added
    }

    fn add_content(&mut self, file: &File, size: u64) -> io::Result<()> {
        let mut position = 0;
        while !self.is_stopped
            && let Some((start, end)) = next_data(file, position, size)
        {
            self.add_hole(start - position);
            self.add_range(file, start, end)?;
            position = end;
        }
        self.add_hole(size - position);
        Ok(())
    }

    fn add_hole(&mut self, bytes: u64) {
        self.counts().hole_bytes = self.counts().hole_bytes.saturating_add(bytes);
    }

    /// Reads and cuts one data range, which ends at a hole or at the end of the file.
    fn add_range(&mut self, file: &File, start: u64, end: u64) -> io::Result<()> {
        let mut slab = std::mem::take(&mut self.slab);
        let added = self.add_slabs(file, start, end, &mut slab);
        self.slab = slab;
        if added.is_err() {
            self.uncut.clear();
        }
        added
    }

    fn add_slabs(&mut self, file: &File, start: u64, end: u64, slab: &mut [u8]) -> io::Result<()> {
        let mut stream = DeextStream::new(self.options.lengths, start);
        let mut position = start;
        while position < end && !self.is_stopped {
            let wanted = (end - position).min(SLAB_BYTES as u64) as usize;
            let len = read_full(file, &mut slab[..wanted], position)?;
            position += len as u64;
            self.add_blocks(&slab[..len]);
            self.add_pieces_of(&mut stream, &slab[..len], position - len as u64, position == end || len < wanted);
            self.counts().data_bytes += len as u64;
            self.tell(len as u64, 0);
            if len < wanted {
                // The file became shorter meanwhile.
                break;
            }
        }
        Ok(())
    }

    /// Counts the blocks of a slab, and the tail if the file ends in it.
    fn add_blocks(&mut self, slab: &[u8]) {
        let group = self.group();
        for piece in fixed(slab) {
            let (bytes, counts) = (piece.bytes.len() as u64, self.counts());
            counts.blocks += 1;
            if is_packed_tail(bytes) {
                counts.tails += 1;
                counts.tail_bytes += bytes;
            }
            if is_zero(piece.bytes) {
                counts.zero_bytes += bytes;
                counts.zero_blocks += u64::from(bytes == FIXED_BYTES as u64);
                continue;
            }
            self.blocks.see(weak64(piece.bytes), inline_bytes(piece.bytes.len()), group);
        }
    }

    /// Counts the pieces of `deext` in a slab at this offset of its file, between runs of zeros.
    fn add_pieces_of(&mut self, stream: &mut DeextStream, slab: &[u8], offset: u64, is_end: bool) {
        let zeros = match self.uncut.is_empty() && is_zero(slab) {
            true => ZeroRanges::from_elem(0..slab.len(), 1),
            false => zero_runs(slab, trailing_zeros(&self.uncut)),
        };
        let mut at = 0;
        for zeros in &zeros {
            self.add_pieces(stream, &slab[at..zeros.start], true);
            at = zeros.end;
            *stream = DeextStream::new(self.options.lengths, offset + at as u64);
            self.counts().zero_run_bytes += zeros.len() as u64;
        }
        self.add_pieces(stream, &slab[at..], is_end);
    }

    /// Counts the pieces of `deext` that are complete; keeps the last one for later unless the range ends here.
    fn add_pieces(&mut self, stream: &mut DeextStream, slab: &[u8], is_end: bool) {
        let group = self.group();
        let mut uncut = std::mem::take(&mut self.uncut);
        uncut.extend_from_slice(slab);
        let mut pieces = 0;
        let cut_until = stream.cut(&uncut, is_end, &mut |piece, verdict| {
            pieces += 1;
            self.pieces.see(weak64(piece), packed_bytes(piece.len()), group);
            if let Some(compressed) = &mut self.compressed {
                let is_tried = verdict == Verdict::Compressible;
                let frame = if is_tried { self.options.compression.compress(piece) } else { None };
                let stored = frame.map_or(piece.len(), |frame| frame.len());
                compressed.see(weak64(piece), packed_bytes(stored), group);
            }
        });
        uncut.drain(..cut_until);
        self.uncut = uncut;
        self.counts().pieces += pieces;
    }
}

/// Returns the next range that holds data, starting on a 4 KiB boundary; the rest of the file if the file system does
/// not report holes.
fn next_data(file: &File, position: u64, size: u64) -> Option<(u64, u64)> {
    if position >= size {
        return None;
    }
    let data = match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(data) => data,
        Err(Errno::NXIO) => return None,
        Err(_) => return Some((position, size)),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size);
    let start = (data / FIXED_BYTES as u64 * FIXED_BYTES as u64).max(position);
    let end = hole.next_multiple_of(FIXED_BYTES as u64).min(size);
    (start < end).then_some((start, end))
}

/// Reads until `buffer` is full or the file ends; returns the number of bytes read.
fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
