//! The recorder: everything that happens to the media, in order, and the states a crash could leave.
//!
//! With `OpenOptions::record` every store (in 8-byte words), stream, flush and fence is kept. A word is
//! guaranteed once its line was flushed (or it was streamed) and the same thread fenced after that. Until then
//! a crash may have left it on the media or not; [`Recording::crash_image`] builds the state for any choice.

use crate::LINE_BYTES;

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
    /// A fence: what this thread has in flight is durable.
    Fence {
        /// Thread number.
        thread: usize,
    },
}

/// A part of one 8-byte word that a crash may or may not leave on the media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingWord {
    /// Device offset of its first byte.
    pub offset: u64,
    /// The bytes, 1 to 8 within one aligned word.
    pub bytes: Vec<u8>,
    /// Thread that flushed or streamed it; `None`: not even flushed.
    flushed_by: Option<usize>,
}

/// What happened since recording began or was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// In order.
    pub events: Vec<Event>,
}

impl Recording {
    /// The words that are not guaranteed after the first `events` events, in order of their stores; and `image`
    /// (the media when recording began) with everything guaranteed applied.
    pub fn pending(&self, events: usize, image: &mut [u8]) -> Vec<PendingWord> {
        let mut pending: Vec<PendingWord> = Vec::new();
        for event in &self.events[..events] {
            match event {
                Event::Store { offset, bytes, .. } => pending.extend(words(*offset, bytes, None)),
                Event::Stream { thread, offset, bytes } => pending.extend(words(*offset, bytes, Some(*thread))),
                Event::Flush { thread, offset, length } => {
                    let first = offset / LINE_BYTES * LINE_BYTES;
                    let last = (offset + length).next_multiple_of(LINE_BYTES);
                    for word in pending.iter_mut().filter(|word| (first..last).contains(&word.offset)) {
                        word.flushed_by.get_or_insert(*thread);
                    }
                }
                Event::Fence { thread } => pending.retain(|word| {
                    let durable = word.flushed_by == Some(*thread);
                    if durable {
                        apply(image, word);
                    }
                    !durable
                }),
            }
        }
        pending
    }

    /// The media after a crash behind the first `events` events, where of the words that are not guaranteed
    /// those reached it that `reached` chooses.
    pub fn crash_image(
        &self,
        base: &[u8],
        events: usize,
        mut reached: impl FnMut(usize, &PendingWord) -> bool,
    ) -> Vec<u8> {
        let mut image = base.to_vec();
        let pending = self.pending(events, &mut image);
        for (at, word) in pending.iter().enumerate() {
            if reached(at, word) {
                apply(&mut image, word);
            }
        }
        image
    }
}

fn apply(image: &mut [u8], word: &PendingWord) {
    let start = word.offset as usize;
    image[start..start + word.bytes.len()].copy_from_slice(&word.bytes);
}

fn words(offset: u64, bytes: &[u8], flushed_by: Option<usize>) -> impl Iterator<Item = PendingWord> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = offset + at as u64;
        let length = ((8 - start % 8) as usize).min(bytes.len() - at);
        let word = PendingWord { offset: start, bytes: bytes[at..at + length].to_vec(), flushed_by };
        at += length;
        (length > 0).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use crate::{DeviceSpec, OpenOptions, Region};

    fn recorded() -> Region {
        Region::create(&DeviceSpec::Memory, 4096, &OpenOptions { record: true, ..OpenOptions::default() }).unwrap()
    }

    #[test]
    fn only_what_was_flushed_and_fenced_is_guaranteed() {
        let region = recorded();
        let _ = region.write(0, &[1u8; 16]);
        let flushed = region.write(64, &[2u8; 8]).flush();
        let streamed = region.stream(128, &[3u8; 64]);
        let _ = region.fence((flushed, streamed));
        let _ = region.write(256, &[4u8; 3]);
        let recording = region.take_recording();
        let events = recording.events.len();
        let mut image = vec![0; 4096];
        let pending = recording.pending(events, &mut image);
        assert_eq!(pending.iter().map(|word| word.offset).collect::<Vec<_>>(), [0, 8, 256]);
        assert_eq!((image[64], image[128], image[0]), (2, 3, 0));
        let torn = recording.crash_image(&[0; 4096], events, |at, _| at == 1);
        assert_eq!((torn[0], torn[8], torn[256]), (0, 1, 0));
    }

    #[test]
    fn a_fence_of_another_thread_guarantees_nothing() {
        let region = recorded();
        let flushed = region.write(64, &[2u8; 8]).flush();
        std::thread::scope(|scope| drop(scope.spawn(|| region.fence(crate::Flight::new()))));
        drop(flushed);
        let recording = region.take_recording();
        assert_eq!(recording.pending(recording.events.len(), &mut [0; 4096]).len(), 1);
    }
}
