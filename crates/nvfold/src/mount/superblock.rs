//! Reading the copies of the superblock. `store/features.rs` writes them.

use crate::error::{Error, Result};
use crate::media::BLOCK_BYTES;
use crate::media::superblock::{COPIES, Geometry, KNOWN_READ_ONLY_COMPATIBLE, Refusal, Superblock};
use pmem::{PmemError, Region};

/// Reads the superblock; returns the first whole copy and its geometry.
///
/// # Errors
/// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::NotBuilt`], [`Error::OtherByteOrder`]; [`Error::Corrupt`] if no copy
/// is whole or the device is smaller than the file system on it.
pub fn read_superblock(region: &Region) -> Result<(Superblock, Geometry)> {
    let mut refusals = Vec::new();
    for offset in COPIES {
        if !region.contains(offset, size_of::<Superblock>() as u64) {
            return Err(Error::NotNvfold { why: format!("it has only {} bytes", region.len_bytes()) });
        }
        match read_copy(region, offset)? {
            Ok((superblock, geometry)) => return fits(region, superblock, geometry),
            Err(refusal) => refusals.push(refusal),
        }
    }
    // A whole copy at the front that this version cannot read decides, whatever the last block holds.
    if refusals.iter().any(|refusal| !matches!(refusal, Refusal::Damaged(_) | Refusal::Foreign)) {
        return Err(refused(&refusals));
    }
    // The last block may be a file's data: it counts as a copy only if its geometry places a copy there.
    let last = region.len_bytes().saturating_sub(BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
    if let Ok((superblock, geometry)) = read_copy(region, last)?
        && geometry.copies().nth(COPIES.len()) == Some(last)
    {
        return Ok((superblock, geometry));
    }
    Err(refused(&refusals))
}

fn read_copy(region: &Region, offset: u64) -> Result<std::result::Result<(Superblock, Geometry), Refusal>> {
    let superblock: Superblock = region.read(offset);
    match region.check() {
        Err(PmemError::BadMemory { .. }) => return Ok(Err(Refusal::Damaged("it lies in bad memory"))),
        told => told?,
    }
    Ok(superblock.verify().map(|geometry| (superblock, geometry)))
}

fn fits(region: &Region, superblock: Superblock, geometry: Geometry) -> Result<(Superblock, Geometry)> {
    let (whole, here) = (geometry.device_bytes, region.len_bytes());
    if whole <= here {
        return Ok((superblock, geometry));
    }
    Err(Error::Truncated { bytes: here, whole_bytes: whole })
}

/// Chooses the most informative refusal: a damaged copy says more than a foreign one.
fn refused(refusals: &[Refusal]) -> Error {
    let told = |refusal: &Refusal| match refusal {
        Refusal::Newer(what) => Some(Error::Newer { what: what.clone() }),
        Refusal::Older(what) => Some(Error::Older { what: what.clone() }),
        Refusal::NotBuilt(function) => Some(Error::NotBuilt { function }),
        Refusal::OtherByteOrder => Some(Error::OtherByteOrder),
        Refusal::Damaged(_) | Refusal::Foreign => None,
    };
    if let Some(error) = refusals.iter().find_map(told) {
        return error;
    }
    match refusals.iter().find_map(|refusal| if let Refusal::Damaged(what) = refusal { Some(*what) } else { None }) {
        Some(why) => Error::NoSuperblock { why },
        None => Error::NotNvfold { why: "no copy of a superblock begins with nvfold's magic".into() },
    }
}

/// Refuses to write if an unknown read-only compatible feature is set. Every writer checks this first.
pub(crate) fn require_known_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::Newer { what: format!("feature flags {unknown:#x} are unknown here, and allow only a read-only mount") })
}
