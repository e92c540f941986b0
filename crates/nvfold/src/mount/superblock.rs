//! Reading and writing the two copies of the superblock.

use crate::error::{Error, Result};
use crate::media::superblock::{COPIES, Geometry, KNOWN_READ_ONLY_COMPATIBLE, Refusal, Superblock};
use pmem::{PmemError, Region};

/// Reads the superblock: the first whole copy and its geometry.
///
/// # Errors
/// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`] when neither copy is whole or the device is
/// smaller than the file system on it.
pub fn read_superblock(region: &Region) -> Result<(Superblock, Geometry)> {
    let mut refusals = Vec::new();
    for offset in COPIES {
        if !region.contains(offset, size_of::<Superblock>() as u64) {
            return Err(Error::NotNvfold { why: format!("it has only {} bytes", region.len_bytes()) });
        }
        let superblock: Superblock = region.read(offset);
        match region.check() {
            Err(PmemError::BadMemory { .. }) => {
                refusals.push(Refusal::Damaged("it lies in bad memory"));
                continue;
            }
            told => told?,
        }
        match superblock.verify() {
            Ok(geometry) if geometry.device_bytes > region.len_bytes() => {
                let (whole, here) = (geometry.device_bytes, region.len_bytes());
                let what = format!("device: truncated to {here} bytes, the file system on it has {whole}; its end");
                return Err(Error::Corrupt { what, at: here });
            }
            Ok(geometry) => return Ok((superblock, geometry)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    // The most telling refusal wins: a damaged copy says more than a foreign one.
    if let Some(Refusal::Newer(what)) = refusals.iter().find(|refusal| matches!(refusal, Refusal::Newer(_))) {
        return Err(Error::Newer { what: what.clone() });
    }
    if let Some(Refusal::Older(what)) = refusals.iter().find(|refusal| matches!(refusal, Refusal::Older(_))) {
        return Err(Error::Older { what: what.clone() });
    }
    match refusals.iter().find_map(|refusal| if let Refusal::Damaged(what) = refusal { Some(*what) } else { None }) {
        Some(what) => Err(Error::Corrupt { what: format!("superblock: both copies are damaged ({what})"), at: 0 }),
        None => Err(Error::NotNvfold { why: "neither superblock has nvfold's magic".into() }),
    }
}

/// Writes both copies, the second after the first is durable. One that is not whole comes first: a crash may tear
/// the copy that is being written, and then the other is all there is.
pub(crate) fn write_superblock(region: &Region, superblock: Superblock) {
    let is_torn = |offset: &u64| region.read::<Superblock>(*offset).verify().is_err();
    let (torn, whole): (Vec<u64>, Vec<u64>) = COPIES.into_iter().partition(is_torn);
    // A copy in bad memory stays as it is: the other one serves. Both were read just now, so it is known.
    let is_sound = |offset: &u64| region.sound_or_forget(*offset, size_of::<Superblock>() as u64);
    for offset in torn.into_iter().chain(whole).filter(is_sound) {
        let written = region.write(offset, &superblock.sealed()).flush();
        let _ = region.fence(written);
    }
}

/// What every writer must make sure of first.
pub(crate) fn require_known_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::Newer { what: format!("feature flags {unknown:#x} allow reading only; mount read-only or") })
}
