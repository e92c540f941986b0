//! What a device is opened with: a list in one string, with the words that `nvfold mount -o` and `nvfold mkfs` have.
//!
//! A string, because a structure of C could not grow without breaking programs, and `ICID_OPTIONS` is one anyway.
#![forbid(unsafe_code)]

use crate::failure::{Failure, Outcome};
use nvfold::{Classes, Compression, DedupMode, IndexKind, ORIGIN_BYTES_MIN_RANGE, Pack, Policy, Prefer};
use pmem::Profile;

const SYNTAX: &str = "ro create format size=SIZE label=NAME index=dram|pm policy=NAME \
                         prefer=balanced|space|speed|wear origins=auto|on|off origin_min=auto|BYTES pack=auto|on|off \
                         compress=off|lz4|zstd[:LEVEL] cut=auto|content|fixed \
                         mode=immediate|inline|delayed:MS:ENTRIES threads=N discard nodiscard profile=NAME";

/// Threads that write at once, where nothing is said.
const THREADS: usize = 4;
const THREADS_MAX: usize = 256;

/// The options as they are understood.
#[derive(Clone, Debug)]
pub struct Options {
    pub read_only: bool,
    /// Make and format it when there is none.
    pub create: bool,
    /// Format it, whatever it holds.
    pub format: bool,
    pub size_bytes: Option<u64>,
    pub label: String,
    pub index: IndexKind,
    pub policy: Policy,
    /// Follow where bytes were copied from; `None`: if the policy does.
    pub origins: Option<bool>,
    /// The shortest run that is shared with what it was copied from; `None`: by what the device costs.
    pub origin_bytes_min: Option<u64>,
    /// What policy `auto` saves.
    pub prefer: Prefer,
    pub pack: Pack,
    pub compression: Compression,
    /// How policy `deext` cuts data.
    pub cut: Classes,
    pub mode: DedupMode,
    pub threads: usize,
    pub discard: Option<bool>,
    pub profile: Profile,
    /// Least number of the descriptor that holds the device; no word of the list.
    pub descriptor_min: i32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            create: false,
            format: false,
            size_bytes: None,
            label: String::new(),
            index: IndexKind::default(),
            policy: Policy::default(),
            origins: None,
            origin_bytes_min: None,
            prefer: Prefer::default(),
            pack: Pack::default(),
            compression: Compression::default(),
            cut: Classes::default(),
            mode: nvfold::DeNovaOptions::default().mode,
            threads: THREADS,
            discard: None,
            profile: Profile::default(),
            descriptor_min: 0,
        }
    }
}

impl Options {
    /// Reads a list; of two that contradict each other the later one counts.
    pub fn parse(list: &[u8]) -> Outcome<Options> {
        let list = std::str::from_utf8(list).map_err(|_| Failure::invalid("the options are not UTF-8"))?;
        let mut options = Options::default();
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let why = |why: String| Failure::invalid(format!("option {option}: {why}; there are: {SYNTAX}"));
            options.take(option).map_err(why)?;
        }
        if options.read_only && (options.create || options.format) {
            return Err(Failure::invalid("option ro: a device that is only read can neither be made nor be formatted"));
        }
        Ok(options)
    }

    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let Some(value) = value else {
            match name {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "create" => self.create = true,
                "format" => self.format = true,
                "discard" => self.discard = Some(true),
                "nodiscard" => self.discard = Some(false),
                _ => return Err("unknown, or without its value".into()),
            }
            return Ok(());
        };
        match name {
            "size" => self.size_bytes = Some(parse_size(value)?),
            "label" => self.label = value.to_owned(),
            "index" => self.index = IndexKind::from_name(value).ok_or("not an index")?,
            "policy" => {
                let unknown = || format!("`{value}` is none of {}", Policy::names());
                self.policy = Policy::named(value.as_bytes()).ok_or_else(unknown)?;
            }
            "origins" => {
                self.origins = match value {
                    "auto" => None,
                    "on" => Some(true),
                    "off" => Some(false),
                    _ => return Err("neither auto nor on nor off".into()),
                }
            }
            "origin_min" => {
                self.origin_bytes_min = match value {
                    "auto" => None,
                    bytes => Some(parse_origin_bytes_min(bytes)?),
                }
            }
            "prefer" => self.prefer = Prefer::from_name(value).ok_or("none of balanced, space, speed, wear")?,
            "pack" => self.pack = Pack::from_name(value).ok_or("neither auto nor on nor off")?,
            "compress" => self.compression = Compression::named(value.as_bytes()).ok_or("not a compression")?,
            "cut" => self.cut = Classes::from_name(value).ok_or("none of auto, content, fixed")?,
            "mode" => self.mode = DedupMode::parse(value).ok_or("not a mode")?,
            "threads" => {
                let threads = value.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
                self.threads = threads.ok_or_else(|| format!("not a number from 1 to {THREADS_MAX}"))?;
            }
            "profile" => self.profile = value.parse::<Profile>().map_err(|error| error.to_string())?,
            _ => return Err("unknown".into()),
        }
        Ok(())
    }
}

fn parse_origin_bytes_min(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).ok().filter(|bytes| ORIGIN_BYTES_MIN_RANGE.contains(bytes));
    let (least, most) = (ORIGIN_BYTES_MIN_RANGE.start(), ORIGIN_BYTES_MIN_RANGE.end());
    bytes.ok_or_else(|| format!("neither auto nor a number of bytes from {least} to {most}"))
}

/// Bytes, with K, M, G or T (KiB, ...) for powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err("not a size such as 4096, 64M or 1G".into()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "not a size such as 4096, 64M or 1G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_a_later_one_overrides_an_earlier_one() {
        let options = Options::parse(b"size=1M, size=64MiB,create,policy=off,,threads=7,index=pm,nodiscard").unwrap();
        assert_eq!((options.size_bytes, options.create, options.format), (Some(64 << 20), true, false));
        assert_eq!((options.policy, options.threads, options.index), (Policy::Off, 7, IndexKind::Pm));
        assert_eq!((options.discard, options.origin_bytes_min), (Some(false), None));
        let of = |list: &[u8]| Options::parse(list).unwrap().origin_bytes_min;
        assert_eq!([of(b"origin_min=4K"), of(b"origin_min=64,origin_min=auto")], [Some(4096), None]);
    }

    #[test]
    fn wrong_options_give_einval_and_a_message() {
        for list in [
            "size",
            "size=",
            "size=x",
            "size=1X",
            "size=99999999T",
            "policy=all",
            "policy",
            "bogus",
            "bogus=1",
            "ro=1",
            "threads=0",
            "threads=257",
            "pack=maybe",
            "compress=rar",
            "mode=later",
            "origin_min=63",
            "origin_min=2M",
            "origin_min=much",
            "profile=floppy",
            "ro,create",
        ] {
            let failure = Options::parse(list.as_bytes()).unwrap_err();
            assert_eq!(failure.errno, libc::EINVAL, "{list}");
            assert!(failure.message.starts_with("option "), "{}", failure.message);
        }
        assert_eq!(Options::parse(b"size=\xff").unwrap_err().errno, libc::EINVAL);
    }
}
