//! A hint: the message by which a process announces a write to the server of a mount.
//!
//! The problem: a program that works on a mount copies bytes from file to file in its own memory, where the server
//! cannot see it. The bytes come through the kernel later, without their origin.
//!
//! The idea: the process sends a hint first. It contains the range that the process is about to write, and the ranges
//! of files from which the bytes were copied. When the bytes arrive, the server compares them with those ranges and
//! shares them where they are equal. A hint that is wrong, or whose bytes never come, costs a compare and nothing else.
//!
//! A source is identified by a [`SourceToken`], the value of the attribute [`TOKEN_ATTRIBUTE`]. The kernel returns user
//! attributes only to processes that may read the file. A token is valid for the user who asked, as long as owner, group,
//! mode and ACL of the file stay as they are, and for at most [`TOKEN_VALID_S`]. So a hint cannot reveal the content of a
//! file that its sender may not read.
//!
//! ```text
//! ioctl(target, request(length), hint)            all integers little-endian
//!
//! 0   u64  offset in the target        8  u32  length      12  u16  sources    14  u16  origins
//! 16  sources times   { u64 inode number, u64 proof }
//!     origins times   { u32 at, u32 length, u48 offset in the source, u16 number of the source }
//! ```

/// Extended attribute of a regular file on a mount; its value is the [`SourceToken`] of the file. It is not listed.
pub const TOKEN_ATTRIBUTE: &str = "user.nvfold.token";
/// A token is valid for at least half of this time, in seconds, and for no longer than this.
pub const TOKEN_VALID_S: u64 = 60;
/// The largest size of a hint in bytes: the largest size that an ioctl number can encode.
pub const HINT_BYTES_MAX: usize = (1 << 14) - 1;
/// The largest range of a write in bytes that one hint describes. Longer writes get several hints.
pub const TARGET_BYTES_MAX: u32 = 1 << 20;

const HEADER_BYTES: usize = 16;
const TOKEN_BYTES: usize = 16;
const ORIGIN_BYTES: usize = 16;
/// The largest offset in a source that a hint can encode: six bytes.
pub const SOURCE_OFFSET_MAX: u64 = (1 << 48) - 1;

/// Type and number of the ioctl. The rest of the request number says that it passes bytes in, and how many.
const IOCTL: u32 = 0xe6 << 8 | 0x01;
const IOCTL_PASSES_BYTES_IN: u32 = 1 << 30;
const IOCTL_SIZE_SHIFT: u32 = 16;

/// Identifies a file as a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceToken {
    /// Inode number.
    pub ino: u64,
    /// Proof that the server issued the token.
    pub proof: u64,
}

/// A part of the hint's range that was copied from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintedOrigin {
    /// Offset of the first byte from the beginning of the range.
    pub at: u32,
    /// Number of bytes.
    pub length: u32,
    /// Number of the source among the hint's sources.
    pub source: u16,
    /// Offset of the first byte in the source.
    pub source_offset: u64,
}

/// A hint; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Offset of the first byte in the target.
    pub offset: u64,
    /// Number of bytes, at most [`TARGET_BYTES_MAX`].
    pub length: u32,
    sources: Vec<SourceToken>,
    origins: Vec<HintedOrigin>,
}

/// Returns the number of the ioctl that passes a hint of `hint_bytes` bytes, at most [`HINT_BYTES_MAX`].
pub fn request(hint_bytes: usize) -> u32 {
    debug_assert!(hint_bytes <= HINT_BYTES_MAX);
    IOCTL_PASSES_BYTES_IN | (hint_bytes as u32) << IOCTL_SIZE_SHIFT | IOCTL
}

/// True if an ioctl number is that of a hint of any size.
pub fn is_request(number: u32) -> bool {
    number & !((HINT_BYTES_MAX as u32) << IOCTL_SIZE_SHIFT) == request(0)
}

impl SourceToken {
    /// Identifies no file.
    pub const NONE: SourceToken = SourceToken { ino: 0, proof: 0 };

    /// Encodes it as the attribute's value.
    pub fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        of_words(self.ino, self.proof)
    }

    /// Decodes the attribute's value.
    pub fn of_bytes(bytes: &[u8; TOKEN_BYTES]) -> SourceToken {
        SourceToken { ino: word(bytes, 0), proof: word(bytes, 8) }
    }
}

impl Hint {
    /// Creates a hint about a range of a target, without origins yet.
    pub fn new(offset: u64, length: u32) -> Hint {
        Hint { offset, length, ..Hint::default() }
    }

    /// Returns its sources; origins refer to them by position.
    pub fn sources(&self) -> &[SourceToken] {
        &self.sources
    }

    /// Returns its origins.
    pub fn origins(&self) -> &[HintedOrigin] {
        &self.origins
    }

    /// Adds that `length` bytes at `at` were copied from a file. Returns false if the hint is full or the offset
    /// cannot be encoded.
    pub fn add(&mut self, at: u32, length: u32, source: SourceToken, source_offset: u64) -> bool {
        let known = self.sources.iter().position(|known| *known == source);
        let grows_by = ORIGIN_BYTES + if known.is_some() { 0 } else { TOKEN_BYTES };
        if self.bytes() + grows_by > HINT_BYTES_MAX || source_offset > SOURCE_OFFSET_MAX {
            return false;
        }
        let number = known.unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        });
        self.origins.push(HintedOrigin { at, length, source: number as u16, source_offset });
        true
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + self.sources.len() * TOKEN_BYTES + self.origins.len() * ORIGIN_BYTES
    }

    /// Encodes the hint as the ioctl passes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes()];
        let length = encode(self.offset, self.length, &self.sources, &self.origins, &mut bytes);
        debug_assert_eq!(length, Some(bytes.len()));
        bytes
    }

    /// Decodes the bytes that an ioctl passed. Returns `None` if they are not a valid hint: too short or too long, a
    /// range that is too long or extends past the largest file offset, an origin outside the range, or an origin
    /// whose source is missing.
    pub fn decode(bytes: &[u8]) -> Option<Hint> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (offset, counts) = (word(header, 0), word(header, 8));
        let (length, sources, origins) = (counts as u32, (counts >> 32 & 0xffff) as usize, (counts >> 48) as usize);
        let (tokens, rest) = rest.split_at_checked(sources * TOKEN_BYTES)?;
        let is_a_range =
            length <= TARGET_BYTES_MAX && offset.checked_add(u64::from(length)).is_some_and(|end| end >> 63 == 0);
        if rest.len() != origins * ORIGIN_BYTES || !is_a_range {
            return None;
        }
        let sources: Vec<SourceToken> = tokens.as_chunks().0.iter().map(SourceToken::of_bytes).collect();
        let origins: Vec<HintedOrigin> = rest.as_chunks().0.iter().map(HintedOrigin::of_bytes).collect();
        let is_said_well = |origin: &HintedOrigin| {
            usize::from(origin.source) < sources.len()
                && origin.at.checked_add(origin.length).is_some_and(|end| end <= length)
        };
        origins.iter().all(is_said_well).then_some(Hint { offset, length, sources, origins })
    }
}

/// Encodes a hint into `into`, for callers that must not allocate. Returns the number of bytes, or `None` if the hint
/// does not fit there or is larger than any hint may be.
pub fn encode(
    offset: u64,
    length: u32,
    sources: &[SourceToken],
    origins: &[HintedOrigin],
    into: &mut [u8],
) -> Option<usize> {
    let all = HEADER_BYTES + sources.len() * TOKEN_BYTES + origins.len() * ORIGIN_BYTES;
    if all > HINT_BYTES_MAX {
        return None;
    }
    let (header, rest) = into.get_mut(..all)?.split_first_chunk_mut::<HEADER_BYTES>()?;
    let (tokens, rest) = rest.split_at_mut(sources.len() * TOKEN_BYTES);
    let counts = (sources.len() as u64) << 32 | (origins.len() as u64) << 48;
    *header = of_words(offset, u64::from(length) | counts);
    tokens.as_chunks_mut().0.iter_mut().zip(sources).for_each(|(bytes, token)| *bytes = token.to_bytes());
    rest.as_chunks_mut().0.iter_mut().zip(origins).for_each(|(bytes, origin)| *bytes = origin.to_bytes());
    Some(all)
}

/// Returns two words as bytes, little-endian.
fn of_words(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

impl HintedOrigin {
    /// An origin without bytes, to fill memory.
    pub const NONE: HintedOrigin = HintedOrigin { at: 0, length: 0, source: 0, source_offset: 0 };

    fn to_bytes(self) -> [u8; ORIGIN_BYTES] {
        let range = u64::from(self.at) | u64::from(self.length) << 32;
        of_words(range, self.source_offset | u64::from(self.source) << 48)
    }

    fn of_bytes(bytes: &[u8; ORIGIN_BYTES]) -> HintedOrigin {
        let (range, source) = (word(bytes, 0), word(bytes, 8));
        HintedOrigin {
            at: range as u32,
            length: (range >> 32) as u32,
            source: (source >> 48) as u16,
            source_offset: source & SOURCE_OFFSET_MAX,
        }
    }
}

/// Returns the word at offset 0 or 8.
fn word(bytes: &[u8; 16], at: usize) -> u64 {
    let half = if at == 0 { bytes.first_chunk() } else { bytes.last_chunk() };
    u64::from_le_bytes(*half.expect("16 bytes have two halves"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: SourceToken = SourceToken { ino: 7, proof: 0x0123_4567_89ab_cdef };

    #[test]
    fn a_hint_survives_encoding_and_decoding() {
        let mut hint = Hint::new(4096, 1000);
        assert!(hint.add(0, 100, TOKEN, 5));
        assert!(hint.add(100, 900, SourceToken { ino: 8, ..TOKEN }, (1 << 48) - 1));
        assert!(hint.add(200, 0, TOKEN, 0));
        let bytes = hint.encode();
        assert!(is_request(request(bytes.len())) && !is_request(request(bytes.len()) + 1) && !is_request(0));
        assert_eq!(Hint::decode(&bytes), Some(hint.clone()));
        assert_eq!((hint.sources().len(), hint.origins().len()), (2, 3));
        assert_eq!(SourceToken::of_bytes(&TOKEN.to_bytes()), TOKEN);
    }

    #[test]
    fn six_hundred_origins_of_four_hundred_files_fit_and_no_more_than_an_ioctl_passes() {
        let mut hint = Hint::new(0, TARGET_BYTES_MAX);
        let added = (0..).take_while(|n| hint.add(*n, 1, SourceToken { ino: u64::from(*n % 400), ..TOKEN }, 0)).count();
        assert!(added >= 600, "{added}");
        assert!((HINT_BYTES_MAX - 16..=HINT_BYTES_MAX).contains(&hint.encode().len()));
        assert!(!Hint::new(0, 1).add(0, 1, TOKEN, 1 << 48), "more than six bytes can say");
    }

    #[test]
    fn malformed_hints_are_refused() {
        let mut hint = Hint::new(0, 100);
        assert!(hint.add(0, 100, TOKEN, 0));
        let good = hint.encode();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            Hint::decode(&bytes)
        };
        assert_eq!(changed(8, 100), Some(hint));
        assert_eq!(changed(7, 0x80), None, "past the end of files");
        assert_eq!(changed(10, 0x11), None, "a range that is too long");
        assert_eq!(changed(12, 0), None, "a source that is not there");
        assert_eq!(changed(14, 2), None, "an origin that is not there");
        assert_eq!(changed(32, 1), None, "an origin that goes past the range");
        assert_eq!(changed(39, 0xff), None, "an origin whose end overflows");
        assert_eq!(changed(47, 1), None, "an origin of a source that is not there");
        assert_eq!(Hint::decode(&good[..good.len() - 1]), None);
        assert_eq!(Hint::decode(&[good, vec![0]].concat()), None);
        assert_eq!(Hint::decode(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_a_hint_that_encodes_equally_or_to_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(hint) = Hint::decode(&bytes) {
                prop_assert_eq!(hint.encode(), bytes);
            }
        }
    }
}
