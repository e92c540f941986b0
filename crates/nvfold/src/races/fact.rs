//! Races on the pm index: a chain is reordered while other threads search and change it.

use super::*;
use crate::fingerprint::weak;
use crate::media::direct::prefix_bits;

/// Returns blocks whose fingerprints begin with the same bits.
fn of_one_chain(count: usize) -> Vec<Vec<u8>> {
    let bits = prefix_bits(Geometry::of(DEVICE_BYTES).unwrap().blocks());
    let numbered = (0u64..).map(|number| {
        let mut content = vec![0; BLOCK_BYTES as usize];
        content[..8].copy_from_slice(&number.to_le_bytes());
        content
    });
    numbered.filter(|content| weak(content) >> (32 - bits) == 7).take(count).collect()
}

/// Makes a device with a file `a` of four blocks in one chain, the last of which has the most references; also
/// returns the contents of the blocks.
fn chain() -> (Device, File, Vec<Vec<u8>>) {
    let contents = of_one_chain(5);
    let denova = DeNovaOptions { reorder: ReorderOptions { references: 2, reads: 2 }, ..DeNovaOptions::default() };
    let mkfs = MkfsOptions { index: IndexKind::Pm, ..MkfsOptions::default() };
    let device =
        Device::made(&mkfs, MountOptions { policy: Policy::Inline, denova, cores: 4, ..MountOptions::default() });
    let a = device.file("a");
    a.write_at(0, &contents[..4].concat()).unwrap();
    (4..7u64).for_each(|at| a.write_at(at * BLOCK_BYTES, &contents[3]).unwrap());
    (device, a, contents)
}

/// Asserts that all stored blocks can be found, and that fsck finds nothing.
fn all_is_found(device: Device, contents: &[Vec<u8>], stored: u64) {
    let again = device.file("again");
    again.write_at(0, &contents.concat()).unwrap();
    assert_eq!(device.fs.stats().data_blocks, stored);
    device.settle();
}

fn reorder(fs: &FileSystem) {
    (0..4).for_each(|_| _ = fs.reorder_step().unwrap());
}

#[test]
fn a_chain_is_searched_while_it_is_reordered() {
    let contents = of_one_chain(5);
    explore(move || {
        let (device, a, _) = chain();
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, one, two) = (device.fs.clone(), b.clone(), c.clone());
        let (first, last) = (contents[1].clone(), contents[3].clone());
        race([
            task(move || reorder(&fs)),
            task(move || one.write_at(0, &last).unwrap()),
            task(move || two.write_at(0, &first).unwrap()),
        ]);
        assert_eq!(device.fs.stats().data_blocks, 4, "both were found");
        drop((a, b, c));
        all_is_found(device, &contents[..4], 4);
    });
}

#[test]
fn a_chain_gains_and_loses_blocks_while_it_is_reordered() {
    let contents = of_one_chain(5);
    explore(move || {
        let (device, a, _) = chain();
        let b = device.file("b");
        let (fs, writer, other) = (device.fs.clone(), a.clone(), b.clone());
        let new = contents[4].clone();
        race([
            task(move || reorder(&fs)),
            // Removes an entry in the middle of the chain.
            task(move || writer.write_at(BLOCK_BYTES, &block(9)).unwrap()),
            task(move || other.write_at(0, &new).unwrap()),
        ]);
        drop((a, b));
        all_is_found(device, &[&contents[..1], &contents[2..]].concat(), 5);
    });
}

#[test]
fn the_first_block_of_a_chain_is_removed_while_the_chain_is_reordered() {
    let contents = of_one_chain(5);
    explore(move || {
        let (device, a, _) = chain();
        let (fs, writer, other) = (device.fs.clone(), a.clone(), a.clone());
        race([
            task(move || reorder(&fs)),
            task(move || writer.write_at(0, &block(9)).unwrap()),
            task(move || other.write_at(2 * BLOCK_BYTES, &block(8)).unwrap()),
        ]);
        drop(a);
        all_is_found(device, &[contents[1].clone(), contents[3].clone()], 4);
    });
}

/// A chain links entries in a part of the chunk table that is given back to the host as soon as none of its blocks is
/// in use.
#[test]
fn a_chain_is_searched_while_its_blocks_and_their_entries_are_freed() {
    let contents = of_one_chain(5);
    explore(move || {
        let (device, a, _) = chain();
        drop(a);
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, one, two) = (device.fs.clone(), b.clone(), c.clone());
        let (old, new) = (contents[1].clone(), contents[4].clone());
        race([
            task(move || {
                fs.unlink(ROOT, b"a").unwrap();
                fs.trim().unwrap();
            }),
            task(move || one.write_at(0, &old).unwrap()),
            task(move || two.write_at(0, &new).unwrap()),
        ]);
        assert_eq!((content(&b), content(&c)), (contents[1].clone(), contents[4].clone()));
        drop((b, c));
        all_is_found(device, &[contents[1].clone(), contents[4].clone()], 2);
    });
}

/// Two requests bring blocks of one chain together while others leave it.
#[test]
fn two_requests_enter_one_chain_together() {
    let contents = of_one_chain(9);
    explore(move || {
        let (device, a, _) = chain();
        let (b, c) = (device.file("b"), device.file("c"));
        let (fs, one, two, writer) = (device.fs.clone(), b.clone(), c.clone(), a.clone());
        let (of_one, of_two) = (contents[4..7].concat(), contents[6..9].concat());
        race([
            task(move || one.write_at(0, &of_one).unwrap()),
            task(move || two.write_at(0, &of_two).unwrap()),
            task(move || {
                fs.reorder_step().unwrap();
                writer.write_at(0, &block(9)).unwrap();
            }),
        ]);
        drop((a, b, c));
        all_is_found(device, &contents[1..], 9);
    });
}
