//! What a file's bytes are: a map of extents from file offsets to media addresses, byte-granular.

mod extents;

pub use extents::{Extent, Extents, Plan};
