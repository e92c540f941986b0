//! What all requests have in common: each is counted, its time is measured, and an error that an operator may have to
//! know is noted.

use super::{Answer, Front};
use crate::counters::Kind;
use nvfold::InodeNumber;
use nvfold_fuse::{Caller, Errno, Operation, Reply, Server};
use std::time::{Duration, Instant};
use tracing::{debug, trace};

/// The target of what is logged about single requests.
const TARGET: &str = "nvfold::request";

impl Server for Front {
    fn answer(&self, who: &Caller<'_>, operation: Operation<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let Some(kind) = self.count(&operation) else { return self.carry_out_request(who, operation, reply) };
        let begun = Instant::now();
        let answer = self.carry_out_request(who, operation, reply);
        let time = begun.elapsed();
        self.counters.answered(kind, time, answer.err());
        trace!(target: TARGET, operation = kind.name(), inode = inode_of(&operation), user = who.uid, ?time, "request");
        if let Err(error) = answer {
            self.has_failed(who, &operation, kind, time, error);
        }
        answer
    }
}

impl Front {
    #[cold]
    fn has_failed(&self, who: &Caller<'_>, operation: &Operation<'_>, kind: Kind, time: Duration, error: Errno) {
        let inode = inode_of(operation);
        match error {
            // Noted where the reason is known, which may be a limit.
            Errno::ENOSPC if matches!(operation, Operation::Write { from_cache: true, .. }) => {}
            Errno::ENOSPC => self.shortages.has_lacked_space(),
            Errno::EDQUOT => self.shortages.has_reached_limit(inode.map(InodeNumber)),
            // Usual answers to usual questions.
            Errno::ENOSYS | Errno::ENODATA | Errno::EOPNOTSUPP => return,
            _ => {}
        }
        let operation = kind.name();
        debug!(target: TARGET, operation, inode, user = who.uid, ?time, errno = error.0, "request failed");
    }
}

/// Returns the inode that a request is about; for one about a name, its directory, and the new one for a rename. `None` for
/// requests about no inode.
fn inode_of(operation: &Operation<'_>) -> Option<u64> {
    match *operation {
        Operation::Lookup { parent, .. }
        | Operation::MkNod { parent, .. }
        | Operation::MkDir { parent, .. }
        | Operation::SymLink { parent, .. }
        | Operation::Link { parent, .. }
        | Operation::Unlink { parent, .. }
        | Operation::RmDir { parent, .. }
        | Operation::Create { parent, .. }
        | Operation::TmpFile { parent, .. }
        | Operation::Rename { new_parent: parent, .. } => Some(parent),
        Operation::ReadLink { ino }
        | Operation::GetAttr { ino, .. }
        | Operation::StatX { ino }
        | Operation::SetAttr { ino, .. }
        | Operation::SetXattr { ino, .. }
        | Operation::GetXattr { ino, .. }
        | Operation::ListXattr { ino, .. }
        | Operation::RemoveXattr { ino, .. }
        | Operation::Open { ino, .. }
        | Operation::Read { ino, .. }
        | Operation::Write { ino, .. }
        | Operation::FAllocate { ino, .. }
        | Operation::LSeek { ino, .. }
        | Operation::CopyFileRange { target: ino, .. }
        | Operation::Ioctl { ino, .. }
        | Operation::OpenDir { ino }
        | Operation::ReadDir { ino, .. }
        | Operation::ReadDirPlus { ino, .. }
        | Operation::StatFs { ino } => Some(ino),
        _ => None,
    }
}
