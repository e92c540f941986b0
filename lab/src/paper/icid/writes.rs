//! A program's writes as `nvfold run` recorded them, call by call.

use crate::{Doing, LabError, Result};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

/// One call of `write`.
pub(super) struct Write {
    /// Number of the file.
    pub file: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Content.
    pub bytes: Vec<u8>,
}

/// Maximum length of a recorded write: that of libc, rounded up.
const BYTES_MAX: u64 = 1 << 31;

/// Calls `each` with every write of a record.
///
/// # Errors
/// If the record cannot be read, or ends in the middle of a write.
pub(super) fn each(record: &Path, mut each: impl FnMut(Write)) -> Result<()> {
    let doing = || format!("read the record of writes {}", record.display());
    let mut reader = BufReader::with_capacity(1 << 20, File::open(record).doing(doing())?);
    let mut head = [0; 24];
    loop {
        match reader.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read.doing(doing())?,
        }
        let [file, offset, length] =
            std::array::from_fn(|at| u64::from_le_bytes(*head[at * 8..].first_chunk().expect("three words")));
        if length > BYTES_MAX {
            return Err(LabError::Miscounted(format!("{}: a write of {length} bytes", record.display())));
        }
        let mut bytes = vec![0; length as usize];
        reader.read_exact(&mut bytes).doing(doing())?;
        each(Write { file, offset, bytes });
    }
}
