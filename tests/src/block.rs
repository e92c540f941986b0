//! Blocks that verify themselves: a 4 KiB block contains its file, offset and version, and bytes computed from these,
//! so that a torn, stale or misplaced block is detected.
//!
//! ```text
//! 0       8        16        24                            4092   4096
//! | file  | offset | version | pseudo-random bytes         | CRC  |
//! ```

/// Bytes in one block.
pub const BYTES: usize = 4096;
const CRC_AT: usize = BYTES - 4;

/// What a block contains about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Number of the file.
    pub file: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Version; 0 is a block never written, all zeros.
    pub version: u64,
}

/// Makes the block with this label.
pub fn make(label: Label) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    block[0..8].copy_from_slice(&label.file.to_le_bytes());
    block[8..16].copy_from_slice(&label.offset.to_le_bytes());
    block[16..24].copy_from_slice(&label.version.to_le_bytes());
    let seed = label.file ^ label.offset.rotate_left(20) ^ label.version.rotate_left(40);
    fastrand::Rng::with_seed(seed).fill(&mut block[24..CRC_AT]);
    let crc = crc32c::crc32c(&block[..CRC_AT]);
    block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Reads a block's label; returns an error if the block is torn or belongs elsewhere.
pub fn verify(block: &[u8], file: u64, offset: u64) -> Result<Label, String> {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    if block.iter().all(|&byte| byte == 0) {
        return Ok(Label { file, offset, version: 0 });
    }
    let label = Label { file: word(0), offset: word(8), version: word(16) };
    if (label.file, label.offset) != (file, offset) {
        return Err(format!("the block of file {file} at {offset} says {label:?}"));
    }
    let right = make(label);
    match (0..BYTES).find(|&at| right[at] != block[at]) {
        None => Ok(label),
        Some(at) => Err(format!("the block {label:?} is torn: byte {at} is not of that version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_or_misplaced_block_is_detected() {
        let label = Label { file: 3, offset: 8192, version: 7 };
        let old = make(label);
        assert_eq!(verify(&old, 3, 8192), Ok(label));
        assert!(verify(&old, 3, 4096).is_err());
        let mut torn = make(Label { version: 8, ..label });
        torn[2048..].copy_from_slice(&old[2048..]);
        assert!(verify(&torn, 3, 8192).is_err());
    }
}
