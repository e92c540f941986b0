//! Races between policy `nv-dedup`, its filler and offline sharing, and threads that write, clone and remove the
//! data.

use super::*;

fn device(method: Method) -> Device {
    let nv_dedup = NvDedupOptions { method: MethodChoice::Fixed(method), ..NvDedupOptions::default() };
    Device::with(MountOptions { policy: Policy::NvDedup, nv_dedup, cores: 4, ..MountOptions::default() })
}

/// Makes a device with a file `a` of two blocks without fingerprints; fingerprints are wanted from then on.
fn unfilled() -> (Device, File) {
    let device = device(Method::NonFin);
    let a = device.file("a");
    a.write_at(0, &[block(1), block(2)].concat()).unwrap();
    device.fs.set_method(MethodChoice::Fixed(Method::WBFin));
    (device, a)
}

fn fill(fs: &FileSystem) {
    while !fs.fill_step().unwrap() {}
}

#[test]
fn a_file_gets_fingerprints_while_it_is_overwritten_and_its_content_is_written_again() {
    explore(|| {
        let (device, a) = unfilled();
        let b = device.file("b");
        let (fs, writer, other) = (device.fs.clone(), a.clone(), b.clone());
        race([
            task(move || fill(&fs)),
            task(move || writer.write_at(0, &block(3)).unwrap()),
            task(move || other.write_at(0, &block(1)).unwrap()),
        ]);
        assert_eq!((content(&a), content(&b)), ([block(3), block(2)].concat(), block(1).to_vec()));
        drop((a, b));
        device.settle();
    });
}

/// The block gets a fingerprint, is found by another writer, and is overwritten without a look at the data.
#[test]
fn a_block_is_overwritten_unseen_while_it_gets_a_fingerprint_and_is_found() {
    explore(|| {
        let (device, a) = unfilled();
        let b = device.file("b");
        let (filler, fs, writer, other) = (device.fs.clone(), device.fs.clone(), a.clone(), b.clone());
        race([
            task(move || fill(&filler)),
            task(move || {
                fs.set_method(MethodChoice::Fixed(Method::NonFin));
                writer.write_at(0, &block(3)).unwrap();
            }),
            task(move || other.write_at(0, &block(1)).unwrap()),
        ]);
        assert_eq!((content(&a), content(&b)), ([block(3), block(2)].concat(), block(1).to_vec()));
        drop((a, b));
        device.settle();
    });
}

#[test]
fn a_file_gets_fingerprints_while_it_is_cloned_and_removed() {
    explore(|| {
        let (device, a) = unfilled();
        let b = device.file("b");
        let (filler, fs, clone) = (device.fs.clone(), device.fs.clone(), b.clone());
        race([
            task(move || fill(&filler)),
            task(move || {
                clone.clone_from(&a, 100, 0, 5000).unwrap();
            }),
            task(move || fs.unlink(ROOT, b"a").unwrap()),
        ]);
        assert_eq!(content(&b), [block(1), block(2)].concat()[100..5100]);
        drop(b);
        device.settle();
    });
}

/// Both writers find the stored block by its weak fingerprint, and both add the missing strong one.
#[test]
fn two_writers_add_one_strong_fingerprint() {
    explore(|| {
        let device = device(Method::WSFin);
        device.file("a").write_at(0, &block(1)).unwrap();
        let files = ["b", "c"].map(|name| device.file(name));
        race(files.clone().map(|file| task(move || file.write_at(0, &block(1)).unwrap())));
        assert_eq!(device.fs.stats().data_blocks, 1, "stored once");
        drop(files);
        device.settle();
    });
}

/// The only file that references a block gets other content, while other writers try to share the block.
#[test]
fn a_block_is_dropped_while_others_find_it() {
    explore(|| {
        let device = device(Method::WBFin);
        let (a, b, c) = (device.file("a"), device.file("b"), device.file("c"));
        a.write_at(0, &block(1)).unwrap();
        let (one, two, three) = (a.clone(), b.clone(), c.clone());
        race([
            task(move || one.write_at(0, &block(2)).unwrap()),
            task(move || two.write_at(0, &block(1)).unwrap()),
            task(move || three.write_at(0, &block(2)).unwrap()),
        ]);
        assert_eq!([content(&a), content(&b), content(&c)], [2, 1, 2].map(|byte| block(byte).to_vec()));
        drop((a, b, c));
        device.settle();
    });
}

#[test]
fn stored_data_is_shared_and_unshared_while_it_is_overwritten() {
    explore(|| {
        let (device, a) = unfilled();
        let b = device.file("b");
        device.fs.set_method(MethodChoice::Fixed(Method::NonFin));
        b.write_at(0, &[block(2), block(1)].concat()).unwrap();
        device.fs.set_method(MethodChoice::Fixed(Method::WBFin));
        let (one, two, three) = (a.clone(), b.clone(), b.clone());
        race([
            task(move || one.dedup_range(0, u64::MAX).unwrap()),
            task(move || two.undedup_range(0, u64::MAX).unwrap()),
            task(move || three.write_at(0, &block(4)).unwrap()),
        ]);
        assert_eq!(content(&a), [block(1), block(2)].concat());
        assert_eq!(content(&b), [block(4), block(1)].concat());
        drop((a, b));
        device.settle();
    });
}

/// Two clones count the block's first reference at once, and one of them is deduplicated before the other clone has
/// noticed the new entry.
#[test]
fn a_block_gets_its_fingerprint_while_it_is_cloned_for_the_first_time() {
    explore(|| {
        let (device, a) = unfilled();
        let (b, c) = (device.file("b"), device.file("c"));
        let (one, two, three, four) = (a.clone(), a.clone(), b.clone(), c.clone());
        race([
            task(move || {
                three.clone_from(&one, 0, 0, 4096).unwrap();
                three.dedup_range(0, u64::MAX).unwrap();
            }),
            task(move || {
                four.clone_from(&two, 0, 0, 4096).unwrap();
            }),
        ]);
        // The stored block must be found.
        let d = device.file("d");
        d.write_at(0, &block(1)).unwrap();
        assert_eq!(device.fs.stats().data_blocks, 2);
        drop((a, b, c, d));
        device.settle();
    });
}
