//! Nobody makes two references of one.
#![deny(unused_must_use)]

use nvfold::custom_policy::{Transaction, Piece, Place};
use nvfold::internals::media::BlockNumber;

fn place(piece: &mut Piece<'_>, tx: &mut Transaction<'_>) {
    if let Some(reference) = tx.share_known(BlockNumber(1)) {
        piece.place = Place::Shared(reference.clone());
        tx.give_back(reference);
    }
}

fn main() {
    let _: fn(&mut Piece<'_>, &mut Transaction<'_>) = place;
}
