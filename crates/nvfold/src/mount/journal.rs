//! The journal after a crash: replays committed operations over several inodes.

use crate::error::{Error, Result};
use crate::media::SEGMENT_BYTES;
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot, WordStore};
use crate::media::superblock::Geometry;
use crate::store::store_words;
use pmem::Region;

/// Returns the words of all whole journal slots.
///
/// # Errors
/// [`Error::Corrupt`] if a word is not the commit word, log head or parent of an inode in the table: operations store
/// no others.
pub(crate) fn journal_stores(region: &Region, geometry: &Geometry, segments: &[u64]) -> Result<Vec<WordStore>> {
    let mut stores = Vec::new();
    for slot in 0..JOURNAL_SLOTS {
        let offset = geometry.journal_slot_offset(slot);
        let journal: JournalSlot = region.read(offset);
        for store in journal.words() {
            let in_table = segments.contains(&(store.offset / SEGMENT_BYTES));
            if store.check().is_err() || !in_table {
                return Err(Error::Corrupt {
                    what: "journal: it holds a word that no operation stores".into(),
                    at: offset,
                });
            }
            stores.push(*store);
        }
    }
    Ok(stores)
}

/// Stores the words again and empties the journal.
pub(crate) fn replay_journal(region: &Region, geometry: &Geometry, stores: &[WordStore]) {
    if !stores.is_empty() {
        store_words(region, stores);
        clear_journal(region, geometry);
    }
}

/// Empties the journal.
pub(crate) fn clear_journal(region: &Region, geometry: &Geometry) {
    let clear = |slot| WordStore { offset: geometry.journal_slot_offset(slot), value: 0 };
    let cleared: Vec<_> = (0..JOURNAL_SLOTS).map(clear).collect();
    store_words(region, &cleared);
}
