//! A reference that is published is used up: it cannot be given back too.
#![deny(unused_must_use)]

use nvfold::chunk::transaction::Transaction;
use nvfold::dedup::{Piece, Place};
use nvfold::media::BlockNumber;

fn place(piece: &mut Piece<'_>, tx: &mut Transaction<'_>) {
    if let Some(reference) = tx.share_known(BlockNumber(1)) {
        piece.place = Place::Shared(reference);
        tx.give_back(reference);
    }
}

fn main() {
    let _: fn(&mut Piece<'_>, &mut Transaction<'_>) = place;
}
