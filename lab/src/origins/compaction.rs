//! A compaction: what it shares, its metadata, and what is left without its inputs (ICID 5.2, 5.8).
//!
//! Four tables are written. A newer table overwrites a tenth of their records, half of them by deletion. The tables
//! are merged, removed and collected. At each of these points the device is unmounted and fsck reports its content.

use super::merge::{Written, compact, create};
use super::sstable::{self, BLOCK_BYTES, Key, Place, Tail, VALUE_BYTES_MAX};
use crate::{Doing, LabError, Result};
use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use nvfold::internals::media::packed::HEADER_BYTES;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::{File, FileSystem, InodeNumber, MkfsOptions, MountOptions, Policy, Victims};
use nvfold_bench::data::Random;
use nvfold_bench::device::{Device, remount};
use nvfold_causality::Variant;
use pmem::{LINE_BYTES, Profile, Region};
use serde::Serialize;

/// Sizes of values in bytes, and the paper's Table 6: metadata in percent of the shared data.
pub(super) const VALUES: [(usize, f64); 7] =
    [(128, 25.1), (256, 12.9), (512, 6.8), (1024, 3.7), (2048, 2.2), (4096, 1.2), (8192, 0.9)];
/// The variants of the rec-tree, and their names in the paper.
pub(super) const VARIANTS: [(Variant, &str); 3] =
    [(Variant::Icid, "ICID"), (Variant::DeleteOverlapping, "ICID_DO"), (Variant::KeepAll, "ICID_KA")];
/// Tables that are merged.
pub(super) const INPUTS: usize = 4;
/// One key in this many has two records.
const OVERWRITTEN_ONE_IN: u64 = 10;
/// Bytes of an extent in the paper's file system: a record of its B-tree.
pub(super) const PAPER_EXTENT_BYTES: u64 = 16;
/// Maximum number of collections; they are repeated as long as they gain space.
const COLLECTIONS_MAX: u32 = 20;

/// The content of a device, as counted by fsck and from its tables.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Media {
    /// Extents of all files.
    pub extents: u64,
    /// Lines of all logs, in bytes.
    pub log_bytes: u64,
    /// Log pages and areas in use, in bytes.
    pub log_room_bytes: u64,
    /// Chunk entries of blocks with more than one reference, in bytes.
    pub block_entry_bytes: u64,
    /// Chunk entries of packed chunks, in bytes, and their headers.
    pub packed_entry_bytes: u64,
    pub header_bytes: u64,
    /// Data blocks and packed chunks in use, in bytes.
    pub stored_bytes: u64,
    /// Segments of blocks or packed chunks.
    pub data_segments: u64,
}

impl Media {
    /// Returns the metadata bytes of file contents, without those of inodes.
    fn metadata_bytes(&self) -> u64 {
        self.log_bytes + self.block_entry_bytes + self.packed_entry_bytes + self.header_bytes
    }
}

/// One compaction.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub variant: &'static str,
    pub value_bytes: usize,
    /// Records of the inputs, and the live ones.
    pub input_records: u64,
    pub records: u64,
    /// Bytes of keys and values of the live records.
    pub record_bytes: u64,
    pub requests: u64,
    /// Bytes that the compaction wrote.
    pub written_bytes: u64,
    /// Bytes for which the rec-tree knew an origin.
    pub known_bytes: u64,
    pub shared_bytes: u64,
    pub shared_of_written_percent: f64,
    /// Shared bytes relative to copied bytes. Headers of records are equal too, so it may exceed 100.
    pub shared_of_records_percent: f64,
    /// Extents of the outputs.
    pub extents: u64,
    pub extents_a_record: f64,
    /// Extents of 16 bytes relative to the shared bytes, here and in the paper.
    pub metadata_percent: f64,
    pub paper_metadata_percent: f64,
    /// Metadata that the compaction added to the media, relative to the shared bytes.
    pub media_metadata_percent: f64,
    /// Content of the media before the compaction, after it, without its inputs, and after collection.
    pub before: Media,
    pub compacted: Media,
    pub removed: Media,
    pub collected: Media,
    /// Bytes of the outputs.
    pub live_bytes: u64,
}

/// A record in a table: its key, and the table, which together determine its value.
struct Put {
    key: u64,
    table: usize,
    is_deleted: bool,
}

/// The records that are written, and those that must be there in the end.
struct Load {
    value_bytes: usize,
    /// Records of each table, sorted.
    tables: Vec<Vec<Put>>,
    /// Key and table of each live record.
    live: Vec<(u64, usize)>,
}

impl Load {
    fn new(value_bytes: usize, total_bytes: u64) -> Load {
        let keys = total_bytes / (sstable::KEY_BYTES + sstable::HEAD_BYTES + value_bytes) as u64;
        let mut random = Random(value_bytes as u64);
        let (mut tables, mut live): (Vec<Vec<Put>>, _) = ((0..INPUTS).map(|_| Vec::new()).collect(), Vec::new());
        for key in 0..keys {
            let table = (random.next_u64() % INPUTS as u64) as usize;
            let is_overwritten = table + 1 < INPUTS && random.next_u64().is_multiple_of(OVERWRITTEN_ONE_IN);
            let is_deleted = is_overwritten && random.next_u64().is_multiple_of(2);
            tables[table].push(Put { key, table, is_deleted });
            if is_overwritten {
                tables[table + 1].push(Put { key, table: table + 1, is_deleted: false });
            }
            if !is_deleted {
                live.push((key, table));
            }
        }
        Load { value_bytes, tables, live }
    }

    /// Returns the value of a key in a table.
    fn value<'b>(&self, key: u64, table: usize, buffer: &'b mut [u8; VALUE_BYTES_MAX]) -> &'b [u8] {
        let mut random = Random(((key << 8) | table as u64) << 16 | self.value_bytes as u64);
        let value = &mut buffer[..self.value_bytes];
        value.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        value
    }

    fn write_table(&self, fs: &FileSystem, table: usize) -> Result<File> {
        let file = create(fs, &format!("input-{table}"))?;
        let (mut content, mut block) = (Vec::new(), Vec::new());
        let (mut tail, mut records, mut value) = (Tail::default(), 0, [0; VALUE_BYTES_MAX]);
        let puts = &self.tables[table];
        for (at, put) in puts.iter().enumerate() {
            let value = Some(self.value(put.key, put.table, &mut value)).filter(|_| !put.is_deleted);
            block.extend_from_slice(&sstable::head(value.map(<[u8]>::len)));
            block.extend_from_slice(&key_of(put.key));
            block.extend_from_slice(value.unwrap_or_default());
            records += 1;
            if block.len() >= BLOCK_BYTES || at + 1 == puts.len() {
                block.extend_from_slice(&sstable::trailer(&block));
                let place = Place { offset: content.len() as u64, bytes: block.len() };
                tail.add(&key_of(put.key), place, std::mem::take(&mut records));
                content.append(&mut block);
            }
        }
        let end = tail.finish(content.len() as u64);
        content.extend_from_slice(&end);
        file.write_at(0, &content).doing("write an input")?;
        Ok(file)
    }

    /// Reads all outputs back, and checks that they have each live record, in order, and no other.
    fn verify(&self, outputs: &[File]) -> Result<()> {
        let wrong = |what: String| Err(LabError::wrong(what));
        let (mut live, mut value) = (self.live.iter(), [0; VALUE_BYTES_MAX]);
        for file in outputs {
            for Place { offset, bytes } in sstable::places(file)? {
                let mut block = vec![0; bytes];
                sstable::read(file, offset, &mut block)?;
                if !sstable::is_whole(&block) {
                    return wrong(format!("the block at {offset} of an output"));
                }
                let mut at = 0;
                while let Some(record) = sstable::record_at(&block, at) {
                    at = record.end;
                    let Some((key, table)) = live.next() else { return wrong("an output with more records".into()) };
                    let expected = self.value(*key, *table, &mut value);
                    if record.key != key_of(*key) || record.value != Some(expected) {
                        return wrong(format!("the record of key {key}"));
                    }
                }
            }
        }
        if live.next().is_none() { Ok(()) } else { wrong("the outputs, which end early,".into()) }
    }
}

fn key_of(key: u64) -> Key {
    // Decimal digits, as in LevelDB's benchmark.
    let mut digits = [b'0'; sstable::KEY_BYTES];
    let (mut rest, mut at) = (key, sstable::KEY_BYTES);
    while rest > 0 {
        at -= 1;
        digits[at] += (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

/// Merges tables with `total_bytes` of records, with values of this length.
pub(super) fn measure(variant: Variant, value_bytes: usize, total_bytes: u64) -> Result<Row> {
    let load = Load::new(value_bytes, total_bytes);
    let device = Device::new(&Profile::NATIVE, 4 * total_bytes + (64 << 20));
    let region = device.create()?;
    FileSystem::mkfs(&region, &MkfsOptions::default()).doing("format")?;
    let fs = mount(&region)?;
    (0..INPUTS).try_for_each(|table| load.write_table(&fs, table).map(drop))?;
    let before = unmounted(&region, fs)?;

    let fs = mount(&region)?;
    let inputs = names("input", INPUTS).map(|name| open(&fs, &name)).collect::<Result<Vec<File>>>()?;
    let (outputs, written) = compact(&fs, inputs, variant)?;
    load.verify(&outputs)?;
    prove(&fs, &load, &written)?;
    let live_bytes = outputs.iter().map(|file| file.attr().size).sum();
    let count = outputs.len();
    drop(outputs);
    let compacted = unmounted(&region, fs)?;

    let fs = mount(&region)?;
    for name in names("input", INPUTS) {
        fs.unlink(InodeNumber::ROOT, name.as_bytes()).doing("remove an input")?;
    }
    let removed = unmounted(&region, fs)?;
    let fs = mount(&region)?;
    collect(&fs)?;
    let outputs = names("output", count).map(|name| open(&fs, &name)).collect::<Result<Vec<File>>>()?;
    load.verify(&outputs)?;
    drop(outputs);
    let collected = unmounted(&region, fs)?;
    let stages = [before, compacted, removed, collected];
    Ok(row(&load, variant, &written, stages, live_bytes))
}

fn row(load: &Load, variant: Variant, written: &Written, stages: [Media; 4], live_bytes: u64) -> Row {
    let [before, compacted, removed, collected] = stages;
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of as f64;
    let shared = written.shared_bytes;
    let extents = compacted.extents - before.extents;
    let (_, paper) = VALUES.iter().find(|(bytes, _)| *bytes == load.value_bytes).expect("a size of the paper's");
    Row {
        variant: VARIANTS.iter().find(|(of, _)| *of == variant).expect("all are there").1,
        value_bytes: load.value_bytes,
        input_records: load.tables.iter().map(|table| table.len() as u64).sum(),
        records: written.records,
        record_bytes: written.record_bytes,
        requests: written.requests,
        written_bytes: written.bytes,
        known_bytes: written.known_bytes,
        shared_bytes: shared,
        shared_of_written_percent: percent(shared, written.bytes),
        shared_of_records_percent: percent(shared, written.record_bytes),
        extents,
        extents_a_record: extents as f64 / written.records as f64,
        metadata_percent: percent(extents * PAPER_EXTENT_BYTES, shared),
        paper_metadata_percent: *paper,
        media_metadata_percent: percent(compacted.metadata_bytes() - before.metadata_bytes(), shared),
        before,
        compacted,
        removed,
        collected,
        live_bytes,
    }
}

/// Proves that the compaction wrote the live records, and that the bytes reported as shared are not stored.
fn prove(fs: &FileSystem, load: &Load, written: &Written) -> Result<()> {
    let stats = fs.stats();
    let miscounted = |what: String| Err(LabError::Miscounted(what));
    if stats.origins.shared_bytes != written.shared_bytes {
        return miscounted(format!("{} bytes are shared, not {}", stats.origins.shared_bytes, written.shared_bytes));
    }
    if written.records != load.live.len() as u64 {
        return miscounted(format!("{} records were written, not {}", written.records, load.live.len()));
    }
    if written.shared_bytes == 0 {
        return miscounted("nothing was shared".into());
    }
    Ok(())
}

fn names(prefix: &'static str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("{prefix}-{number}"))
}

fn open(fs: &FileSystem, name: &str) -> Result<File> {
    let found = fs.lookup(InodeNumber::ROOT, name.as_bytes()).and_then(|attr| fs.open(attr.ino));
    found.doing(format!("open {name}"))
}

fn mount(region: &Region) -> Result<FileSystem> {
    // One core, so that the number of open segments is the same on every machine.
    // The paper shares runs of 64 bytes, whatever that costs.
    let origin_bytes_min = Some(64);
    Ok(remount(
        region.clone(),
        MountOptions { policy: Policy::Icid, cores: 1, origin_bytes_min, ..MountOptions::default() },
    )?)
}

/// Collects until nothing more is gained.
fn collect(fs: &FileSystem) -> Result<()> {
    let (mut before, mut rounds) = (u64::MAX, 0);
    while fs.stats().stored_bytes + fs.stats().metadata_bytes < before && rounds < COLLECTIONS_MAX {
        (before, rounds) = (fs.stats().stored_bytes + fs.stats().metadata_bytes, rounds + 1);
        while !fs.reclaim_step(Victims::All).doing("collect")? {}
    }
    Ok(())
}

/// Unmounts, checks that fsck finds nothing, and returns the content of the device.
fn unmounted(region: &Region, fs: FileSystem) -> Result<Media> {
    let stored_bytes = fs.stats().stored_bytes;
    fs.unmount().doing("unmount")?;
    let report = check(region, &CheckOptions::default()).doing("check the device")?;
    if let Some(first) = report.findings.first() {
        return Err(LabError::Unsound { count: report.findings.len(), first: first.what.clone() });
    }
    let mut media = Media {
        extents: report.extents,
        log_bytes: report.log_lines * LINE_BYTES,
        log_room_bytes: report.metadata_blocks * BLOCK_BYTES as u64 + report.log_areas * 512,
        stored_bytes,
        ..Media::default()
    };
    count_entries(region, &mut media)?;
    let entries = (media.block_entry_bytes + media.packed_entry_bytes) / ENTRY_BYTES;
    if entries != report.chunks {
        return Err(LabError::Miscounted(format!("{entries} chunk entries are in use, fsck finds {}", report.chunks)));
    }
    Ok(media)
}

/// Counts the chunk entries in use, and the segments with data.
fn count_entries(region: &Region, media: &mut Media) -> Result<()> {
    let (_, geometry) = nvfold::read_superblock(region).doing("read the superblock")?;
    let is_used = |at: u64| !region.read::<ChunkEntry>(at).is_empty();
    let blocks = 0..geometry.blocks();
    let of_blocks = blocks.filter(|block| is_used(geometry.chunk_entry_offset(BlockNumber(*block)))).count() as u64;
    media.block_entry_bytes = of_blocks * ENTRY_BYTES;
    for segment in geometry.first_segment()..geometry.segments() {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
        match entry.usage(segment) {
            SegmentUse::Blocks | SegmentUse::Packed => media.data_segments += 1,
            SegmentUse::Entries(_) => {
                let entries = (segment * SEGMENT_BYTES..(segment + 1) * SEGMENT_BYTES).step_by(ENTRY_BYTES as usize);
                let used = entries.filter(|at| is_used(*at)).count() as u64;
                media.packed_entry_bytes += used * ENTRY_BYTES;
                media.header_bytes += used * HEADER_BYTES;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_shares_its_live_records_with_every_variant() {
        for (variant, name) in VARIANTS {
            let row = measure(variant, 256, 1 << 20).unwrap();
            assert!(row.shared_of_records_percent > 90.0, "{name}: {row:?}");
            assert!(
                row.records < row.input_records && row.collected.stored_bytes < row.removed.stored_bytes,
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_compaction_with_a_missing_or_changed_record_fails_its_check() {
        let load = Load::new(128, 64 << 10);
        let region = Device::new(&Profile::NATIVE, 64 << 20).create().unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = mount(&region).unwrap();
        let inputs = (0..INPUTS).map(|table| load.write_table(&fs, table).unwrap()).collect();
        let (outputs, _) = compact(&fs, inputs, Variant::Icid).unwrap();
        load.verify(&outputs).unwrap();
        let mut other = Load::new(128, 64 << 10);
        other.live.pop();
        assert!(other.verify(&outputs).is_err());
        outputs[0].write_at(50, b"x").unwrap();
        assert!(load.verify(&outputs).is_err());
    }
}
