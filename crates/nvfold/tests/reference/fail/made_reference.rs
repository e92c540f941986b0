//! Nor does its constructor, nor what takes the number out, leave the crate.
#![deny(unused_must_use)]

use nvfold::custom_policy::{Reference, Transaction, ChunkRef};
use nvfold::internals::media::BlockNumber;

fn place(tx: &mut Transaction<'_>) -> Option<BlockNumber> {
    Some(tx.share_known(BlockNumber(1))?.take())
}

fn main() {
    let _: fn(&mut Transaction<'_>) -> Option<BlockNumber> = place;
    let _ = Reference::new(ChunkRef::NONE);
}
