//! The same for a block that the policy has found by itself.
#![deny(unused_must_use)]

use nvfold::custom_policy::Transaction;
use nvfold::internals::media::BlockNumber;

fn warm_up(tx: &mut Transaction<'_>) {
    tx.share_known(BlockNumber(1));
}

fn main() {
    let _: fn(&mut Transaction<'_>) = warm_up;
}
