//! Races on data: blocks are shared while other threads write, clone, cut and remove files.

use super::*;
use crate::errno;

fn write(file: &File, byte: u8) {
    file.write_at(0, &block(byte)).unwrap();
}

/// Neither writer finds the other's block at its first lookup; one of them finds it afterwards.
#[test]
fn two_writers_of_one_new_block_keep_counts_exact() {
    explore(|| {
        let device = Device::new();
        let files = ["a", "b"].map(|name| device.file(name));
        race(files.clone().map(|file| task(move || write(&file, 7))));
        assert!(files.iter().all(|file| content(file) == block(7)));
        assert_eq!(device.fs.stats().data_blocks, 1, "stored once");
        drop(files);
        device.settle();
    });
}

#[test]
fn two_writers_of_equal_blocks_in_reverse_sequence_keep_counts_exact() {
    explore(|| {
        let device = Device::new();
        let files = ["a", "b", "c"].map(|name| device.file(name));
        files[2].allocate(0, 4096 * 4, AllocateMode::Reserve).unwrap();
        let contents = [[1, 2, 1, 3], [2, 1, 3, 3], [3, 2, 1, 2]].map(|bytes| bytes.map(block).concat());
        let writes = |at: usize| {
            let (file, bytes) = (files[at].clone(), contents[at].clone());
            task(move || file.write_at(0, &bytes).unwrap())
        };
        race([writes(0), writes(1), writes(2)]);
        for (file, bytes) in files.iter().zip(&contents) {
            assert_eq!(&content(file), bytes);
        }
        assert_eq!(device.fs.stats().data_blocks, 3, "stored once each");
        drop(files);
        device.settle();
    });
}

#[test]
fn a_writer_shares_a_block_while_its_last_file_is_removed() {
    explore(|| {
        let device = Device::new();
        write(&device.file("a"), 7);
        let b = device.file("b");
        let (fs, writer) = (device.fs.clone(), b.clone());
        race([task(move || write(&writer, 7)), task(move || fs.unlink(ROOT, b"a").unwrap())]);
        assert_eq!(content(&b), block(7));
        drop(b);
        device.settle();
    });
}

/// The second task frees the shared block and reuses it for other content, while the first task still has it from the
/// index.
#[test]
fn a_writer_finds_a_block_while_it_is_freed_and_reused() {
    explore(|| {
        let device = Device::with(MountOptions { cores: 4, ..MountOptions::default() });
        write(&device.file("a"), 7);
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, first, second) = (device.fs.clone(), b.clone(), c.clone());
        race([
            task(move || write(&first, 7)),
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                fs.trim().unwrap();
                write(&second, 8);
            }),
        ]);
        assert_eq!((content(&b), content(&c)), (block(7).to_vec(), block(8).to_vec()));
        drop((b, c));
        device.settle();
    });
}

#[test]
fn a_clone_is_correct_while_its_source_is_truncated_and_written() {
    explore(|| {
        let device = Device::new();
        let (source, target) = (device.file("source"), device.file("target"));
        let old = [block(1), block(2)].concat();
        source.write_at(0, &old).unwrap();
        let (from, to, cut, writer) = (source.clone(), target.clone(), source.clone(), source.clone());
        race([
            task(move || to.clone_from(&from, 0, 0, u64::MAX >> 2).unwrap()),
            task(move || cut.set_len(4096).unwrap()),
            task(move || write(&writer, 3)),
        ]);
        let new = block(3).to_vec();
        assert_eq!(content(&source), new);
        let (cut, written) = (block(1).to_vec(), [block(3), block(2)].concat());
        assert!([old, new, cut, written].contains(&content(&target)));
        drop((source, target));
        device.settle();
    });
}

#[test]
fn two_files_are_cloned_into_each_other() {
    explore(|| {
        let device = Device::new();
        let [a, b] = ["a", "b"].map(|name| device.file(name));
        write(&a, 1);
        write(&b, 2);
        let clone = |to: &File, from: &File| {
            let (to, from) = (to.clone(), from.clone());
            task(move || to.clone_from(&from, 0, 100, 4096).unwrap())
        };
        race([clone(&a, &b), clone(&b, &a)]);
        let [ones, twos] = [1, 2].map(|byte| block(byte).to_vec());
        let late = |first: &[u8], second: &[u8]| [&first[..100], second].concat();
        let allowed = [
            (late(&ones, &twos), late(&twos, &late(&ones, &twos)[..BLOCK])),
            (late(&ones, &late(&twos, &ones)[..BLOCK]), late(&twos, &ones)),
        ];
        assert!(allowed.contains(&(content(&a), content(&b))));
        drop((a, b));
        device.settle();
    });
}

#[test]
fn a_reader_sees_a_concurrent_write_completely_or_not_at_all() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        file.write_at(0, &[block(1), block(2)].concat()).unwrap();
        let (writer, reader) = (file.clone(), file.clone());
        race([
            task(move || writer.write_at(0, &[block(3), block(3)].concat()).unwrap()),
            task(move || {
                for _ in 0..2 {
                    let seen = content(&reader);
                    assert!([[block(1), block(2)].concat(), [block(3), block(3)].concat()].contains(&seen));
                }
            }),
        ]);
        drop(file);
        device.settle();
    });
}

#[test]
fn concurrent_appends_to_one_file_do_not_overlap() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        race([1, 2, 3].map(|byte| {
            let file = file.clone();
            task(move || file.append(&[byte; 3000]).unwrap())
        }));
        let seen = content(&file);
        assert_eq!(seen.len(), 9000);
        let mut parts: Vec<&[u8]> = seen.chunks(3000).collect();
        parts.sort_unstable();
        assert_eq!(parts, [[1; 3000], [2; 3000], [3; 3000]]);
        drop(file);
        device.settle();
    });
}

#[test]
fn a_reserved_block_is_written_punched_and_cloned() {
    explore(|| {
        let device = Device::new();
        let (file, other) = (device.file("a"), device.file("b"));
        file.allocate(0, 4096, AllocateMode::Reserve).unwrap();
        let (writer, puncher, source, target) = (file.clone(), file.clone(), file.clone(), other.clone());
        race([
            task(move || write(&writer, 1)),
            task(move || puncher.allocate(0, 4096, AllocateMode::PunchHole).unwrap()),
            task(move || target.clone_from(&source, 0, 0, 4096).unwrap()),
        ]);
        for file in [&file, &other] {
            assert!([block(0), block(1)].iter().any(|allowed| content(file) == allowed));
        }
        drop((file, other));
        device.settle();
    });
}

/// A failing write releases everything it has taken, while another write shares its blocks or takes the released
/// ones.
#[test]
fn a_write_without_space_does_not_take_space_from_others() {
    explore(|| {
        let device = Device::new();
        let filler = device.file("filler");
        let free = device.fs.statfs().blocks_available;
        filler.allocate(0, (free - 3) * BLOCK_BYTES, AllocateMode::Reserve).unwrap();
        let files = ["a", "b"].map(|name| device.file(name));
        race(files.clone().map(|file| {
            task(move || match file.write_at(0, &[block(1), block(2)].concat()) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.errno(), errno::ENOSPC),
            })
        }));
        for file in &files {
            assert!([vec![], [block(1), block(2)].concat()].contains(&content(file)));
        }
        drop((filler, files));
        device.settle();
    });
}

/// The next entry makes the log of the file long enough to be compacted.
#[test]
fn a_log_is_compacted_while_it_is_read() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        (0..126).for_each(|_| write(&file, 1));
        let (writer, reader, fs) = (file.clone(), file.clone(), device.fs.clone());
        race([
            task(move || write(&writer, 2)),
            task(move || {
                let seen = content(&reader);
                assert!(seen == block(1) || seen == block(2));
            }),
            task(move || {
                let attr = fs.lookup(ROOT, b"a").unwrap();
                assert_eq!(attr.size, 4096);
            }),
        ]);
        assert_eq!(content(&file), block(2));
        drop(file);
        device.settle();
    });
}

#[test]
fn totals_can_be_read_during_any_operation() {
    explore(|| {
        let device = Device::new();
        let big = device.file("big");
        big.allocate(0, 8 << 20, AllocateMode::Reserve).unwrap();
        let (fs, cut, other) = (device.fs.clone(), big.clone(), device.file("other"));
        race([
            task(move || cut.set_len(0).unwrap()),
            task(move || other.write_at(0, &[block(1), block(1)].concat()).unwrap()),
            task(move || {
                let (stats, space) = (fs.stats(), fs.statfs());
                assert!(stats.metadata_bytes <= stats.device_bytes);
                assert!(space.blocks_free <= space.blocks && space.inodes_free <= space.inodes);
            }),
        ]);
        drop(big);
        device.settle();
    });
}
