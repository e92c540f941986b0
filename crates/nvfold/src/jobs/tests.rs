//! What is never committed: what could not be read back, rewrites that change the content of a file, and work that was
//! deferred for a file that is gone.

#[cfg(not(feature = "shuttle"))]
mod ladder;
#[cfg(not(feature = "shuttle"))]
mod panics;

use super::Effort;
use crate::api::{File, FileSystem};
use crate::check::{CheckOptions, check};
use crate::chunk::packed::NewPacked;
use crate::dedup::policy::Policy;
use crate::error::{Error, Result, errno};
use crate::fingerprint::Fingerprint;
use crate::fs::Core;
use crate::inode::extents::Extent;
use crate::inode::{FILE_BYTES_MAX, SYMLINK_TARGET};
use crate::media::chunk_entry::ChunkEntry;
use crate::media::inode::{AttributeLine, COMMIT_WORD, HEAD_WORD, INODE_BYTES, PARENT_WORD};
use crate::media::journal::WordStore;
use crate::media::log_entry::{COOKIE_END, ENTRY_BYTES_MAX, LogEntry, XattrValue};
use crate::media::packed::PackedBytes;
use crate::media::{BLOCK_BYTES, BlockNumber, Location, PACKED_BYTES_MAX, PackedNumber, SEGMENT_BYTES};
use crate::mount::{MkfsOptions, MountOptions};
use crate::space::Purpose;
use crate::space::packed::Pool;
use crate::store::change::Change;
use crate::store::claims::Claims;
use crate::store::packed::ToPack;
use crate::store::queued::{each_pending, token_of};
use crate::store::remap::{Remap, Stamp};
use crate::words::FileId;
use crate::words::{FileKind, InodeNumber, NewInode, XattrMode};
use pmem::{DeviceSpec, Flight, OpenOptions, Region};

const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
pub(super) const ROOT: InodeNumber = InodeNumber::ROOT;

fn new_device() -> (Region, FileSystem) {
    let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    (region, fs)
}

fn mount(region: &Region) -> FileSystem {
    mount_with(region, MountOptions::default().policy)
}

pub(super) fn mount_with(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

pub(super) fn create(fs: &FileSystem, name: &str, data: &[u8]) -> File {
    let file = fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap();
    file.write_at(0, data).unwrap();
    file
}

pub(super) fn content(fs: &FileSystem, name: &str) -> Vec<u8> {
    let file = fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap();
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

pub(super) fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}

#[track_caller]
fn assert_refused(fs: &FileSystem, result: Result<()>, count: u64, what: &str) {
    let error = result.expect_err(what);
    assert!(matches!(error, Error::Refused { .. }) && error.errno() == errno::EIO, "{what}: {error}");
    let refused = fs.refused();
    assert_eq!((refused.count, refused.last_error), (count, Some(error.to_string())), "{what}");
}

/// Unmounts, and sees that everything is as it was written.
fn assert_whole(region: &Region, fs: FileSystem, data: &[u8]) {
    assert_eq!(content(&fs, "file"), data);
    fs.unmount().unwrap();
    let found = check(region, &CheckOptions::default()).unwrap();
    assert!(found.findings.is_empty() && found.clean, "{found:#?}");
    assert_eq!(content(&mount(region), "file"), data);
}

/// Publishes these extents for a file, as an operation would that has computed them wrongly.
fn publish(core: &Core, file: &File, mapped: &[(u64, Extent)], size: u64) -> Result<()> {
    let inode = core.inode(file.attr().ino.0)?;
    let mut state = inode.write()?;
    let end = mapped.last().map_or(0, |(at, extent)| at.saturating_add(extent.length));
    let range = mapped[0].0..end;
    let mut claims = Claims::new(core);
    core.publish(&inode, &mut *state, &Remap::new(&range, mapped, Stamp::Changed(1, size)), None, &mut claims)
}

#[test]
fn extents_that_could_not_be_read_back_are_refused() {
    let (region, fs) = new_device();
    let data = noise(40_000);
    let file = create(&fs, "file", &data);
    let core = fs.core();
    let (size, end) = (data.len() as u64, core.geometry.data_end);
    let block = |address| Extent::media(BLOCK_BYTES, address, false);
    let packed = |chunk, offset, length| {
        let location = Location::Packed(PackedNumber(chunk), offset);
        Extent { length, location, unwritten: false }
    };
    let far = u64::MAX - 2 * BLOCK_BYTES + 1;
    let many = |last| (0..4).map(|at| (at * 8192, if at == 3 { last } else { block(end - 8192) })).collect();
    let cases: Vec<(&str, Vec<(u64, Extent)>, u64)> = vec![
        ("a block behind the end of the device", vec![(0, block(end))], size),
        ("a block in the tables", vec![(0, block(0))], size),
        ("a range that ends at 2^64", vec![(far, block(end - BLOCK_BYTES))], size),
        ("a part of a block behind the end", vec![(3, Extent::media(100, end - 1, false))], size),
        ("more than a packed chunk has", vec![(0, packed(1, u16::MAX, BLOCK_BYTES))], size),
        ("a chunk that there cannot be", vec![(0, packed(u32::MAX, 0, 100))], size),
        ("a file that is too long", vec![(0, block(end - BLOCK_BYTES))], FILE_BYTES_MAX + 1),
        ("one of many behind the end", many(block(end)), size),
        ("one of many in the tables", many(block(0)), size),
    ];
    for (count, (what, mapped, size)) in (1..).zip(&cases) {
        assert_refused(&fs, publish(core, &file, mapped, *size), count, what);
    }
    drop(file);
    assert_whole(&region, fs, &data);
}

#[test]
fn names_and_attributes_that_could_not_be_read_back_are_refused() {
    let (region, fs) = new_device();
    let data = noise(1000);
    let number = create(&fs, "file", &data).attr().ino;
    let core = fs.core();
    let end = core.geometry.data_end;
    let name = |name: &[u8], cookie| LogEntry::Name {
        name: name.to_vec(),
        ino: number.0,
        kind: FileKind::Regular,
        cookie,
        time: 1,
    };
    let xattr = |name: &[u8], value| LogEntry::XattrSet { name: name.to_vec(), value, time: 1 };
    let blocks = |bytes, blocks: &[u64]| xattr(b"user.a", XattrValue::Blocks { bytes, blocks: blocks.to_vec() });
    let (root, next) = (ROOT, 100);
    let bad = LogEntry::BadName { name_bytes: 2, ino: number.0, kind: FileKind::Regular, cookie: next, time: 1 };
    let cases = [
        ("an empty name", root, name(b"", next)),
        ("a name that is too long", root, name(&[b'n'; 256], next)),
        ("the name of the directory itself", root, name(b".", next)),
        ("the name of the directory above", root, name(b"..", next)),
        ("a path", root, name(b"../n", next)),
        ("a name with a NUL", root, name(b"n\0", next)),
        ("a name that was damage", root, bad),
        ("a cookie that was used", root, name(b"n", 1)),
        ("a cookie that there cannot be", root, name(b"n", COOKIE_END)),
        ("a name in a file", number, name(b"n", next)),
        ("an attribute without a name", number, xattr(b"", XattrValue::Inline(vec![1]))),
        ("an attribute with a NUL in its name", number, xattr(b"user.\0", XattrValue::Inline(vec![1]))),
        ("an empty target", number, xattr(SYMLINK_TARGET, XattrValue::Inline(vec![]))),
        ("a target with a NUL", number, xattr(SYMLINK_TARGET, XattrValue::Inline(vec![b'n', 0]))),
        ("the removal of one", number, LogEntry::XattrRemove { name: vec![], time: 1 }),
        ("a value longer than a page", number, xattr(b"user.a", XattrValue::Inline(vec![1; ENTRY_BYTES_MAX]))),
        ("a value behind the device", number, blocks(5000, &[end - BLOCK_BYTES, end])),
        ("a value with too few blocks", number, blocks(5000, &[end - BLOCK_BYTES])),
        ("a value inside a block", number, blocks(10, &[end - BLOCK_BYTES - 64])),
    ];
    let change = |number: InodeNumber, entries: &[LogEntry], attributes| {
        let inode = core.inode(number.0)?;
        let mut state = inode.write()?;
        core.change(&inode, &mut state, entries, attributes, Purpose::Log, Flight::new())
    };
    for (count, (what, number, entry)) in (1..).zip(&cases) {
        assert_refused(&fs, change(*number, std::slice::from_ref(entry), None), count, what);
    }
    let attributes = core.inode(number.0).unwrap().peek().attributes;
    let too_long = AttributeLine { size: FILE_BYTES_MAX + 1, ..attributes };
    let count = cases.len() as u64 + 1;
    assert_refused(&fs, change(number, &[], Some(too_long)), count, "a file that is too long");
    // The first entry of a change is not committed without the second.
    let good = xattr(SYMLINK_TARGET, XattrValue::Inline(vec![1]));
    let bad = blocks(5000, &[end]);
    assert_refused(&fs, change(number, &[good, bad], None), count + 1, "one of two");
    assert!(fs.list_xattr(number).unwrap().is_empty());
    assert_whole(&region, fs, &data);
}

/// A packed chunk of class 1 that could be stored.
fn piece(bytes: &[u8], class: u8) -> ToPack<'_> {
    ToPack { bytes, pool: Pool::ContentDefined, class, fingerprint: Fingerprint::default(), grows: false }
}

#[test]
fn packed_chunks_that_could_not_be_read_back_are_refused() {
    let (region, fs) = new_device();
    let data = noise(40_000);
    create(&fs, "file", &data);
    let core = fs.core();
    let too_long = noise(PACKED_BYTES_MAX as usize + 1);
    let cases: [(&str, &[u8], &[u8], u8); 6] = [
        ("no class", &data[..100], &data[..100], 0),
        ("a class that there cannot be", &data[..100], &data[..100], 16),
        ("nothing", &[], &[], 1),
        ("nothing of something", &data[..100], &[], 1),
        ("more than its content", &data[..100], &data[..101], 1),
        ("more than a chunk has", &too_long, &too_long, 1),
    ];
    let before = core.chunks.packed.count();
    for (count, (what, content, stored, class)) in (1..).zip(cases) {
        let mut claims = Claims::new(core);
        let stored = core.store_packed_as(&piece(content, class), stored, 1, &mut claims).map(drop);
        assert_refused(&fs, stored, count, what);
    }
    // One with an entry, to see that the same are not read.
    let mut claims = Claims::new(core);
    let chunk = core.store_packed_as(&piece(&data[..100], 1), &data[..100], 1, &mut claims).unwrap();
    assert!(core.chunks.place_of(chunk.into()).is_some());
    let (at, good) = (core.chunks.entry_offset(chunk), core.chunks.entry(chunk));
    for (what, content, stored, class) in cases {
        let bytes = PackedBytes { stored: stored.len() as u64, content: content.len() as u64 };
        let entry = ChunkEntry::for_packed(good.address(), bytes, class, good.word());
        let _ = region.fence(region.write(at, &entry).flush());
        assert_eq!(core.chunks.place_of(chunk.into()), None, "{what}");
    }
    let _ = region.fence(region.write(at, &good).flush());
    drop(claims);
    assert_eq!(core.chunks.packed.count(), before);
    assert_whole(&region, fs, &data);
}

#[test]
fn chunk_entries_that_could_not_be_read_back_are_refused() {
    let (region, fs) = new_device();
    let data = noise(40_000);
    let file = create(&fs, "file", &data);
    let core = fs.core();
    let geometry = &core.geometry;
    let packed = |address| NewPacked { number: PackedNumber(0), address, bytes: PackedBytes::plain(100), class: 1 };
    let (first, end) = (geometry.data_offset, geometry.data_end);
    let block = |address| Adds::Block(BlockNumber::containing(address), 1);
    let cases = [
        ("a block in the tables", block(0)),
        ("a block behind the end of the device", block(end)),
        ("a block far behind it", block(1 << 43)),
        ("a block that nothing references", Adds::Block(BlockNumber::containing(end - BLOCK_BYTES), 0)),
        ("a packed chunk in the tables", Adds::Packed(packed(0))),
        ("a packed chunk before the data", Adds::Packed(packed(first - 1))),
        ("a packed chunk at the end of the device", Adds::Packed(packed(end - 99))),
        (
            "a packed chunk in two segments",
            Adds::Packed(packed(first.next_multiple_of(SEGMENT_BYTES) + SEGMENT_BYTES - 1)),
        ),
    ];
    let all = region.to_vec(0, geometry.device_bytes);
    for (count, (what, entry)) in (1..).zip(cases) {
        let mut claims = Claims::new(core);
        match entry {
            Adds::Block(block, count) => {
                claims.transaction().add(block, count, &Fingerprint { weak: Some(7), strong: None })
            }
            Adds::Packed(new) => claims.transaction().add_packed(&new, 1, &Fingerprint::default()),
        }
        // The change itself is sound.
        let inode = core.inode(file.attr().ino.0).unwrap();
        let mut state = inode.write().unwrap();
        let range = 0..BLOCK_BYTES;
        let (_, extent) = state.extents().unwrap().within(0, BLOCK_BYTES).next().unwrap();
        let mapped = [(0, Extent { length: BLOCK_BYTES, ..extent })];
        let remap = Remap::new(&range, &mapped, Stamp::Kept);
        let published = core.publish(&inode, &mut *state, &remap, None, &mut claims);
        drop((claims, state));
        assert_refused(&fs, published, count, what);
        assert!(region.to_vec(0, geometry.device_bytes) == all, "{what}: nothing was written");
    }
    drop(file);
    assert_whole(&region, fs, &data);
}

enum Adds {
    Block(BlockNumber, u32),
    Packed(NewPacked),
}

#[test]
fn a_tail_that_would_exceed_its_maximum_length_is_refused() {
    let region = new_device().0;
    let fs = mount_with(&region, Policy::DeExt);
    let data = noise(5000);
    let file = create(&fs, "file", &data);
    let core = fs.core();
    let id = core.inode(file.attr().ino.0).unwrap().file_id();
    let tail = core.policies.streams().unwrap().take(id).unwrap().tail.unwrap();
    let longer = [&tail.bytes[..], &noise(PACKED_BYTES_MAX as usize)].concat();
    let grown = core.grow_tail(&tail, &longer, &mut Claims::new(core)).map(drop);
    assert_refused(&fs, grown, 1, "a tail of more than 64 KiB");
    drop(file);
    assert_whole(&region, fs, &data);
}

#[test]
fn a_journal_word_that_recovery_would_not_store_is_refused() {
    let (region, fs) = new_device();
    let data = noise(1000);
    create(&fs, "file", &data);
    let core = fs.core();
    let root = core.inode(ROOT.0).unwrap();
    let attributes = AttributeLine { mode: 0o700, ..root.peek().attributes };
    let bad =
        (0..INODE_BYTES / 8).map(|word| word * 8).filter(|at| ![COMMIT_WORD, HEAD_WORD, PARENT_WORD].contains(at));
    for (count, at) in (1..).zip(bad) {
        let mut state = root.write().unwrap();
        let words = [WordStore { offset: root.slot + at, value: 0 }];
        let (entries, attributes, purpose) = (&[][..], Some(attributes), Purpose::Log);
        let change = Change { inode: &root, state: &mut state, entries, attributes, purpose };
        let changed = core.change_all(&mut [change], &words, Flight::new());
        drop(state);
        assert_refused(&fs, changed, count, &format!("byte {at} of an inode"));
        assert_ne!(fs.getattr(ROOT).unwrap().mode & 0o777, 0o700);
    }
    drop(root);
    assert_whole(&region, fs, &data);
}

/// Returns an extent of one block with other content than the first block of `file`.
fn other_block(fs: &FileSystem, core: &Core) -> Extent {
    let other = create(fs, "other", &[7; 8192]);
    let inode = core.inode(other.attr().ino.0).unwrap();
    let state = inode.peek();
    let (_, extent) = state.extents().unwrap().within(0, BLOCK_BYTES).next().unwrap();
    extent
}

/// Publishes a rewrite of the first block of `file` that changes its content.
fn rewrite_wrongly(fs: &FileSystem, file: &File, stamp: Stamp<'_>) -> Result<()> {
    let core = fs.core();
    let extent = other_block(fs, core);
    let inode = core.inode(file.attr().ino.0)?;
    let mut state = inode.write()?;
    let mut claims = Claims::new(core);
    claims.share_extent(&extent)?;
    let (range, mapped) = (0..BLOCK_BYTES, [(0, extent)]);
    core.publish(&inode, &mut *state, &Remap::new(&range, &mapped, stamp), None, &mut claims)
}

#[test]
fn a_rewrite_with_other_content_is_refused() {
    let data = noise(40_000);
    for stamp in [Stamp::Kept, Stamp::Moved(1, 40_000)] {
        let (region, fs) = new_device();
        let file = create(&fs, "file", &data);
        fs.core().refusals.expect();
        assert_refused(&fs, rewrite_wrongly(&fs, &file, stamp), 1, "another block");
        // Work in the background records it, and goes on with another inode.
        let left_out: Result<()> = fs.jobs().leaving_out(rewrite_again(&fs, &file, stamp));
        assert!(left_out.is_ok() && fs.skipped().count == 1 && fs.refused().count == 2);
        drop(file);
        assert_whole(&region, fs, &data);
    }
}

fn rewrite_again(fs: &FileSystem, file: &File, stamp: Stamp<'_>) -> Result<()> {
    fs.unlink(ROOT, b"other").unwrap();
    rewrite_wrongly(fs, file, stamp)
}

#[test]
fn a_rewrite_that_loses_bytes_is_refused() {
    let (region, fs) = new_device();
    let data = noise(40_000);
    let file = create(&fs, "file", &data);
    let core = fs.core();
    core.refusals.expect();
    let inode = core.inode(file.attr().ino.0).unwrap();
    let mut state = inode.write().unwrap();
    let range = 0..2 * BLOCK_BYTES;
    let mapped: Vec<_> = state.extents().unwrap().within(0, BLOCK_BYTES).collect();
    let remap = Remap::new(&range, &mapped, Stamp::Kept);
    let published = core.publish(&inode, &mut *state, &remap, None, &mut Claims::new(core));
    drop(state);
    assert_refused(&fs, published, 1, "one block for two");
    drop((file, inode));
    assert_whole(&region, fs, &data);
}

#[test]
#[should_panic(expected = "it has other content")]
fn in_a_test_build_a_wrong_rewrite_panics() {
    let (_, fs) = new_device();
    let file = create(&fs, "file", &noise(40_000));
    let _ = rewrite_wrongly(&fs, &file, Stamp::Kept);
}

#[test]
fn copies_and_fingerprints_that_differ_are_refused() {
    let (_, fs) = new_device();
    let file = create(&fs, "file", &noise(40_000));
    let core = fs.core();
    core.refusals.expect();
    let inode = core.inode(file.attr().ino.0).unwrap();
    let state = inode.peek();
    let (_, extent) = state.extents().unwrap().iter().next().unwrap();
    let first = extent.media_address().unwrap();
    assert!(core.is_copy(first, first, BLOCK_BYTES) && !core.is_copy(first, first + BLOCK_BYTES, BLOCK_BYTES));
    let block = extent.blocks().start;
    let weak = core.chunks.weak_function().of(&core.region.read::<[u8; BLOCK_BYTES as usize]>(first));
    assert!(core.has_weak(block, |now| now == weak) && !core.has_weak(block, |now| now == !weak));
    assert_eq!(fs.refused().count, 2);
}

#[test]
fn a_compaction_that_would_change_the_meaning_of_a_log_is_refused() {
    let (region, fs) = new_device();
    let data = noise(40_000);
    let file = create(&fs, "file", &data);
    let number = file.attr().ino;
    fs.set_xattr(number, b"user.a", b"value", XattrMode::Set).unwrap();
    let core = fs.core();
    let (inode, root) = (core.inode(number.0).unwrap(), core.inode(ROOT.0).unwrap());
    {
        let state = inode.peek();
        let log = &state.log;
        assert!(core.check_compacted(&inode, &state, log.head, log.tail).is_ok());
        let names = root.peek();
        assert!(core.check_compacted(&root, &names, names.log.head, names.log.tail).is_ok());
    }
    core.refusals.expect();
    let mut state = inode.write().unwrap();
    let (head, tail) = (state.log.head, state.log.tail);
    let value = state.xattrs[&b"user.a"[..]].clone();
    state.remove_xattr(b"user.a");
    assert_refused(&fs, core.check_compacted(&inode, &state, head, tail), 1, "an attribute more");
    state.set_xattr(b"user.a".to_vec(), value);
    assert_refused(&fs, core.check_compacted(&inode, &state, head, tail - 64), 2, "an entry less");
    drop(state);
    drop((file, inode, root));
    assert_whole(&region, fs, &data);
}

/// Removes `old` and lets another file, or a directory, have its number. Returns what deferred work records of both.
fn reuse_slot(fs: &FileSystem, old: &str, data: Option<&[u8]>) -> (FileId, FileId) {
    let core = fs.core();
    let number = fs.lookup(ROOT, old.as_bytes()).unwrap().ino;
    let before = core.inode(number.0).unwrap().file_id();
    fs.unlink(ROOT, old.as_bytes()).unwrap();
    let new = match data {
        Some(data) => create(fs, "file", data).attr().ino,
        None => fs.mkdir(ROOT, b"directory", &NEW).unwrap().ino,
    };
    assert_eq!(new, number, "the number is used again");
    let after = core.inode(number.0).unwrap().file_id();
    assert!(core.inode_of(before).unwrap().is_none() && core.inode_of(after).unwrap().is_some());
    (before, after)
}

#[test]
fn a_stream_is_dropped_with_its_file() {
    let (region, fs) = new_device();
    fs.unmount().unwrap();
    let data = [7; 5000];
    let more = noise(5000);
    for new in [Some(&data[..]), None] {
        let fs = mount_with(&region, Policy::DeExt);
        let old = create(&fs, "old", &noise(5000));
        let core = fs.core();
        let streams = core.policies.streams().unwrap();
        let stream = streams.take(core.inode(old.attr().ino.0).unwrap().file_id()).unwrap();
        drop(old);
        let (before, after) = reuse_slot(&fs, "old", new);
        // As a thread does that writes to the old file and is late.
        streams.keep(before, stream);
        assert!(new.is_none() || streams.take(after).is_none(), "it is not the new file's");
        if new.is_some() {
            let file = fs.open(fs.lookup(ROOT, b"file").unwrap().ino).unwrap();
            assert_eq!(file.append(&more).unwrap(), 5000);
        }
        core.end_streams();
        assert_eq!((fs.skipped().count, fs.refused().count), (0, 0));
        assert_whole(&region, fs, &[&data[..], &more].concat());
    }
}

#[test]
fn a_removed_file_leaves_the_list_of_files_without_fingerprints() {
    for new in [Some(&noise(40_000)[..]), None] {
        let (region, fs) = new_device();
        fs.unmount().unwrap();
        let fs = mount_with(&region, Policy::Off);
        create(&fs, "old", &[7; 40_000]);
        let (before, after) = reuse_slot(&fs, "old", new);
        fs.unmount().unwrap();
        let fs = mount_with(&region, Policy::Inline);
        let filled = fs.jobs().fill_file(before, 0).unwrap();
        assert_eq!((filled.chunks, filled.next), (0, None));
        let filled = fs.jobs().fill_file(after, 0).unwrap();
        assert_eq!(filled.chunks > 0, new.is_some());
        fs.unmount().unwrap();
    }
}

#[test]
fn a_queued_entry_is_dropped_with_its_file() {
    let (region, fs) = new_device();
    fs.unmount().unwrap();
    let fs = mount_with(&region, Policy::DeNova);
    let core = fs.core();
    let data = noise(40_960);
    let token_of_pending = |number: InodeNumber| {
        let inode = core.inode(number.0).unwrap();
        let mut tokens = Vec::new();
        each_pending(&region, &core.geometry, &inode, |at, entry| tokens.push(token_of(&inode, at, entry).0)).unwrap();
        assert_eq!(tokens.len(), 1);
        tokens[0]
    };
    let old = token_of_pending(create(&fs, "old", &data).attr().ino);
    let (_, after) = reuse_slot(&fs, "old", Some(&data));
    let new = token_of_pending(InodeNumber(after.number));
    assert_eq!(old.words, new.words, "an entry of the new file stands where that of the old one was");
    let inode = core.inode(after.number).unwrap();
    let state = inode.peek();
    assert!(core.queued_entry(&inode, &state, &new).is_some());
    assert!(core.queued_entry(&inode, &state, &old).is_none());
    drop(state);
    drop(inode);
    while !fs.drain_step().unwrap() {}
    assert_whole(&region, fs, &data);
}

/// Text of which no two files have a part in common.
pub(super) fn text_of(file: usize) -> Vec<u8> {
    (0..).map(|line| format!("line {line} of file {file}\n").into_bytes()).take(4000).flatten().collect()
}

/// A device with packed chunks of which a clone maps 200 bytes each.
fn device_with_parts() -> (Region, FileSystem, Vec<u8>) {
    let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount_with(&region, Policy::DeExt);
    let mut parts = Vec::new();
    let clone = create(&fs, "file", b"");
    for file in 0..60 {
        let (name, text) = (format!("source {file}"), text_of(file));
        let source = create(&fs, &name, &text);
        for at in (0..text.len() - 4096).step_by(4096) {
            assert_eq!(clone.clone_from(&source, at as u64 + 100, parts.len() as u64, 200).unwrap(), 200);
            parts.extend_from_slice(&text[at + 100..at + 300]);
        }
        drop(source);
        fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    (region, fs, parts)
}

/// Calls `work` with this many steps at a time until it has some left. Returns the number of calls and of steps.
fn in_calls_of(steps: u32, mut work: impl FnMut(&Effort)) -> (u32, u32) {
    for calls in 1.. {
        let effort = Effort::of(steps);
        work(&effort);
        if !effort.is_spent() {
            return (calls, calls * steps - effort.steps_left());
        }
    }
    unreachable!("the work ends");
}

#[test]
fn a_call_without_space_collects_a_little_and_the_next_one_continues() {
    let [(once, all), (calls, steps)] = [1_000_000, 3].map(|steps| {
        let (region, fs, parts) = device_with_parts();
        let done = in_calls_of(steps, |effort| _ = fs.jobs().collect_for_space(effort));
        assert!(fs.jobs().under_way.collector.done().0 > 300, "{:?}", fs.stats().reclaim);
        assert_whole(&region, fs, &parts);
        done
    });
    // A call that ends with its last step does not know that it was the last one.
    assert!(once == 1 && all > 20 && steps == all && calls == all / 3 + 1, "{once} {all} {calls} {steps}");
}

#[test]
fn a_call_without_space_moves_a_little_and_the_next_one_continues() {
    let [(once, all), (calls, steps)] = [1_000_000, 2].map(|steps| {
        let (region, fs, parts) = device_with_parts();
        (0..150).for_each(|file| drop(create(&fs, &format!("more {file}"), &text_of(100 + file))));
        let gone = (0..150).filter(|file| file % 3 > 0);
        gone.for_each(|file| fs.unlink(ROOT, format!("more {file}").as_bytes()).unwrap());
        let empty_all = |effort: &Effort| while fs.jobs().reclaim_segment(effort) {};
        let done = in_calls_of(steps, empty_all);
        assert!(fs.stats().reclaim.segments > 2, "{:?}", fs.stats().reclaim);
        assert_whole(&region, fs, &parts);
        done
    });
    assert!(once == 1 && all > 6 && steps == all && calls == all / 2 + 1, "{once} {all} {calls} {steps}");
}

#[test]
fn futile_work_for_space_is_not_repeated_until_something_is_freed() {
    let (region, fs, parts) = device_with_parts();
    let jobs = fs.jobs();
    let work = |steps| {
        let effort = Effort::of(steps);
        while jobs.reclaim_segment(&effort) || jobs.collect_for_space(&effort) {}
        steps - effort.steps_left()
    };
    assert!(work(1_000_000) > 20);
    // The round may have filled segments that have dead bytes again.
    while work(1_000_000) > 0 {}
    // Fewer bytes die than a round may be about.
    fs.open(fs.lookup(ROOT, b"file").unwrap().ino).unwrap().write_at(0, &parts[..100]).unwrap();
    assert_eq!(work(1_000_000), 0, "collected for 100 bytes");
    assert_whole(&region, fs, &parts);
}
