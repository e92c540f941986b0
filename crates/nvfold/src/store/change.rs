//! A change of entries and attributes of one inode, or of several at once, in one commit.

use super::Store;
use super::commit::{CommitHandles, Staged, commit_word, store_words};
use crate::error::Result;
use crate::inode::{Changing, Inode, State};
use crate::media::inode::AttributeLine;
use crate::media::journal::WordStore;
use crate::media::log_entry::LogEntry;
use crate::panics::Moment;
use crate::space::Purpose;
use pmem::{Clean, Flight, InFlight};
use smallvec::SmallVec;

/// The largest number of inodes that one commit changes: a rename has two directories, the moved inode, and the
/// replaced one.
const CHANGES_MAX: usize = 4;

/// One inode's part of a commit.
pub(crate) struct Change<'i, 's> {
    pub(crate) inode: &'i Inode,
    pub(crate) state: &'s mut State,
    pub(crate) entries: &'i [LogEntry],
    pub(crate) attributes: Option<AttributeLine>,
    pub(crate) purpose: Purpose,
}

impl Store {
    /// Changes one inode: entries, attributes or both, in one commit.
    pub(crate) fn change(
        &self,
        inode: &Inode,
        state: &mut State,
        entries: &[LogEntry],
        attributes: Option<AttributeLine>,
        purpose: Purpose,
        flight: Flight,
    ) -> Result<()> {
        self.change_all(&mut [Change { inode, state, entries, attributes, purpose }], &[], flight)
    }

    /// Changes several inodes (and stores `words`, such as the parent of a moved directory) in one commit.
    pub(crate) fn change_all<'i>(
        &self,
        changes: &mut [Change<'i, '_>],
        words: &[WordStore],
        mut flight: Flight,
    ) -> Result<()> {
        let mut staged: SmallVec<[(Staged<'_>, SmallVec<[u64; 4]>); 4]> = SmallVec::new();
        for change in changes.iter() {
            let mut lines = Vec::new();
            let mut lengths: SmallVec<[usize; 4]> = SmallVec::new();
            change.entries.iter().for_each(|entry| lengths.push(entry.encode(change.inode.ino, &mut lines)));
            let mut rest = &lines[..];
            let split = |(entry, length): (&'i LogEntry, &usize)| {
                let (lines, left) = rest.split_at(*length);
                rest = left;
                (entry, lines)
            };
            let encoded: SmallVec<[(&LogEntry, &[u8]); 4]> = change.entries.iter().zip(&lengths).map(split).collect();
            let Change { inode, state, attributes, purpose, .. } = change;
            staged.push(self.stage_lines(inode, state, &encoded, *attributes, *purpose, &mut flight)?);
        }
        // The change may be based on names that could not be read.
        self.region.check()?;
        assert!(changes.len() <= CHANGES_MAX, "no operation changes more inodes");
        let mut named: [CommitHandles<'_, InFlight>; CHANGES_MAX] = Default::default();
        named.iter_mut().zip(&mut staged).for_each(|(named, (staged, _))| *named = staged.take_named());
        let (landed, named) = self.region.fence((flight, named));
        let word = |(change, named): (&Change<'_, '_>, CommitHandles<'_, Clean>)| {
            commit_word(change.inode.slot, &change.state.log, change.state.selector, named)
        };
        let mut stores: SmallVec<[WordStore; 7]> = changes.iter().zip(named).map(word).collect();
        stores.extend_from_slice(words);
        if stores.len() > 1 {
            self.check_words(&stores)?;
        }
        changes.iter().for_each(|change| self.keep_changed(change.inode, change.state, change.entries));
        self.panics.may_panic(Moment::Staged);
        // Work beside the calls changes one inode at a time.
        let changing = match changes {
            [only] => Some(Changing::begin(only.inode, &self.panics)),
            _ => None,
        };
        self.store_commit_words(&stores, landed);
        self.panics.may_panic(Moment::Committed);
        for (change, (staged, positions)) in changes.iter_mut().zip(staged) {
            let before = change.state.mapped_bytes();
            let newer = staged.attributes.is_none();
            staged.install(change.state);
            for (entry, position) in change.entries.iter().zip(positions) {
                change.state.apply(position, entry, newer).expect("an entry that this operation made fits its inode");
            }
            let tree = change.state.attributes.tree;
            self.account_mapped(change.inode.ino, tree, (before, change.state.mapped_bytes()), 0);
        }
        if let Some(changing) = changing {
            changing.done();
        }
        for change in changes {
            self.compact_if_worth_it(change.inode, change.state);
        }
        Ok(())
    }

    /// Changes the attributes of several inodes, each in a commit of its own; the commits share their fences. A crash
    /// may leave some of them changed.
    pub(crate) fn change_each(
        &self,
        changes: &mut [(&Inode, &mut State, AttributeLine)],
        purpose: Purpose,
    ) -> Result<()> {
        let (mut flight, mut staged) = (Flight::new(), Vec::with_capacity(changes.len()));
        for (inode, state, attributes) in changes.iter() {
            staged.push(self.stage_lines(inode, state, &[], Some(*attributes), purpose, &mut flight)?.0);
        }
        self.region.check()?;
        let named: Vec<CommitHandles<'_, InFlight>> = staged.iter_mut().map(Staged::take_named).collect();
        let (_, named) = self.region.fence((flight, named));
        let word = |((inode, state, _), named): (&(&Inode, &mut State, AttributeLine), _)| {
            commit_word(inode.slot, &state.log, state.selector, named)
        };
        let stores: Vec<WordStore> = changes.iter().zip(named).map(word).collect();
        let changing: Vec<Changing<'_>> =
            changes.iter().map(|(inode, ..)| Changing::begin(inode, &self.panics)).collect();
        store_words(&self.region, &stores);
        changes.iter_mut().zip(staged).for_each(|((_, state, _), staged)| staged.install(state));
        changing.into_iter().for_each(Changing::done);
        Ok(())
    }
}
