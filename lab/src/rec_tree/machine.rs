//! A program's memory and its files, with a rec-tree that follows the program's copies.
//!
//! The problem: only bytes can tell whether the tree finds what it should. The idea: the modelled programs run on
//! real bytes. The sources that the tree names for a write are compared with the file, as nvfold does, and only equal
//! bytes count.

use nvfold_bench::data::Random;
use nvfold_causality::{CopySource, FileToken, RecTree};

/// Address of the first byte of the memory: in the middle of a page, as in heaps.
const BASE: u64 = 0x5555_5555_0810;

struct File {
    token: Option<FileToken>,
    bytes: Vec<u8>,
}

/// Memory, files and a tree.
pub(super) struct Machine<'t> {
    tree: &'t RecTree,
    memory: Vec<u8>,
    files: Vec<File>,
    sources: Vec<CopySource>,
    /// Bytes that were written, and those of them that were found and are equal.
    pub written: u64,
    pub found: u64,
    /// Bytes that the tree named and that differ.
    pub stale: u64,
}

impl<'t> Machine<'t> {
    /// Makes a machine with `memory_bytes` bytes of memory and no files.
    pub(super) fn new(tree: &'t RecTree, memory_bytes: usize) -> Machine<'t> {
        let (memory, files, sources) = (vec![0; memory_bytes], Vec::new(), Vec::new());
        Machine { tree, memory, files, sources, written: 0, found: 0, stale: 0 }
    }

    /// Makes a new open file of random bytes; returns its number.
    pub(super) fn file(&mut self, bytes: usize, random: &mut Random) -> usize {
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
        self.files.push(File { token: self.tree.open_file(), bytes: words.take(bytes).collect() });
        self.files.len() - 1
    }

    /// Closes a file of the program.
    pub(super) fn close(&mut self, file: usize) {
        self.files[file].token.take().into_iter().for_each(|token| self.tree.forget_file(token));
    }

    /// Reads from a file to the program's memory; returns the bytes read.
    pub(super) fn read(&mut self, file: usize, offset: usize, to: usize, length: usize) -> usize {
        let File { token, bytes } = &self.files[file];
        let length = length.min(bytes.len().saturating_sub(offset));
        self.memory[to..to + length].copy_from_slice(&bytes[offset..offset + length]);
        if let Some(token) = token {
            self.tree.record_read(BASE + to as u64, length as u64, *token, offset as u64);
        }
        length
    }

    /// Copies within the program's memory, by a function that is followed.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) {
        self.memory.copy_within(from..from + length, to);
        self.tree.record_copy(BASE + to as u64, BASE + from as u64, length as u64);
    }

    /// Stores new bytes of the program, which the tree does not see.
    pub(super) fn store(&mut self, to: usize, length: usize, random: &mut Random) {
        let word = random.next_u64().to_le_bytes();
        self.memory[to..to + length].iter_mut().zip(word.iter().cycle()).for_each(|(byte, new)| *byte = *new);
    }

    /// Appends memory of the program to a file.
    pub(super) fn write(&mut self, file: usize, from: usize, length: usize) {
        self.tree.origins(BASE + from as u64, length as u64, &mut self.sources);
        for source in &self.sources {
            let Some(other) = self.files.iter().find(|file| file.token == Some(source.file)) else {
                panic!("{source:?} is of no open file")
            };
            let (at, offset, length) = (source.at as usize, source.file_offset as usize, source.length as usize);
            let (own, other) = (&self.memory[from + at..][..length], &other.bytes[offset..offset + length]);
            let equal = own.iter().zip(other).filter(|(own, other)| own == other).count() as u64;
            self.found += equal;
            self.stale += source.length - equal;
        }
        self.written += length as u64;
        let bytes = self.memory[from..from + length].to_vec();
        self.files[file].bytes.extend(bytes);
    }
}
