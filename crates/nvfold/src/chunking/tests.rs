//! Tests of the guarantees of every chunker, and of each chunker's cuts.

use super::*;
use proptest::prelude::*;

/// Returns random-looking bytes that depend only on the seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next_byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next_byte()).collect()
}

fn assert_covers<'a>(data: &[u8], pieces: impl Iterator<Item = DataPiece<'a>>) {
    let mut end = 0;
    for piece in pieces {
        assert_eq!(piece.offset, end, "pieces touch");
        assert!(!piece.bytes.is_empty());
        end += piece.bytes.len();
        assert_eq!(piece.bytes, &data[piece.offset..end]);
    }
    assert_eq!(end, data.len(), "pieces reach the end");
}

/// Returns the ends of the pieces of `data`, fed in parts of these lengths in turn, without the end of the data.
fn cuts_of_stream(mut cutter: Cutter, data: &[u8], lengths: &[usize]) -> Vec<usize> {
    let (mut cuts, mut at, mut lengths) = (Vec::new(), 0, lengths.iter().cycle());
    while at < data.len() {
        let end = data.len().min(at + lengths.next().unwrap());
        while let Some(count) = cutter.next_cut(&data[at..end]) {
            assert!((1..=end - at).contains(&count));
            at += count;
            cuts.push(at);
        }
        at = end;
    }
    cuts
}

fn cuts(cutter: &Cutter, data: &[u8]) -> Vec<usize> {
    cuts_of_stream(cutter.clone(), data, &[usize::MAX / 2])
}

/// Returns lengths for which short data has many cuts.
fn short_lengths(chunker: Chunker) -> PieceLengths {
    match chunker {
        Chunker::Ae => PieceLengths::of(1, 256 + 300, 1500),
        Chunker::Rabin | Chunker::Gear => PieceLengths::of(100, 100 + 256, 1500),
        _ => PieceLengths::of(100, 256, 1500),
    }
}

/// Generates stretches of random bytes, of few values, of one value, and of steps.
fn mixed() -> impl Strategy<Value = Vec<u8>> {
    let stretch = prop_oneof![
        (any::<u64>(), 0usize..4000).prop_map(|(seed, len)| noise(len, seed)),
        (any::<u64>(), 0usize..4000).prop_map(|(seed, len)| noise(len, seed).iter().map(|byte| byte % 3).collect()),
        (any::<u8>(), 0usize..4000).prop_map(|(byte, len)| vec![byte; len]),
        (1usize..20, 0usize..4000).prop_map(|(each, len)| (0..len).map(|at| (at / each) as u8).collect()),
    ];
    prop::collection::vec(stretch, 1..5).prop_map(|stretches| stretches.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_are_the_same_however_the_data_is_split(
        data in mixed(),
        lengths in prop::collection::vec(prop_oneof![1usize..60, 1usize..3000], 1..5),
        own_lengths in any::<bool>(),
    ) {
        for chunker in Chunker::ALL {
            let cutter = match own_lengths {
                true => Cutter::new(chunker),
                false => Cutter::with_lengths(chunker, short_lengths(chunker)),
            };
            let whole = cuts(&cutter, &data);
            prop_assert_eq!(cuts_of_stream(cutter.clone(), &data, &lengths), &whole[..], "{}", chunker.name());
        }
    }

    #[test]
    fn a_cut_depends_only_on_the_bytes_of_its_piece(data in mixed(), other in mixed()) {
        for chunker in Chunker::ALL {
            let cutter = Cutter::with_lengths(chunker, short_lengths(chunker));
            let Some(first) = cuts(&cutter, &data).first().copied() else { continue };
            // Neither the bytes after the piece nor the pieces before it move its end.
            let changed = [&data[..first], &other].concat();
            prop_assert_eq!(cutter.clone().next_cut(&changed), Some(first), "{}", chunker.name());
            prop_assert_eq!(cutter.clone().next_cut(&data[..first]), Some(first), "{}", chunker.name());
            prop_assert_eq!(cutter.clone().next_cut(&data[..first - 1]), None, "{}", chunker.name());
            let mut used = cutter.clone();
            let before = cuts(&cutter, &other).last().copied().unwrap_or(0);
            cuts_of_stream(used.clone(), &other[..before], &[100]);
            used.next_cut(&other);
            used.restart();
            prop_assert_eq!(used.next_cut(&data), Some(first), "{}", chunker.name());
        }
    }
}

#[test]
fn numbers_and_names_of_chunkers_match_the_media_format() {
    let names = ["fixed-4k", "fixed-8k", "fixed-16k", "rabin", "ae", "gear", "fastcdc", "seqcdc"];
    for (number, (chunker, name)) in Chunker::ALL.into_iter().zip(names).enumerate() {
        assert_eq!((chunker as usize, chunker.name()), (number, name));
        assert_eq!((Chunker::from_number(number as u8), Chunker::from_name(name)), (Some(chunker), Some(chunker)));
    }
    assert_eq!((Chunker::from_number(8), Chunker::from_name("fast")), (None, None));
}

#[test]
fn all_chunkers_cover_the_data_exactly() {
    for len in [0, 1, 63, 64, 4095, 4096, 4097, 8192, 65_536, 100_001, 1 << 20] {
        let data = noise(len, len as u64);
        assert_covers(&data, fixed(&data));
        assert_covers(&data, content_defined(&data, PieceLengths::default()));
        Chunker::ALL.into_iter().for_each(|chunker| assert_covers(&data, pieces(chunker, &data)));
    }
}

#[test]
fn all_fixed_pieces_except_the_last_are_blocks() {
    let data = noise(3 * FIXED_BYTES + 5, 7);
    let lengths: Vec<usize> = fixed(&data).map(|piece| piece.bytes.len()).collect();
    assert_eq!(lengths, [4096, 4096, 4096, 5]);
    assert_eq!(cuts(&Cutter::new(Chunker::Fixed8K), &data), [8192]);
}

#[test]
fn lengths_keep_their_limits_and_their_mean() {
    let data = noise(32 << 20, 3);
    for (chunker, mean) in Chunker::ALL.into_iter().flat_map(|chunker| [4096, 8192, 16384].map(|mean| (chunker, mean)))
    {
        let limits = chunker.lengths_of_mean(mean).unwrap();
        let cuts = cuts(&Cutter::with_lengths(chunker, limits), &data);
        let lengths: Vec<usize> =
            cuts.iter().scan(0, |start, end| Some(end - std::mem::replace(start, *end))).collect();
        let within = limits.min()..=limits.max();
        assert!(lengths.iter().all(|length| within.contains(length)), "{}", chunker.name());
        let reached = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        let wanted = if chunker.is_content_defined() { mean } else { limits.max() } as f64;
        assert!((reached / wanted - 1.0).abs() < 0.05, "{}: {reached}, not {wanted}", chunker.name());
    }
    assert_eq!(Chunker::Gear.lengths_of_mean(6000), None);
}

#[test]
fn by_default_content_is_cut_by_gear_with_a_mean_of_8_kib() {
    let data = noise(1 << 20, 4);
    let lengths = PieceLengths::of(6 << 10, 8 << 10, 64 << 10);
    assert_eq!(cuts(&Cutter::default(), &data), cuts(&Cutter::with_lengths(Chunker::Gear, lengths), &data));
    assert_eq!(Chunker::Gear.lengths(), PieceLengths::of(12 << 10, 16 << 10, 64 << 10));
}

#[test]
fn a_piece_without_a_cut_is_as_long_as_a_packed_chunk_may_be() {
    let zeros = vec![0; 200_000];
    for chunker in [Chunker::FastCdc, Chunker::Gear, Chunker::SeqCdc] {
        assert_eq!(cuts(&Cutter::new(chunker), &zeros), [65_536, 131_072, 196_608], "{}", chunker.name());
    }
}

/// Why SeqCDC is not the default.
#[test]
fn gear_finds_cuts_in_data_without_rising_bytes_and_seqcdc_does_not() {
    let wide: Vec<u8> = noise(256 << 10, 6).iter().flat_map(|byte| u16::from(*byte).to_le_bytes()).collect();
    assert!(cuts(&Cutter::new(Chunker::SeqCdc), &wide).iter().all(|cut| cut % 65_536 == 0));
    assert!(cuts(&Cutter::new(Chunker::Gear), &wide).len() > 24);
}

#[test]
fn the_gear_table_equals_the_table_of_the_fastcdc_crate() {
    assert_eq!(*fastcdc::v2020::get_gear_with_seed(0).0, super::gear_table::GEAR);
}

#[test]
fn our_fastcdc_cuts_as_the_fastcdc_crate() {
    let lengths = [(2048, 8192, 65536), (64, 256, 1024), (4096, 16384, 65536), (2048, 11776, 65536)];
    for (min, average, max) in lengths {
        let cutter = Cutter::with_lengths(Chunker::FastCdc, PieceLengths::of(min, average, max));
        let mut data = noise(1 << 20, u64::from(min));
        data[300_000..500_000].fill(0);
        let crates = fastcdc::v2020::FastCDC::new(&data, min as usize, average as usize, max as usize);
        for cut in crates {
            assert_eq!(cutter.clone().published_cut(&data[cut.offset..]), cut.length, "{average} at {}", cut.offset);
        }
    }
}

#[test]
fn the_byte_that_decides_a_cut_is_the_last_of_its_piece() {
    let data = noise(1 << 20, 8);
    for chunker in Chunker::ALL {
        let (ours, published) =
            (Cutter::new(chunker).next_cut(&data).unwrap(), Cutter::new(chunker).published_cut(&data));
        let is_before = matches!(chunker, Chunker::Ae | Chunker::Gear | Chunker::FastCdc | Chunker::SeqCdc);
        assert_eq!(ours - published, usize::from(is_before), "{}", chunker.name());
    }
}

#[test]
fn content_defined_lengths_keep_their_limits_and_average() {
    let lengths = PieceLengths::default();
    let data = noise(16 << 20, 3);
    let cut: Vec<usize> = content_defined(&data, lengths).map(|piece| piece.bytes.len()).collect();
    let (last, others) = cut.split_last().unwrap();
    assert!(*last <= lengths.max());
    assert!(others.iter().all(|len| (lengths.min()..=lengths.max()).contains(len)));
    let average = data.len() / cut.len();
    assert!((lengths.average() * 3 / 4..lengths.average() * 3 / 2).contains(&average), "{average}");
}

#[test]
fn an_inserted_byte_changes_few_content_defined_pieces_but_all_later_fixed_ones() {
    let before = noise(4 << 20, 11);
    let mut after = before.clone();
    after.insert(1000, 0x42);
    let survivors = |old: &[&[u8]], new: &[&[u8]]| old.iter().filter(|piece| new.contains(piece)).count();
    let assert_found_again = |name: &str, is_content_defined: bool, old: Vec<&[u8]>, new: Vec<&[u8]>| {
        let found = survivors(&old, &new);
        if is_content_defined {
            assert!(found + 8 >= old.len(), "{name}: {found} of {}", old.len());
        } else {
            assert_eq!(found, 0, "{name}");
        }
    };

    let cut = |data| content_defined(data, PieceLengths::default()).map(|piece| piece.bytes).collect::<Vec<_>>();
    assert_found_again("content_defined", true, cut(&before), cut(&after));
    for chunker in Chunker::ALL {
        let cut = |data| pieces(chunker, data).map(|piece| piece.bytes).collect::<Vec<_>>();
        assert_found_again(chunker.name(), chunker.is_content_defined(), cut(&before), cut(&after));
    }
}

#[test]
fn all_pieces_of_the_fastcdc_crate_except_the_last_are_final() {
    let lengths = PieceLengths::new(256, 1024, 8192).unwrap();
    let mut data = noise(200_000, 5);
    data[60_000..120_000].fill(0); // runs without a cut point end at `max`
    let whole: Vec<DataPiece> = content_defined(&data, lengths).collect();
    for end in (0..data.len()).step_by(977) {
        let part: Vec<DataPiece> = content_defined(&data[..end], lengths).collect();
        let finals = part.len().saturating_sub(1);
        assert_eq!(part[..finals], whole[..finals], "buffer of {end} bytes");
    }
}
