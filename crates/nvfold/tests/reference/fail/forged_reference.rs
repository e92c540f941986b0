//! Only a transaction makes references.
#![deny(unused_must_use)]

use nvfold::chunk::reference::Reference;
use nvfold::dedup::Place;
use nvfold::media::ChunkRef;

fn main() {
    let _ = Place::Shared(Reference { chunk: ChunkRef::NONE });
}
