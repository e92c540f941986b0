//! What calls that change attributes have in common.
#![forbid(unsafe_code)]

use crate::caller::InTimes;
use crate::failure::Outcome;
use crate::status::time_to_set;
use nvfold::SetAttr;

/// The change that two times stand for; NULL: both are now.
pub(super) fn changes_of(times: &InTimes<'_>) -> Outcome<SetAttr> {
    let now = pmem::clock::coarse_now_ns();
    let (atime, mtime) = match times.get()? {
        None => (Some(now), Some(now)),
        Some([access, modification]) => (time_to_set(access, now)?, time_to_set(modification, now)?),
    };
    Ok(SetAttr { atime, mtime, ..SetAttr::default() })
}

/// The change of owner and group; -1 leaves one.
pub(super) fn owners(owner: libc::uid_t, group: libc::gid_t) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: given(owner), gid: given(group), ..SetAttr::default() }
}
