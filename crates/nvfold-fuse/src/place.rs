//! Keeps the threads that send requests on their processors.
//!
//! The problem: with io_uring, the serving thread runs on the processor of the client thread. When it wakes the
//! client, the scheduler sees that processor as busy, although the serving thread is about to sleep, and wakes the
//! client on an idle processor. The next request comes from there, and the client moves again. Each move wakes a
//! processor from idle, which takes longer than everything else in the round trip.
//!
//! The idea: the scheduler treats a processor that runs only SCHED_IDLE threads as idle, so the serving threads run
//! under SCHED_IDLE. They would starve next to programs that compute if both were in the same scheduling group. A
//! process that leads its own session has its own group (autogroup), and within that group SCHED_IDLE costs nothing.

use crate::sys;
use std::fs;

/// Asks the scheduler to leave clients on their processors. Does nothing unless the process leads its own session,
/// where this does no harm. Applies to all threads of the process and to those that they start.
pub fn keep_clients_on_cpu() {
    if has_own_group() {
        // Twice, because a thread may start another one during the first pass.
        for _ in 0..2 {
            threads().into_iter().for_each(|thread| drop(sys::run_when_idle(thread)));
        }
    }
}

/// Returns the ids of the threads of this process.
fn threads() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Returns true if the scheduler gives this process a group of its own.
fn has_own_group() -> bool {
    let leads_session = rustix::process::getsid(None) == Ok(rustix::process::getpid());
    let autogroup = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    leads_session && autogroup.is_ok_and(|enabled| enabled.trim() == "1") && !has_group_of_processor_time()
}

/// Returns true if a control group limits or weights the processor time of this process; autogroup then has no
/// effect.
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

/// Returns true if the parent of a version 2 control group distributes processor time among its children.
fn is_on_in_parent_of(path: &str) -> bool {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let controllers = fs::read_to_string(format!("/sys/fs/cgroup{parent}/cgroup.subtree_control"));
    // If the file cannot be read, assume that it does.
    controllers.map_or(true, |controllers| controllers.split_whitespace().any(|controller| controller == "cpu"))
}
