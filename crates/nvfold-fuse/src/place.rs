//! Whoever sends a request stays on its processor.
//!
//! The problem: a thread that answers by io_uring runs on the processor of whoever asked. When it wakes him, the scheduler
//! sees that processor busy, with the thread that is about to sleep, and wakes him on an idle one; his next request comes
//! from there, and he is sent back. Each time a processor must be woken, which takes longer than all the rest.
//!
//! The idea: a processor that runs nothing but SCHED_IDLE counts as idle. So the serving threads run under it. Beside
//! programs that compute they would starve, if they shared a group of the scheduler with these; a process that leads a
//! session of its own has a group of its own (autogroup), within which SCHED_IDLE takes nothing away.

use crate::sys;
use std::fs;

/// Asks the scheduler to leave senders where they are, where that does no harm: in a process that leads a session of its
/// own. For all threads that there are, and those that they start.
pub fn keep_senders_in_place() {
    if has_own_group() {
        // Twice: a thread may be starting another one meanwhile.
        for _ in 0..2 {
            threads().into_iter().for_each(|thread| drop(sys::run_when_idle(thread)));
        }
    }
}

/// The numbers of the threads of this process.
fn threads() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the scheduler gives this process a share of its own.
fn has_own_group() -> bool {
    let leads_session = rustix::process::getsid(None) == Ok(rustix::process::getpid());
    let autogroup = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    leads_session && autogroup.is_ok_and(|enabled| enabled.trim() == "1") && !has_group_of_processor_time()
}

/// Whether a control group shares out processor time to this process: it stands above sessions then.
fn has_group_of_processor_time() -> bool {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let shares_time = controllers.split(',').any(|controller| controller == "cpu")
            || (controllers.is_empty() && is_on_in_parent_of(path));
        path != "/" && shares_time
    })
}

/// Whether a control group (version 2) is below one that shares out processor time.
fn is_on_in_parent_of(path: &str) -> bool {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let controllers = fs::read_to_string(format!("/sys/fs/cgroup{parent}/cgroup.subtree_control"));
    // Not to be seen: then it may be.
    controllers.map_or(true, |controllers| controllers.split_whitespace().any(|controller| controller == "cpu"))
}
