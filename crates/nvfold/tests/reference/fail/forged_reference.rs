//! Only a transaction makes references.
#![deny(unused_must_use)]

use nvfold::chunk::reference::Reference;
use nvfold::dedup::Place;
use nvfold::media::BlockNumber;

fn main() {
    let _ = Place::Shared(Reference { block: BlockNumber(1) });
}
