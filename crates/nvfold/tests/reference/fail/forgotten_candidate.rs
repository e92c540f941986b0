//! What `share_candidate` returns may be a reference: it cannot be ignored.
#![deny(unused_must_use)]

use nvfold::custom_policy::{Transaction, ChunkRef};

fn warm_up(tx: &mut Transaction<'_>) {
    tx.share_candidate(7, ChunkRef::NONE);
}

fn main() {
    let _: fn(&mut Transaction<'_>) = warm_up;
}
