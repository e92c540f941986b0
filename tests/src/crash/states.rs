//! The choices of which unguaranteed words reached the media.
//!
//! With few words every subset is tried. With more words the items are the lines that hold them. The choices are
//! none, all, each line alone, all but each line, and every subset of lines if they are few, else a seeded sample;
//! and lines torn at their 8-byte words. The pages that were given back at once are an item too, which may be torn at
//! pages. Every choice is made under both store orders, because under one of them a word carries other words with it.

use pmem::{Pending, StoreOrder};

/// How many choices are tried at one point.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Up to so many words, or lines, every subset is tried.
    pub exhaustive: usize,
    /// Maximum number of choices "each line alone", and of choices "all but each line".
    pub each_max: usize,
    /// Random subsets of the lines.
    pub subsets: usize,
    /// Random subsets in which one line is torn.
    pub torn: usize,
}

/// Maximum number of words in all choices of "each line alone" and "all but each line" together: zeroing a segment
/// gives very many.
const CHOSEN_WORDS_MAX: usize = 4 << 20;

/// Returns the choices at a point, each with a truth value per pending word. Some may be equal.
pub(super) fn choices(pending: &Pending, bounds: &Bounds, random: &mut fastrand::Rng) -> Vec<Vec<bool>> {
    let words = pending.words();
    let mut chosen: Vec<Vec<bool>> = Vec::new();
    if words.len() <= bounds.exhaustive {
        subsets(words.len()).for_each(|subset| chosen.push(subset));
    } else {
        let (line_of_word, lines) = lines(pending);
        let of_lines = |subset: &[bool]| -> Vec<bool> { line_of_word.iter().map(|line| subset[*line]).collect() };
        let mut add = |subset: &[bool]| chosen.push(of_lines(subset));
        [false, true].iter().for_each(|all| add(&vec![*all; lines]));
        if lines <= bounds.exhaustive {
            subsets(lines).for_each(|subset| add(&subset));
        } else {
            for line in some_of(lines, bounds.each_max.min(CHOSEN_WORDS_MAX / words.len()), random) {
                for others in [false, true] {
                    let mut subset = vec![others; lines];
                    subset[line] = !others;
                    add(&subset);
                }
            }
            (0..bounds.subsets).for_each(|_| add(&subset(lines, random)));
        }
        for _ in 0..bounds.torn {
            let torn = random.usize(0..lines);
            let others = match random.u8(0..3) {
                0 => vec![false; lines],
                1 => vec![true; lines],
                _ => subset(lines, random),
            };
            let word = |line: &usize| if *line == torn { random.bool() } else { others[*line] };
            chosen.push(line_of_word.iter().map(word).collect());
        }
    }
    let under = |order| {
        let carried = move |choice: &Vec<bool>| {
            let mut at = 0;
            pending.carried(order, |_| {
                at += 1;
                choice[at - 1]
            })
        };
        chosen.iter().map(carried)
    };
    let mut all: Vec<Vec<bool>> = under(StoreOrder::AnyWord).chain(under(StoreOrder::Line)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns for each word the number of its item, counted from 0 in the order of first stores, and how many items
/// there are.
fn lines(pending: &Pending) -> (Vec<usize>, usize) {
    let mut numbers = std::collections::HashMap::new();
    let mut next = 0;
    let mut punched_before = false;
    let mut of_words = Vec::new();
    for word in pending.words() {
        let goes_on = word.punched && punched_before;
        punched_before = word.punched;
        // For a page only the first line counts: no word of it comes after it.
        let number = if goes_on { next - 1 } else { *numbers.entry((word.punched, word.line())).or_insert(next) };
        next = next.max(number + 1);
        of_words.push(number);
    }
    (of_words, next)
}

fn subsets(count: usize) -> impl Iterator<Item = Vec<bool>> {
    (0..1u64 << count).map(move |bits| (0..count).map(|at| bits >> at & 1 == 1).collect())
}

/// Returns a random subset, sparse or dense or in between.
fn subset(count: usize, random: &mut fastrand::Rng) -> Vec<bool> {
    let share = [0.1, 0.5, 0.9][random.usize(0..3)];
    (0..count).map(|_| random.f64() < share).collect()
}

/// Returns all of `0..count`, or a random choice of `max` of them.
fn some_of(count: usize, max: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    if count > max {
        random.shuffle(&mut all);
        all.truncate(max);
    }
    all
}
