//! Deduplication options (`policy=nv-dedup,weak=crc32,strong=md5,...`), for mounts and for commands that store data.

use crate::failure::{Doing, Failure, Outcome};
use crate::option_list::{Group, listed};
use crate::size;
use nvfold::{
    AutoOptions, Classes, Compression, DeExtOptions, DeNovaOptions, DedupMode, FileSystem, Generators, IndexKind,
    MethodChoice, MountOptions, NvDedupOptions, ORIGIN_BYTES_MIN_RANGE, Pack, Policy, Prefer, ReorderOptions,
    StrongFunction, Verify, WeakFunction,
};
use pmem::Region;

/// The options that people use, for help.
pub(crate) const GROUP: Group = Group {
    heading: "Sharing and compression",
    options: &[
        (
            "policy=NAME",
            "How equal data is found:\n\
             auto (default): off, inline, denova or deext for each directory, by costs that it measures and by the data \
             written there\n\
             off: everything is stored\n\
             inline: equal blocks of 4 KiB are shared while they are written\n\
             nv-dedup: the same, as far as it pays\n\
             denova: equal blocks are shared in the background, later\n\
             deext: compressible data is cut by its content, and the pieces are shared\n\
             icid, icid+inline, icid+deext: what programs copy is shared, and what the second policy finds",
        ),
        (
            "prefer=space|balanced|speed|wear",
            "What policy auto saves: space (default), space and time equally, time of writers, or bytes written to the \
             device",
        ),
        (
            "compress=off|lz4|zstd[:LEVEL]",
            "Compress the ends of files, and pieces of policy deext, if they are compressible. LEVEL is 1 to 22, default 3. \
             Default: off",
        ),
    ],
};

/// The options for experiments.
pub(crate) static RESEARCH_GROUPS: [Group; 5] = [
    Group {
        heading: "All policies",
        options: &[
            ("pack=auto|on|off", "Pack the ends of files that do not fill a block; auto packs where it pays"),
            ("generators=per-core|global", "Where transaction numbers come from"),
        ],
    },
    Group {
        heading: "Policies inline, nv-dedup and auto",
        options: &[
            (
                "weak=NAME",
                "Weak fingerprint: xxh3 (default), sample (like xxh3, but blocks are looked for by an eighth of their bytes \
                 first), crc32, fletcher32, md5, sha1, sha256, blake3. A pm index has its own",
            ),
            ("strong=NAME", "Strong fingerprint: md5, sha1, sha256, blake3 (default), or bytes for none"),
            (
                "verify=bytes|strong",
                "Before data is shared, compare its bytes (default), or trust equal strong fingerprints, as the papers do",
            ),
            (
                "method=NAME",
                "Method of policy nv-dedup: auto (by measured costs), paper (the paper's methods and thresholds), non, ws, \
                 str, wb",
            ),
            ("period=N", "Sampling period of policy nv-dedup, in chunks"),
        ],
    },
    Group {
        heading: "Policy denova",
        options: &[
            (
                "mode=MODE",
                "When it shares: inline (at once), immediate (as soon as anything is queued), or delayed:MS:ENTRIES (at most \
                 ENTRIES queue entries every MS milliseconds)",
            ),
            ("cpu=PERCENT", "Limit of its daemon, in percent of one processor"),
            ("guard=PERCENT", "Lift that limit while less than this part of the space is free"),
            (
                "reorder=REFERENCES:READS",
                "Sort a chain of the pm index after a search that read at least READS entries to find one with at least \
                 REFERENCES references; never: do not",
            ),
        ],
    },
    Group {
        heading: "Policies icid",
        options: &[(
            "origin_min=auto|BYTES",
            "The shortest run of bytes that is shared with the bytes that it was copied from: 64 as in the paper, at most 1M. \
             auto (default) goes by what writing and sharing cost on the device, and shares less while sharing makes the \
             store larger than its files",
        )],
    },
    Group {
        heading: "Policy deext",
        options: &[(
            "cut=auto|content|fixed",
            "Where it cuts: compressible data by its content, other data every 16 KiB (auto, the default); all data by its \
             content, which finds archives and model weights that an inserted byte has moved; or nothing by its content",
        )],
    },
];

/// Lists the options for the help of commands that store data without a mount.
pub(crate) fn help() -> String {
    format!("Options of the policies (-o NAME=VALUE,...):\n\n{}", listed([&GROUP]))
}

/// The deduplication options, parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DedupOptions {
    pub policy: Policy,
    /// Whether the ends of files are packed, under policies that store blocks.
    pub pack: Pack,
    /// How packed data is compressed.
    pub compression: Compression,
    /// How policy deext cuts data.
    pub cut: Classes,
    /// The function for weak fingerprints. `None`: the one that the device's index uses, or else the default.
    pub weak: Option<WeakFunction>,
    pub nv_dedup: NvDedupOptions,
    pub denova: DeNovaOptions,
    pub auto: AutoOptions,
    pub origin_bytes_min: Option<u64>,
    pub generators: Generators,
}

impl DedupOptions {
    /// Returns the defaults with this policy.
    pub(crate) fn of(policy: Policy) -> DedupOptions {
        DedupOptions { policy, ..DedupOptions::default() }
    }

    /// Parses one option; a later one overrides an earlier one. `None` if the option is not one of these, else
    /// whether its value is valid.
    pub(crate) fn take(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), String>> {
        let example = match name {
            "policy" | "dedup" => "inline",
            "prefer" => "space",
            "pack" => "auto",
            "compress" => "zstd",
            "cut" => "content",
            "weak" => "xxh3",
            "strong" => "blake3",
            "verify" => "bytes",
            "period" => "50000",
            "method" => "auto",
            "generators" => "per-core",
            "origin_min" => "64",
            "mode" => "delayed:750:20000",
            "cpu" => "25",
            "guard" => "5",
            "reorder" => "4:2",
            _ => return None,
        };
        Some(match value {
            Some(value) => self.set(name, value),
            None => Err(format!("it needs a value: {name}={example}")),
        })
    }

    /// Parses a list of options. Fails on an option that is not one of these.
    pub(crate) fn take_list(&mut self, list: &str) -> Result<(), String> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|option| {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            match self.take(name, value) {
                Some(taken) => taken.map_err(|why| format!("option {option}: {why}")),
                None => Err(format!("unknown option {name}; --help and --help-research list the options")),
            }
        })
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let (nv_dedup, denova) = (&mut self.nv_dedup, &mut self.denova);
        match name {
            "prefer" => self.auto.prefer = named(value, Prefer::from_name, &Prefer::ALL.map(Prefer::name))?,
            "pack" => self.pack = named(value, Pack::from_name, &Pack::ALL.map(Pack::name))?,
            "compress" => self.compression = parse_compression(value)?,
            "cut" => self.cut = named(value, Classes::from_name, &Classes::ALL.map(Classes::name))?,
            "weak" => self.weak = Some(parse_weak(value)?),
            "strong" if value == "bytes" => nv_dedup.strong = None,
            "strong" => {
                let names = StrongFunction::ALL.map(StrongFunction::name);
                let names: Vec<&str> = names.into_iter().chain(["bytes"]).collect();
                nv_dedup.strong = Some(named(value, StrongFunction::from_name, &names)?);
            }
            "verify" => nv_dedup.verify = named(value, verify, &["bytes", "strong"])?,
            "period" => {
                let period = value.parse().ok().filter(|period| *period > 0);
                nv_dedup.period = period.ok_or_else(|| "must be a number of chunks, 1 at least".to_owned())?;
            }
            "method" => nv_dedup.method = parse_method(value)?,
            "origin_min" => self.origin_bytes_min = parse_origin_bytes_min(value)?,
            "generators" => self.generators = named(value, generators, &["per-core", "global"])?,
            "mode" => denova.mode = parse_mode(value)?,
            "cpu" => denova.cpu_percent = percent(value, 1)?,
            "guard" => denova.guard_percent = percent(value, 0)?,
            "reorder" => denova.reorder = parse_reorder(value)?,
            _ => self.policy = parse_policy(value)?,
        }
        Ok(())
    }

    /// Fails if two options contradict each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.nv_dedup {
            NvDedupOptions { strong: None, verify: Verify::Strong, .. } => {
                Err("verify=strong needs a strong fingerprint, and strong=bytes makes none".into())
            }
            _ => Ok(()),
        }
    }

    /// Mounts a device with these options and those of `mount`. Fails if they do not fit the device.
    pub(crate) fn mount(&self, region: Region, mount: MountOptions, name: &str) -> Outcome<FileSystem> {
        let DedupOptions {
            policy,
            pack,
            compression,
            cut,
            weak,
            mut nv_dedup,
            denova,
            auto,
            origin_bytes_min,
            generators,
        } = self.clone();
        let (superblock, _) = nvfold::read_superblock(&region).doing(name)?;
        if let (Some(function), Some((IndexKind::Pm, own))) = (weak, superblock.index())
            && function != own
        {
            let (weak, own) = (function.name(), own.name());
            let why = format!("the pm index of this device uses {own}");
            let convert = match function.fits_pm_index() {
                true => format!("nvfold tune {name} --index pm --weak {weak}"),
                false => format!("nvfold tune {name} --index dram"),
            };
            return Err(Failure::usage(format!("{name}: weak={weak}"), why)
                .hint(format!("leave the option out, or convert the index: {convert}")));
        }
        nv_dedup.weak = weak.unwrap_or_default();
        let deext = DeExtOptions { classes: cut, ..mount.deext };
        let options = MountOptions {
            policy,
            pack,
            compression,
            nv_dedup,
            denova,
            deext,
            auto,
            origin_bytes_min,
            generators,
            ..mount
        };
        FileSystem::mount(region, options).doing(name)
    }
}

/// Parses a policy.
pub(crate) fn parse_policy(text: &str) -> Result<Policy, String> {
    Policy::named(text.as_bytes()).ok_or_else(|| format!("must be one of {}", Policy::names()))
}

/// Parses the shortest run that is shared with what it was copied from; `None` for auto.
fn parse_origin_bytes_min(text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let bytes = size::parse(text).ok().filter(|bytes| ORIGIN_BYTES_MIN_RANGE.contains(bytes));
    let (least, most) = (ORIGIN_BYTES_MIN_RANGE.start(), ORIGIN_BYTES_MIN_RANGE.end());
    bytes.map(Some).ok_or_else(|| format!("must be auto, or a number of bytes from {least} to {most}"))
}

/// Parses a compression and its level.
pub(crate) fn parse_compression(text: &str) -> Result<Compression, String> {
    Compression::named(text.as_bytes()).ok_or_else(|| format!("must be one of {}", Compression::NAMES))
}

/// Parses a function for weak fingerprints.
pub(crate) fn parse_weak(text: &str) -> Result<WeakFunction, String> {
    named(text, WeakFunction::from_name, &WeakFunction::ALL.map(WeakFunction::name))
}

/// Parses the kind of an index.
pub(crate) fn parse_index(text: &str) -> Result<IndexKind, String> {
    named(text, IndexKind::from_name, &IndexKind::ALL.map(IndexKind::name))
}

/// Parses when policy denova shares.
pub(crate) fn parse_mode(text: &str) -> Result<DedupMode, String> {
    named(text, DedupMode::parse, &["inline", "immediate", "delayed:MS:ENTRIES"])
}

/// Parses when a pm index reorders a chain.
fn parse_reorder(text: &str) -> Result<ReorderOptions, String> {
    if text == "never" {
        return Ok(ReorderOptions { reads: 0, ..ReorderOptions::default() });
    }
    let pair = text.split_once(':').and_then(|(references, reads)| {
        let (references, reads) = (references.parse().ok()?, reads.parse().ok()?);
        (references > 0 && reads > 0).then_some(ReorderOptions { references, reads })
    });
    pair.ok_or_else(|| "must be REFERENCES:READS, 1:1 at least, or never".to_owned())
}

fn percent(text: &str, least: u32) -> Result<u32, String> {
    let percent = text.parse().ok().filter(|percent| (least..=100).contains(percent));
    percent.ok_or_else(|| format!("must be a percentage from {least} to 100"))
}

/// Parses a method of policy nv-dedup, or the rule by which it is chosen.
pub(crate) fn parse_method(text: &str) -> Result<MethodChoice, String> {
    named(text, MethodChoice::from_name, &MethodChoice::ALL.map(MethodChoice::name))
}

fn verify(name: &str) -> Option<Verify> {
    match name {
        "bytes" => Some(Verify::Bytes),
        "strong" => Some(Verify::Strong),
        _ => None,
    }
}

fn generators(name: &str) -> Option<Generators> {
    match name {
        "per-core" => Some(Generators::PerCore),
        "global" => Some(Generators::Global),
        _ => None,
    }
}

fn named<T>(value: &str, from_name: impl Fn(&str) -> Option<T>, names: &[&str]) -> Result<T, String> {
    from_name(value).ok_or_else(|| format!("must be one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::Method;

    #[test]
    fn options_are_parsed() {
        let mut options = DedupOptions::default();
        let list = "policy=nv-dedup,weak=fletcher32,strong=sha1,verify=strong,period=1000,method=ws,generators=global";
        options.take_list(list).unwrap();
        let expected = NvDedupOptions {
            weak: WeakFunction::default(),
            strong: Some(StrongFunction::Sha1),
            verify: Verify::Strong,
            period: 1000,
            method: MethodChoice::Fixed(Method::WSFin),
            costs: None,
        };
        assert_eq!((options.policy, options.nv_dedup), (Policy::NvDedup, expected));
        assert_eq!(options.weak, Some(WeakFunction::Fletcher32));
        assert_eq!(options.generators, Generators::Global);
        options.take_list("strong=bytes,,verify=bytes,generators=per-core").unwrap();
        assert_eq!((options.nv_dedup.strong, options.nv_dedup.verify), (None, Verify::Bytes));
        assert_eq!(options.check(), Ok(()));
    }

    #[test]
    fn options_of_denova_are_parsed() {
        let mut options = DedupOptions::default();
        options.take_list("policy=denova,mode=delayed:750:20000,cpu=25,guard=0,reorder=8:3").unwrap();
        let expected = DeNovaOptions {
            mode: DedupMode::Delayed { interval_ms: 750, entries: 20000 },
            cpu_percent: 25,
            guard_percent: 0,
            reorder: ReorderOptions { references: 8, reads: 3 },
        };
        assert_eq!((options.policy, options.denova, options.weak), (Policy::DeNova, expected, None));
        options.take_list("mode=inline,reorder=never,weak=sha1").unwrap();
        assert_eq!((options.denova.mode, options.denova.reorder.reads), (DedupMode::Inline, 0));
        assert_eq!(options.weak, Some(WeakFunction::Sha1));
    }

    #[test]
    fn options_of_auto_are_parsed() {
        let mut options = DedupOptions::default();
        assert_eq!(options.auto.prefer, Prefer::Space);
        for prefer in Prefer::ALL {
            options.take_list(&format!("policy=auto,prefer={}", prefer.name())).unwrap();
            assert_eq!((options.policy, options.auto.prefer), (Policy::Auto, prefer));
        }
    }

    #[test]
    fn every_way_to_cut_can_be_chosen_by_name() {
        assert_eq!(DedupOptions::default().cut, Classes::Dual);
        for classes in Classes::ALL {
            let mut options = DedupOptions::default();
            options.take_list(&format!("policy=deext,cut={}", classes.name())).unwrap();
            assert_eq!(options.cut, classes);
        }
    }

    #[test]
    fn compression_is_parsed_with_its_level() {
        let read = |list: &str| {
            let mut options = DedupOptions::default();
            options.take_list(list).map(|()| options.compression)
        };
        assert_eq!(read("policy=deext"), Ok(Compression::Off));
        assert_eq!(read("compress=lz4"), Ok(Compression::Lz4));
        assert_eq!(read("compress=zstd"), Ok(Compression::Zstd(3)));
        assert_eq!(read("compress=zstd:19"), Ok(Compression::Zstd(19)));
        assert_eq!(
            read("compress=zstd:23"),
            Err("option compress=zstd:23: must be one of off, lz4, zstd, zstd:1 to zstd:22".into())
        );
        assert_eq!(read("compress"), Err("option compress: it needs a value: compress=zstd".into()));
    }

    #[test]
    fn every_function_and_method_can_be_chosen_by_name() {
        for function in WeakFunction::ALL {
            let mut options = DedupOptions::default();
            options.take_list(&format!("weak={}", function.name())).unwrap();
            assert_eq!(options.weak, Some(function));
        }
        for function in StrongFunction::ALL {
            let mut options = DedupOptions::default();
            options.take_list(&format!("strong={}", function.name())).unwrap();
            assert_eq!(options.nv_dedup.strong, Some(function));
        }
        for choice in MethodChoice::ALL {
            assert_eq!(parse_method(choice.name()), Ok(choice));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_the_valid_choices() {
        for (list, why) in [
            ("weak=md4", "must be one of xxh3, crc32, fletcher32, md5, sha1, sha256, blake3, sample"),
            ("strong=crc32", "must be one of md5, sha1, sha256, blake3, md5-salted, bytes"),
            ("prefer=money", "must be one of balanced, space, speed, wear"),
            ("prefer", "it needs a value: prefer=space"),
            ("cut=text", "must be one of auto, fixed, content"),
            ("cut", "it needs a value: cut=content"),
            ("verify=weak", "must be one of bytes, strong"),
            ("period=0", "must be a number of chunks, 1 at least"),
            ("period=-1", "must be a number of chunks, 1 at least"),
            ("method=fast", "must be one of auto, paper, non, ws, str, wb"),
            ("generators=many", "must be one of per-core, global"),
            ("weak", "it needs a value: weak=xxh3"),
            ("mode=now", "must be one of inline, immediate, delayed:MS:ENTRIES"),
            ("mode=delayed:0:5", "must be one of inline, immediate, delayed:MS:ENTRIES"),
            ("mode", "it needs a value: mode=delayed:750:20000"),
            ("cpu=0", "must be a percentage from 1 to 100"),
            ("cpu=101", "must be a percentage from 1 to 100"),
            ("guard=half", "must be a percentage from 0 to 100"),
            ("reorder=4", "must be REFERENCES:READS, 1:1 at least, or never"),
            ("reorder=4:0", "must be REFERENCES:READS, 1:1 at least, or never"),
        ] {
            assert_eq!(DedupOptions::default().take_list(list), Err(format!("option {list}: {why}")));
        }
        assert!(DedupOptions::default().take_list("size=1").unwrap_err().contains("unknown option size"));
        let mut options = DedupOptions::default();
        options.take_list("strong=bytes,verify=strong").unwrap();
        assert!(options.check().is_err());
    }
}
