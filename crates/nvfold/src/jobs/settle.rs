//! Packing the ends of files that grew and rest now ([`crate::store::ends`]).

use super::Jobs;
use crate::error::{Error, Result};
use crate::inode::{Growth, Inode, State};
use crate::media::BLOCK_BYTES;
use crate::panics::Job;
use crate::store::claims::Claims;
use crate::store::ends::RESTS_AFTER;
use crate::store::remap::{Mapped, Remap, Stamp};
use crate::store::zeros::becomes_hole;
use crate::words::{FileId, TimeNs};

/// Which ends are settled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settle {
    All,
    /// Those that become packed chunks.
    Packed,
}

impl Jobs<'_> {
    /// Looks at the next file whose end may rest. Returns true if there is none now.
    ///
    /// # Errors
    /// EROFS; errors of the device.
    pub(crate) fn settle_step(&self) -> Result<bool> {
        let Some(file) = self.growing.take(self.now()) else { return Ok(true) };
        self.in_background("pack the end of a file", Job::PackEnd, || {
            self.leaving_out(
                self.panics.contain(Job::PackEnd, Some(file), || self.settle(file, self.now(), Settle::All)),
            )?;
            Ok(false)
        })
    }

    /// Packs all ends that can be packed, for an unmount. An end in a block stays as it is, so that no total of mapped
    /// bytes changes.
    pub(crate) fn settle_all(&self) {
        while let Some(file) = self.growing.take(TimeNs::MAX) {
            let settle = || self.settle(file, TimeNs::MAX, Settle::Packed);
            let _ = self.leaving_out(self.panics.contain(Job::PackEnd, Some(file), settle));
        }
    }

    /// Packs the end of a file that has not been written to lately, or stores it so that equal ones can be found.
    fn settle(&self, file: FileId, now: TimeNs, what: Settle) -> Result<()> {
        let Some(inode) = self.inode_of(file)? else { return Ok(()) };
        let mut state = inode.write()?;
        if !state.growth.grows {
            return Ok(());
        }
        if state.attributes.mtime.saturating_add(RESTS_AFTER) > now {
            self.growing.add(file, now.saturating_add(RESTS_AFTER));
            return Ok(());
        }
        state.growth = Growth { grows: false, has_rested: true };
        match self.store_resting_end(&inode, &mut state, what) {
            Err(Error::NoSpace { .. }) => Ok(()),
            stored => stored,
        }
    }

    fn store_resting_end(&self, inode: &Inode, state: &mut State, what: Settle) -> Result<()> {
        let (policy, size) = (self.policy_for(inode), state.attributes.size);
        let extents = self.file_extents(state, "pack")?;
        let start = size / BLOCK_BYTES * BLOCK_BYTES;
        let is_packed = size - start <= self.packed_ends_max && !extents.has_unwritten();
        let is_found = what == Settle::All && !policy.stores_everything();
        if policy.streams().is_some() || !(is_packed || is_found) || self.end_that_grows(extents, start, size).is_none()
        {
            return Ok(());
        }
        let mut bytes = vec![0; (size - start) as usize];
        self.read_extents(extents, start, &mut bytes)?;
        self.region.check()?;
        if becomes_hole(policy, &bytes) {
            return Ok(());
        }
        let (mut mapped, mut claims) =
            (Mapped::new(), Claims::with_compression(self, policy, self.compression_for(inode)));
        match what {
            Settle::All => self.place_part(extents, start, &bytes, size, &mut mapped, &mut claims)?,
            Settle::Packed => self.pack_end(extents, start, &bytes, size, &mut mapped, &mut claims)?,
        }
        if claims.lacks_fingerprints() {
            self.notify_unfingerprinted(inode, &mut claims);
        }
        let range = start..mapped.last().map_or(start, |(at, extent)| at + extent.length);
        self.publish(inode, state, &Remap::new(&range, &mapped, Stamp::Kept), None, &mut claims)
    }
}
