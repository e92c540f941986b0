//! Section 4.2: DRAM per chunk, measured from the process.
//!
//! Two processes of this program write the same unique chunks, one with policy `off` and one with `nv-dedup`
//! (`paper::dram`). The difference in their growth is the memory of deduplication. The paper calculates 24 bytes.

use super::super::dram::{self, ChildOptions};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::Run;
use crate::Result;
use nvfold::{IndexKind, Policy};

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    run.turn.say("DRAM a chunk");
    let mebibytes: u64 = if run.turn.smoke { 64 } else { 4096 };
    let chunks = (mebibytes * 256) as f64;
    let grown = |policy| dram::grown(&ChildOptions { mebibytes, policy, index: IndexKind::Dram });
    let (without, with) = (grown(Policy::Off)?, grown(Policy::NvDedup)?);
    let (without, with, index) = (without.process_bytes, with.process_bytes, with.index_bytes);
    let a_chunk = (with - without) / chunks;
    let settings = format!(
        "Two processes write {mebibytes} MiB of unique chunks to a device in memory, one with policy off and one with \
         nv-dedup (every chunk fingerprinted). The growth of their RssAnon is compared."
    );
    let mut figure = run.turn.figure("dram", "DRAM (4.2): bytes a chunk", settings);
    figure.rows = vec![
        Row::own("what the index takes by its own account", index / chunks, "B/chunk"),
        Row::own("process with policy off", without / chunks, "B/chunk"),
        Row::own("process with policy nv-dedup", with / chunks, "B/chunk"),
    ];
    let row = Row::value("DRAM for deduplication", 24.0, a_chunk, "B/chunk");
    let aim = row.stay_below(Measure::Count);
    figure.claim(row, aim);
    if run.turn.is_the_papers {
        let own = number(index / chunks);
        let floor = format!("The index reports {own} bytes per chunk; the rest is other memory of the process.");
        figure.aims.push(Aim::at_most("DRAM at most 12 bytes per chunk", a_chunk, 12.0).with_floor(floor));
    }
    figure.reading =
        format!("Deduplication takes {} bytes of DRAM a chunk; the paper's three structures take 24.", number(a_chunk));
    Ok(vec![figure])
}
