//! How statistics are serialized (feature `serde`). Scripts and dashboards read the field names, so they stay when a field
//! of the code is renamed.
//!
//! Policies, methods, modes and functions are strings, with their names on the command line. Sums by policy or method
//! are maps from such a name.

use crate::dedup::auto::options::{Prefer, Reason};
use crate::dedup::denova::options::DedupMode;
use crate::dedup::nv_dedup::options::{Method, MethodChoice};
use crate::dedup::policy::Policy;
use crate::fingerprint::WeakFunction;
use crate::words::IndexKind;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Serializes a type as its name, and reads it back by `$named`.
macro_rules! by_name {
    ($($type:ty, $named:expr;)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let name = Cow::<str>::deserialize(from)?;
                $named(&name).ok_or_else(|| D::Error::custom(format_args!("unknown name `{name}`")))
            }
        }
    )*};
}

by_name! {
    Policy, |name: &str| Policy::named(name.as_bytes());
    Method, |name: &str| Method::ALL.into_iter().find(|method| method.name() == name);
    MethodChoice, MethodChoice::from_name;
    Prefer, Prefer::from_name;
    IndexKind, IndexKind::from_name;
    WeakFunction, WeakFunction::from_name;
}

impl Serialize for DedupMode {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DedupMode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        DedupMode::parse(&text).ok_or_else(|| D::Error::custom(format_args!("unknown mode `{text}`")))
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        Reason::parse(&text).ok_or_else(|| D::Error::custom(format_args!("unknown reason `{text}`")))
    }
}

/// The pieces of each method: a map from its name.
pub(crate) mod pieces_by_method {
    use super::*;
    use std::collections::BTreeMap;

    type Pieces = [u64; Method::ALL.len()];

    pub(crate) fn serialize<S: Serializer>(pieces: &Pieces, out: S) -> Result<S::Ok, S::Error> {
        let by_name: BTreeMap<&str, u64> = Method::ALL.map(|method| (method.name(), pieces[method as usize])).into();
        by_name.serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Pieces, D::Error> {
        let by_name = BTreeMap::<String, u64>::deserialize(from)?;
        Ok(Method::ALL.map(|method| by_name.get(method.name()).copied().unwrap_or_default()))
    }
}

/// The counters of each policy: a map from its name.
pub(crate) mod by_policy {
    use super::*;
    use crate::dedup::policy::PolicyStats;
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S: Serializer>(stats: &[PolicyStats], out: S) -> Result<S::Ok, S::Error> {
        let by_name: BTreeMap<&str, &PolicyStats> = stats.iter().map(|of| (of.policy.name(), of)).collect();
        by_name.serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PolicyStats>, D::Error> {
        let by_name = BTreeMap::<String, PolicyStats>::deserialize(from)?;
        let of = |(name, stats): (String, PolicyStats)| {
            let policy = Policy::named(name.as_bytes());
            let policy = policy.ok_or_else(|| D::Error::custom(format_args!("unknown policy `{name}`")))?;
            Ok(PolicyStats { policy, ..stats })
        };
        by_name.into_iter().map(of).collect()
    }
}

/// A histogram of waiting times: a list of classes.
pub(crate) mod wait_classes {
    use super::*;

    #[derive(Deserialize, Serialize)]
    struct Class {
        up_to_ns: u64,
        entries: u64,
    }

    pub(crate) fn serialize<S: Serializer>(histogram: &[(u64, u64)], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(histogram.iter().map(|(up_to_ns, entries)| Class { up_to_ns: *up_to_ns, entries: *entries }))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u64, u64)>, D::Error> {
        let classes = Vec::<Class>::deserialize(from)?;
        Ok(classes.into_iter().map(|class| (class.up_to_ns, class.entries)).collect())
    }
}

/// The two figures of the index that stand among the sizes.
pub(crate) mod index_sizes {
    use super::*;
    use crate::words::IndexStats;

    #[derive(Default, Deserialize, Serialize)]
    #[serde(default)]
    struct Sizes {
        index_entries: u64,
        index_dram_bytes: u64,
    }

    pub(crate) fn serialize<S: Serializer>(index: &IndexStats, out: S) -> Result<S::Ok, S::Error> {
        Sizes { index_entries: index.entries, index_dram_bytes: index.dram_bytes }.serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IndexStats, D::Error> {
        let Sizes { index_entries: entries, index_dram_bytes: dram_bytes } = Sizes::deserialize(from)?;
        Ok(IndexStats { entries, dram_bytes, ..IndexStats::default() })
    }
}
