//! Limits of trees: who may set them, and what is told of them.
//!
//! Data that the kernel has accepted and not handed on yet is not charged. A limit that is set below what is written
//! would lose such data. So before limits change, and before somebody is told what a tree stores, the kernel writes it
//! back.

use super::Front;
use super::trees::{refusal, refused};
use super::xattrs::is_manager;
use crate::clones::{Refusal, SourceToken};
use crate::limits::{KnownLimits, LimitsChange, LimitsQuestion, answer};
use crate::turns::Turn;
use nvfold_fuse::{Caller, Errno};

impl Front {
    /// Answers a question about limits, which came by an open file; `None` if it is none.
    pub(crate) fn asked_about_limits(&self, who: &Caller<'_>, question: &[u8]) -> Option<Vec<u8>> {
        let done = match LimitsQuestion::decode(question)? {
            LimitsQuestion::Set { directory, change } => self.change_limits(who, directory, change),
            LimitsQuestion::Get { directory } => self.known_limits(who, directory),
        };
        Some(answer(&done))
    }

    fn change_limits(&self, who: &Caller<'_>, token: SourceToken, change: LimitsChange) -> Result<Vec<u64>, Refusal> {
        self.refuse_read_only()?;
        let (directory, user) = self.named_source(who, token)?;
        if !is_manager(user) {
            let why = "only root and the user who mounted the file system may set limits";
            return Err(refusal(Errno::EPERM, why));
        }
        let _turn = self.turn_of(user)?;
        self.write_back_below(who, directory, &|| false);
        self.fs.change_limits(directory, |limits| change.apply(limits)).map_err(refused)?;
        self.counters.change();
        let tree = self.fs.limited_tree(directory).map_err(refused)?;
        Ok(KnownLimits { tree, stored_alone_bytes: None }.to_numbers())
    }

    fn known_limits(&self, who: &Caller<'_>, token: SourceToken) -> Result<Vec<u64>, Refusal> {
        let (directory, user) = self.named_source(who, token)?;
        let tree = self.fs.limited_tree(directory).map_err(refused)?;
        if !is_manager(user) {
            return Ok(KnownLimits { tree, stored_alone_bytes: None }.to_numbers());
        }
        let _turn = self.turn_of(user)?;
        let top = tree.map_or(directory, |tree| tree.top);
        self.write_back_below(who, top, &|| false);
        let tree = self.fs.limited_tree(directory).map_err(refused)?;
        let stored_alone_bytes = Some(self.fs.stored_alone_bytes(top).map_err(refused)?);
        Ok(KnownLimits { tree, stored_alone_bytes }.to_numbers())
    }

    /// Counts a long request of a user.
    fn turn_of(&self, user: u32) -> Result<Turn<'_>, Refusal> {
        self.turns.take(user).ok_or_else(|| refusal(Errno::EAGAIN, "this user has too many long requests"))
    }
}
