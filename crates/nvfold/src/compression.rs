//! Compressed content: making a frame from content, and getting the content back. Pure functions of bytes.
//!
//! The problem: a stored frame may be damaged, or made by an attacker; reading it must end with the content or an
//! error, in bounded memory. And content that hardly shrinks is not worth slower reads.
//!
//! The idea: a frame is only made if it is at least a sixteenth smaller than the content. It names its codec, and has
//! a checksum that is seeded with the length of the content. So a damaged frame, or one of another length, never
//! reaches the codec. The codec writes into a buffer of exactly that length.
//!
//! ```text
//! | codec u8 | CRC-32C u32 of codec and body, seeded with the content's length | body: lz4 block or zstd frame |
//! ```
//!
//! Each thread remembers the last frame that it decompressed, because a reader with small requests asks for the same
//! frame again and again. Comparing two frames costs a fraction of decompressing one, and cannot be wrong: the
//! content follows from the frame.

use std::cell::RefCell;
use std::fmt::{self, Display};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Extended attribute that sets the compression of new data in a file or directory. Its value is the `Display` form
/// of [`Compression`]. A file or directory that is created in a directory with the attribute gets a copy. An unknown
/// value (of a newer version) counts as no attribute.
pub const COMPRESSION_ATTRIBUTE: &[u8] = b"user.nvfold.compress";

/// The length of a frame's header in bytes.
const HEAD_BYTES: usize = 5;
/// The shortest content that is compressed: shorter content hardly shrinks.
const CONTENT_BYTES_MIN: usize = 64;
/// The level of zstd if none is given.
const DEFAULT_LEVEL: u8 = 3;
/// The levels of zstd.
const LEVELS: std::ops::RangeInclusive<u8> = 1..=22;

/// The numbers of the codecs in frames.
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// How new packed chunks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Uncompressed.
    #[default]
    Off,
    /// With lz4: fast, even on fast memory.
    Lz4,
    /// With zstd, at a level from 1 to 22: saves more, takes longer.
    Zstd(u8),
}

impl Compression {
    /// zstd at its default level.
    pub const ZSTD: Compression = Compression::Zstd(DEFAULT_LEVEL);
    /// The valid names, for messages and help.
    pub const NAMES: &str = "off, lz4, zstd, zstd:1 to zstd:22";

    /// Returns the compression of this name: `off`, `lz4`, `zstd`, `zstd:LEVEL`.
    pub fn named(name: &[u8]) -> Option<Compression> {
        match name {
            b"off" => Some(Compression::Off),
            b"lz4" => Some(Compression::Lz4),
            b"zstd" => Some(Compression::ZSTD),
            name => {
                let level = std::str::from_utf8(name.strip_prefix(b"zstd:")?).ok()?;
                let is_plain = level.bytes().all(|digit| digit.is_ascii_digit());
                let level = level.parse().ok().filter(|level| is_plain && LEVELS.contains(level))?;
                Some(Compression::Zstd(level))
            }
        }
    }

    /// Returns its number, which an inode keeps in DRAM.
    pub(crate) fn number(self) -> u8 {
        match self {
            Compression::Off => 0,
            Compression::Lz4 => 1,
            Compression::Zstd(level) => 1 + level,
        }
    }

    /// Returns the compression of this number.
    pub(crate) fn numbered(number: u8) -> Option<Compression> {
        match number {
            0 => Some(Compression::Off),
            1 => Some(Compression::Lz4),
            number => Some(Compression::Zstd(number - 1)).filter(|_| LEVELS.contains(&(number - 1))),
        }
    }

    /// Makes the frame of some content. Returns `None` if the frame is not at least a sixteenth smaller, or if
    /// compression is off.
    pub fn compress(self, content: &[u8]) -> Option<Vec<u8>> {
        if content.len() < CONTENT_BYTES_MIN {
            return None;
        }
        let most = content.len() - content.len() / 16;
        let frame = match self {
            Compression::Off => return None,
            Compression::Lz4 => {
                let mut frame = vec![0; HEAD_BYTES + lz4_flex::block::get_maximum_output_size(content.len())];
                let body = lz4_flex::block::compress_into(content, &mut frame[HEAD_BYTES..]).ok()?;
                frame.truncate(HEAD_BYTES + body);
                sealed(LZ4, content.len(), frame)
            }
            Compression::Zstd(level) => {
                let mut frame = vec![0; most];
                let body = compress_zstd(level, content, &mut frame[HEAD_BYTES..])?;
                frame.truncate(HEAD_BYTES + body);
                sealed(ZSTD, content.len(), frame)
            }
        };
        (frame.len() <= most).then_some(frame)
    }
}

impl Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Off => f.write_str("off"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd(DEFAULT_LEVEL) => f.write_str("zstd"),
            Compression::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// Why the content of a frame cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// Its checksum is wrong, or its codec cannot read it.
    Damaged,
    /// It is intact, but this version does not know its codec.
    UnknownCodec(u8),
}

impl Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Damaged => f.write_str("its compressed content is damaged"),
            FrameError::UnknownCodec(codec) => {
                write!(f, "codec {codec} compressed it, which this nvfold does not know: use a newer one")
            }
        }
    }
}

/// State that each thread keeps between two reads.
#[derive(Default)]
struct FrameCache {
    decompressor: Option<Decompressor<'static>>,
    /// The last frame, and its content.
    frame: Vec<u8>,
    content: Vec<u8>,
}

thread_local! {
    static COMPRESSOR: RefCell<Option<(u8, Compressor<'static>)>> = const { RefCell::new(None) };
    static OPENED: RefCell<FrameCache> = RefCell::default();
}

/// Calls `read` with the content of a frame, which is `content_bytes` long. Takes no more memory than the frame and
/// the content.
///
/// # Errors
/// See [`FrameError`].
pub(crate) fn with_content<T>(
    frame: Vec<u8>,
    content_bytes: usize,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, FrameError> {
    OPENED.with_borrow_mut(|opened| {
        let is_it = !frame.is_empty() && opened.frame == frame && opened.content.len() == content_bytes;
        if !is_it {
            opened.frame.clear();
            opened.content.resize(content_bytes, 0);
            open(&frame, &mut opened.content, &mut opened.decompressor)?;
            opened.frame = frame;
        }
        Ok(read(&opened.content))
    })
}

/// Decompresses a frame into `content`.
fn open(frame: &[u8], content: &mut [u8], zstd: &mut Option<Decompressor<'static>>) -> Result<(), FrameError> {
    let (head, body) = frame.split_at_checked(HEAD_BYTES).ok_or(FrameError::Damaged)?;
    if head[1..] != checksum(head[0], content.len(), body).to_le_bytes() {
        return Err(FrameError::Damaged);
    }
    let filled = match head[0] {
        LZ4 => lz4_flex::block::decompress_into(body, content).ok(),
        ZSTD => {
            let zstd = zstd.get_or_insert_with(Decompressor::default);
            zstd.decompress_to_buffer(body, content).ok()
        }
        other => return Err(FrameError::UnknownCodec(other)),
    };
    if filled == Some(content.len()) { Ok(()) } else { Err(FrameError::Damaged) }
}

/// Compresses content with zstd into `body` and returns the length of the result; `None` if it does not fit.
fn compress_zstd(level: u8, content: &[u8], body: &mut [u8]) -> Option<usize> {
    COMPRESSOR.with_borrow_mut(|of_thread| {
        let (its_level, compressor) = of_thread.get_or_insert_with(|| (0, Compressor::default()));
        if *its_level != level {
            compressor.set_parameter(CParameter::CompressionLevel(level.into())).ok()?;
            *its_level = level;
        }
        compressor.compress_to_buffer(content, body).ok()
    })
}

fn sealed(codec: u8, content_bytes: usize, mut frame: Vec<u8>) -> Vec<u8> {
    let check = checksum(codec, content_bytes, &frame[HEAD_BYTES..]);
    frame[0] = codec;
    frame[1..HEAD_BYTES].copy_from_slice(&check.to_le_bytes());
    frame
}

fn checksum(codec: u8, content_bytes: usize, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(content_bytes as u32, &[codec]), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 4] = [Compression::Lz4, Compression::Zstd(1), Compression::ZSTD, Compression::Zstd(19)];

    fn text(bytes: usize) -> Vec<u8> {
        (0u32..).flat_map(|at| format!("line {} of a text, ", at * at % 977).into_bytes()).take(bytes).collect()
    }

    fn content_of(frame: &[u8], content_bytes: usize) -> Result<Vec<u8>, FrameError> {
        with_content(frame.to_vec(), content_bytes, <[u8]>::to_vec)
    }

    #[test]
    fn compressed_content_is_restored_unchanged() {
        for compression in ALL {
            for bytes in [64, 100, 4096, 10_000, 65_536] {
                let content = text(bytes);
                let Some(frame) = compression.compress(&content) else {
                    assert!(bytes < 4096, "{compression}: {bytes} bytes of text do not get smaller");
                    continue;
                };
                assert!(frame.len() <= bytes - bytes / 16);
                // The second read takes the remembered frame.
                for _ in 0..2 {
                    assert_eq!(content_of(&frame, bytes).as_ref(), Ok(&content));
                }
            }
        }
    }

    #[test]
    fn data_that_does_not_shrink_is_not_compressed() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(16_384)
        .collect();
        for compression in ALL {
            assert_eq!(compression.compress(&noise), None);
            assert_eq!(compression.compress(&[7; CONTENT_BYTES_MIN - 1]), None);
        }
        assert_eq!(Compression::Off.compress(&text(4096)), None);
    }

    #[test]
    fn a_frame_with_any_damaged_byte_is_refused() {
        let content = text(4096);
        for compression in ALL {
            let frame = compression.compress(&content).unwrap();
            for at in 0..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x40;
                assert_eq!(content_of(&damaged, content.len()), Err(FrameError::Damaged), "byte {at}");
                assert_eq!(content_of(&frame[..at], content.len()), Err(FrameError::Damaged), "cut off at {at}");
            }
            for bytes in [0, 1, 4095, 4097, 65_536] {
                assert_eq!(content_of(&frame, bytes), Err(FrameError::Damaged), "as if of {bytes} bytes");
            }
        }
    }

    /// Frames with a correct checksum, whose body holds more or less than the content.
    #[test]
    fn a_forged_frame_cannot_exceed_the_length_of_its_content() {
        let forged = |codec: u8, content_bytes: usize, body: &[u8]| {
            let frame = [&[0; HEAD_BYTES], body].concat();
            content_of(&sealed(codec, content_bytes, frame), content_bytes)
        };
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        assert!(bomb.len() < 65_536);
        let lz4_bomb = lz4_flex::block::compress(&vec![0; 8 << 20]);
        assert!(lz4_bomb.len() < 65_536);
        for content_bytes in [1, 4096, 65_536] {
            assert_eq!(forged(ZSTD, content_bytes, &bomb), Err(FrameError::Damaged));
            assert_eq!(forged(LZ4, content_bytes, &lz4_bomb), Err(FrameError::Damaged));
            for codec in [LZ4, ZSTD] {
                for body in [&[][..], &[0], &[0xff; 300], b"\x28\xb5\x2f\xfd", &text(1000)] {
                    assert_eq!(forged(codec, content_bytes, body), Err(FrameError::Damaged), "{codec} {body:?}");
                }
            }
        }
        let short = zstd::bulk::compress(&text(1000), 3).unwrap();
        assert_eq!(forged(ZSTD, 4096, &short), Err(FrameError::Damaged));
        assert_eq!(forged(9, 4096, &short), Err(FrameError::UnknownCodec(9)));
        assert_eq!(content_of(&[], 4096), Err(FrameError::Damaged));
    }

    #[test]
    fn compression_settings_survive_encoding_as_name_and_number() {
        let levels = LEVELS.map(Compression::Zstd);
        for compression in [Compression::Off, Compression::Lz4].into_iter().chain(levels) {
            assert_eq!(Compression::named(compression.to_string().as_bytes()), Some(compression));
            assert_eq!(Compression::numbered(compression.number()), Some(compression));
        }
        for wrong in ["", "zstd:", "zstd:0", "zstd:23", "zstd:+3", "zstd: 3", "gzip", "LZ4", "lz4:1"] {
            assert_eq!(Compression::named(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!((Compression::numbered(24), Compression::numbered(255)), (None, None));
    }
}
