//! Assembling a hint and sending it to the server.
//!
//! The memory is allocated from the beginning, for as many threads at once as there are `DRAFTS`; a thread that finds
//! none free sends no hint. A hint has up to 512 parts of up to 1 MiB; the rest goes into the next hint.

use super::{BYTES_MIN, Facts, files, look, position};
use crate::answer::errno;
use nvfold_c::causality;
use nvfold_causality::hint::{
    HINT_BYTES_MAX, HintedOrigin, SOURCE_OFFSET_MAX, SourceToken, TARGET_BYTES_MAX, encode, request,
};
use nvfold_causality::{CopySource, PAGE_BYTES};
use parking_lot::Mutex;
use std::ffi::{c_int, c_ulong};
use std::sync::atomic::{AtomicU64, Ordering};

/// Each thread that waits for the server holds one. The first free one is taken, so that few are ever touched.
const DRAFTS: usize = 256;
const PARTS_MAX: usize = 512;
const TOKENS_MAX: usize = 64;
const REFUSING_MAX: usize = 1024;
/// Linux writes no more bytes at once, whatever a program asks for.
const WRITE_BYTES_MAX: u64 = 0x7fff_f000;

/// Memory for one hint and for its lookups. All zeros is the empty state.
struct Memory {
    sources: [CopySource; PARTS_MAX],
    tokens: [SourceToken; TOKENS_MAX],
    origins: [HintedOrigin; PARTS_MAX],
    bytes: [u8; HINT_BYTES_MAX],
}

impl Memory {
    const EMPTY: Memory = Memory {
        sources: [CopySource::NONE; PARTS_MAX],
        tokens: [SourceToken::NONE; TOKENS_MAX],
        origins: [HintedOrigin::NONE; PARTS_MAX],
        bytes: [0; HINT_BYTES_MAX],
    };
}

static MEMORY: [Mutex<Memory>; DRAFTS] = [const { Mutex::new(Memory::EMPTY) }; DRAFTS];
/// Inodes of files that take no hints, each in a slot by its number.
static REFUSING: [AtomicU64; REFUSING_MAX] = [const { AtomicU64::new(0) }; REFUSING_MAX];

fn refuses(ino: u64) -> &'static AtomicU64 {
    &REFUSING[ino as usize % REFUSING_MAX]
}

/// The destination of a write.
#[derive(Clone, Copy)]
struct Target {
    ino: u64,
    offset: u64,
}

/// Returns the target of a write at this offset, or for `None` at the descriptor's position; `None` if a hint has no
/// use.
fn target(fd: c_int, at: Option<libc::off_t>) -> Option<Target> {
    let Facts { ino, size } = look(fd).filter(|facts| refuses(facts.ino).load(Ordering::Relaxed) != facts.ino)?;
    // SAFETY: F_GETFL changes nothing.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return None;
    }
    let offset = match at {
        _ if flags & libc::O_APPEND != 0 => size,
        Some(at) => u64::try_from(at).ok()?,
        None => position(fd)?,
    };
    Some(Target { ino, offset })
}

/// A hint under assembly.
pub(super) struct Draft<'m> {
    memory: &'m mut Memory,
    fd: c_int,
    at: Option<libc::off_t>,
    /// The target, looked up at the first origin; `Some(None)`: no hint is possible.
    target: Option<Option<Target>>,
    /// Bytes of the write that were looked up.
    looked_up: u64,
    /// First byte in the target that the hint covers, and the byte behind the last.
    start: u64,
    end: u64,
    tokens: usize,
    origins: usize,
}

/// Sends hints for a write; `look_up` passes the write's memory from its first byte on.
pub(super) fn leave(fd: c_int, at: Option<libc::off_t>, look_up: impl FnOnce(&mut Draft<'_>)) {
    let Some(mut memory) = MEMORY.iter().find_map(Mutex::try_lock) else { return };
    let mut draft =
        Draft { memory: &mut memory, fd, at, target: None, looked_up: 0, start: 0, end: 0, tokens: 0, origins: 0 };
    look_up(&mut draft);
    draft.send();
}

impl Draft<'_> {
    /// Looks up the next bytes of the write, at this address.
    pub(super) fn look_up(&mut self, address: usize, length: usize) {
        let length = length.min(WRITE_BYTES_MAX.saturating_sub(self.looked_up) as usize);
        let mut done = 0;
        while done < length && self.target.is_none_or(|target| target.is_some()) {
            let piece = (length - done).min(TARGET_BYTES_MAX as usize);
            let found = causality::try_sources(address.wrapping_add(done), piece, &mut self.memory.sources);
            let covered = self.covered(address.wrapping_add(done), piece, found);
            for n in 0..found {
                let part = self.memory.sources[n];
                let length = part.length.min((covered as u64).saturating_sub(part.at));
                if length >= BYTES_MIN as u64 {
                    self.add(self.looked_up + done as u64, CopySource { length, ..part });
                }
            }
            done += covered;
        }
        self.looked_up += length as u64;
    }

    /// Returns for how many bytes all parts were found. If there was no room for more parts, the last page may miss
    /// some of its parts.
    fn covered(&self, address: usize, length: usize, found: usize) -> usize {
        if found < PARTS_MAX {
            return length;
        }
        let last = self.memory.sources[found - 1];
        let page_offset = (address as u64).wrapping_add(last.at) % PAGE_BYTES;
        let before_its_page = last.at.saturating_sub(page_offset);
        let covered = if before_its_page > 0 { before_its_page } else { last.at + last.length };
        (covered as usize).clamp(1, length)
    }

    /// Adds a part: bytes of the write, counted from `before` on, that come from a file.
    fn add(&mut self, before: u64, part: CopySource) {
        let Some(Target { ino, offset }) = *self.target.get_or_insert_with(|| target(self.fd, self.at)) else { return };
        let Some(token) = files::token_of(part.file) else { return };
        let (start, end) = (offset + before + part.at, offset + before + part.at + part.length);
        let is_in_its_place = token.ino == ino && part.file_offset == start;
        if is_in_its_place || part.file_offset > SOURCE_OFFSET_MAX {
            return;
        }
        let known = self.memory.tokens[..self.tokens].iter().position(|known| *known == token);
        let has_room = self.origins < PARTS_MAX && (known.is_some() || self.tokens < TOKENS_MAX);
        let is_near = start >= self.end && end - self.start <= u64::from(TARGET_BYTES_MAX);
        if self.origins > 0 && (!has_room || !is_near) {
            self.send();
            return self.add(before, part);
        }
        let number = known.unwrap_or(self.tokens);
        if known.is_none() {
            self.memory.tokens[number] = token;
            self.tokens += 1;
        }
        if self.origins == 0 {
            self.start = start;
        }
        self.end = end;
        self.memory.origins[self.origins] = HintedOrigin {
            at: (start - self.start) as u32,
            length: part.length as u32,
            source: number as u16,
            source_offset: part.file_offset,
        };
        self.origins += 1;
    }

    /// Sends the hint to the server, and starts an empty one.
    fn send(&mut self) {
        let (origins, tokens) = (self.origins, self.tokens);
        (self.origins, self.tokens) = (0, 0);
        let Some(Some(target)) = self.target else { return };
        let Memory { tokens: all_tokens, origins: all_origins, bytes, .. } = &mut *self.memory;
        let length = (self.end - self.start) as u32;
        let encoded = encode(self.start, length, &all_tokens[..tokens], &all_origins[..origins], bytes);
        let Some(encoded) = encoded.filter(|_| origins > 0) else { return };
        // SAFETY: the request encodes how many bytes there are; the kernel only reads them.
        let told = unsafe { libc::ioctl(self.fd, c_ulong::from(request(encoded)), bytes.as_ptr()) };
        if told < 0 && matches!(errno(), libc::ENOTTY | libc::EOPNOTSUPP) {
            refuses(target.ino).store(target.ino, Ordering::Relaxed);
            self.target = Some(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold_causality::RecTree;
    use nvfold_causality::hint::Hint;

    #[test]
    fn a_hint_that_is_encoded_in_place_can_be_decoded() {
        let token = SourceToken { ino: 7, proof: 9 };
        let origin = HintedOrigin { at: 3, length: 100, source: 0, source_offset: 5 };
        let mut bytes = [0; HINT_BYTES_MAX];
        let length = encode(4096, 1000, &[token], &[origin], &mut bytes).unwrap();
        let hint = Hint::decode(&bytes[..length]).unwrap();
        assert_eq!((hint.offset, hint.length), (4096, 1000));
        assert_eq!((hint.sources(), hint.origins()), (&[token][..], &[origin][..]));
        assert_eq!(encode(4096, 1000, &[token], &[origin], &mut bytes[..length - 1]), None);
        assert_eq!(encode(4096, 1000, &[token], &[origin; 1024], &mut [0; 1 << 15]), None);
    }

    #[test]
    fn a_hint_omits_parts_that_exceed_its_room() {
        let tree = RecTree::default();
        let file = tree.open_file().unwrap();
        (0..10).for_each(|n| tree.record_read(n * 200, 100, file, n * 1000));
        let (mut all, mut waited) = ([CopySource::NONE; 20], Vec::new());
        tree.origins(0, 4000, &mut waited);
        assert_eq!((tree.try_origins(0, 4000, &mut all), waited.len()), (10, 10));
        assert_eq!(all[..10], waited[..]);
        let mut few = [CopySource::NONE; 4];
        assert_eq!(tree.try_origins(0, 4000, &mut few), 4);
        assert!(few.is_sorted_by_key(|part| part.at) && few.iter().all(|part| waited.contains(part)));
    }
}
