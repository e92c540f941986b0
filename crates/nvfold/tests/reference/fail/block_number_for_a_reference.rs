//! A block's number does not say that its count was raised.
#![deny(unused_must_use)]

use nvfold::custom_policy::Place;
use nvfold::internals::media::BlockNumber;

fn main() {
    let _ = Place::Shared(BlockNumber(1));
}
