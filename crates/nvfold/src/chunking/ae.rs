//! AE, "asymmetric extremum" (INFOCOM 2015): no hash. The extremum is a byte greater than all bytes before it and not
//! exceeded in the window after it; the cut follows that window.
//!
//! ```text
//!   bytes   3 7 2 9 1 4 0 8 ... 5 | 6
//!                 ^--- window ----^        9 is the extremum: all before are less, none in the window is greater
//! ```
//!
//! Only a byte greater than the extremum changes the state, and most stretches have none. So 64 bytes are skipped at
//! once if their maximum is not greater, which the compiler vectorises.

/// The number of bytes that are skipped at once.
const BLOCK_BYTES: usize = 64;

/// The extremum so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ae {
    value: u8,
    /// The number of bytes of the piece before it.
    position: u32,
}

impl Ae {
    /// Continues with `data`, which begins `start` bytes into the piece. Returns `Some(n)` if the n-th byte is
    /// `window` bytes after the extremum.
    pub(super) fn find(&mut self, window: usize, start: usize, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        if start == 0 && !data.is_empty() {
            *self = Ae { value: data[0], position: 0 };
            at = 1;
        }
        loop {
            // The deciding byte counts too: a greater one is the next extremum.
            let cut = self.position as usize + window + 1 - start;
            let end = cut.min(data.len());
            match first_greater(&data[at..end], self.value) {
                Some(offset) => {
                    at += offset;
                    *self = Ae { value: data[at], position: (start + at) as u32 };
                    at += 1;
                }
                None => return (cut <= data.len()).then_some(cut),
            }
        }
    }
}

fn first_greater(data: &[u8], value: u8) -> Option<usize> {
    let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
    let none_in = |block: &&[u8; BLOCK_BYTES]| block.iter().fold(0, |greatest, byte| greatest.max(*byte)) <= value;
    let passed = blocks.iter().take_while(none_in).count();
    let rest = blocks.get(passed).map_or(rest, |block| &block[..]);
    rest.iter().position(|byte| *byte > value).map(|offset| passed * BLOCK_BYTES + offset)
}
