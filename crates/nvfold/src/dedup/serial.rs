//! How the statistics of policies are serialized (feature `serde`). Sums by policy or method are maps from its name.

use super::auto::options::{Prefer, Reason};
use super::denova::options::DedupMode;
use super::nv_dedup::options::{Method, MethodChoice};
use super::policy::{Policy, PolicyStats};
use crate::serial::by_name;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

by_name! {
    Policy, |name: &str| Policy::named(name.as_bytes());
    Method, |name: &str| Method::ALL.into_iter().find(|method| method.name() == name);
    MethodChoice, MethodChoice::from_name;
    Prefer, Prefer::from_name;
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
