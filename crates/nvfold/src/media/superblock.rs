//! The superblock: the identity of the device and the offsets of its tables. There are three copies, and each is
//! written only after the one before is durable, so at most one copy is torn at any time.
//!
//! Two copies are adjacent at the front, where one stray write can destroy both; the third is the last block of the
//! device. Devices that were formatted without it have [`LAST_COPY`] clear, and data in their last block.

use super::zone::{ZONES_MAX, Zone, Zones};
use super::{BLOCK_BYTES, BlockNumber, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::fingerprint::WeakFunction;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::direct::prefix_bits;
use crate::media::generator::{GENERATORS, Generator};
use crate::media::inode::INODE_BYTES;
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot};
use crate::media::segment::SegmentEntry;
use crate::words::IndexKind;
use std::fmt;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First eight bytes of an nvfold device.
pub(crate) const MAGIC: [u8; 8] = *b"NVFOLD\0\x01";
/// Format version that this code writes; it refuses all others.
pub const VERSION: u32 = 3;
/// Device offsets of the two copies that every device has. [`Geometry::copies`] includes the third.
pub const COPIES: [u64; 2] = [0, BLOCK_BYTES];
/// Feature flags that this code understands; an unknown one in `incompatible` refuses the mount.
pub(crate) const KNOWN_INCOMPATIBLE: u64 = PM_INDEX
    | VECTOR_ENTRIES
    | PACKED_CHUNKS
    | LOG_AREAS
    | COMPRESSED_CHUNKS
    | TABLE_GAPS
    | OWNER_DOMAINS
    | TREES
    | LIMITS
    | ZONES;
/// Incompatible feature: entries are found through a pm index, which every change of entries must maintain.
pub(crate) const PM_INDEX: u64 = 1;
/// Incompatible feature: logs of files may hold vector entries. Set when the first one is written.
pub const VECTOR_ENTRIES: u64 = 2;
/// Incompatible feature: extents may reference packed chunks. Set when the first one is stored.
pub const PACKED_CHUNKS: u64 = 4;
/// Incompatible feature: logs may continue in slots of the inode table ([`super::log_area`]). Set before the first
/// one does.
pub const LOG_AREAS: u64 = 8;
/// Incompatible feature: packed chunks may be compressed. Set before the first one is stored.
pub const COMPRESSED_CHUNKS: u64 = 16;
/// Incompatible feature: parts of the inode table may be absent. Set before the first one is given back that has a part
/// after it.
pub const TABLE_GAPS: u64 = 32;
/// Incompatible feature: weak fingerprints may be in the domain of an owner, salted with `share_secret`. Set with the
/// secret, by the first mount that shares by owner.
pub(crate) const OWNER_DOMAINS: u64 = 64;
/// Incompatible feature: a directory that no name leads to may have names, if its link count is 0 or its parents lead up
/// to such a one: the tree below is being made or removed. Set before the first one is left without a name.
pub const TREES: u64 = 128;
/// Incompatible feature: directories may have limits, and inodes the number of the limited tree that they are charged to
/// ([`super::limits`]). Set before the first limits are.
pub const LIMITS: u64 = 256;
/// Incompatible feature: the device was made longer, and has further zones ([`super::zone`]). Set with the first one.
pub const ZONES: u64 = 512;
/// Feature flags that only writers must understand.
pub(crate) const KNOWN_READ_ONLY_COMPATIBLE: u64 = LAST_COPY;
/// Read-only compatible feature: the last block of the device is the third copy of the superblock. It must not be
/// used for anything else, and is updated after the other copies.
pub const LAST_COPY: u64 = 1;

/// Value of `state`: cleanly unmounted.
pub const STATE_CLEAN: u32 = 1;
/// Value of `state`: mounted, or crashed while mounted.
pub const STATE_IN_USE: u32 = 2;
/// Value of `state`: a repair has begun and not ended. Only a repair may write.
pub const STATE_REPAIR: u32 = 3;

/// One copy of the superblock.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// CRC-32C of the 512 bytes with this field zero.
    pub check: u32,
    /// Features that a reader must know.
    pub incompatible: u64,
    /// Features that a writer must know.
    pub read_only_compatible: u64,
    /// Features that may be ignored.
    pub compatible: u64,
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Name of the file system, zero padded.
    pub label: [u8; 32],
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// Offset of the recovery journal.
    pub journal_offset: u64,
    /// Offset of the segment table.
    pub segment_table_offset: u64,
    /// Offset of the chunk table.
    pub chunk_table_offset: u64,
    /// Offset of the first segment after the tables.
    pub data_offset: u64,
    /// 4096.
    pub block_bytes: u32,
    /// 2 MiB.
    pub segment_bytes: u32,
    /// 512.
    pub inode_bytes: u32,
    /// Number of the [`IndexKind`]; [`PM_INDEX`] is set with the pm index.
    pub index_kind: u32,
    /// Number of read-write mounts so far.
    pub mount_epoch: u64,
    /// [`STATE_CLEAN`], [`STATE_IN_USE`] or [`STATE_REPAIR`].
    pub state: u32,
    /// pm index: number of the function of its weak fingerprints.
    pub index_function: u32,
    /// Time of the format, ns.
    pub created: i64,
    /// Time of the last read-write mount, ns.
    pub mounted: i64,
    /// Media address of the [`super::saved_state::SavedState`] that the last unmount left, or 0.
    pub saved_state: u64,
    /// Offset of the TX_ID generators.
    pub generators_offset: u64,
    /// With [`OWNER_DOMAINS`]: the secret that sets the domains of owners apart.
    pub share_secret: [u8; 16],
    /// With [`ZONES`]: for each zone after the first, the number of the block with which it begins, in order; then 0.
    pub zones: [u32; ZONES_MAX],
    /// pm index: how many of these zones its number of chains takes into account.
    pub index_zones: u32,
    /// Zero.
    pub spare: [u8; 172],
}

const _: () = assert!(size_of::<Superblock>() == 512);
const _: () = assert!(offset_of!(Superblock, uuid) == 40);
const _: () = assert!(offset_of!(Superblock, label) == 56);
const _: () = assert!(offset_of!(Superblock, device_bytes) == 88);
const _: () = assert!(offset_of!(Superblock, block_bytes) == 128);
const _: () = assert!(offset_of!(Superblock, mount_epoch) == 144);
const _: () = assert!(offset_of!(Superblock, created) == 160);
const _: () = assert!(offset_of!(Superblock, saved_state) == 176);
const _: () = assert!(offset_of!(Superblock, generators_offset) == 184);
const _: () = assert!(offset_of!(Superblock, share_secret) == 192);
const _: () = assert!(offset_of!(Superblock, zones) == 208);
const _: () = assert!(offset_of!(Superblock, index_zones) == 336);
const _: () = assert!(offset_of!(Superblock, spare) == 340);

/// The reason why a copy of the superblock cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The magic is not nvfold's.
    Foreign,
    /// The version or an incompatible feature flag is unknown.
    Newer(String),
    /// The format version is one that this code no longer reads.
    Older(String),
    /// A machine of the other byte order wrote it.
    OtherByteOrder,
    /// Its index is made with this function of the papers, and this build is without the feature `papers`.
    NotBuilt(&'static str),
    /// The checksum, or a field that follows from others, is wrong; the string says which, as a sentence.
    Damaged(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Foreign => out.write_str("it does not begin with nvfold's magic"),
            Refusal::Newer(what) => write!(out, "a newer nvfold wrote it: {what}"),
            Refusal::Older(what) => write!(out, "an older nvfold wrote it: {what}"),
            Refusal::NotBuilt(function) => {
                write!(out, "its index is made with {function}, which this build does not have")
            }
            Refusal::OtherByteOrder => out.write_str("a machine of the other byte order wrote it"),
            Refusal::Damaged(what) => out.write_str(what),
        }
    }
}

impl Superblock {
    /// Returns it with a valid checksum.
    pub fn sealed(mut self) -> Superblock {
        self.check = 0;
        self.check = super::checksum(0, self.as_bytes());
        self
    }

    /// Returns the offsets as stored.
    fn offsets(&self) -> [u64; 5] {
        [
            self.journal_offset,
            self.generators_offset,
            self.segment_table_offset,
            self.chunk_table_offset,
            self.data_offset,
        ]
    }

    /// Returns the starts of the zones after the first one, or why they cannot be right.
    fn zones(&self) -> Result<Zones, Refusal> {
        let is_grown = self.incompatible & ZONES != 0;
        let zones = Zones::new(self.zones).filter(|zones| is_grown == (zones.count() > 0));
        let zones = zones.filter(|zones| self.index_zones as usize <= zones.count());
        zones.ok_or(Refusal::Damaged("its list of zones is not one that nvfold makes"))
    }

    /// Returns the geometry if this copy can be trusted, and otherwise the reason why not.
    pub fn verify(&self) -> Result<Geometry, Refusal> {
        if self.magic[..6] != MAGIC[..6] {
            return Err(Refusal::Foreign);
        }
        if self.version.swap_bytes() == VERSION {
            return Err(Refusal::OtherByteOrder);
        }
        if self.sealed().check != self.check {
            return Err(Refusal::Damaged("its checksum is wrong"));
        }
        if self.magic == MAGIC && self.version < VERSION {
            return Err(Refusal::Older(format!("format version {}", self.version)));
        }
        if self.magic != MAGIC || self.version != VERSION {
            return Err(Refusal::Newer(format!("format version {}", self.version)));
        }
        if self.incompatible & !KNOWN_INCOMPATIBLE != 0 {
            let unknown = self.incompatible & !KNOWN_INCOMPATIBLE;
            return Err(Refusal::Newer(format!("incompatible feature flags {unknown:#x}")));
        }
        let zones = self.zones()?;
        let geometry = Geometry::of_zones(self.device_bytes, zones, self.has_last_copy())
            .ok_or(Refusal::Damaged("its device size is not one that nvfold makes"))?;
        let geometry = geometry.with_index_zones(self.index_zones as usize);
        let sizes = (u64::from(self.block_bytes), u64::from(self.segment_bytes), u64::from(self.inode_bytes));
        if self.offsets() != geometry.offsets() || sizes != (BLOCK_BYTES, SEGMENT_BYTES, INODE_BYTES) {
            return Err(Refusal::Damaged("its layout does not follow from the device size"));
        }
        self.index().ok_or_else(|| why_no_index(self.index_function, WeakFunction::from_number))?;
        Ok(geometry)
    }

    /// True if the device was unmounted, so that a mount has nothing to recover.
    pub fn is_clean(&self) -> bool {
        self.state == STATE_CLEAN
    }

    /// Returns true if the last block of the device is a copy of the superblock.
    pub fn has_last_copy(&self) -> bool {
        self.read_only_compatible & LAST_COPY != 0
    }

    /// Returns the secret that sets the domains of owners apart, if the device has one.
    pub fn secret(&self) -> Option<[u8; 16]> {
        (self.incompatible & OWNER_DOMAINS != 0).then_some(self.share_secret)
    }

    /// Returns which index the device has, and for a pm index the function of its weak fingerprints; `None` if it is
    /// not valid.
    pub fn index(&self) -> Option<(IndexKind, WeakFunction)> {
        let kind = *IndexKind::ALL.get(self.index_kind as usize)?;
        let function = WeakFunction::from_number(u8::try_from(self.index_function).ok()?)?;
        let fits = kind == IndexKind::Dram || function.fits_pm_index();
        (fits && (kind == IndexKind::Pm) == (self.incompatible & PM_INDEX != 0)).then_some((kind, function))
    }

    /// Returns the superblock with another index.
    pub fn with_index(self, kind: IndexKind, function: WeakFunction) -> Superblock {
        let zones = self.zones.iter().filter(|start| **start != 0).count() as u32;
        let (feature, function, index_zones) = match kind {
            IndexKind::Dram => (0, 0, 0),
            IndexKind::Pm => (PM_INDEX, function as u32, zones),
        };
        let incompatible = self.incompatible & !PM_INDEX | feature;
        Superblock { index_kind: kind as u32, index_function: function, index_zones, incompatible, ..self }
    }

    /// Returns the superblock of the device with another zone, up to `device_bytes`; `None` if it has as many as it can
    /// have.
    pub(crate) fn grown(self, device_bytes: u64) -> Option<Superblock> {
        let zones = self.zones().ok()?.with((self.device_bytes / BLOCK_BYTES) as u32)?;
        Some(Superblock { device_bytes, zones: zones.stored(), incompatible: self.incompatible | ZONES, ..self })
    }
}

/// Returns why a superblock with this function has no [`index`](Superblock::index): the function is one that this build
/// does not have, or it is damaged.
fn why_no_index(function: u32, built: impl Fn(u8) -> Option<WeakFunction>) -> Refusal {
    match WeakFunction::known_name(function.into()) {
        Some(name) if built(function as u8).is_none() => Refusal::NotBuilt(name),
        _ => Refusal::Damaged("its index kind is unknown"),
    }
}

/// The offsets of all tables. They follow from the size of the device alone, and if it was made longer, from its sizes
/// before ([`super::zone`]). Whoever wants the place of an entry asks here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device in bytes, a multiple of 4096.
    pub device_bytes: u64,
    /// First byte after the last block that may hold anything other than a superblock.
    pub data_end: u64,
    /// Offset of the recovery journal.
    pub journal_offset: u64,
    /// Offset of the TX_ID generators.
    pub generators_offset: u64,
    /// Offset of the segment table of the first zone.
    pub segment_table_offset: u64,
    /// Offset of the chunk table of the first zone.
    pub chunk_table_offset: u64,
    /// Offset of the first segment after the tables of the first zone.
    pub data_offset: u64,
    /// `data_end` of the first zone.
    first_data_end: u64,
    /// Number of segments with an entry in the tables of the first zone; no limit if it is the only one.
    first_segments: u64,
    zones: Zones,
    index_zones: usize,
}

impl Geometry {
    /// Returns the layout of a device of this size, without a superblock in the last block; `None` if the size is too
    /// small, too large or unaligned.
    pub fn of(device_bytes: u64) -> Option<Geometry> {
        Geometry::of_zones(device_bytes, Zones::default(), false)
    }

    /// Does the same for a device with these zones, whose last block may hold a superblock. `None` too if the zones do
    /// not fit: each has room for its tables and a segment of data at least.
    fn of_zones(device_bytes: u64, zones: Zones, has_last_copy: bool) -> Option<Geometry> {
        let first_end = zones.start(0).unwrap_or(device_bytes);
        let is_size =
            |bytes: u64| (DEVICE_BYTES_MIN..=DEVICE_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(BLOCK_BYTES);
        if !is_size(device_bytes) || !is_size(first_end) {
            return None;
        }
        let journal_offset = 2 * BLOCK_BYTES;
        let generators_offset = journal_offset + JOURNAL_SLOTS * size_of::<JournalSlot>() as u64;
        let generators_end = generators_offset + GENERATORS * size_of::<Generator>() as u64;
        let segment_table_offset = generators_end.next_multiple_of(BLOCK_BYTES);
        let segments = first_end.div_ceil(SEGMENT_BYTES);
        let segment_table_bytes = segments * size_of::<SegmentEntry>() as u64;
        let chunk_table_offset = (segment_table_offset + segment_table_bytes).next_multiple_of(BLOCK_BYTES);
        let chunk_table_bytes = first_end / BLOCK_BYTES * size_of::<ChunkEntry>() as u64;
        let data_offset = (chunk_table_offset + chunk_table_bytes).next_multiple_of(SEGMENT_BYTES);
        let copy_bytes = if has_last_copy { BLOCK_BYTES } else { 0 };
        let geometry = Geometry {
            device_bytes,
            data_end: device_bytes - copy_bytes,
            journal_offset,
            generators_offset,
            segment_table_offset,
            chunk_table_offset,
            data_offset,
            first_data_end: first_end - copy_bytes,
            first_segments: if zones.count() > 0 { segments } else { u64::MAX },
            zones,
            index_zones: 0,
        };
        geometry.zones().all(|zone| zone.is_useful()).then_some(geometry)
    }

    /// Returns the layout with a superblock in the last block of each zone.
    pub fn with_last_copy(self) -> Geometry {
        Geometry {
            data_end: self.device_bytes - BLOCK_BYTES,
            first_data_end: self.zones.start(0).unwrap_or(self.device_bytes) - BLOCK_BYTES,
            ..self
        }
    }

    /// Returns the layout with a pm index that is made for all blocks.
    pub(crate) fn with_whole_index(self) -> Geometry {
        self.with_index_zones(self.zones.count())
    }

    fn with_index_zones(self, index_zones: usize) -> Geometry {
        Geometry { index_zones, ..self }
    }

    fn offsets(&self) -> [u64; 5] {
        [
            self.journal_offset,
            self.generators_offset,
            self.segment_table_offset,
            self.chunk_table_offset,
            self.data_offset,
        ]
    }

    /// Returns the zones after the first one.
    fn zones(&self) -> impl DoubleEndedIterator<Item = Zone> + '_ {
        (0..self.zones.count()).map(|number| self.zone(number))
    }

    fn zone(&self, number: usize) -> Zone {
        let start = self.zones.start(number).expect("one of the zones");
        let end = self.zones.start(number + 1).unwrap_or(self.device_bytes);
        Zone::new(start, end, end - (self.device_bytes - self.data_end))
    }

    /// Returns how often the device was made longer.
    pub fn growths(&self) -> usize {
        self.zones.count()
    }

    /// Returns how often it can still be made longer.
    pub fn growths_left(&self) -> usize {
        ZONES_MAX - self.zones.count()
    }

    /// Returns whether a pm index made now would have more chains.
    pub fn index_is_small(&self) -> bool {
        prefix_bits(self.index_blocks()) < prefix_bits(self.blocks())
    }

    /// Returns the tables of the last zone, which are its bytes before the data, and its end; `None` if there is only the
    /// first one.
    pub(crate) fn last_zone(&self) -> Option<Zone> {
        self.zones().next_back()
    }

    /// Returns the zone whose tables have the entries of a segment, which is not one of the first zone.
    #[cold]
    fn zone_of(&self, segment: u64) -> Zone {
        let of_segment = self.zones().rev().find(|zone| segment >= zone.first_segment);
        of_segment.expect("zones follow one another")
    }

    /// Returns the device offsets of all copies of the superblock.
    pub fn copies(&self) -> impl Iterator<Item = u64> + use<> {
        let last = self.device_bytes - BLOCK_BYTES;
        COPIES.into_iter().chain((self.data_end == last).then_some(last))
    }

    /// Returns the number of blocks on the device, including the tables, but not a superblock at the end.
    pub fn blocks(&self) -> u64 {
        self.data_end / BLOCK_BYTES
    }

    /// Returns the number of blocks that a pm index is made for. A device that was made longer keeps its index, so these
    /// may be fewer than all.
    pub fn index_blocks(&self) -> u64 {
        let end = self.zones.start(self.index_zones).unwrap_or(self.device_bytes);
        (end - (self.device_bytes - self.data_end)) / BLOCK_BYTES
    }

    /// Returns the number of segments on the device, including those of tables and a shorter last segment.
    pub fn segments(&self) -> u64 {
        self.data_end.div_ceil(SEGMENT_BYTES)
    }

    /// Returns the number of the first segment after the tables.
    pub fn first_segment(&self) -> u64 {
        self.data_offset / SEGMENT_BYTES
    }

    /// Returns the segments that hold data, in order: a range for each zone.
    pub fn data_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.first_segment()..self.first_data_end.div_ceil(SEGMENT_BYTES);
        let others = self.zones().map(|zone| zone.data_offset / SEGMENT_BYTES..zone.data_end.div_ceil(SEGMENT_BYTES));
        std::iter::once(first).chain(others)
    }

    /// Returns the number of blocks outside the tables.
    pub fn data_blocks(&self) -> u64 {
        let in_range = |range: Range<u64>| range.map(|segment| self.blocks_in_segment(segment)).sum::<u64>();
        let whole = |range: &Range<u64>| (range.end - range.start).saturating_sub(1) * SEGMENT_BLOCKS;
        self.data_ranges().map(|range| whole(&range) + in_range(range.end.max(range.start + 1) - 1..range.end)).sum()
    }

    /// Returns the number of blocks of a segment that may hold data: 512; fewer in the last one of a zone; 0 in one that
    /// has tables of a later zone.
    pub fn blocks_in_segment(&self, segment: u64) -> u64 {
        if segment < self.first_segments {
            return (self.first_data_end / BLOCK_BYTES).saturating_sub(segment * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
        }
        self.zone_of(segment).blocks_in_segment(segment)
    }

    /// Returns whether blocks of a segment may hold data.
    pub fn is_data_segment(&self, segment: u64) -> bool {
        (self.first_segment()..self.segments()).contains(&segment) && self.blocks_in_segment(segment) > 0
    }

    /// Returns true if `len` bytes at media address `address` are inside the segments.
    #[inline]
    pub fn holds_data(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else { return false };
        address >= self.data_offset && (end <= self.first_data_end || self.is_in_zone(address, end))
    }

    #[cold]
    fn is_in_zone(&self, address: u64, end: u64) -> bool {
        self.zones().any(|zone| address >= zone.data_offset && end <= zone.data_end)
    }

    /// Returns the device offset of a block's chunk entry.
    pub fn chunk_entry_offset(&self, block: BlockNumber) -> u64 {
        if block.0 / SEGMENT_BLOCKS < self.first_segments {
            return self.chunk_table_offset + block.0 * size_of::<ChunkEntry>() as u64;
        }
        self.zone_of(block.0 / SEGMENT_BLOCKS).chunk_entry_offset(block)
    }

    /// Returns the chunk tables, a range of device offsets for each zone.
    pub fn chunk_tables(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let entry_bytes = size_of::<ChunkEntry>() as u64;
        let first = self.chunk_table_offset..self.chunk_table_offset + self.first_data_end / BLOCK_BYTES * entry_bytes;
        std::iter::once(first).chain(self.zones().map(|zone| zone.chunk_table()))
    }

    /// Returns the blocks whose chunk entries begin in a page of the device; none if it is no page of a chunk table.
    pub fn blocks_of_page(&self, page: u64) -> Range<u64> {
        let entries_in_page = BLOCK_BYTES / size_of::<ChunkEntry>() as u64;
        let firsts = std::iter::once(0).chain(self.zones().map(|zone| zone.first_segment * SEGMENT_BLOCKS));
        let found = self.chunk_tables().zip(firsts).find(|(table, _)| table.contains(&page));
        found.map_or(0..0, |(table, first)| {
            let at = first + (page - table.start) / size_of::<ChunkEntry>() as u64;
            at..at + entries_in_page
        })
    }

    /// Returns the device offset of a segment's entry.
    pub fn segment_entry_offset(&self, segment: u64) -> u64 {
        if segment < self.first_segments {
            return self.segment_table_offset + segment * size_of::<SegmentEntry>() as u64;
        }
        self.zone_of(segment).segment_entry_offset(segment)
    }

    /// Returns the offset of a TX_ID generator.
    pub fn generator_offset(&self, generator: u64) -> u64 {
        self.generators_offset + generator * size_of::<Generator>() as u64
    }

    /// Returns the offset of a journal slot.
    pub fn journal_slot_offset(&self, slot: u64) -> u64 {
        self.journal_offset + slot * size_of::<JournalSlot>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_an_excluded_function_is_not_reported_as_damaged() {
        let lean = |number: u8| WeakFunction::from_number(number).filter(|function| *function == WeakFunction::Xxh3);
        assert_eq!(why_no_index(WeakFunction::Sha1 as u32, lean), Refusal::NotBuilt("sha1"));
        for damaged in [0, 8, 256 + 4] {
            assert!(matches!(why_no_index(damaged, lean), Refusal::Damaged(_)), "{damaged}");
        }
        assert!(matches!(why_no_index(4, WeakFunction::from_number), Refusal::Damaged(_)), "its kind must be wrong");
    }
}
