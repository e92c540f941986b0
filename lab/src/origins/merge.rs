//! A compaction by a program that reports its copies: it merges sorted tables into new ones and copies every record
//! from buffer to buffer. Each write asks the rec-tree for the origins of its bytes.
//!
//! ```text
//! inputs  --read-->  a block each  --copy of live records-->  block  --copy-->  write buffer, 64 KiB  --append-->  outputs
//!         record_read              record_copy                record_copy                      origins, append_from
//! ```
//!
//! Of records with the same key the one from the first input is live, unless it says that the key is deleted. All
//! buffers are reused again and again, as in a real program, so the tree's records of them are soon out of date.

use super::sstable::{self, BLOCK_BYTES, BLOCK_BYTES_MAX, Key, Place, Record, Tail};
use crate::{Doing, LabError, Result};
use nvfold::{File, FileKind, FileSystem, InodeNumber, NewInode, Origin};
use nvfold_causality::{CopySource, FileToken, RecTree, TreeOptions, Variant};

/// Bytes of the write buffer, as in LevelDB.
pub(super) const WRITE_BUFFER_BYTES: usize = 64 << 10;
/// An output ends with the block that makes it at least this long, in bytes, as in LevelDB.
pub(super) const OUTPUT_BYTES: u64 = 2 << 20;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };

/// Makes a new file in the root.
pub(super) fn create(fs: &FileSystem, name: &str) -> Result<File> {
    let made = fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).and_then(|attr| fs.open(attr.ino));
    made.doing(format!("create {name}"))
}

/// The writes of a compaction, and their result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    /// Calls of `append_from`.
    pub requests: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// The part of these bytes for which the tree knew an origin.
    pub known_bytes: u64,
    /// The part of these bytes that was shared.
    pub shared_bytes: u64,
    /// Live records, and bytes of their keys and values.
    pub records: u64,
    pub record_bytes: u64,
}

/// Memory whose copies the tree records.
struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// Makes a buffer that never moves, because it never grows beyond its capacity.
    fn new(capacity: usize) -> Buffer {
        Buffer { bytes: Vec::with_capacity(capacity) }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    /// Appends bytes of another buffer, and records the copy in the tree.
    fn copy(&mut self, bytes: &[u8], tree: &RecTree) {
        let destination = self.address() + self.bytes.len() as u64;
        self.put(bytes);
        tree.record_copy(destination, bytes.as_ptr().addr() as u64, bytes.len() as u64);
    }

    /// Appends bytes without an origin.
    fn put(&mut self, bytes: &[u8]) {
        assert!(self.bytes.len() + bytes.len() <= self.bytes.capacity(), "the buffer would move");
        self.bytes.extend_from_slice(bytes);
    }
}

/// One input and its reading position.
struct Input {
    file: File,
    token: FileToken,
    places: Vec<Place>,
    /// The next block to read.
    next: usize,
    block: Buffer,
    /// The next record in the block.
    at: usize,
}

impl Input {
    fn open(file: File, tree: &RecTree) -> Result<Input> {
        let token = tree.open_file().expect("a compaction has few files open");
        let places = sstable::places(&file)?;
        let mut input = Input { file, token, places, next: 0, block: Buffer::new(BLOCK_BYTES_MAX), at: 0 };
        input.read_block(tree)?;
        Ok(input)
    }

    fn record(&self) -> Option<Record<'_>> {
        sstable::record_at(&self.block.bytes, self.at)
    }

    fn advance(&mut self, tree: &RecTree) -> Result<()> {
        if let Some(end) = self.record().map(|record| record.end) {
            self.at = end;
        }
        if self.record().is_none() { self.read_block(tree) } else { Ok(()) }
    }

    fn read_block(&mut self, tree: &RecTree) -> Result<()> {
        self.at = 0;
        let Some(Place { offset, bytes }) = self.places.get(self.next).copied() else {
            self.block.bytes.clear();
            return Ok(());
        };
        self.next += 1;
        self.block.bytes.resize(bytes, 0);
        sstable::read(&self.file, offset, &mut self.block.bytes)?;
        tree.record_read(self.block.address(), bytes as u64, self.token, offset);
        match sstable::is_whole(&self.block.bytes) {
            true => Ok(()),
            false => Err(LabError::wrong("a block of a sorted table".into())),
        }
    }
}

/// The output file.
struct Output {
    file: File,
    /// Bytes that were given to `flush` or wait for it.
    bytes: u64,
    tail: Tail,
}

/// A compaction under way.
struct Compaction<'f> {
    fs: &'f FileSystem,
    tree: RecTree,
    inputs: Vec<Input>,
    /// The block under construction: records, and the last key.
    block: Buffer,
    block_records: u64,
    last: Key,
    /// Bytes that were appended to the output but not written yet.
    pending: Buffer,
    output: Option<Output>,
    outputs: Vec<File>,
    written: Written,
}

/// Merges sorted tables, the newest first; returns the new tables.
pub(super) fn compact(fs: &FileSystem, inputs: Vec<File>, variant: Variant) -> Result<(Vec<File>, Written)> {
    let tree = RecTree::new(TreeOptions::of(variant));
    let inputs = inputs.into_iter().map(|file| Input::open(file, &tree)).collect::<Result<Vec<Input>>>()?;
    let mut compaction = Compaction {
        fs,
        tree,
        inputs,
        block: Buffer::new(BLOCK_BYTES_MAX),
        block_records: 0,
        last: Key::default(),
        pending: Buffer::new(WRITE_BUFFER_BYTES),
        output: None,
        outputs: Vec::new(),
        written: Written::default(),
    };
    while let Some(newest) = compaction.newest_of_the_lowest_key() {
        compaction.take(newest)?;
    }
    compaction.finish_block()?;
    compaction.finish_output()?;
    Ok((compaction.outputs, compaction.written))
}

impl Compaction<'_> {
    /// Returns the input that has the next record.
    fn newest_of_the_lowest_key(&self) -> Option<usize> {
        let keys = self.inputs.iter().enumerate().filter_map(|(at, input)| Some((input.record()?.key, at)));
        keys.min().map(|(_, at)| at)
    }

    /// Copies a record if it is live, and skips it and the records that it replaces.
    fn take(&mut self, newest: usize) -> Result<()> {
        let record = self.inputs[newest].record().expect("it has the lowest key");
        let key = record.key;
        if let Some(value) = record.value {
            let (bytes, value_bytes) = (&self.inputs[newest].block.bytes, value.len());
            let value_start = record.end - value_bytes;
            self.block.put(&sstable::head(Some(value_bytes)));
            self.block.copy(&bytes[record.start..value_start], &self.tree);
            self.block.copy(&bytes[value_start..record.end], &self.tree);
            self.written.records += 1;
            self.written.record_bytes += (record.end - record.start) as u64;
            (self.block_records, self.last) = (self.block_records + 1, key);
        }
        for input in &mut self.inputs {
            if input.record().is_some_and(|record| record.key == key) {
                input.advance(&self.tree)?;
            }
        }
        if self.block.bytes.len() >= BLOCK_BYTES { self.finish_block() } else { Ok(()) }
    }

    fn finish_block(&mut self) -> Result<()> {
        if self.block.bytes.is_empty() {
            return Ok(());
        }
        self.block.put(&sstable::trailer(&self.block.bytes));
        let name = || format!("output-{}", self.outputs.len());
        let mut output = match self.output.take() {
            Some(output) => output,
            None => Output { file: create(self.fs, &name())?, bytes: 0, tail: Tail::default() },
        };
        let place = Place { offset: output.bytes, bytes: self.block.bytes.len() };
        output.tail.add(&self.last, place, self.block_records);
        output.bytes += place.bytes as u64;
        let is_full = output.bytes >= OUTPUT_BYTES;
        self.output = Some(output);
        // The buffer stays at the same address.
        let bytes = std::mem::take(&mut self.block.bytes);
        self.append(&bytes)?;
        (self.block.bytes, self.block_records) = (bytes, 0);
        self.block.bytes.clear();
        if is_full { self.finish_output() } else { Ok(()) }
    }

    /// Appends through the write buffer, which is written whenever it is full.
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = WRITE_BUFFER_BYTES - self.pending.bytes.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.pending.copy(now, &self.tree);
            if self.pending.bytes.len() == WRITE_BUFFER_BYTES {
                self.flush()?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Writes the write buffer, with its known origins.
    fn flush(&mut self) -> Result<()> {
        let Some(output) = self.output.as_ref().filter(|_| !self.pending.bytes.is_empty()) else { return Ok(()) };
        let mut sources = Vec::new();
        self.tree.origins(self.pending.address(), self.pending.bytes.len() as u64, &mut sources);
        let file_of = |source: &CopySource| self.inputs.iter().find(|input| input.token == source.file);
        let origin = |source: &CopySource| {
            let (at, length, source_offset) = (source.at, source.length, source.file_offset);
            file_of(source).map(|input| Origin { at, length, source: &input.file, source_offset })
        };
        let origins: Vec<Origin<'_>> = sources.iter().filter_map(origin).collect();
        let (_, shared) = output.file.append_from(&self.pending.bytes, &origins).doing("write an output")?;
        self.written.requests += 1;
        self.written.bytes += self.pending.bytes.len() as u64;
        self.written.known_bytes += origins.iter().map(|origin| origin.length).sum::<u64>();
        self.written.shared_bytes += shared;
        self.pending.bytes.clear();
        Ok(())
    }

    fn finish_output(&mut self) -> Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        let tail = std::mem::take(&mut output.tail).finish(output.bytes);
        self.append(&tail)?;
        self.flush()?;
        self.outputs.extend(self.output.take().map(|output| output.file));
        Ok(())
    }
}
