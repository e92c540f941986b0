//! Whether a stream is worth cutting by content.
//!
//! The problem: content-defined cutting pays off only for some data. DeEXT (III-A) asks whether data is compressible.
//! Data that is already compressed or encoded (video, images, archives) seldom repeats, and where it does the copies
//! are whole, so fixed pieces find as much there as content-defined ones, at less cost. Text, programs and tables
//! repeat at any offset, and are cut by content. But compressing data to find out would cost more than the better
//! cuts save.
//!
//! The idea: samples decide, as in zFTL's predictor of incompressible data (Park and Kim, IEEE TCE 2011). A
//! compressor of the LZ family depends on repeated sequences of at least four bytes. So every 128 bytes, four
//! overlapping words of four bytes are looked up in a small hash table of recent words. If fewer than one in 25 is
//! found, the data is incompressible. The first 2 KiB of a stream are sampled four times as often, because most files
//! are short and the first piece needs a verdict.
//!
//! ```text
//!   data     ....wwww........................................wwww......    128 bytes from one to the next
//!                |||`- word 4 at byte 3       word -> hash -> slot: the same tag is a hit, else the tag is stored
//!                ```-- words 1 to 3 at bytes 0 to 2
//! ```
//!
//! The check measures repeats, not skewed frequencies: base64 has 6 bits per byte, but neither lz4 nor a chunker
//! finds repeats in it.

/// The distance of samples, in bytes.
const SAMPLE_EVERY: usize = 128;
/// The distance of samples in the first `FIRST_BYTES` of a stream.
const FIRST_SAMPLE_EVERY: usize = 32;
const FIRST_BYTES: usize = 2 << 10;
/// Overlapping words per sample, chosen so that one load of eight bytes covers them.
const WORDS_OF_SAMPLE: usize = 4;
/// Number of slots of the table, a power of two.
const SLOTS: usize = 1024;
/// Data is compressible if at least one in this many words repeats.
const WORDS_A_HIT: u32 = 25;
/// The number of words sampled from 16 KiB. Older words count half, and those before them a quarter.
const WINDOW_WORDS: u32 = (16 << 10) / (SAMPLE_EVERY / WORDS_OF_SAMPLE) as u32;

/// The result of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not encoded: cut by content. Also the verdict on data that is too short to tell.
    #[default]
    Compressible,
    /// Encoded or random: cut into fixed pieces.
    Incompressible,
}

/// The check of one stream: 2 KiB of word tags, and how many words were found again.
#[derive(Clone)]
pub struct Compressibility {
    tags: Box<[u16; SLOTS]>,
    /// How many bytes of the start of the stream are still to come.
    first_bytes: usize,
    words: u32,
    hits: u32,
}

impl Default for Compressibility {
    fn default() -> Self {
        Compressibility { tags: Box::new([0; SLOTS]), first_bytes: FIRST_BYTES, words: 0, hits: 0 }
    }
}

impl Compressibility {
    /// Samples the next bytes of the stream, and returns the verdict on about the last 16 KiB. Sample positions are
    /// counted from the start of `data`; fewer than eight bytes give no sample.
    pub fn check(&mut self, data: &[u8]) -> Verdict {
        let (first, rest) = data.split_at(data.len().min(self.first_bytes));
        self.first_bytes -= first.len();
        self.sample_every::<FIRST_SAMPLE_EVERY>(first);
        self.sample_every::<SAMPLE_EVERY>(rest);
        self.verdict()
    }

    /// Returns the current verdict without reading more data.
    pub fn verdict(&self) -> Verdict {
        if self.hits * WORDS_A_HIT >= self.words { Verdict::Compressible } else { Verdict::Incompressible }
    }

    fn sample_every<const BYTES: usize>(&mut self, data: &[u8]) {
        let (blocks, rest) = data.as_chunks::<BYTES>();
        for batch in blocks.chunks(WINDOW_WORDS as usize / WORDS_OF_SAMPLE) {
            self.hits += batch.iter().map(|block| self.sample(block)).sum::<u32>();
            self.words += (batch.len() * WORDS_OF_SAMPLE) as u32;
            self.forget();
        }
        if rest.len() >= size_of::<u64>() {
            self.hits += self.sample(rest);
            self.words += WORDS_OF_SAMPLE as u32;
        }
    }

    /// Returns how many words at the start of `data` were seen before.
    fn sample(&mut self, data: &[u8]) -> u32 {
        let bytes = u64::from_le_bytes(*data.first_chunk().expect("a sample has eight bytes"));
        let mut hits = 0;
        for at in 0..WORDS_OF_SAMPLE {
            let hash = ((bytes >> (8 * at)) as u32).wrapping_mul(0x9E37_79B1);
            // The table begins with zeros, which no tag equals.
            let (slot, tag) = (hash as usize >> (u32::BITS - SLOTS.ilog2()), (hash >> 6) as u16 | 1);
            hits += u32::from(self.tags[slot] == tag);
            self.tags[slot] = tag;
        }
        hits
    }

    fn forget(&mut self) {
        while self.words >= 2 * WINDOW_WORDS {
            (self.words, self.hits) = (self.words / 2, self.hits / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize) -> Vec<u8> {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn text(len: usize) -> Vec<u8> {
        let words = ["share", "store", "publish", "the", "block", "of", "a", "reference", "is", "piece"];
        random(len)
            .iter()
            .flat_map(|byte| [words[usize::from(byte % 10)], " "].concat().into_bytes())
            .take(len)
            .collect()
    }

    fn verdict(data: &[u8]) -> Verdict {
        Compressibility::default().check(data)
    }

    #[test]
    fn text_zeros_and_tables_are_compressible_and_random_bytes_are_not() {
        let numbers: Vec<u8> = (0..2048u64).flat_map(u64::to_le_bytes).collect();
        for data in [text(16 << 10), vec![0; 16 << 10], numbers] {
            assert_eq!(verdict(&data), Verdict::Compressible);
        }
        assert_eq!(verdict(&random(16 << 10)), Verdict::Incompressible);
        assert_eq!(verdict(&random(4 << 10)), Verdict::Incompressible);
    }

    #[test]
    fn random_letters_of_base64_are_incompressible() {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let base64: Vec<u8> = random(16 << 10).iter().map(|byte| letters[usize::from(byte % 64)]).collect();
        assert_eq!(verdict(&base64), Verdict::Incompressible);
    }

    #[test]
    fn data_too_short_for_the_compressible_check_is_cut_by_content() {
        for len in 0..8 {
            assert_eq!(verdict(&random(len)), Verdict::Compressible, "{len}");
        }
        assert_eq!(verdict(&random(8)), Verdict::Incompressible);
    }

    #[test]
    fn the_compressible_verdict_follows_a_stream_within_48_kib() {
        let mut stream = Compressibility::default();
        let text = text(1 << 20);
        for (data, expected) in [
            (&random(1 << 20)[..], Verdict::Incompressible),
            (&text[..48 << 10], Verdict::Compressible),
            (&text[..], Verdict::Compressible),
            (&random(128 << 10)[..], Verdict::Incompressible),
        ] {
            for request in data.chunks(4096) {
                stream.check(request);
            }
            assert_eq!(stream.verdict(), expected);
        }
    }

    #[test]
    fn one_kib_suffices_to_distinguish_text_from_random_bytes() {
        for start in (0..64 << 10).step_by(1 << 10) {
            assert_eq!(verdict(&text(128 << 10)[start..start + 1024]), Verdict::Compressible, "{start}");
            assert_eq!(verdict(&random(128 << 10)[start..start + 1024]), Verdict::Incompressible, "{start}");
        }
    }

    #[test]
    fn one_long_check_and_many_short_ones_count_the_same_words() {
        let data = [random(40_960), text(81_920)].concat();
        let (mut long, mut short) = (Compressibility::default(), Compressibility::default());
        long.check(&data);
        data.chunks(1024).for_each(|request| _ = short.check(request));
        assert_eq!(long.verdict(), short.verdict());
        assert_eq!(long.tags, short.tags);
    }
}
