//! A device in memory and the memory limits of the server: what is said when it is mounted, how much page cache it may
//! have, how many requests it may have at once, and what the kernel kills first. [`pmem::MemoryLimit`] finds the limits;
//! docs/containers.md is for users.

use crate::failure::eprint_line;
use crate::size;
use crate::statistics::{OOM_SCORE_ADJ, oom_score_adj};
use pmem::{MemoryLimit, PersistenceLevel, Region};

/// The value of oom_score_adj with which the kernel kills any other process first. It may still kill this one: without
/// that, a group in which nothing else is left would hang.
const KILLED_LAST: i32 = -999;
/// Background requests at once: without a limit, and at least.
const BACKGROUND_MOST: u16 = 64;
const BACKGROUND_LEAST: u16 = 8;
/// The buffers of a thread, for a request and a reply, and the share of the kept memory that those of background requests
/// may take.
const BUFFERS_BYTES: u64 = 2 * nvfold_fuse::DATA_BYTES_MAX as u64;
const BUFFERS_SHARE: u64 = 4;

/// Prepares for memory running out: asks the kernel to kill other processes first, and warns if it refuses or if the
/// device does not fit the limits of this process.
pub fn prepare(region: &Region, device: &str) {
    if region.level() != PersistenceLevel::Memory || region.is_read_only() {
        return;
    }
    let score = be_killed_last();
    let Some(limit) = MemoryLimit::of_this_process() else { return };
    let warnings = [warning(&limit, region, device), warning_of_score(&limit, score)];
    warnings.iter().flatten().for_each(|warning| eprint_line(warning));
}

fn warning(limit: &MemoryLimit, region: &Region, device: &str) -> Option<String> {
    let (bytes, held) = (region.len_bytes(), region.allocated_bytes());
    let most = (held + limit.room_bytes()) >> 20 << 20;
    (most < bytes).then(|| {
        format!(
            "nvfold: warning: {device} ({}) does not fit the memory limit of {} ({}): after about {} of new data writers \
             get ENOSPC. Mount it with a smaller size, or raise the limit (docs/containers.md)",
            size::show(bytes),
            size::show(limit.limit_bytes),
            limit.cgroup.display(),
            size::show(most.saturating_sub(held)),
        )
    })
}

fn warning_of_score(limit: &MemoryLimit, score: Option<i32>) -> Option<String> {
    score.filter(|score| *score > KILLED_LAST).map(|score| {
        format!(
            "nvfold: warning: if other processes of {} need more than the limit, the kernel may kill this server first: its \
             oom_score_adj is {score}, and only CAP_SYS_RESOURCE may lower it (docs/containers.md)",
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

/// Returns how many background requests (read-ahead, writeback) the kernel may send at once. Each may keep a thread busy,
/// all of them when writers find no space. So under a limit their buffers must fit the part of it that is kept.
pub fn background_requests(level: PersistenceLevel) -> u16 {
    let limit = MemoryLimit::of_this_process().filter(|_| level == PersistenceLevel::Memory);
    limit.map_or(BACKGROUND_MOST, |limit| background_of(limit.kept_bytes))
}

fn background_of(kept_bytes: u64) -> u16 {
    let fitting = kept_bytes / BUFFERS_SHARE / BUFFERS_BYTES;
    fitting.clamp(BACKGROUND_LEAST.into(), BACKGROUND_MOST.into()) as u16
}

/// Returns the memory that this process may use.
pub fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The unit is 1 byte on all 64-bit machines.
    let machine = system.totalram as u64 * u64::from(system.mem_unit);
    MemoryLimit::of_this_process().map_or(machine, |limit| machine.min(limit.limit_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffers_of_background_requests_fit_what_is_kept() {
        let of_mib = [32, 75, 128, 512].map(|mib: u64| background_of(mib << 20));
        assert_eq!(of_mib, [8, 9, 16, 64]);
    }
}
