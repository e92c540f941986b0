//! A device in memory and the memory limits of the server: what is said when it is mounted, how much page cache it may
//! have, and what the kernel kills first. [`pmem::MemoryLimit`] finds the limits; docs/containers.md is for users.

use crate::failure::eprint_line;
use crate::size;
use pmem::{MemoryLimit, PersistenceLevel, Region};

/// The value of oom_score_adj with which the kernel kills any other process first. It may still kill this one: without
/// that, a group in which nothing else is left would hang.
const KILLED_LAST: i32 = -999;
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Prepares for memory running out: warns if the device does not fit the limits of this process, and asks the kernel to
/// kill other processes first.
pub fn prepare(region: &Region, device: &str) {
    if region.level() != PersistenceLevel::Memory || region.is_read_only() {
        return;
    }
    if let Some(warning) = MemoryLimit::of_this_process().and_then(|limit| warning(&limit, region, device)) {
        eprint_line(&warning);
    }
    be_killed_last();
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

/// Lowers the server's place in the list of what the kernel kills when memory is short, which takes root or
/// CAP_SYS_RESOURCE. Without the server the data of a `mem:` device is lost, and killing the server of a device in a file
/// frees nothing of the device. Nothing restores the value: it ends with the process.
fn be_killed_last() {
    let now = std::fs::read_to_string(OOM_SCORE_ADJ).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > KILLED_LAST) {
        // Refused without the right to do it.
        let _ = std::fs::write(OOM_SCORE_ADJ, KILLED_LAST.to_string());
    }
}

/// Returns the memory that this process may use.
pub fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The unit is 1 byte on all 64-bit machines.
    let machine = system.totalram as u64 * u64::from(system.mem_unit);
    MemoryLimit::of_this_process().map_or(machine, |limit| machine.min(limit.limit_bytes))
}
