//! A device in memory and the memory limits of the server: what is said when it is mounted, and what the kernel kills
//! first. [`pmem::MemoryLimit`] finds the limits; docs/containers.md is for users.

use super::events::Teller;
use crate::size;
use crate::statistics::{OOM_SCORE_ADJ, oom_score_adj};
use pmem::{MemoryLimit, PersistenceLevel, Region};

/// The value of oom_score_adj with which the kernel kills any other process first. It may still kill this one: without
/// that, a group in which nothing else is left would hang.
const KILLED_LAST: i32 = -999;

/// Prepares for memory running out: asks the kernel to kill other processes first, and tells if it refuses or if the
/// device does not fit the limits of this process.
pub(super) fn prepare(region: &Region, teller: &Teller) {
    if region.level() != PersistenceLevel::Memory || region.is_read_only() {
        return;
    }
    let score = be_killed_last();
    let Some(limit) = MemoryLimit::of_this_process() else { return };
    if let Some(what) = over_limit(&limit, region, &teller.device) {
        teller.tell_of("over_memory_limit", what);
    }
    if let Some(what) = may_be_killed(&limit, score) {
        teller.tell_of("may_be_killed", what);
    }
}

fn over_limit(limit: &MemoryLimit, region: &Region, device: &str) -> Option<String> {
    let (bytes, held) = (region.len_bytes(), region.allocated_bytes());
    let most = (held + limit.room_bytes()) >> 20 << 20;
    (most < bytes).then(|| {
        format!(
            "{device} ({}) does not fit the memory limit of {} ({}): after about {} of new data writers get ENOSPC",
            size::show(bytes),
            size::show(limit.limit_bytes),
            limit.cgroup.display(),
            size::show(most.saturating_sub(held)),
        )
    })
}

fn may_be_killed(limit: &MemoryLimit, score: Option<i32>) -> Option<String> {
    score.filter(|score| *score > KILLED_LAST).map(|score| {
        format!(
            "if other processes of {} need more than the limit, the kernel may kill this server first: its oom_score_adj \
             is {score}",
            limit.cgroup.display(),
        )
    })
}

/// Lowers the server's place in the list of what the kernel kills when memory is short, as far as that is allowed.
/// Without the server the data of a `mem:` device is lost, and killing the server of a device in a file frees nothing of
/// the device. Nothing restores the value: it ends with the process. Returns the value.
fn be_killed_last() -> Option<i32> {
    let now = oom_score_adj()?;
    // Less than now takes CAP_SYS_RESOURCE, unless it was raised by a process without it: then 0 is allowed.
    let wanted = [KILLED_LAST, 0].into_iter().filter(|wanted| *wanted < now);
    let lowered = |wanted: i32| std::fs::write(OOM_SCORE_ADJ, wanted.to_string()).is_ok();
    Some(wanted.into_iter().find(|wanted| lowered(*wanted)).unwrap_or(now))
}
