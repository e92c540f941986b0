//! Growth: makes the mounted file system longer, for root and the user who mounted it.

use super::Front;
use super::trees::{refusal, refused};
use super::xattrs::is_manager;
use crate::clones::Refusal;
use crate::growth::{Grown, GrowthQuestion, answer};
use nvfold_fuse::{Caller, Errno};

impl Front {
    /// Answers the question of a command that makes the file system longer, which came by an open file; `None` if it is
    /// another one.
    pub(crate) fn asked_to_grow(&self, who: &Caller<'_>, question: &[u8]) -> Option<Vec<u8>> {
        let question = GrowthQuestion::decode(question)?;
        Some(answer(&self.grow(who, question)))
    }

    fn grow(&self, who: &Caller<'_>, question: GrowthQuestion) -> Result<Grown, Refusal> {
        self.refuse_read_only()?;
        let (_, user) = self.named_source(who, question.any)?;
        if !is_manager(user) {
            let why = "only root and the user who mounted the file system may make it longer";
            return Err(refusal(Errno::EPERM, why));
        }
        let grown = self.fs.grow(question.device_bytes).map_err(refused)?;
        self.counters.change();
        let (growths_left, index_is_small) = self.fs.growth();
        Ok(Grown {
            before_bytes: grown.before_bytes,
            after_bytes: grown.after_bytes,
            free_bytes: self.fs.stats().free_bytes,
            growths_left: growths_left as u64,
            index_is_small,
        })
    }
}
