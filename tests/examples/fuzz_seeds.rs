//! Writes the seed corpora of the fuzz targets: `fuzz_seeds DIRECTORY` (see scripts/fuzz.sh --seeds). Each seed is
//! small and reaches something that the others do not: one kind of operation after a few that give it something to
//! work on, one layout of one kind of image damaged in one way.

use std::fs;
use std::path::Path;

use nvfold::Policy;
use nvfold_tests::causality;
use nvfold_tests::hostile::{self, damage, image};
use nvfold_tests::model::script;

fn main() {
    let directory = std::env::args().nth(1).expect("usage: fuzz_seeds DIRECTORY");
    let directory = Path::new(&directory);
    write(&directory.join("operations"), operations());
    write(&directory.join("damaged_image"), damaged_images());
    write(&directory.join("arbitrary_image"), arbitrary_images());
    write(&directory.join("overwritten_image"), overwritten_images());
    write(&directory.join("rec_tree"), rec_trees());
}

fn write(directory: &Path, seeds: Vec<(String, Vec<u8>)>) {
    fs::create_dir_all(directory).expect("make the directory");
    for (name, bytes) in seeds {
        fs::write(directory.join(name), bytes).expect("write a seed");
    }
}

/// Every kind of operation on two files and a directory, on an empty and on a nearly full device, and in packed chunks.
fn operations() -> Vec<(String, Vec<u8>)> {
    // kind, path, other, offset, other offset, length, seed, extra
    let prelude: [[u8; script::RECORD_BYTES]; 6] = [
        [0, 1, 0, 0, 0, 0, 0, 0],
        [0, 2, 0, 0, 0, 0, 0, 0],
        [3, 3, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 11, 1, 0],
        [7, 1, 2, 0, 1, 8, 0, 0],
        [26, 1, 0, 0, 0, 0, 0, 0],
    ];
    let deext = Policy::ALL.iter().position(|policy| *policy == Policy::DeExt).expect("it is a policy") as u8;
    let mut seeds = Vec::new();
    for kind in 0..script::KINDS {
        for (policy, room) in [(0, 0), (1, 0), (1, 140), (deext, 0)] {
            let varied = (0..6u8).map(|number| {
                [
                    kind,
                    1 + number % 4,
                    2 + number % 3,
                    number.wrapping_mul(37),
                    number.wrapping_mul(61),
                    number * 5,
                    number,
                    number,
                ]
            });
            let records: Vec<_> = prelude.into_iter().chain(varied).chain([[30, 0, 0, 0, 0, 0, 0, 0]]).collect();
            seeds.push((format!("{kind:02}-{policy}-{room}"), [&[policy, room], records.as_flattened()].concat()));
        }
    }
    seeds
}

/// Every layout of every kind of image, by every action.
fn damaged_images() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for kind in 0..image::KINDS.len() as u8 {
        for layout in 0..image::LAYOUTS as u8 {
            let action = (kind + layout * 3) % damage::ACTIONS;
            let piece = |number: u8| -> [u8; damage::RECORD_BYTES] {
                [layout, number * 7, action + number * 7, kind + number, layout + number * 5, number * 3, 0, 0]
            };
            let bytes = [&[kind, layout % 2], [piece(0), piece(1)].as_flattened()].concat();
            seeds.push((format!("{kind}-{layout}"), bytes));
        }
    }
    seeds
}

/// Bytes at several places of every kind of image.
fn arbitrary_images() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for kind in 0..image::KINDS.len() as u8 {
        for place in 0..8u8 {
            let written = [place * 16, place * 32, place, 4, 0xff, 0, place, 1];
            seeds.push((format!("{kind}-{place}"), [&[kind, place % 2], &written[..]].concat()));
        }
    }
    assert_eq!(hostile::HEAD_BYTES, 2);
    seeds
}

/// Noise of several lengths in several blocks of every kind of image.
fn overwritten_images() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for kind in 0..image::KINDS.len() as u8 - 1 {
        for place in 0..4u8 {
            let written = [kind, kind + place, place * 5, 0, place * 64, place, 255, place * 5, kind];
            seeds.push((format!("{kind}-{place}"), written.to_vec()));
        }
    }
    assert_eq!(seeds[0].1.len(), hostile::OVERWRITTEN_BYTES);
    seeds
}

/// Every kind of operation of the rec-tree after some that give it something to work on, in every variant, with memory
/// enough and without.
fn rec_trees() -> Vec<(String, Vec<u8>)> {
    // kind, place, place, other place, other place, length, file, file offset
    let prelude: [[u8; causality::RECORD_BYTES]; 5] = [
        [0, 1, 0, 0, 0, 210, 0, 1],
        [8, 3, 0, 0, 0, 205, 1, 2],
        [0, 9, 5, 0, 0, 60, 2, 3],
        [3, 2, 0, 1, 20, 40, 0, 0],
        [3, 2, 90, 3, 0, 205, 0, 0],
    ];
    let mut seeds = Vec::new();
    for head in 0..causality::HEADS {
        for kind in 0..causality::KINDS {
            let varied = (0..8u8).map(|number| {
                let (place, other) = (number.wrapping_mul(37) % 40, 1 + number * 11 % 30);
                [kind, place, number * 21, other, number * 9, number.wrapping_mul(43), number, number * 36]
            });
            let copies = [[4, 10, 0, 2, 10, 212, 0, 0], [3, 1, 7, 1, 0, 220, 0, 0]];
            let records: Vec<_> = prelude.into_iter().chain(varied).chain(copies).collect();
            seeds.push((format!("{head}-{kind:02}"), [&[head], records.as_flattened()].concat()));
        }
    }
    seeds
}
