//! Savings of real trees: their own duplicates, and a second copy of everything.
//!
//! The number of blocks that could be shared is counted here, by hashing every block of the files in the tree; the
//! last block of a file is padded with zeros. Blocks of zeros are left out: they are holes and share nothing.

use super::super::chart::{Chart, Kind as Drawn};
use super::super::figure::{Aim, Figure, Row};
use super::super::number::number;
use super::super::tree::Tree;
use super::Run;
use super::volume::{BLOCK, Hash, System, Volume};
use crate::{Doing, LabError, Result, bounds};
use nvfold::internals::chunking::is_zero;
use nvfold::internals::fingerprint::weak64;
use nvfold::{DedupMode, InodeNumber};
use nvfold_bench::device::Device;
use std::collections::HashSet;

/// Returns the hash of each block of the files other than zeros.
fn blocks(tree: &Tree) -> Vec<u64> {
    let mut end = [0; BLOCK];
    let mut known = Vec::new();
    for file in &tree.files {
        let (whole, rest) = file.as_chunks::<BLOCK>();
        known.extend(whole.iter().filter(|block| !is_zero(*block)).map(|block| weak64(block)));
        if !is_zero(rest) {
            end[..rest.len()].copy_from_slice(rest);
            end[rest.len()..].fill(0);
            known.push(weak64(&end));
        }
    }
    known
}

/// Blocks saved by one copy and by two.
type Saved = [u64; 2];

/// Refuses more saved blocks than blocks that repeat another one.
fn check(what: &str, saved: Saved, duplicates: Saved) -> Result<()> {
    for (saved, duplicates) in saved.into_iter().zip(duplicates) {
        let why = "only a block that repeats another one is shared";
        bounds::at_most(format!("{what}: blocks saved"), saved as f64, duplicates as f64, "", why)?;
    }
    Ok(())
}

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let most_bytes: u64 = if run.turn.smoke { 4 << 20 } else { 384 << 20 };
    let title = "Savings of real trees";
    let settings = format!(
        "Trees of this machine (at most {} MiB of each). Each tree is written twice to a fresh device, file by file, \
         and the queue is drained after each copy. The blocks to share are counted beforehand: blocks of 4 KiB equal \
         to an earlier one and other than zeros, with the last block of each file padded with zeros.",
        most_bytes >> 20
    );
    let mut figure = run.turn.figure("trees", title, settings);
    let systems = [
        System::denova(DedupMode::Inline, Hash::Ours),
        System::denova(DedupMode::Immediate, Hash::AsInPaper),
        System::denova(DedupMode::Immediate, Hash::Ours),
    ];
    let mut parts = Vec::new();
    for root in &run.trees {
        let tree = match Tree::read(root, most_bytes) {
            Ok(tree) if !tree.files.is_empty() => tree,
            Ok(_) => {
                figure.left_out.push(format!("{} (it has no files)", root.display()));
                continue;
            }
            Err(error) => {
                figure.left_out.push(format!("{} ({error})", root.display()));
                continue;
            }
        };
        let blocks = blocks(&tree);
        let (all, distinct) = (blocks.len() as u64, blocks.into_iter().collect::<HashSet<u64>>().len() as u64);
        let duplicates = [all - distinct, 2 * all - distinct];
        let x = ["one copy".to_string(), "two copies".to_string()];
        let head = format!("blocks shared of {}", tree.name);
        let mut chart =
            Chart::new(Drawn::Table, &head, "", &head, x).with("to share", duplicates.map(|count| count as f64));
        for system in &systems {
            run.turn.say(&format!("{} ({} MiB), {}", tree.name, tree.bytes() >> 20, system.name));
            let saved = save(run, system, &tree)?;
            check(&format!("{}, {}", tree.name, system.name), saved, duplicates)?;
            chart = chart.with(&system.name, saved.map(|count| count as f64));
            if system.is_offline() {
                for ((saved, duplicates), copies) in saved.iter().zip(duplicates).zip(["one copy", "two copies"]) {
                    let part = if duplicates == 0 { 100.0 } else { 100.0 * *saved as f64 / duplicates as f64 };
                    let what = format!("{}, {copies}, {}: duplicates shared", tree.name, system.name);
                    figure.rows.push(Row::own(what, part, "%"));
                    parts.push(part);
                }
            }
        }
        figure.charts.push(chart);
    }
    let least = parts.iter().copied().fold(f64::INFINITY, f64::min);
    if !parts.is_empty() {
        figure.aims = vec![Aim::at_least("all duplicate blocks of real trees shared after the drain", least, 100.0)];
    }
    figure.reading =
        format!("Once the queue is drained, at least {} % of the duplicate blocks are shared.", number(least));
    Ok(vec![figure])
}

/// Stores a tree twice; returns the blocks saved after each copy.
fn save(run: &Run, system: &System, tree: &Tree) -> Result<Saved> {
    let files = tree.files.len() as u64;
    // A block for the end of each file, and its log.
    let bytes = 2 * (tree.bytes() + files * (BLOCK as u64 + 1024)) + (128 << 20);
    let volume = Volume::on(system, &Device::new(&run.turn.profile, bytes), 1)?;
    let saved = [0, 1].map(|copy| -> Result<u64> {
        volume.with_daemon(|| {
            let mut numbered = tree.files.iter().enumerate();
            numbered.try_for_each(|(at, content)| {
                volume.write_new(InodeNumber::ROOT, format!("{copy}.{at}").as_bytes(), content)
            })
        })?;
        volume.drain()?;
        Ok(volume.saved_bytes() / BLOCK as u64)
    });
    let mut buffer = Vec::new();
    for (at, content) in tree.files.iter().enumerate() {
        buffer.resize(content.len(), 0);
        volume.open(InodeNumber::ROOT, format!("1.{at}").as_bytes())?.read_at(0, &mut buffer).doing("read back")?;
        if buffer != *content {
            return Err(LabError::wrong(system.name.clone()));
        }
    }
    volume.close()?;
    let [one, two] = saved;
    Ok([one?, two?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_blocks_saved_than_there_are_duplicates_are_refused() {
        check("a tree", [1, 9], [1, 9]).unwrap();
        let error = check("a tree", [1, 10], [1, 9]).unwrap_err().to_string();
        assert!(error.contains("a tree: blocks saved: 10 was measured"), "{error}");
    }
}
