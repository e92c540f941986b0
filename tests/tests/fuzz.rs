//! The fuzz targets without a fuzzer: the same functions, with random input that shrinks.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::inode::{ATTRIBUTE_LINES, AttributeLine, INODE_BYTES, OVERFLOW_WORD};
use nvfold::internals::media::journal::{JournalSlot, WordStore};
use nvfold::internals::media::saved_state::{SavedRun, SavedState};
use nvfold::internals::media::segment::{KIND_PACKED, SegmentEntry};
use nvfold::internals::media::superblock::{COPIES, Geometry};
use nvfold::internals::media::{BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use nvfold::{AllocateMode, BLOCK_BYTES, DEVICE_BYTES_MIN, FileSystem, MkfsOptions, MountOptions, Policy, Superblock};
use nvfold_tests::causality;
use nvfold_tests::hostile::{self, image, image::Kind};
use nvfold_tests::model::library::Library;
use nvfold_tests::model::{Answer, Op, Subject, script};
use nvfold_tests::random::soak_factor;
use nvfold_tests::slate::{Content, Slate};
use pmem::{DeviceSpec, OpenOptions, Region};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use zerocopy::{FromBytes, IntoBytes};

/// Time limit of one case, many times what any case needs.
const HANG: Duration = Duration::from_secs(60);

/// Failing inputs are kept in a file next to the test and tried first; `NVFOLD_SOAK` makes the run longer.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/fuzz.regressions");
    ProptestConfig {
        cases: cases * soak_factor() as u32,
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(2500))]

    #[test]
    fn random_operations_give_the_results_of_the_model(
        head in any::<[u8; script::HEAD_BYTES]>(),
        records in vec(any::<[u8; script::RECORD_BYTES]>(), 1..60),
    ) {
        watched(&[&head[..], records.as_flattened()].concat(), script::run);
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn fsck_mount_and_repair_agree_on_damaged_images(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        records in vec(any::<[u8; hostile::damage::RECORD_BYTES]>(), 1..4),
    ) {
        watched(&[&head[..], records.as_flattened()].concat(), hostile::run_damaged);
    }

    #[test]
    fn fsck_mount_and_repair_agree_on_partly_overwritten_images(
        head in any::<[u8; hostile::HEAD_BYTES]>(),
        written in vec((any::<[u8; 3]>(), vec(any::<u8>(), 0..20)), 1..8),
    ) {
        let records = written.iter().map(|(at, bytes)| [&at[..], &[bytes.len() as u8], bytes].concat());
        let bytes = [&head[..], &records.collect::<Vec<_>>().concat()].concat();
        watched(&bytes, hostile::run_arbitrary);
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn files_not_hit_by_noise_survive_a_repair(record in any::<[u8; hostile::OVERWRITTEN_BYTES]>()) {
        watched(&record, hostile::run_overwritten);
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn the_rec_tree_agrees_with_a_naive_model(
        head in 0..causality::HEADS,
        records in vec(any::<[u8; causality::RECORD_BYTES]>(), 1..100),
    ) {
        watched(&[&[head], records.as_flattened()].concat(), causality::run);
    }
}

#[test]
fn every_seed_of_the_fuzz_corpora_passes() {
    for (target, run) in [
        ("operations", script::run as fn(&[u8])),
        ("damaged_image", hostile::run_damaged),
        ("arbitrary_image", hostile::run_arbitrary),
        ("overwritten_image", hostile::run_overwritten),
        ("rec_tree", causality::run),
    ] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let seeds: Vec<_> = std::fs::read_dir(&directory).expect("the seeds are checked in").collect();
        assert!(seeds.len() >= 50, "{} seeds of {target}", seeds.len());
        for seed in seeds {
            let bytes = std::fs::read(seed.expect("an entry").path()).expect("read a seed");
            watched(&bytes, run);
        }
    }
}

/// Runs one case. A case that hangs cannot be reported as a failure of a test, so it ends the process.
fn watched(bytes: &[u8], run: fn(&[u8])) {
    let (done, ended) = mpsc::channel::<()>();
    let shown = format!("{bytes:?}");
    let watch = thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("still not done after {HANG:?}: {shown}");
            std::process::abort();
        }
    });
    run(bytes);
    drop(done);
    watch.join().expect("the watch ends with the case");
}

// --- the bugs that were found --------------------------------------------------------------------

fn damaged(kind: Kind, damage: impl FnOnce(&Geometry, &mut Content)) -> Content {
    let mut content = image::image(kind).content.clone();
    let geometry = Geometry::of(content.len_bytes()).expect("a size that can be formatted");
    damage(&geometry, &mut content);
    content
}

fn edit_superblocks(content: &mut Content, change: impl Fn(&mut Superblock)) {
    for at in hostile::damage::superblocks(content.len_bytes()) {
        let bytes = content.read(at, size_of::<Superblock>() as u64);
        let mut superblock = Superblock::read_from_bytes(&bytes).expect("a superblock's bytes");
        change(&mut superblock);
        content.write(at, superblock.sealed().as_bytes());
    }
}

/// Changes the header of the saved state, and corrects the checksums of payload and header.
fn edit_saved_state(content: &mut Content, change: impl FnOnce(&mut [u8])) {
    let bytes = content.read(0, size_of::<Superblock>() as u64);
    let at = Superblock::read_from_bytes(&bytes).expect("a superblock's bytes").saved_state;
    let mut bytes = content.read(at, BLOCK_BYTES);
    change(&mut bytes);
    let mut header = SavedState::read_from_bytes(&bytes).expect("a header's bytes");
    let payload = image::saved_payload(content, &header).expect("a payload on the device");
    header.payload_check = crc32c::crc32c(&payload.bytes);
    content.write(at, header.sealed(at).as_bytes());
}

#[track_caller]
fn assert_agreed(content: &Content) {
    if let Err(why) = hostile::try_device(content, Policy::Inline) {
        panic!("{why}");
    }
}

/// The entry is two words: a crash during the growth of the inode table may leave one of them. Mounting did not clear
/// it, and fsck found it after the next unmount.
#[test]
fn half_a_segment_entry_is_cleared_by_the_next_mount() {
    for segment in 2..8 {
        assert_agreed(&damaged(Kind::Crashed, |geometry, content| {
            content.write(geometry.segment_entry_offset(segment), &SegmentEntry::inodes(segment, 1).as_bytes()[..8]);
        }));
    }
}

/// The last segment lacks the blocks of the copy of the superblock. fsck accepted an entry that says that packed chunks
/// are there, and recovery then counted those blocks as free.
#[test]
fn a_segment_that_lacks_blocks_holds_neither_tables_nor_packed_chunks() {
    let last = DEVICE_BYTES_MIN / SEGMENT_BYTES - 1;
    for image in [Kind::Compressed, Kind::Crashed] {
        for use_of_it in 1..=KIND_PACKED {
            let content = damaged(image, |geometry, content| {
                let entry = SegmentEntry::default().used_for(last, use_of_it, 0);
                content.write(geometry.segment_entry_offset(last), entry.as_bytes());
                edit_superblocks(content, |superblock| superblock.state = 0);
            });
            assert_agreed(&content);
        }
    }
}

/// fsck checked only the words that operations store; recovery stored all words.
#[test]
fn a_journal_with_an_impossible_word_is_reported_and_refused() {
    let slot = image::image(Kind::Crashed).inodes()[0].at;
    for word in (0..512).step_by(8) {
        let content = damaged(Kind::Crashed, |geometry, content| {
            let journal = JournalSlot::new(&[WordStore { offset: slot + word, value: 0 }]);
            content.write(geometry.journal_slot_offset(3), journal.as_bytes());
        });
        assert_agreed(&content);
    }
}

#[test]
fn the_mount_count_may_overflow() {
    assert_agreed(&damaged(Kind::Small, |_, content| {
        edit_superblocks(content, |superblock| superblock.mount_epoch = u64::MAX);
    }));
}

/// fsck wrote superblocks without knowing the meaning of flags for writers, and called the device repaired.
#[test]
fn repair_refuses_a_device_with_unknown_features_for_writers() {
    let content = damaged(Kind::CutOff, |_, content| {
        edit_superblocks(content, |superblock| superblock.read_only_compatible = 1 << 40);
        content.write(COPIES[1] + 100, &[0xff]);
    });
    assert_agreed(&content);
    let region = Slate::new(content.len_bytes()).with(&content);
    let repaired = check(&region, &CheckOptions { repair: true, data: true });
    assert!(matches!(repaired, Err(nvfold::Error::Newer { .. })), "{repaired:?}");
    assert_eq!(Content::of(&region), content);
}

/// A mount trusts the totals of a saved state, and fsck compares them with the logs; adding them up overflowed.
#[test]
fn impossible_totals_of_a_saved_state_are_reported() {
    // Of mapped bytes and blocks, fsck also says that they do not add up with the others.
    for (total, findings) in [(48, 2), (56, 2), (64, 1), (72, 1)] {
        let content =
            damaged(Kind::Small, |_, content| edit_saved_state(content, |header| header[total..][..8].fill(0xff)));
        let region = Slate::new(content.len_bytes()).with(&content);
        let found = check(&region, &CheckOptions::default()).expect("fsck").findings.len();
        assert_eq!(found, findings, "the total at {total}");
        assert_agreed(&content);
    }
}

/// A shard of the saved index without homes was accepted: its entries were never found again.
#[test]
fn a_saved_index_that_cannot_be_searched_is_rebuilt() {
    let at = image::image(Kind::LongLogs);
    let shards = at.structures[image::Layout::SavedPayload as usize].iter().map(|part| part.at);
    for capacity in shards {
        let list = [0, 1, 100, u64::MAX];
        list.into_iter().for_each(|value| {
            let content = damaged(Kind::LongLogs, |_, content| {
                content.write(capacity, &value.to_le_bytes());
                edit_saved_state(content, |_| {});
            });
            assert_agreed(&content);
        });
    }
}

/// A saved state whose runs have blocks in common was read: one run named 248 times took as much memory as 248 runs.
#[test]
fn a_saved_state_in_overlapping_runs_is_rejected() {
    let is_loaded = |content: &Content| {
        let region = Slate::new(content.len_bytes()).with(content);
        let fs = FileSystem::mount(region, MountOptions::default()).expect("mount");
        fs.stats().recovery.loaded
    };
    assert!(is_loaded(&image::image(Kind::Small).content));
    let with_a_run = |run: fn(&SavedState, u64) -> SavedRun| {
        damaged(Kind::Small, |_, content| {
            let bytes = content.read(0, size_of::<Superblock>() as u64);
            let at = Superblock::read_from_bytes(&bytes).expect("a superblock's bytes").saved_state;
            let mut header = SavedState::read_from_bytes(&content.read(at, BLOCK_BYTES)).expect("a header's bytes");
            header.runs[header.runs_used as usize] = run(&header, at);
            header.runs_used += 1;
            content.write(at, header.sealed(at).as_bytes());
        })
    };
    let again = with_a_run(|header, _| header.runs[0]);
    let last_block = with_a_run(|header, _| {
        let SavedRun { start, count } = header.runs[0];
        SavedRun { start: start + count - 1, count: 1 }
    });
    let header = with_a_run(|_, at| SavedRun { start: at / BLOCK_BYTES, count: 1 });
    let nothing = with_a_run(|_, _| SavedRun { start: u64::MAX, count: 0 });
    for (content, loaded) in [(again, false), (last_block, false), (header, false), (nothing, true)] {
        assert_eq!(is_loaded(&content), loaded);
        assert_agreed(&content);
    }
}

/// Recovery looks only at segments that are marked as holding blocks, and no crash leaves an entry in another one.
#[test]
fn a_chunk_entry_without_a_block_is_reported_and_repaired() {
    let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a size that can be formatted");
    let inode_table = geometry.first_segment() * SEGMENT_BLOCKS;
    for block in [0, 5, inode_table, inode_table + 511, geometry.blocks() - 1] {
        for kind in [Kind::CutOff, Kind::Small] {
            let content = damaged(kind, |geometry, content| {
                content.write(geometry.chunk_entry_offset(BlockNumber(block)) + 8, &[0x6f]);
            });
            assert_agreed(&content);
            let region = Slate::new(content.len_bytes()).with(&content);
            let options = CheckOptions { repair: true, data: true };
            assert!(check(&region, &options).expect("fsck").is_consistent(), "block {block}");
        }
    }
}

/// A crash may leave a single word of a chunk entry.
#[test]
fn a_single_word_of_a_chunk_entry_after_a_crash_counts_as_empty() {
    let data = damaged(Kind::Crashed, |geometry, content| {
        let block = BlockNumber::containing(geometry.data_offset + SEGMENT_BYTES);
        for block in (block.0..geometry.blocks()).map(BlockNumber) {
            let offset = geometry.chunk_entry_offset(block);
            let segment = content.read(geometry.segment_entry_offset(block.0 / SEGMENT_BLOCKS), 1)[0];
            if segment != 0 && content.read(offset, 64) == [0; 64] {
                let word = block.0 % 8;
                content.write(
                    offset + word * 8,
                    &[(0x10u64 << 56).to_le_bytes(), 1u64.to_le_bytes()][usize::from(word == 1)],
                );
            }
        }
    });
    assert_agreed(&data);
}

/// Names and link counts change in one commit, so a wrong count is not a trace of a crash.
#[test]
fn a_link_count_that_no_crash_can_leave_is_reported() {
    let image = image::image(Kind::Crashed);
    for line in &image.structures[image::Layout::AttributeLine as usize] {
        assert_agreed(&damaged(Kind::Crashed, |_, content| {
            let bytes = content.read(line.at, line.len);
            let attributes = AttributeLine::read_from_bytes(&bytes).expect("a line");
            if attributes.is_whole(line.owner) {
                let wrong = AttributeLine { nlink: 0x7fff, ..attributes }.sealed(line.owner);
                content.write(line.at, wrong.as_bytes());
            }
        }));
    }
}

/// Reconcile freed a directory without a name and left its files without one; the next fsck found that.
#[test]
fn a_directory_that_lost_its_name_keeps_its_content() {
    for cut in [192, 256, 320] {
        let content = damaged(Kind::Crashed, |geometry, content| {
            // The log of the root looks shorter than it was.
            let slot = geometry.data_offset + INODE_BYTES;
            let tail = slot + cut;
            let selector = content.read(slot, 1)[0] & 1;
            let line = slot + ATTRIBUTE_LINES[usize::from(selector)];
            let attributes = AttributeLine::read_from_bytes(&content.read(line, 64)).expect("a line");
            content.write(line, AttributeLine { as_of: tail, ..attributes }.sealed(1).as_bytes());
            content.write(slot, &(tail | u64::from(selector)).to_le_bytes());
        });
        let region = Slate::new(content.len_bytes()).with(&content);
        let fs = FileSystem::mount(region, nvfold::MountOptions::default()).expect("mount");
        let inodes = fs.stats().inodes;
        fs.reconcile().expect("reconcile");
        let recovery = fs.stats().recovery;
        assert!(cut > 192 || recovery.unreadable > 0, "a directory that is not empty has no name");
        assert!(cut > 192 || fs.stats().inodes == inodes, "all that the root named is left alone");
        drop(fs);
        assert_agreed(&content);
    }
}

/// The bits of a segment were kept in whole words of existing blocks.
#[test]
fn a_device_that_ends_within_a_segment_is_used_to_its_end() {
    for blocks in [4097, 4100, 4096 + 256, 4096 + 511] {
        let region =
            Region::create(&DeviceSpec::Memory, blocks * BLOCK_BYTES, &OpenOptions::default()).expect("a device");
        FileSystem::mkfs(&region, &MkfsOptions::default()).expect("mkfs");
        let mut library = Library::on(region, MountOptions::default());
        let path = vec![0];
        assert_eq!(library.apply(&Op::Create { path: path.clone(), mode: 0o600 }), Answer::Done);
        let len = (library.blocks_available() - 4) * BLOCK_BYTES;
        let reserve = Op::Allocate { path: path.clone(), offset: 0, len, mode: AllocateMode::Reserve };
        assert_eq!(library.apply(&reserve), Answer::Done);
        for op in [Op::Remount, Op::Crash, Op::Remount, Op::Unlink { path }, Op::Remount, Op::Crash, Op::Crash] {
            assert_eq!(library.apply(&op), Answer::Done);
        }
    }
}

/// A tail at the start of a page also stands for the end of the area before it. Attributes written for that tail were
/// not found again, and the inode was lost with the next change.
#[test]
fn a_log_tail_at_the_start_of_a_page_is_reported() {
    for kind in [Kind::Everything, Kind::LongLogs, Kind::Tombstones, Kind::Crashed] {
        for inode in image::image(kind).inodes() {
            assert_agreed(&damaged(kind, |_, content| {
                let overflow = content.read(inode.at + OVERFLOW_WORD, 8);
                let selector = content.read(inode.at, 1)[0] & 1;
                if overflow != [0; 8] {
                    content.write(inode.at, &overflow);
                    content.write(inode.at, &[selector]);
                }
            }));
        }
    }
}

/// A byte of the entry of a segment with packed chunks: an earlier version took the entry for half written, and lost
/// the chunks.
#[test]
fn a_damaged_wear_class_costs_no_chunk() {
    hostile::run_overwritten(&[14, 11, 255, 255, 0x31, 0, 0, 0, 0]);
}
