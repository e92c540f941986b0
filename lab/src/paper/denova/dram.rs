//! DRAM of deduplication (III): processes that write the same unique chunks, with each index and without sharing.

use super::super::dram::{self, ChildOptions, Grown};
use super::super::figure::{Aim, Figure, Measure, Row};
use super::super::number::number;
use super::Run;
use crate::Result;
use nvfold::{IndexKind, Policy};

/// Growth of the process that does not depend on the number of chunks: the queue's memory, which the allocator keeps,
/// stacks, caches.
const UNRELATED_BYTES_A_CHUNK: f64 = 0.5;

/// Measures, and makes the figures.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let mebibytes: u64 = if run.turn.smoke { 64 } else { 2048 };
    let chunks = (mebibytes * 256) as f64;
    let measure = |policy: Policy, index: IndexKind| -> Result<Grown> {
        run.turn.say(&format!("DRAM, policy {}, index {}", policy.name(), index.name()));
        dram::grown(&ChildOptions { mebibytes, policy, index })
    };
    let off = measure(Policy::Off, IndexKind::Pm)?.process_bytes;
    let [denova, inline] = [Policy::DeNova, Policy::Inline].map(|policy| measure(policy, IndexKind::Pm));
    let (denova, inline) = (denova?, inline?);
    let in_dram = measure(Policy::DeNova, IndexKind::Dram)?;
    let settings = format!(
        "Processes write {mebibytes} MiB of unique chunks to a device in memory; the queue is drained every 64 MiB. \
         The growth of their RssAnon is compared."
    );
    let mut figure = run.turn.figure("dram", "DRAM of deduplication: bytes a chunk", settings);
    let a_chunk = |grown: &Grown| (grown.process_bytes - off) / chunks;
    let an_entry = denova.queue_bytes / denova.queue_entries.max(1.0);
    // The paper: 6 GB for 1 TB in an index as in NV-Dedup, and none in its own.
    // Without a queue there is only the table.
    let aim = format!("the pm index takes no DRAM per chunk (measured: below {UNRELATED_BYTES_A_CHUNK} B)");
    let aim = Aim::at_most(aim, a_chunk(&inline), UNRELATED_BYTES_A_CHUNK);
    let in_dram_row =
        Row::value("dram index, process with denova less process with off", 24.0, a_chunk(&in_dram), "B/chunk");
    let in_dram_aim = in_dram_row.stay_below(Measure::Count);
    figure.rows = vec![
        Row::own("pm index, its own account: locks, however many chunks there are", denova.index_bytes, "B in all"),
        Row::value("pm index, process with denova less process with off", 0.0, a_chunk(&denova), "B/chunk")
            .not_comparable("the process also has the queue, which the paper counts apart"),
        Row::value("pm index, process with inline less process with off", 0.0, a_chunk(&inline), "B/chunk")
            .judged_by(&aim),
        in_dram_row.judged_by(&in_dram_aim),
        Row::own("dram index, its own account", in_dram.index_bytes / chunks, "B/chunk"),
        Row::own("process with off", off / chunks, "B/chunk"),
        Row::own("queue, an entry of it while it waits", an_entry, "B"),
        Row::own("queue, longest", denova.queue_entries, "entries"),
    ];
    figure.aims = vec![aim, in_dram_aim];
    figure.reading = format!(
        "With the pm index, deduplication takes no DRAM for a chunk but in the queue; with the dram index it takes {} \
         bytes.",
        number(a_chunk(&in_dram))
    );
    Ok(vec![figure])
}
