//! The options that say how new data is shared: `policy=nv-dedup,weak=crc32,strong=md5,...`. Of a mount, and of
//! whatever else stores data.

use crate::device::parse_policy;
use nvfold::fingerprint::{StrongFunction, WeakFunction};
use nvfold::{Generators, MethodChoice, MountOptions, NvDedupOptions, Policy, Verify};

/// All of them, for messages and help.
pub const THERE_ARE: &str = "policy=off|inline|nv-dedup weak=xxh3|crc32|fletcher32 \
                             strong=md5|sha1|sha256|blake3|bytes verify=bytes|strong period=N \
                             method=auto|paper|non|ws|str|wb generators=per-core|global";

/// What the options say.
#[derive(Clone, Debug, Default)]
pub struct DedupOptions {
    pub policy: Policy,
    pub nv_dedup: NvDedupOptions,
    pub generators: Generators,
}

impl DedupOptions {
    /// A policy with nothing chosen.
    pub fn of(policy: Policy) -> DedupOptions {
        DedupOptions { policy, ..DedupOptions::default() }
    }

    /// Takes one option in; later ones win. `None` when it is none of these, else whether its value is right.
    pub fn take(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), String>> {
        let example = match name {
            "policy" | "dedup" => "inline",
            "weak" => "xxh3",
            "strong" => "blake3",
            "verify" => "bytes",
            "period" => "50000",
            "method" => "auto",
            "generators" => "per-core",
            _ => return None,
        };
        Some(match value {
            Some(value) => self.set(name, value),
            None => Err(format!("it needs a value: {name}={example}")),
        })
    }

    /// Takes a list of options in, none of which may be any other.
    pub fn take_list(&mut self, list: &str) -> Result<(), String> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|option| {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            self.take(name, value).unwrap_or_else(|| Err(format!("unknown option {name}; there are {THERE_ARE}")))
        })
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let nv_dedup = &mut self.nv_dedup;
        match name {
            "weak" => {
                nv_dedup.weak = named(value, WeakFunction::from_name, &WeakFunction::ALL.map(WeakFunction::name))?
            }
            "strong" if value == "bytes" => nv_dedup.strong = None,
            "strong" => {
                let names = StrongFunction::ALL.map(StrongFunction::name);
                let names: Vec<&str> = names.into_iter().chain(["bytes"]).collect();
                nv_dedup.strong = Some(named(value, StrongFunction::from_name, &names)?);
            }
            "verify" => nv_dedup.verify = named(value, verify, &["bytes", "strong"])?,
            "period" => {
                let period = value.parse().ok().filter(|period| *period > 0);
                nv_dedup.period = period.ok_or_else(|| format!("`{value}` is not a number of chunks, 1 at least"))?;
            }
            "method" => nv_dedup.method = parse_method(value)?,
            "generators" => self.generators = named(value, generators, &["per-core", "global"])?,
            _ => self.policy = parse_policy(value)?,
        }
        Ok(())
    }

    /// Whether the options go together.
    pub fn check(&self) -> Result<(), String> {
        match self.nv_dedup {
            NvDedupOptions { strong: None, verify: Verify::Strong, .. } => {
                Err("verify=strong needs a strong fingerprint, and strong=bytes makes none".into())
            }
            _ => Ok(()),
        }
    }

    /// `mount` with these options in it.
    pub fn put_into(&self, mount: MountOptions) -> MountOptions {
        let DedupOptions { policy, nv_dedup, generators } = self.clone();
        MountOptions { policy, nv_dedup, generators, ..mount }
    }
}

/// Reads who chooses the method of policy nv-dedup.
pub fn parse_method(text: &str) -> Result<MethodChoice, String> {
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
    from_name(value).ok_or_else(|| format!("`{value}` is none of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::Method;

    #[test]
    fn options_are_read() {
        let mut options = DedupOptions::default();
        let list = "policy=nv-dedup,weak=fletcher32,strong=sha1,verify=strong,period=1000,method=ws,generators=global";
        options.take_list(list).unwrap();
        let expected = NvDedupOptions {
            weak: WeakFunction::Fletcher32,
            strong: Some(StrongFunction::Sha1),
            verify: Verify::Strong,
            period: 1000,
            method: MethodChoice::Fixed(Method::WSFin),
            costs: None,
        };
        assert_eq!((options.policy, options.nv_dedup), (Policy::NvDedup, expected));
        assert_eq!(options.generators, Generators::Global);
        options.take_list("strong=bytes,,verify=bytes,generators=per-core").unwrap();
        assert_eq!((options.nv_dedup.strong, options.nv_dedup.verify), (None, Verify::Bytes));
        assert_eq!(options.check(), Ok(()));
    }

    #[test]
    fn every_function_and_method_can_be_named() {
        for function in WeakFunction::ALL {
            let mut options = DedupOptions::default();
            options.take_list(&format!("weak={}", function.name())).unwrap();
            assert_eq!(options.nv_dedup.weak, function);
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
    fn wrong_options_are_refused_with_what_there_is() {
        for (list, why) in [
            ("weak=md5", "`md5` is none of xxh3, crc32, fletcher32"),
            ("strong=crc32", "`crc32` is none of md5, sha1, sha256, blake3, bytes"),
            ("verify=weak", "`weak` is none of bytes, strong"),
            ("period=0", "`0` is not a number of chunks, 1 at least"),
            ("period=-1", "`-1` is not a number of chunks, 1 at least"),
            ("method=fast", "`fast` is none of auto, paper, non, ws, str, wb"),
            ("generators=many", "`many` is none of per-core, global"),
            ("weak", "it needs a value: weak=xxh3"),
        ] {
            assert_eq!(DedupOptions::default().take_list(list), Err(why.to_owned()));
        }
        assert!(DedupOptions::default().take_list("size=1").unwrap_err().contains("unknown option size"));
        let mut options = DedupOptions::default();
        options.take_list("strong=bytes,verify=strong").unwrap();
        assert!(options.check().is_err());
    }
}
