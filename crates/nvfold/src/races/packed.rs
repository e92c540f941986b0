//! Races on packed chunks under policy `deext`: bytes and entries that are reused at once, tails that grow, streams
//! that end, and segments and parts of the entry table that come and go.

use super::*;
use crate::chunk::entries::{ENTRIES_PER_SEGMENT, Entries};
use crate::chunk::packed::{PackedEntries, WORDS_PER_PART};
use crate::fingerprint::weak;
use crate::media::chunk_entry::CountWord;
use crate::media::direct::prefix_bits;
use crate::media::packed::PackedBytes;
use crate::media::{PACKED_BYTES_MAX, PackedNumber};
use crate::space::packed::Pool;
use crate::space::{BlockRun, KEPT_BLOCKS, Space, WORDS_PER_SEGMENT};
use pmem::Flight;

/// Length of a short piece, in bytes: a whole request.
const SHORT: usize = 3000;

fn device(index: IndexKind) -> Device {
    let mkfs = MkfsOptions { index, ..MkfsOptions::default() };
    Device::made(&mkfs, MountOptions { policy: Policy::DeExt, cores: 4, ..MountOptions::default() })
}

/// Returns one short piece of this byte.
fn short(byte: u8) -> [u8; SHORT] {
    [byte; SHORT]
}

/// Ends streams and cuts seams, until nothing is left to do.
fn fill(fs: &FileSystem) {
    while !fs.fill_step().unwrap() {}
}

fn settle(device: Device) {
    fill(&device.fs);
    device.settle();
}

/// The chunk is the last one of its segment. Its space and its entry are reused by another file as soon as they are
/// free.
#[test]
fn a_chunk_is_read_while_its_bytes_and_its_entry_are_reused_by_another_file() {
    explore(|| {
        let device = device(IndexKind::Dram);
        let (a, b) = (device.file("a"), device.file("b"));
        a.write_at(0, &short(1)).unwrap();
        let (reader, cut, other) = (a.clone(), a.clone(), b.clone());
        race([
            task(move || {
                for _ in 0..2 {
                    let seen = seen(&reader);
                    assert!([&[][..], &short(1), &short(2)].contains(&&seen[..]), "bytes of another file");
                }
            }),
            task(move || {
                cut.set_len(0).unwrap();
                cut.write_at(0, &short(2)).unwrap();
            }),
            task(move || {
                other.write_at(0, &short(3)).unwrap();
                other.write_at(0, &short(4)).unwrap();
            }),
        ]);
        assert_eq!((seen(&a), seen(&b)), (short(2).to_vec(), short(4).to_vec()));
        drop((a, b));
        settle(device);
    });
}

/// A chunk that a writer finds in the index loses its last reference, and its entry and its space are reused.
#[test]
fn an_equal_piece_is_found_while_it_is_freed_and_its_place_is_reused() {
    explore(|| {
        let device = device(IndexKind::Pm);
        device.file("a").write_at(0, &short(1)).unwrap();
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, first, second) = (device.fs.clone(), b.clone(), c.clone());
        race([
            task(move || {
                first.write_at(0, &short(1)).unwrap();
                first.write_at(0, &short(5)).unwrap();
            }),
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                fs.trim().unwrap();
            }),
            task(move || second.write_at(0, &[2; SHORT - 100]).unwrap()),
        ]);
        assert_eq!((seen(&b), seen(&c)), (short(5).to_vec(), vec![2; SHORT - 100]));
        drop((b, c));
        settle(device);
    });
}

/// Two of three tasks release references at once, and by then the entry that the last release frees is reused for
/// another length.
#[test]
fn references_are_dropped_while_the_last_one_frees_the_entry_for_another_length() {
    explore(|| {
        let device = device(IndexKind::Dram);
        let files = ["a", "b"].map(|name| device.file(name));
        files.iter().for_each(|file| file.write_at(0, &short(1)).unwrap());
        let other = device.file("c");
        let (fs, cut, writer) = (device.fs.clone(), files.clone(), other.clone());
        let [one, two] = cut;
        race([
            task(move || one.set_len(0).unwrap()),
            task(move || {
                two.set_len(0).unwrap();
                writer.write_at(0, &[2; 100]).unwrap();
                writer.write_at(100, &[3; 50]).unwrap();
            }),
            task(move || fs.trim().unwrap()),
        ]);
        assert_eq!(seen(&other), [[2; 100].as_slice(), &[3; 50]].concat());
        drop((files, other));
        settle(device);
    });
}

/// Returns incompressible bytes, which are cut every 16 KiB.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 7u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Equal pieces arrive in requests of different sizes: each is stored at most twice.
#[test]
fn two_streams_write_equal_pieces() {
    let data = noise(36 << 10);
    explore(move || {
        let device = device(IndexKind::Dram);
        let files = ["a", "b"].map(|name| device.file(name));
        let writes = |at: usize, step: usize| {
            let (file, data) = (files[at].clone(), data.clone());
            task(move || {
                let starts = (0..data.len()).step_by(step);
                starts.for_each(|start| _ = file.append(&data[start..data.len().min(start + step)]).unwrap());
            })
        };
        race([writes(0, 20 << 10), writes(1, 36 << 10)]);
        assert!(files.iter().all(|file| content(file) == data));
        drop(files);
        fill(&device.fs);
        assert!((3..=6).contains(&device.fs.stats().chunks), "{} chunks", device.fs.stats().chunks);
        // From now on, a writer finds one of the copies.
        let c = device.file("c");
        let stored = device.fs.stats().stored_bytes;
        c.write_at(0, &data).unwrap();
        assert_eq!(device.fs.stats().stored_bytes, stored);
        drop(c);
        settle(device);
    });
}

/// Makes a file with a tail that has grown.
fn with_tail(device: &Device, name: &str, byte: u8) -> File {
    let file = device.file(name);
    (0..3).for_each(|_| _ = file.append(&[byte; 500]).unwrap());
    file
}

#[test]
fn a_tail_grows_while_it_is_cloned_and_others_append() {
    explore(|| {
        let device = device(IndexKind::Dram);
        let a = with_tail(&device, "a", 1);
        let (b, c) = (device.file("b"), device.file("c"));
        let (grows, source, clone, other) = (a.clone(), a.clone(), b.clone(), c.clone());
        race([
            task(move || {
                grows.append(&[2; 500]).unwrap();
                grows.append(&[3; 500]).unwrap();
            }),
            task(move || {
                clone.clone_from(&source, 0, 0, 4096).unwrap();
                clone.append(&[9; 100]).unwrap();
            }),
            task(move || {
                other.write_at(0, &[7; 700]).unwrap();
                other.set_len(0).unwrap();
            }),
        ]);
        let all = [[1; 1500].as_slice(), &[2; 500], &[3; 500]].concat();
        assert_eq!(seen(&a), all);
        let cloned = seen(&b);
        assert!([1500, 2000, 2500].map(|at| [&all[..at], &[9; 100]].concat()).contains(&cloned));
        drop((a, b, c));
        settle(device);
    });
}

/// The tail has no fingerprint while it grows: a search for its bytes finds them when they are complete, or not at
/// all.
#[test]
fn a_tail_grows_while_an_equal_piece_is_looked_for_and_streams_end() {
    explore(|| {
        let device = device(IndexKind::Pm);
        let a = with_tail(&device, "a", 1);
        let (b, c) = (device.file("b"), device.file("c"));
        let (grows, fs, one, two) = (a.clone(), device.fs.clone(), b.clone(), c.clone());
        race([
            task(move || {
                grows.append(&[1; 500]).unwrap();
                grows.append(&[4; 500]).unwrap();
            }),
            task(move || {
                one.write_at(0, &[1; 2000]).unwrap();
                two.write_at(0, &[1; 1500]).unwrap();
            }),
            task(move || fill(&fs)),
        ]);
        assert_eq!(seen(&a), [[1; 2000].as_slice(), &[4; 500]].concat());
        assert_eq!((seen(&b), seen(&c)), (vec![1; 2000], vec![1; 1500]));
        drop((a, b, c));
        settle(device);
    });
}

/// The inode number of the file goes to another file, which is written in the same requests with other bytes.
#[test]
fn a_stream_ends_while_its_inode_number_and_its_chunk_are_reused() {
    explore(|| {
        let device = device(IndexKind::Dram);
        device.file("equal").write_at(0, &[1; 1500]).unwrap();
        let a = with_tail(&device, "a", 1);
        let (ends, fs) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || fill(&ends)),
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                drop(a);
                let b = fs.open(create(&fs, ROOT, "b")).unwrap();
                (0..3).for_each(|_| _ = b.append(&[2; 500]).unwrap());
            }),
        ]);
        let b = device.fs.open(device.fs.lookup(ROOT, b"b").unwrap().ino).unwrap();
        assert_eq!(seen(&b), vec![2; 1500]);
        drop(b);
        settle(device);
    });
}

/// Parts of a file that were written out of order are cut again where they meet.
#[test]
fn seams_are_cut_while_their_file_is_written_read_and_truncated() {
    let data = noise(24 << 10);
    explore(move || {
        let device = device(IndexKind::Dram);
        let a = device.file("a");
        a.write_at(8 << 10, &data[8 << 10..]).unwrap();
        a.write_at(0, &data[..8 << 10]).unwrap();
        let (fs, reader, writer) = (device.fs.clone(), a.clone(), a.clone());
        // Content of the file after each change.
        let mut states = vec![data.clone()];
        let mut change = |start: usize, byte: u8| {
            let mut next = states[states.len() - 1].clone();
            next[start << 10..][..4 << 10].fill(byte);
            states.push(next);
        };
        change(6, 5);
        change(2, 6);
        states.push(states[2][..12 << 10].to_vec());
        let mut last = states[3].clone();
        last[7 << 10..][..4 << 10].fill(7);
        states.push(last);
        let expected = states[4].clone();
        race([
            task(move || fill(&fs)),
            task(move || {
                let mut bytes = vec![0; 24 << 10];
                let length = reader.read_at(0, &mut bytes).unwrap();
                assert!(states.iter().any(|allowed| allowed[..] == bytes[..length]));
            }),
            task(move || {
                let write = |start: u64, byte| writer.write_at(start << 10, &[byte; 4 << 10]).unwrap();
                write(6, 5);
                write(2, 6);
                writer.set_len(12 << 10).unwrap();
                write(7, 7);
            }),
        ]);
        assert!(content(&a) == expected);
        drop(a);
        settle(device);
    });
}

/// The open segment is given up as soon as no live chunk is in it, together with a part of the entry table that is
/// empty.
#[test]
fn an_empty_segment_is_freed_while_others_append() {
    explore(|| {
        let device = device(IndexKind::Dram);
        device.file("a").write_at(0, &short(1)).unwrap();
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, one, two) = (device.fs.clone(), b.clone(), c.clone());
        race([
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                (0..3).for_each(|_| _ = fs.trim().unwrap());
            }),
            task(move || one.write_at(0, &short(2)).unwrap()),
            task(move || {
                two.write_at(0, &short(3)).unwrap();
                two.set_len(0).unwrap();
                two.write_at(0, &short(4)).unwrap();
            }),
        ]);
        assert_eq!((seen(&b), seen(&c)), (short(2).to_vec(), short(4).to_vec()));
        drop((b, c));
        settle(device);
    });
}

/// Returns short pieces whose fingerprints begin with the same bits.
fn of_one_chain(count: usize) -> Vec<Vec<u8>> {
    let bits = prefix_bits(Geometry::of(DEVICE_BYTES).unwrap().blocks());
    let numbered = (0u64..).map(|number| number.to_le_bytes().repeat(8));
    numbered.filter(|content| weak(content) >> (32 - bits) == 7).take(count).collect()
}

/// A chain of the pm index links entries of packed chunks, and their part of the entry table is freed.
#[test]
fn a_chain_of_packed_chunks_is_searched_while_they_are_freed_and_the_chain_is_reordered() {
    let contents = of_one_chain(4);
    explore(move || {
        let denova = DeNovaOptions { reorder: ReorderOptions { references: 2, reads: 2 }, ..DeNovaOptions::default() };
        let options = MountOptions { policy: Policy::DeExt, denova, cores: 4, ..MountOptions::default() };
        let device = Device::made(&MkfsOptions { index: IndexKind::Pm, ..MkfsOptions::default() }, options);
        for (name, at) in [("a", 0), ("b", 1), ("c", 2), ("d", 2), ("e", 2)] {
            device.file(name).write_at(0, &contents[at]).unwrap();
        }
        let (f, g) = (device.file("f"), device.file("g"));
        let (orders, fs, one, two) = (device.fs.clone(), device.fs.clone(), f.clone(), g.clone());
        let (old, new) = (contents[1].clone(), contents[3].clone());
        race([
            task(move || (0..4).for_each(|_| _ = orders.reorder_step().unwrap())),
            task(move || {
                fs.unlink(ROOT, b"b").unwrap();
                fs.unlink(ROOT, b"a").unwrap();
                fs.trim().unwrap();
            }),
            task(move || {
                one.write_at(0, &old).unwrap();
                two.write_at(0, &new).unwrap();
            }),
        ]);
        assert_eq!((seen(&f), seen(&g)), (contents[1].clone(), contents[3].clone()));
        drop((f, g));
        settle(device);
    });
}

/// A crash left a count of a shared chunk too high, and a chunk without a reference.
#[test]
fn counts_of_packed_chunks_are_reconciled_while_they_change() {
    explore(|| {
        let device = device(IndexKind::Dram);
        for (name, byte) in [("a", 1), ("b", 1), ("c", 2)] {
            device.file(name).write_at(0, &short(byte)).unwrap();
        }
        let Device { region, fs } = device;
        drop(fs);
        let uses = uses_of(&read_entries(&region, &Geometry::of(DEVICE_BYTES).unwrap()));
        let parts = uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Entries(_)));
        let offset = parts.map(|(segment, _)| segment * SEGMENT_BYTES).next().unwrap();
        let word = CountWord::decode(region.load_u128(offset));
        assert_eq!(word.count, 2);
        let too_high = CountWord { count: 3, ..word };
        let _ = region.fence(region.store_u128(offset, too_high.encode()).flush());
        let options = MountOptions { policy: Policy::DeExt, cores: 4, ..MountOptions::default() };
        let device = Device { fs: FileSystem::mount(region.clone(), options).unwrap(), region };
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        let open = |fs: &FileSystem, name: &str| fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap();
        race([
            task(move || one.reconcile().unwrap()),
            task(move || {
                open(&two, "c").write_at(0, &short(1)).unwrap();
                open(&two, "a").write_at(0, &short(3)).unwrap();
            }),
            task(move || {
                three.unlink(ROOT, b"b").unwrap();
                three.trim().unwrap();
            }),
        ]);
        assert_eq!((seen(&open(&device.fs, "a")), seen(&open(&device.fs, "c"))), (short(3).into(), short(1).into()));
        settle(device);
    });
}

/// Makes a space with a few kept blocks that the test does not use, and `free` free segments.
fn space(cores: usize, device_bytes: u64, free: u64) -> (Region, Geometry, Arc<Space>) {
    let region = Region::create(&DeviceSpec::Memory, device_bytes, &OpenOptions::default()).unwrap();
    let geometry = Geometry::of(device_bytes).unwrap();
    let space = Space::new(region.clone(), geometry, cores, true);
    for segment in geometry.first_segment() + free..geometry.segments() {
        space.adopt_segment(segment, &[!0; WORDS_PER_SEGMENT]);
    }
    let kept = (geometry.segments() - 2) * SEGMENT_BLOCKS;
    space.free(BlockRun { start: BlockNumber(kept), count: KEPT_BLOCKS });
    (region, geometry, Arc::new(space))
}

/// The last two chunks of a closed segment are freed, and the segment is opened again at once.
#[test]
fn a_packed_segment_is_freed_once_and_its_new_chunks_are_kept() {
    explore(|| {
        let (region, geometry, space) = space(1, DEVICE_BYTES, 1);
        let segment = geometry.first_segment();
        space.adopt_packed_segment(segment);
        let places = [0, 1000].map(|offset| segment * SEGMENT_BYTES + offset);
        places.iter().for_each(|_| space.packed.adopt_chunk(segment, 1000));
        let append = |space: &Space, number| {
            let mut flight = Flight::new();
            let place = space.append(Pool::ContentDefined, PackedNumber(number), PackedBytes::plain(1000), &mut flight);
            let _ = region.fence(flight);
            place.ok()
        };
        let drops = |place: u64| {
            let space = space.clone();
            task(move || space.drop_packed(place, 1000))
        };
        let (appends, region) = (space.clone(), region.clone());
        let appended = Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = appended.clone();
        race([
            drops(places[0]),
            drops(places[1]),
            task(move || {
                for number in 0..2 {
                    let mut flight = Flight::new();
                    let place = appends.append(
                        Pool::ContentDefined,
                        PackedNumber(number),
                        PackedBytes::plain(1000),
                        &mut flight,
                    );
                    let _ = region.fence(flight);
                    told.lock().unwrap().extend(place.ok());
                }
            }),
        ]);
        let mut places = appended.lock().unwrap().clone();
        places.extend((2..4).map(|number| append(&space, number).expect("the segment is free, or open")));
        assert!(places.windows(2).all(|pair| pair[1] == pair[0] + 1000), "{places:x?}: each has its own place");
        assert_eq!(space.packed.live_in(segment), places.len() as u64 * 1000);
        places.iter().for_each(|place| space.drop_packed(*place, 1000));
        assert_eq!((space.close_empty_packed(), space.packed.live_bytes(), space.packed.segments()), (1, 0, 0));
        assert_eq!(space.free_blocks(), SEGMENT_BLOCKS + KEPT_BLOCKS);
    });
}

/// Two threads open segments, fill them, and close them when they are empty.
#[test]
fn segments_of_packed_chunks_are_opened_and_freed_concurrently() {
    explore(|| {
        let (region, _, space) = space(2, 128 << 20, 3);
        let works = |number: u32| {
            let (region, space) = (region.clone(), space.clone());
            task(move || {
                for _ in 0..2 {
                    let mut flight = Flight::new();
                    let place =
                        space.append(Pool::Fixed, PackedNumber(number), PackedBytes::plain(1000), &mut flight).unwrap();
                    let grows = space.grow_packed(PackedNumber(number), place, 1000, 1500, &mut flight);
                    let _ = region.fence(flight);
                    let length = if grows { 1500 } else { 1000 };
                    assert!(space.packed.is_packed(place / SEGMENT_BYTES), "a segment stays while a chunk lives in it");
                    space.drop_packed(place, length);
                }
            })
        };
        let closes = space.clone();
        race([works(1), works(2), task(move || (0..3).for_each(|_| _ = closes.close_empty_packed()))]);
        space.close_empty_packed();
        assert_eq!((space.packed.live_bytes(), space.packed.segments()), (0, 0));
        assert_eq!(space.free_blocks(), 3 * SEGMENT_BLOCKS + KEPT_BLOCKS);
    });
}

/// A chunk is appended that does not fit, which closes the segment, while the segment's last chunk and another one
/// are freed.
#[test]
fn a_full_segment_is_closed_while_its_chunks_are_freed() {
    explore(|| {
        const LONG: u64 = PACKED_BYTES_MAX;
        let (region, _, space) = space(1, DEVICE_BYTES, 2);
        let append = move |space: &Space, number| {
            let mut flight = Flight::new();
            let place = space.append(Pool::Fixed, PackedNumber(number), PackedBytes::plain(LONG), &mut flight).unwrap();
            let _ = region.fence(flight);
            place
        };
        let places: Vec<u64> =
            (0..SEGMENT_BYTES as u32 / LONG as u32 - 1).map(|number| append(&space, number)).collect();
        let (first, last) = (places[0], places[places.len() - 1]);
        let (one, two, three) = (space.clone(), space.clone(), space.clone());
        let appended = Arc::new(std::sync::Mutex::new(0));
        let told = appended.clone();
        race([
            task(move || one.drop_packed(first, LONG)),
            task(move || two.drop_packed(last, LONG)),
            task(move || *told.lock().unwrap() = append(&three, 100)),
        ]);
        let appended = *appended.lock().unwrap();
        assert!(!places[1..places.len() - 1].contains(&appended));
        places[1..places.len() - 1].iter().for_each(|place| space.drop_packed(*place, LONG));
        assert_eq!(space.packed.live_bytes(), LONG);
        space.drop_packed(appended, LONG);
        space.close_empty_packed();
        assert_eq!((space.packed.segments(), space.free_blocks()), (0, 2 * SEGMENT_BLOCKS + KEPT_BLOCKS));
    });
}

/// One entry of the table is free. Two threads need another part at once; one part is made, and later freed.
#[test]
fn several_threads_create_parts_of_the_entry_table_at_once() {
    explore(|| {
        let (region, geometry, space) = space(4, DEVICE_BYTES, 3);
        let entries = Arc::new(Entries::new(geometry));
        let packed = Arc::new(PackedEntries::new(entries.clone()));
        let first = space.allocate_segment("test").unwrap();
        entries.set_part(0, Some(first));
        let mut words = vec![u64::MAX; WORDS_PER_PART];
        *words.last_mut().unwrap() >>= 1;
        packed.adopt(words);
        let taken = Arc::new(std::sync::Mutex::new(Vec::new()));
        let takes = |keeps: bool| {
            let (region, space, packed, taken) = (region.clone(), space.clone(), packed.clone(), taken.clone());
            let entries = entries.clone();
            task(move || {
                let number = packed.take(&region, &space).unwrap();
                assert!(entries.exists(number.into()), "an entry in use has a place");
                let is_first = { !taken.lock().unwrap().contains(&number) };
                assert!(is_first, "{number:?} was given out twice");
                taken.lock().unwrap().push(number);
                if !keeps {
                    taken.lock().unwrap().retain(|other| *other != number);
                    packed.free(number);
                }
            })
        };
        let (shrinks, its_space) = (packed.clone(), space.clone());
        race([takes(true), takes(true), takes(false), task(move || shrinks.shrink(&its_space))]);
        let mut taken = taken.lock().unwrap().clone();
        taken.sort_unstable();
        assert_eq!(taken.len(), 2);
        assert!(taken.iter().all(|number| packed.is_used(*number)));
        assert_eq!(packed.entries_end(), 2 * u64::from(ENTRIES_PER_SEGMENT), "one part more, for both");
        taken.into_iter().for_each(|number| packed.free(number));
        assert_eq!(packed.shrink(&space), 1);
        assert_eq!(space.free_blocks(), 2 * SEGMENT_BLOCKS + KEPT_BLOCKS);
    });
}
