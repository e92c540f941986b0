//! Ending streams: a stream that nobody continues leaves a tail, which is indexed or replaced by an equal piece.

use super::Core;
use crate::dedup::stream::Stream;
use crate::dedup::{Piece, Place};
use crate::error::{Error, Offset, Result};
use crate::inode::Inode;
use crate::panics::Job;
use crate::store::claims::Claims;
use crate::store::if_there_is_room;
use crate::store::packed::whole_extent;
use crate::store::remap::{Remap, Stamp};
use crate::store::tails::names_tail;
use crate::words::FileId;

impl Core {
    /// Ends a stream: indexes its tail, or replaces it by an equal piece that is already stored.
    pub(crate) fn end_stream_of(&self, file: FileId, stream: Stream) -> Result<()> {
        match self.panics.contain(Job::EndStream, Some(file), || self.end_stream_now(file, stream)) {
            Err(Error::Panicked { .. }) => Ok(()),
            done => done,
        }
    }

    fn end_stream_now(&self, file: FileId, stream: Stream) -> Result<()> {
        let Some(tail) = stream.tail.filter(|tail| tail.is_growing) else { return Ok(()) };
        let Ok(Some(inode)) = self.inode_of(file) else { return Ok(()) };
        let policy = self.policy_for(&inode);
        let fingerprint = policy.fingerprint(&tail.bytes);
        let Ok(mut state) = inode.write() else { return Ok(()) };
        if policy.domain() != inode.domain() {
            // The owner has changed: the tail stays as it is.
            return Ok(());
        }
        if !names_tail(&state, &tail) || policy.streams().is_none() {
            return Ok(());
        }
        if !self.chunks.equal(tail.chunk, &tail.bytes) {
            // The file was closed, so the chunk number may have been reused.
            return Ok(());
        }
        let mut claims = Claims::with_policy(self, policy);
        let mut own = [Piece::new(&tail.bytes, fingerprint)];
        claims.place(&mut own);
        let [Piece { place, .. }] = own;
        let Place::Shared(reference) = place else {
            drop(claims);
            let at = (tail.start, whole_extent(tail.chunk, &tail.bytes));
            self.index_grown_chunk(&inode, &mut state, at, &fingerprint, policy);
            return Ok(());
        };
        let mapped = [(tail.start, whole_extent(claims.keep_packed(reference), &tail.bytes))];
        let range = tail.start..tail.start.after(tail.bytes.len() as u64)?;
        let remap = Remap::new(&range, &mapped, Stamp::Kept);
        if_there_is_room(self.publish(&inode, &mut *state, &remap, None, &mut claims))
    }

    /// Ends the streams of all files, for an unmount.
    pub(crate) fn end_streams(&self) {
        let Some(streams) = self.policies.streams() else { return };
        while let Some((file, stream)) = streams.take_any() {
            // A tail that cannot be shared now stays as it is; no data is lost.
            let _ = self.end_stream_of(file, stream);
        }
    }

    /// Ends the stream of a file that was closed.
    pub(crate) fn end_stream_of_file(&self, inode: &Inode) -> Result<()> {
        let file = inode.file_id();
        let stream = self.policies.streams().and_then(|streams| streams.take(file));
        stream.map_or(Ok(()), |stream| self.end_stream_of(file, stream))
    }
}
