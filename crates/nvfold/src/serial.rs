//! How the types of statistics are serialized (feature `serde`). Scripts and dashboards read the field names, so they stay
//! when a field of the code is renamed.
//!
//! Policies, methods and kinds are strings, with their names on the command line.

/// Serializes a type as its name, and reads it back by `$named`.
macro_rules! by_name {
    ($($type:ty, $named:expr;)*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'_, str> as serde::Deserialize>::deserialize(from)?;
                $named(&name).ok_or_else(|| serde::de::Error::custom(format_args!("unknown name `{name}`")))
            }
        }
    )*};
}

pub(crate) use by_name;
