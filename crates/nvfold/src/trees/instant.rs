//! An inode as it was at the instant of a copy: what operations have kept of it since, and the live inode for the rest.

use crate::inode::directory::Directory;
use crate::inode::extents::Extent;
use crate::inode::{Body, State};
use crate::media::BLOCK_BYTES;
use crate::store::pending::{KeptInode, KeptName, Then};
use crate::words::FileKind;
use pmem::Region;

/// The most extents, and the most blocks in them, that one step takes of a file.
const EXTENTS_STEP: usize = 1024;
const BLOCKS_STEP: u64 = 4096;

/// The two sources of an inode at the instant; at least one is there. The live one is locked.
#[derive(Clone, Copy)]
pub(super) struct At<'s> {
    pub(super) kind: FileKind,
    pub(super) live: Option<&'s State>,
    pub(super) kept: Option<&'s KeptInode>,
}

impl At<'_> {
    /// Returns what the inode was, apart from its extents or names.
    pub(super) fn then(&self, region: &Region) -> Option<Then> {
        let kept = self.kept.map(|kept| kept.then.clone());
        kept.or_else(|| Some(Then::of(self.kind, self.live?, region)))
    }

    /// Adds some of the file's extents from this offset on to `pieces`, in order. Returns the offset to go on at; `None`
    /// at the end of the file.
    pub(super) fn extents(&self, from: u64, pieces: &mut Vec<(u64, Extent)>) -> Option<u64> {
        let (mut at, mut blocks_left) = (from, BLOCKS_STEP);
        let ranges = self.kept.map_or(&[][..], |kept| &kept.ranges);
        let first = ranges.partition_point(|range| range.end <= from);
        let live = self.live.and_then(State::extents);
        // The live extents before each kept range, then what the range mapped; after the last one, live extents.
        for range in ranges[first..].iter().chain([&(u64::MAX..u64::MAX)]) {
            let start = range.start.max(at);
            let before = live.into_iter().flat_map(|live| live.within(at, start));
            let within = self.kept.into_iter().flat_map(|kept| kept.extents.within(start, range.end));
            for (offset, extent) in before.chain(within) {
                if pieces.len() >= EXTENTS_STEP || blocks_left == 0 {
                    return Some(offset);
                }
                let piece = first_blocks(extent, blocks_left);
                blocks_left -= piece.blocks().count;
                pieces.push((offset, piece));
                if piece.length < extent.length {
                    return Some(offset + piece.length);
                }
            }
            at = range.end;
        }
        None
    }

    /// Returns some of the directory's names with cookies after `cookie`, in their order, with their cookies.
    pub(super) fn names(&self, cookie: u64, most: usize, region: &Region) -> Vec<(u64, KeptName)> {
        let mut names: Vec<(u64, KeptName)> = Vec::new();
        if let Some(Body::Directory(directory)) = self.live.map(|live| &live.body) {
            names.extend(live_names(directory, cookie, self.kept, region).take(most));
        }
        let Some(kept) = self.kept else { return names };
        let all_live_end = if names.len() == most { names.last().map_or(0, |(last, _)| *last) } else { u64::MAX };
        let removed = kept.removed.range(cookie.saturating_add(1)..all_live_end);
        names.extend(removed.map(|(cookie, name)| (*cookie, name.clone())));
        names.sort_unstable_by_key(|(cookie, _)| *cookie);
        names.truncate(most);
        names
    }
}

fn live_names<'d>(
    directory: &'d Directory,
    cookie: u64,
    kept: Option<&KeptInode>,
    region: &'d Region,
) -> impl Iterator<Item = (u64, KeptName)> + 'd {
    let end = kept.map_or(u64::MAX, |kept| kept.cookies_end);
    let of_then = directory.listed_after(cookie).take_while(move |slot| slot.cookie < end);
    of_then.map(|slot| (slot.cookie, KeptName { name: slot.name(region), ino: slot.ino, kind: slot.kind() }))
}

/// Returns the part of an extent in its first blocks. The seam is on a block boundary of the media, so that both parts
/// together count as the whole does.
fn first_blocks(extent: Extent, blocks: u64) -> Extent {
    let Some(address) = extent.media_address() else { return extent };
    let end = (address / BLOCK_BYTES + blocks).saturating_mul(BLOCK_BYTES);
    Extent { length: extent.length.min(end - address), ..extent }
}
