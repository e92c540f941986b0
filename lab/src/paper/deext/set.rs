//! The files that are written: generated ones with a share of compressible data and known duplicates.
//!
//! The problem: the traces of the paper (hashes of 850 file systems) have no contents, and so no compressibility.
//!
//! The idea: in each class, compressible and encoded, a part of the bytes are originals. The rest are copies of whole
//! files, and copies with a few bytes inserted every 64 KiB, of which only content-defined pieces find most
//! duplicates. The shares are chosen so that fixed pieces save about a fifth of encoded data, as in the paper at 0 %,
//! and dual chunking two fifths at 50 %. Files are in random order, and no two neighbours have one origin; otherwise
//! one extent could cover a run of duplicates that real data does not have.

use nvfold_bench::data::Random;

/// Bytes of the shortest and of the longest file; all powers of two between them are equally likely.
const FILE_BYTES: [usize; 2] = [8 << 10, 512 << 10];
/// A shifted copy has at most `INSERTED_MAX` additional bytes in each part of `INSERTED_EVERY` bytes.
const INSERTED_MAX: usize = 100;
const INSERTED_EVERY: usize = 64 << 10;
/// Number of different words in a text.
const WORDS: usize = 400;

/// Copies in the bytes of a class, percent.
#[derive(Clone, Copy, Debug)]
struct Duplicates {
    copies: usize,
    shifted: usize,
}

/// Copies in compressible data, and in encoded data.
const COMPRESSIBLE: Duplicates = Duplicates { copies: 42, shifted: 30 };
const ENCODED: Duplicates = Duplicates { copies: 21, shifted: 5 };

/// Files to write.
pub(super) struct Set {
    /// Name on the x axis.
    pub name: String,
    /// Their contents, in the order in which they are written.
    pub files: Vec<Vec<u8>>,
    /// Bytes that are no copy of others, in generated files; 0 where that is not known.
    pub unique_bytes: u64,
}

/// A file, the number of its original, and how many of its bytes are no copy of others.
struct Made {
    origin: usize,
    unique_bytes: usize,
    content: Vec<u8>,
}

impl Set {
    /// Makes `bytes` bytes, of which this share is compressible.
    pub(super) fn made_up(bytes: usize, compressible_percent: usize) -> Set {
        let mut random = Random(41);
        let words: Vec<Vec<u8>> = (0..WORDS).map(|_| word(&mut random)).collect();
        let mut made = Vec::new();
        let compressible = bytes / 100 * compressible_percent;
        add_class(&mut made, &mut random, compressible, COMPRESSIBLE, &|random, length| text(random, &words, length));
        add_class(&mut made, &mut random, bytes - compressible, ENCODED, &encoded);
        shuffle(&mut made, &mut random);
        Set {
            name: format!("{compressible_percent} %"),
            unique_bytes: made.iter().map(|file| file.unique_bytes as u64).sum(),
            files: made.into_iter().map(|file| file.content).collect(),
        }
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// Describes generated sets for the page.
    pub(super) fn about(bytes: u64) -> String {
        let of = |Duplicates { copies, shifted }: Duplicates| {
            format!(
                "{copies} % are copies of whole files and {shifted} % copies with 1 to {INSERTED_MAX} bytes inserted \
                 per 64 KiB"
            )
        };
        format!(
            "Each set has {} MiB in files of 8 to 512 KiB. Compressible data is text from a vocabulary of {WORDS} \
             words; other data is random. Of the compressible bytes, {}. Of the other bytes, {}. Files are written in \
             random order, and no two consecutive files have the same origin.",
            bytes >> 20,
            of(COMPRESSIBLE),
            of(ENCODED)
        )
    }
}

/// Adds files of a class: originals, copies and shifted copies.
fn add_class(
    made: &mut Vec<Made>,
    random: &mut Random,
    bytes: usize,
    duplicates: Duplicates,
    new: &dyn Fn(&mut Random, usize) -> Vec<u8>,
) {
    let first = made.len();
    let share = |percent: usize| bytes / 100 * percent;
    let mut left = bytes - share(duplicates.copies) - share(duplicates.shifted);
    while left > 0 {
        let length = file_bytes(random).min(left);
        made.push(Made { origin: made.len(), unique_bytes: length, content: new(random, length) });
        left -= length;
    }
    let originals = made.len() - first;
    if originals == 0 {
        return;
    }
    for (share, is_shifted) in [(share(duplicates.copies), false), (share(duplicates.shifted), true)] {
        let mut left = share;
        while left > 0 {
            let origin = first + random.next_u64() as usize % originals;
            let content = &made[origin].content;
            // The last copy is truncated, so that the share is exact.
            let content = &content[..content.len().min(left)];
            left -= content.len();
            let copied = content.len();
            let content = if is_shifted { shifted(random, content) } else { content.to_vec() };
            made.push(Made { origin, unique_bytes: content.len() - copied, content });
        }
    }
}

fn file_bytes(random: &mut Random) -> usize {
    let [shortest, longest] = FILE_BYTES;
    let power = shortest << (random.next_u64() % (longest / shortest).ilog2() as u64);
    power + random.next_u64() as usize % power
}

fn shifted(random: &mut Random, content: &[u8]) -> Vec<u8> {
    let mut shifted = Vec::with_capacity(content.len() + content.len() / 512 + INSERTED_MAX);
    for part in content.chunks(INSERTED_EVERY) {
        let (at, count) = (random.next_u64() as usize % part.len(), 1 + random.next_u64() as usize % INSERTED_MAX);
        shifted.extend_from_slice(&part[..at]);
        shifted.extend(encoded(random, count));
        shifted.extend_from_slice(&part[at..]);
    }
    shifted
}

fn encoded(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

fn word(random: &mut Random) -> Vec<u8> {
    let letters = 3 + random.next_u64() % 7;
    (0..letters).map(|_| b'a' + (random.next_u64() % 26) as u8).chain([b' ']).collect()
}

fn text(random: &mut Random, words: &[Vec<u8>], length: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        text.extend_from_slice(&words[random.next_u64() as usize % words.len()]);
    }
    text.truncate(length);
    text
}

/// Shuffles the files so that no two neighbours have one origin, if such an order is found.
fn shuffle(made: &mut [Made], random: &mut Random) {
    for at in (1..made.len()).rev() {
        made.swap(at, random.next_u64() as usize % (at + 1));
    }
    for at in 1..made.len() {
        let fits = |other: &usize| made[*other].origin != made[at - 1].origin;
        if let Some(other) = (at..made.len()).chain((1..at - 1).rev()).find(fits) {
            made.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_set_has_the_stated_shares_and_mixes_its_origins() {
        let mut random = Random(1);
        let mut made = Vec::new();
        add_class(&mut made, &mut random, 8 << 20, COMPRESSIBLE, &encoded);
        let bytes = |files: &[Made]| files.iter().map(|file| file.content.len()).sum::<usize>();
        let originals = made.iter().enumerate().filter(|(at, file)| file.origin == *at).count();
        let share = bytes(&made[originals..]) as f64 / bytes(&made) as f64;
        assert!((share - 0.72).abs() < 0.01, "{share}");
        shuffle(&mut made, &mut random);
        let alike = made.windows(2).filter(|pair| pair[0].origin == pair[1].origin).count();
        assert!(alike <= 2, "{alike} of {}", made.len());
    }

    #[test]
    fn a_generated_set_has_the_requested_size() {
        for percent in [0, 50, 100] {
            let set = Set::made_up(2 << 20, percent);
            let bytes = set.bytes() as f64 / f64::from(2 << 20);
            assert!((1.0..1.01).contains(&bytes), "{percent} %: {bytes}");
            let unique = set.unique_bytes as f64 / set.bytes() as f64;
            let made = [0.74, 0.51, 0.28][percent / 50];
            assert!((unique - made).abs() < 0.01, "{percent} %: {unique} is no copy");
        }
    }
}
