//! Fingerprints: finding equal data without comparing it with everything.
//!
//! A **weak** fingerprint is a short number that equal bytes always share and different bytes seldom do. It finds
//! candidates and never decides. A **strong** one is long, and made so that nobody can find two different pieces of
//! data that share it. It costs ten times as much, and stands for the bytes if the mount says so.
//!
//! Before sharing, the bytes are compared, unless strong fingerprints are trusted (`verify=strong`). So a collision
//! of weak fingerprints costs one needless compare, and a wrong weak fingerprint costs a missed saving, never data.
//!
//! NV-Dedup (4.2, 5.1) uses CRC-32 or Fletcher-32 as weak and MD5, SHA-1 or SHA-256 as strong functions; DeEXT (IV-A)
//! a salted MD5. nvfold adds XXH3, which runs at memory speed, and BLAKE3. Vector code is chosen by the CPU at run
//! time. The functions of the papers are in builds with the feature `papers` alone: without it there is no value of
//! [`WeakFunction`] or [`StrongFunction`] for them, and a device whose index is made with one is refused
//! ([`Error::NotBuilt`](crate::Error::NotBuilt)).
//!
//! Values are stored on the device, so each function, its seed (0) and its truncation are part of the media format:
//! the tests pin them, and the number of the function is stored with the value.
//!
//! | file | contents |
//! |---|---|
//! | `weak` | weak fingerprints: 32 bits that find candidates |
//! | `strong` | strong fingerprints: 160 bits that can stand for the bytes |
//! | `papers` | the hash functions of the papers (feature `papers`) |
//! | `keys` | the weak fingerprints by which a device's index is searched, and those that read a part of a block |
//! | `domain` | sharing domains: whose data is shared with whose |

mod domain;
mod keys;
#[cfg(feature = "papers")]
mod papers;
mod strong;
mod weak;

pub(crate) use domain::{Domain, Domains};
pub(crate) use keys::{FIRST_KEY_MAX, Keys};
pub use strong::{Strong, StrongFunction};
pub use weak::{WeakFunction, weak, weak64};

/// The fingerprints of a piece of data, as far as they were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Weak fingerprint; without one the piece cannot be found.
    pub weak: Option<u32>,
    /// Strong fingerprint.
    pub strong: Option<Strong>,
}

impl Fingerprint {
    /// Computes the weak fingerprint of a piece, and the strong one if a function for it is given. A weak fingerprint
    /// that is a prefix of the strong one is not computed separately.
    pub fn of(piece: &[u8], weak: WeakFunction, strong: Option<StrongFunction>) -> Fingerprint {
        Fingerprint::by_keys(piece, weak.into(), strong)
    }

    /// Does the same with the first key as the weak fingerprint.
    pub(crate) fn by_keys(piece: &[u8], keys: Keys, strong: Option<StrongFunction>) -> Fingerprint {
        let strong = strong.map(|function| (function, function.of(piece)));
        let weak = match strong {
            Some((function, strong)) if keys.function().prefix_of() == Some(function) => weak::prefix(&strong),
            _ => keys.first(piece),
        };
        Fingerprint { weak: Some(weak), strong: strong.map(|(_, strong)| strong) }
    }

    /// Returns whether it holds no fingerprint.
    pub fn is_empty(&self) -> bool {
        self.weak.is_none() && self.strong.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a block in which every byte differs from its neighbours.
    fn block() -> Vec<u8> {
        (0..4096u32).map(|position| (position.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    /// Returns every function, with its value as bytes.
    fn functions() -> Vec<(&'static str, Box<dyn Fn(&[u8]) -> Vec<u8>>)> {
        let mut all: Vec<(&'static str, Box<dyn Fn(&[u8]) -> Vec<u8>>)> = Vec::new();
        for function in WeakFunction::ALL {
            all.push((function.name(), Box::new(move |data| function.of(data).to_le_bytes().to_vec())));
        }
        for function in StrongFunction::ALL {
            all.push((function.name(), Box::new(move |data| function.of(data).to_vec())));
        }
        all
    }

    #[test]
    fn one_changed_byte_changes_the_fingerprint() {
        for (name, of) in functions() {
            let mut block = block();
            let whole = of(&block);
            for position in 0..block.len() {
                block[position] ^= 1;
                assert_ne!(of(&block), whole, "{name}: byte {position} does not count");
                block[position] ^= 1;
            }
        }
    }

    #[test]
    fn fingerprints_do_not_depend_on_alignment() {
        for (name, of) in functions() {
            let expected = of(&block());
            for shift in 0..64 {
                let moved = [vec![0xee; shift], block()].concat();
                assert_eq!(of(&moved[shift..]), expected, "{name} at {shift}");
            }
        }
    }

    #[test]
    fn fingerprint_functions_survive_encoding_as_number_and_name() {
        for function in WeakFunction::ALL {
            assert_eq!(WeakFunction::from_number(function as u8), Some(function));
            assert_eq!(WeakFunction::from_name(function.name()), Some(function));
        }
        for function in StrongFunction::ALL {
            assert_eq!(StrongFunction::from_number(function as u8), Some(function));
            assert_eq!(StrongFunction::from_name(function.name()), Some(function));
        }
        assert_eq!(WeakFunction::from_number(WeakFunction::ALL.len() as u8), None);
        assert_eq!(StrongFunction::from_number(StrongFunction::ALL.len() as u8), None);
        assert_eq!((WeakFunction::from_name("md4"), StrongFunction::from_name("crc32")), (None, None));
    }
}
