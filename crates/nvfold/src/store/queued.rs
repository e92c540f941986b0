//! Log entries that wait to be shared (DeNOVA IV-C): finding the entry of a token, and its dedupe-flag.
//!
//! An entry is dedupe_needed until its last batch, in_process only from the commit of that batch to its end, and
//! dedupe_complete afterwards. The flag is changed in place.

use super::Store;
use super::claims::Claims;
use crate::dedup::work::Token;
use crate::error::{Error, Result};
use crate::inode::{Inode, State, log};
use crate::media::BLOCK_BYTES;
use crate::media::inode::InodeHead;
use crate::media::log_entry::{LINE, LogEntry, Written, dedupe};
use crate::media::superblock::Geometry;
use nvfold_sync::atomic::Ordering;
use pmem::{Flight, Region};

/// A write or vector entry of the log: its device offset, and its content.
pub(crate) type Logged = (u64, Written);

/// The content of a [`Token`]: where its log entry is.
pub(crate) struct EntryAddress {
    pub(crate) ino: u64,
    /// Distinguishes the inode from others that had its number.
    pub(crate) generation: u32,
    /// Media address of the entry.
    pub(crate) position: u64,
    /// File offset at which the range of the entry begins.
    file_offset: u64,
}

impl EntryAddress {
    pub(crate) fn of(token: &Token) -> EntryAddress {
        let [ino, position, file_offset] = token.words;
        EntryAddress { ino, generation: token.tail, position, file_offset }
    }
}

impl Store {
    /// Returns the log entry of a token, if it still exists and is still to be shared.
    pub(crate) fn queued_entry(&self, inode: &Inode, state: &State, token: &Token) -> Option<LogEntry> {
        let EntryAddress { generation, position, file_offset, .. } = EntryAddress::of(token);
        let is_there = inode.is_usable() && inode.generation == generation;
        if !is_there || !state.log.holds(inode.slot, position) {
            return None;
        }
        let (entry, length) = log::entry_at(&self.region, inode.slot, inode.ino, &state.log, position);
        if !self.region.sound_or_forget(position, length) {
            let what = format!("a queued log entry of inode {}", inode.ino);
            self.record_skipped(&Error::BadMemory { what, at: position, length });
            return None;
        }
        let is_meant = |entry: &Written| entry.file_offset == file_offset && dedupe::is_pending(entry.dedupe);
        entry.filter(|entry| entry.written().is_some_and(|entry| is_meant(&entry)))
    }

    /// Queues an entry that is to be shared. Entries of an inode that reconcile has not walked yet are queued by
    /// reconcile.
    pub(super) fn queue_entry(&self, inode: &Inode, position: u64, entry: &Written) {
        if self.is_walked(inode.ino) {
            let (token, blocks) = token_of(inode, position, entry);
            self.policies.queue(token, blocks, entry.time);
        }
    }

    /// Queues the entries of an inode that are still to be shared, once reconcile has walked it. An entry that a
    /// crash left in_process becomes dedupe_needed again.
    pub(crate) fn queue_after_crash(&self, inode: &Inode) -> Result<()> {
        if inode.peek().needed.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut entries = Vec::new();
        let mut flight = Flight::new();
        each_pending(&self.region, &self.geometry, inode, |position, entry| {
            if entry.dedupe != dedupe::NEEDED {
                self.set_flag(position, entry, dedupe::NEEDED, &mut flight);
            }
            entries.push(token_of(inode, position, entry));
        })?;
        let _ = self.region.fence(flight);
        self.policies.restore(entries);
        Ok(())
    }

    /// Step 6, after the tail is durable: turns the held update counts into reference counts, and marks the queued
    /// entry as in_process. This happens before DRAM maps the blocks, so that a block is already counted when a
    /// reader clones it.
    pub(super) fn count_holds(&self, queued: Option<Logged>, claims: &mut Claims<'_>) {
        let mut flight = Flight::new();
        if let Some((position, entry)) = queued {
            self.set_flag(position, &entry, dedupe::IN_PROCESS, &mut flight);
        }
        claims.count_holds(&mut flight);
        let _ = self.region.fence(flight);
    }

    /// Marks the queued entry and the added ones as dedupe_complete.
    pub(crate) fn complete(&self, state: &State, queued: Option<Logged>, added: &[Logged]) {
        let mut flight = Flight::new();
        for (position, entry) in queued.iter().chain(added) {
            self.set_flag(*position, entry, dedupe::COMPLETE, &mut flight);
        }
        let _ = self.region.fence(flight);
        state.needed.fetch_sub(u64::from(queued.is_some()), Ordering::Relaxed);
    }

    /// Changes the dedupe-flag of an entry in place. An entry in bad memory stays as it is.
    fn set_flag(&self, position: u64, entry: &Written, flag: u8, flight: &mut Flight) {
        if self.region.check_writable(position, LINE).is_ok() {
            flight.add(self.region.store_u64(position, entry.first_word(flag)).flush());
        }
    }
}

/// Returns the token of an entry, and the length of its range in blocks. A vector entry gets one token for all its
/// extents.
pub(crate) fn token_of(inode: &Inode, position: u64, entry: &Written) -> (Token, u32) {
    let blocks = entry.length.div_ceil(BLOCK_BYTES).min(u64::from(u32::MAX)) as u32;
    (Token { words: [inode.ino, position, entry.file_offset], tail: inode.generation }, blocks)
}

/// Calls `each` for the log entries of an inode that are still to be shared, with their media addresses.
pub(crate) fn each_pending(
    region: &Region,
    geometry: &Geometry,
    inode: &Inode,
    mut each: impl FnMut(u64, &Written),
) -> Result<()> {
    let state = inode.peek();
    let head = InodeHead { head: state.log.head, commit: state.log.tail, ..region.read(inode.slot) };
    log::walk(region, geometry, inode.slot, &head, |position, _, entry| {
        if let Some(entry) = entry.written()
            && dedupe::is_pending(entry.dedupe)
        {
            each(position, &entry);
        }
        Ok(())
    })?;
    Ok(())
}
