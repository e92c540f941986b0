//! Nor can the reference itself, once it is there for certain.
#![deny(unused_must_use)]

use nvfold::custom_policy::Transaction;
use nvfold::internals::media::BlockNumber;

fn warm_up(tx: &mut Transaction<'_>) {
    tx.share_known(BlockNumber(1)).expect("it was there a moment ago");
}

fn main() {
    let _: fn(&mut Transaction<'_>) = warm_up;
}
