//! Storing in runs: new blocks without looking for duplicates, as policy `off` does.

use super::Store;
use super::claims::Claims;
use super::remap::{Mapped, push_mapped};
use super::zeros::{between, bytes_within};
use crate::error::Result;
use crate::inode::extents::Extent;
use crate::media::BLOCK_BYTES;
use std::ops::Range;

impl Store {
    /// Stores all of `source` but the zeros, as [`Store::store_run`] does.
    #[inline]
    pub(super) fn store_runs(
        &self,
        offset: u64,
        source: &[u8],
        zeros: &[Range<u64>],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        if zeros.is_empty() {
            return self.store_run(offset, source, mapped, claims);
        }
        for part in between(zeros, offset..offset + source.len() as u64) {
            let bytes = &source[(part.start - offset) as usize..(part.end - offset) as usize];
            self.store_run(part.start, bytes, mapped, claims)?;
        }
        Ok(())
    }

    /// Stores all of `source` in new blocks without looking for duplicates, as policy `off` does.
    #[inline]
    pub(super) fn store_run(
        &self,
        offset: u64,
        source: &[u8],
        mapped: &mut Mapped,
        claims: &mut Claims<'_>,
    ) -> Result<()> {
        claims.stored_without_fingerprint();
        claims.store_new("write", source, |at, run| {
            push_mapped(mapped, offset + at, Extent::media(run.count * BLOCK_BYTES, run.start.address(), false));
        })
    }
}

/// Returns the number of blocks of `source`, which begins at file offset `offset`, other than zeros.
#[inline]
pub(super) fn count_without(zeros: &[Range<u64>], offset: u64, source: &[u8]) -> usize {
    let bytes = source.len() as u64;
    let zero_bytes = if zeros.is_empty() { 0 } else { bytes_within(zeros, offset..offset + bytes) };
    ((bytes - zero_bytes) / BLOCK_BYTES) as usize
}
