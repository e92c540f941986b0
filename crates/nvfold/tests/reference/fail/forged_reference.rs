//! Only a transaction makes references.
#![deny(unused_must_use)]

use nvfold::custom_policy::{Reference, Place, ChunkRef};

fn main() {
    let _ = Place::Shared(Reference { chunk: ChunkRef::NONE });
}
