//! The recorder: everything that happens to the media, in order, and the states a crash could leave.
//!
//! **The crash model.** Stores are split into aligned 8-byte words; the medium writes a word wholly or not at all.
//! A word is guaranteed once its line was flushed (or it was streamed) and the same thread fenced after that.
//! Until then a crash leaves it written or not, but for one rule: a later store to the *same word* carries the
//! earlier ones with it, for the cache holds one copy of the word. Two mediums are modelled ([`StoreOrder`]): one that
//! keeps nothing else, and x86, which also keeps the order of cached stores to one line. Streamed words of a
//! line have no order among them in either.
//!
//! [`Recording::unguaranteed`] lists the words that a crash may or may not leave, [`Recording::image`] builds the
//! media for one choice of them, and [`Replay`] does both step by step over a long recording.

use crate::LINE_BYTES;
use std::collections::{HashMap, HashSet};

const WORD_BYTES: u64 = 8;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes stored through the cache.
    Store {
        /// Thread number.
        thread: usize,
        /// Device offset.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes stored past the cache: in flight at once.
    Stream {
        /// Thread number.
        thread: usize,
        /// Device offset.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The flush of the lines that a range touches.
    Flush {
        /// Thread number.
        thread: usize,
        /// Device offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A fence: what this thread has in flight is guaranteed.
    Fence {
        /// Thread number.
        thread: usize,
    },
}

/// Which stores a medium may reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOrder {
    /// Any two, but stores to the same word.
    AnyWord,
    /// Any two, but cached stores to the same line: what x86 does.
    Line,
}

/// A part of one word that a crash may or may not leave on the media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWord {
    /// Device offset of its first byte.
    pub offset: u64,
    /// The bytes, 1 to 8 within one aligned word.
    pub bytes: Vec<u8>,
    /// Number of the event that stored it.
    pub event: usize,
    /// Whether it was streamed past the cache.
    pub streamed: bool,
    /// Threads whose next fence guarantees it.
    in_flight_of: Vec<usize>,
}

impl PendingWord {
    /// Whether it was flushed or streamed, so that a fence would guarantee it.
    pub fn is_in_flight(&self) -> bool {
        !self.in_flight_of.is_empty()
    }

    fn word(&self) -> u64 {
        self.offset / WORD_BYTES
    }

    fn line(&self) -> u64 {
        self.offset / LINE_BYTES
    }

    fn apply(&self, image: &mut [u8]) {
        let start = self.offset as usize;
        image[start..start + self.bytes.len()].copy_from_slice(&self.bytes);
    }
}

/// What happened since recording began or was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// In order.
    pub events: Vec<Event>,
}

impl Recording {
    /// The words not guaranteed after the first `events` events, in the order of their stores.
    pub fn unguaranteed(&self, events: usize) -> Vec<PendingWord> {
        let mut replay = Replay::new(&[]);
        replay.play(self, events);
        replay.pending
    }

    /// The media after a crash behind the first `events` events. `base` is the media when recording began; `reached`
    /// says of each unguaranteed word whether it got there.
    pub fn image(
        &self,
        base: &[u8],
        events: usize,
        order: StoreOrder,
        reached: impl FnMut(&PendingWord) -> bool,
    ) -> Vec<u8> {
        let mut replay = Replay::new(base);
        replay.advance(self, events);
        replay.image(order, reached)
    }
}

/// A recording played forward: what is guaranteed so far, and what is not.
#[derive(Clone, Debug)]
pub struct Replay {
    guaranteed: Vec<u8>,
    pending: Vec<PendingWord>,
    events_played: usize,
}

impl Replay {
    /// Starts before the first event, on the media as they were then.
    pub fn new(base: &[u8]) -> Replay {
        Replay { guaranteed: base.to_vec(), pending: Vec::new(), events_played: 0 }
    }

    /// Plays on until `events` events were played.
    pub fn advance(&mut self, recording: &Recording, events: usize) {
        for settled in self.play(recording, events) {
            settled.apply(&mut self.guaranteed);
        }
    }

    /// Plays on; returns the words that became guaranteed, in the order of their stores.
    fn play(&mut self, recording: &Recording, events: usize) -> Vec<PendingWord> {
        let mut settled = Vec::new();
        while self.events_played < events {
            let number = self.events_played;
            match &recording.events[number] {
                Event::Store { offset, bytes, .. } => self.pending.extend(words(*offset, bytes, number, None)),
                Event::Stream { thread, offset, bytes } => {
                    self.pending.extend(words(*offset, bytes, number, Some(*thread)));
                }
                Event::Flush { thread, offset, length } => self.flush(*thread, *offset, *length),
                Event::Fence { thread } => settled.extend(self.fence(*thread)),
            }
            self.events_played += 1;
        }
        settled
    }

    /// The words not guaranteed now, in the order of their stores.
    pub fn unguaranteed(&self) -> &[PendingWord] {
        &self.pending
    }

    /// The media after a crash now, with those words for which `reached` is true, and what they carry with them.
    pub fn image(&self, order: StoreOrder, mut reached: impl FnMut(&PendingWord) -> bool) -> Vec<u8> {
        let mut there: Vec<bool> = self.pending.iter().map(&mut reached).collect();
        let mut words_there = HashSet::new();
        let mut lines_there = HashSet::new();
        for (word, there) in self.pending.iter().zip(&mut there).rev() {
            let in_line_order = order == StoreOrder::Line && !word.streamed;
            *there |= words_there.contains(&word.word()) || (in_line_order && lines_there.contains(&word.line()));
            if *there {
                words_there.insert(word.word());
                if in_line_order {
                    lines_there.insert(word.line());
                }
            }
        }
        let mut image = self.guaranteed.clone();
        let reached = self.pending.iter().zip(there).filter(|(_, there)| *there);
        reached.for_each(|(word, _)| word.apply(&mut image));
        image
    }

    fn flush(&mut self, thread: usize, offset: u64, length: u64) {
        let lines = offset / LINE_BYTES..(offset + length).div_ceil(LINE_BYTES);
        for word in self.pending.iter_mut().filter(|word| lines.contains(&word.line())) {
            if !word.in_flight_of.contains(&thread) {
                word.in_flight_of.push(thread);
            }
        }
    }

    /// Settles what the thread has in flight, and earlier stores to the same words: they are overwritten for good.
    fn fence(&mut self, thread: usize) -> Vec<PendingWord> {
        let in_flight = self.pending.iter().enumerate().filter(|(_, word)| word.in_flight_of.contains(&thread));
        let last: HashMap<u64, usize> = in_flight.map(|(at, word)| (word.word(), at)).collect();
        let pending = std::mem::take(&mut self.pending).into_iter().enumerate();
        let (settled, rest): (Vec<_>, Vec<_>) =
            pending.partition(|(at, word)| last.get(&word.word()).is_some_and(|last| at <= last));
        self.pending = rest.into_iter().map(|(_, word)| word).collect();
        settled.into_iter().map(|(_, word)| word).collect()
    }
}

/// Splits a store into parts of aligned words.
fn words(offset: u64, bytes: &[u8], event: usize, streamed_by: Option<usize>) -> impl Iterator<Item = PendingWord> {
    let head = ((offset.next_multiple_of(WORD_BYTES) - offset) as usize).min(bytes.len());
    let (head, rest) = bytes.split_at(head);
    let parts = std::iter::once(head).filter(|head| !head.is_empty()).chain(rest.chunks(WORD_BYTES as usize));
    parts.scan(offset, move |at, part| {
        let start = *at;
        *at += part.len() as u64;
        Some(PendingWord {
            offset: start,
            bytes: part.to_vec(),
            event,
            streamed: streamed_by.is_some(),
            in_flight_of: streamed_by.into_iter().collect(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(thread: usize, offset: u64, bytes: &[u8]) -> Event {
        Event::Store { thread, offset, bytes: bytes.to_vec() }
    }

    fn stream(thread: usize, offset: u64, bytes: &[u8]) -> Event {
        Event::Stream { thread, offset, bytes: bytes.to_vec() }
    }

    fn flush(thread: usize, offset: u64) -> Event {
        Event::Flush { thread, offset, length: 1 }
    }

    fn fence(thread: usize) -> Event {
        Event::Fence { thread }
    }

    fn pending_offsets(events: &[Event]) -> Vec<u64> {
        let recording = Recording { events: events.to_vec() };
        recording.unguaranteed(events.len()).iter().map(|word| word.offset).collect()
    }

    /// First bytes of the words of a crash image for the choice of pending words by their position in the list.
    fn image(events: &[Event], order: StoreOrder, reached: &[usize]) -> Vec<u8> {
        let recording = Recording { events: events.to_vec() };
        let mut at = 0;
        let choose = |_: &PendingWord| {
            at += 1;
            reached.contains(&(at - 1))
        };
        recording.image(&[0; 256], events.len(), order, choose)
    }

    #[test]
    fn only_what_was_flushed_and_then_fenced_by_the_same_thread_is_guaranteed() {
        let stored = store(0, 0, &[1; 8]);
        assert_eq!(pending_offsets(std::slice::from_ref(&stored)), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), fence(0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), fence(0), flush(0, 0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 64), fence(0)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0), fence(1)]), [0]);
        assert_eq!(pending_offsets(&[stored.clone(), flush(0, 0), fence(0)]), []);
        assert_eq!(pending_offsets(&[stored.clone(), flush(1, 63), fence(1)]), [], "any thread can flush a line");
        assert_eq!(pending_offsets(&[stored, flush(0, 0), flush(1, 0), fence(1)]), []);
        assert_eq!(pending_offsets(&[stream(0, 64, &[1; 16])]), [64, 72]);
        assert_eq!(pending_offsets(&[stream(0, 64, &[1; 16]), fence(0)]), []);
    }

    #[test]
    fn a_store_after_the_flush_is_not_covered_by_it() {
        let events = [store(0, 0, &[1; 8]), flush(0, 0), store(0, 0, &[2; 8]), fence(0)];
        assert_eq!(pending_offsets(&events), [0]);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[])[0], 1);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[0])[0], 2);
    }

    #[test]
    fn a_guaranteed_word_is_never_undone_by_an_older_store() {
        let events = [store(0, 0, &[1; 8]), stream(1, 0, &[2; 8]), fence(1)];
        assert_eq!(pending_offsets(&events), []);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[])[0], 2);
    }

    #[test]
    fn stores_are_split_into_aligned_words() {
        let events = [store(0, 5, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])];
        let recording = Recording { events: events.to_vec() };
        let parts: Vec<_> = recording.unguaranteed(1).into_iter().map(|word| (word.offset, word.bytes)).collect();
        assert_eq!(parts, [(5, vec![1, 2, 3]), (8, vec![4, 5, 6, 7, 8, 9, 10, 11]), (16, vec![12])]);
    }

    #[test]
    fn a_word_carries_what_was_stored_in_it_before() {
        let events = [store(0, 0, &[1; 4]), store(0, 4, &[2; 4])];
        assert_eq!(image(&events, StoreOrder::AnyWord, &[1])[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(image(&events, StoreOrder::AnyWord, &[0])[..8], [1, 1, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn line_order_keeps_the_order_of_cached_stores_to_one_line_only() {
        let events = [store(0, 0, &[1; 8]), store(0, 64, &[2; 8]), store(0, 8, &[3; 8])];
        let first_bytes = |image: Vec<u8>| (image[0], image[64], image[8]);
        assert_eq!(first_bytes(image(&events, StoreOrder::AnyWord, &[2])), (0, 0, 3));
        assert_eq!(first_bytes(image(&events, StoreOrder::Line, &[2])), (1, 0, 3));
        let streamed = [stream(0, 0, &[1; 16])];
        assert_eq!(image(&streamed, StoreOrder::Line, &[1])[..9], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_replay_in_steps_ends_where_one_in_a_single_step_does() {
        let events = vec![
            store(0, 0, &[1; 24]),
            flush(0, 0),
            stream(1, 128, &[2; 64]),
            fence(0),
            store(0, 8, &[3; 8]),
            fence(1),
            stream(0, 0, &[4; 8]),
        ];
        let recording = Recording { events };
        let mut steps = Replay::new(&[0; 256]);
        for events in 0..=recording.events.len() {
            steps.advance(&recording, events);
            let mut once = Replay::new(&[0; 256]);
            once.advance(&recording, events);
            assert_eq!(steps.image(StoreOrder::Line, |_| true), once.image(StoreOrder::Line, |_| true));
            assert_eq!(steps.unguaranteed(), recording.unguaranteed(events));
        }
    }
}
