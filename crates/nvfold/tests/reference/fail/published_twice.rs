//! One reference is for one extent: two pieces need two.
#![deny(unused_must_use)]

use nvfold::custom_policy::{Transaction, Piece, Place};
use nvfold::internals::media::BlockNumber;

fn place(pieces: &mut [Piece<'_>; 2], tx: &mut Transaction<'_>) {
    if let Some(reference) = tx.share_known(BlockNumber(1)) {
        pieces[0].place = Place::Shared(reference);
        pieces[1].place = Place::Shared(reference);
    }
}

fn main() {
    let _: fn(&mut [Piece<'_>; 2], &mut Transaction<'_>) = place;
}
