//! Strong fingerprints: 160 bits that can stand for the bytes.

/// The length of a strong fingerprint in the chunk entry, in bytes.
pub(super) const STRONG_BYTES: usize = 20;

/// A strong fingerprint: the first 160 bits of the function's value, padded with zeros if it is shorter.
pub type Strong = [u8; STRONG_BYTES];

/// The function that computes strong fingerprints. Its number is stored in the chunk entry. All but BLAKE3 serve the
/// papers: a build has them with the feature `papers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StrongFunction {
    /// MD5, 128 bits: NV-Dedup's default. An attacker can forge collisions: never trust it for data of others.
    #[cfg(feature = "papers")]
    Md5 = 0,
    /// SHA-1. An attacker can forge collisions.
    #[cfg(feature = "papers")]
    Sha1 = 1,
    /// SHA-256.
    #[cfg(feature = "papers")]
    Sha256 = 2,
    /// BLAKE3.
    #[default]
    Blake3 = 3,
    /// MD5 with the prefix `MD5_SALT` (DeEXT IV-A). Known MD5 collisions do not collide in it, but an attacker can
    /// forge new ones.
    #[cfg(feature = "papers")]
    Md5Salted = 4,
}

/// Names on the command line, by number, of the functions of all builds.
const NAMES: [&str; 5] = ["md5", "sha1", "sha256", "blake3", "md5-salted"];

impl StrongFunction {
    /// The functions of this build, by number.
    #[cfg(not(feature = "papers"))]
    pub const ALL: [StrongFunction; 1] = [StrongFunction::Blake3];
    /// The functions of this build, by number.
    #[cfg(feature = "papers")]
    pub const ALL: [StrongFunction; 5] = [
        StrongFunction::Md5,
        StrongFunction::Sha1,
        StrongFunction::Sha256,
        StrongFunction::Blake3,
        StrongFunction::Md5Salted,
    ];

    /// Computes the strong fingerprint of a piece of data.
    pub fn of(self, block: &[u8]) -> Strong {
        match self {
            StrongFunction::Blake3 => first_bits(blake3::hash(block).as_bytes()),
            #[cfg(feature = "papers")]
            StrongFunction::Md5 => first_bits(&super::papers::md5(block)),
            #[cfg(feature = "papers")]
            StrongFunction::Sha1 => first_bits(&super::papers::sha1(block)),
            #[cfg(feature = "papers")]
            StrongFunction::Sha256 => first_bits(&super::papers::sha256(block)),
            #[cfg(feature = "papers")]
            StrongFunction::Md5Salted => first_bits(&super::papers::md5_salted(block)),
        }
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Returns the function with this name.
    pub fn from_name(name: &str) -> Option<StrongFunction> {
        StrongFunction::ALL.into_iter().find(|function| function.name() == name)
    }

    /// Returns the function with this number on the media, if this build has it.
    pub fn from_number(number: u8) -> Option<StrongFunction> {
        StrongFunction::ALL.into_iter().find(|function| *function as u8 == number)
    }

    /// True if this number on the media is that of a function, of this build or of another one.
    pub(crate) fn is_known(number: u8) -> bool {
        usize::from(number) < NAMES.len()
    }
}

fn first_bits(value: &[u8]) -> Strong {
    let mut strong = [0; STRONG_BYTES];
    let bytes = value.len().min(STRONG_BYTES);
    strong[..bytes].copy_from_slice(&value[..bytes]);
    strong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(strong: Strong) -> String {
        strong.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn fingerprint_values_in_the_media_format_never_change() {
        // Values of the empty text and of "abc": RFC 1321, FIPS 180, and BLAKE3's published vectors.
        let expected = [
            (
                StrongFunction::Md5,
                "d41d8cd98f00b204e9800998ecf8427e00000000",
                "900150983cd24fb0d6963f7d28e17f7200000000",
            ),
            (
                StrongFunction::Sha1,
                "da39a3ee5e6b4b0d3255bfef95601890afd80709",
                "a9993e364706816aba3e25717850c26c9cd0d89d",
            ),
            (
                StrongFunction::Sha256,
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4",
                "ba7816bf8f01cfea414140de5dae2223b00361a3",
            ),
            (
                StrongFunction::Blake3,
                "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9",
                "6437b3ac38465133ffb63b75273a8db548c55846",
            ),
            // Computed with Python's hashlib.
            (
                StrongFunction::Md5Salted,
                "9159617c7cb0f61899b01efdd42c4d7b00000000",
                "e526c2ff82413da73a61d596382976c000000000",
            ),
        ];
        for (function, empty, abc) in expected {
            assert_eq!(
                (hex(function.of(b"")).as_str(), hex(function.of(b"abc")).as_str()),
                (empty, abc),
                "{function:?}"
            );
        }
    }
}
