//! Cutting a request into pieces, where zeros are left out and a stream may continue.

use super::packed::ToPack;
use super::placer::Placer;
use crate::chunking::{ZeroRanges, is_zero, trailing_zeros, zero_runs};
use crate::dedup::stream::{CutPiece, Stream, Tail};
use crate::fingerprint::Fingerprint;
use smallvec::smallvec;
use std::ops::Range;

/// A request that was cut into pieces.
pub(crate) struct Cut<'d> {
    /// The stream, as it continues after this request.
    pub(crate) stream: Stream,
    /// The tail with which the first piece begins, if the stream continues.
    pub(crate) tail: Option<Tail>,
    /// The stream so far, if the request begins with a hole and does not continue it.
    pub(crate) ended: Option<Stream>,
    /// The pieces, in order. There may be holes between them.
    pub(crate) pieces: Vec<CutPiece<'d>>,
    pub(crate) fingerprints: Vec<Fingerprint>,
    /// Number of bytes that become holes.
    pub(crate) zero_bytes: u64,
}

impl<'d> Cut<'d> {
    /// Cuts what is written, and leaves out zeros.
    pub(crate) fn of_request(stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        let zeros: ZeroRanges = match &stream.tail {
            _ if policy.keeps_zeros() => ZeroRanges::new(),
            None if is_zero(data) => smallvec![0..data.len()],
            tail => zero_runs(data, tail.as_ref().map_or(0, |tail| trailing_zeros(&tail.bytes))),
        };
        Cut::around(&zeros, stream, data, policy)
    }

    /// Cuts all of some stored data.
    pub(crate) fn of_stored(stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        Cut::around(&[], stream, data, policy)
    }

    /// Cuts the data between these runs of zeros.
    fn around(zeros: &[Range<usize>], mut stream: Stream, data: &'d [u8], policy: Placer<'_>) -> Cut<'d> {
        let start = stream.end();
        let mut ended = None;
        if zeros.first().is_some_and(|first| first.start == 0) {
            let begun = stream.begun_at(start);
            ended = Some(std::mem::replace(&mut stream, begun));
        }
        let tail = stream.tail.take();
        let (mut pieces, mut at): (Vec<CutPiece<'_>>, usize) = (Vec::new(), 0);
        for zeros in zeros {
            pieces.extend(stream.cut(&data[at..zeros.start], tail.as_ref().filter(|_| at == 0)));
            if let Some(last) = pieces.last_mut() {
                last.is_whole = true;
            }
            at = zeros.end;
            stream = stream.begun_at(start + at as u64);
        }
        pieces.extend(stream.cut(&data[at..], tail.as_ref().filter(|_| at == 0)));
        // A stream that continued once will probably do so again, so its tail is not looked up before its piece is
        // complete.
        let grows = |piece: &CutPiece<'_>| !piece.is_whole && tail.is_some();
        let fingerprint = |piece: &CutPiece<'_>| match grows(piece) {
            true => Fingerprint::default(),
            false => policy.fingerprint(&piece.bytes),
        };
        let fingerprints = pieces.iter().map(fingerprint).collect();
        let zero_bytes = zeros.iter().map(|zeros| zeros.len() as u64).sum();
        Cut { stream, tail, ended, pieces, fingerprints, zero_bytes }
    }

    /// Returns the first `count` pieces, with their file offsets.
    pub(crate) fn first(&self, count: usize) -> Vec<(u64, ToPack<'_>)> {
        let pieces = self.pieces.iter().zip(&self.fingerprints).take(count);
        pieces.map(|(piece, fingerprint)| (piece.start, to_pack(piece, *fingerprint))).collect()
    }
}

pub(crate) fn to_pack<'p>(piece: &'p CutPiece<'_>, fingerprint: Fingerprint) -> ToPack<'p> {
    // A piece that will grow is not looked up: see `Cut::around`.
    let grows = fingerprint.is_empty();
    ToPack { bytes: &piece.bytes, pool: piece.pool(), class: piece.class(), fingerprint, grows }
}
