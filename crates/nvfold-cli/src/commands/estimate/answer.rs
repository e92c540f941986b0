//! Formats an estimate as JSON and as text.

use crate::text::{counted, escaped};
use crate::{mounts, size};
use nvfold::DEVICE_BYTES_MAX;
use nvfold::host::{Estimate, Needs, PathEstimate, Problem, Savings};
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// Formats it as JSON.
pub(super) fn to_json(answer: &Estimate) -> Value {
    let by_path: Vec<Value> = answer
        .by_path
        .iter()
        .map(|(path, part)| {
            let mut value = part_json(part);
            value["path"] = json!(path.to_string_lossy());
            if let Some(hex) = mounts::hex(path) {
                value["path_hex"] = json!(hex);
            }
            value
        })
        .collect();
    let problem = |problem: &Problem| {
        let mut value = json!({"path": mounts::show(&problem.path), "error": problem.problem});
        if let Some(hex) = mounts::hex(&problem.path) {
            value["path_hex"] = json!(hex);
        }
        value
    };
    let (inline_across, deext_across) = answer.saved_across();
    json!({
        "paths": by_path,
        "total": part_json(&answer.total),
        "saved_across_paths": {"inline": inline_across, "deext": deext_across},
        "sampling": {
            "is_estimate": answer.one_in != (1, 1),
            "inline_one_in": answer.one_in.0,
            "deext_one_in": answer.one_in.1,
        },
        "device": needs_json(&answer.needs),
        "errors": {
            "count": answer.problem_count,
            "first": answer.problems.iter().map(problem).collect::<Vec<_>>(),
        },
        "hard_links_forgotten": answer.links_forgotten,
    })
}

fn part_json(part: &PathEstimate) -> Value {
    let counts = &part.counts;
    json!({
        "files": counts.files,
        "directories": counts.directories,
        "others": counts.others,
        "hard_links": counts.hard_links,
        "file_bytes": counts.file_bytes,
        "hole_bytes": counts.hole_bytes,
        "data_bytes": counts.data_bytes,
        "zero_bytes": counts.zero_bytes,
        "packed_tails": counts.tails,
        "packed_tail_bytes": counts.tail_bytes,
        "whole_block_bytes": part.off.whole_block_bytes,
        "policies": part.policies().iter().map(|(name, savings)| savings_json(name, savings)).collect::<Vec<_>>(),
        "best_policy": part.best().0,
    })
}

fn savings_json(policy: &str, savings: &Savings) -> Value {
    json!({
        "policy": policy,
        "pieces": savings.pieces,
        "distinct_pieces": savings.distinct.pieces,
        "stored_bytes": savings.distinct.bytes,
        "stored_bytes_error_95": savings.distinct.bytes_error,
        "saved_bytes": savings.saved_bytes(),
        "saved_percent": savings.saved_percent(),
    })
}

fn needs_json(needs: &Needs) -> Value {
    json!({
        "chunk_entries": needs.chunk_entries,
        "chunk_table_bytes": needs.chunk_table_bytes,
        "index_dram_bytes_low": needs.index_dram_bytes.0,
        "index_dram_bytes_high": needs.index_dram_bytes.1,
        "metadata_bytes": needs.metadata_bytes,
        "device_bytes": needs.device_bytes,
    })
}

/// Formats it as text for a terminal.
pub(super) fn to_text(answer: &Estimate) -> String {
    let mut out = String::new();
    let written = [write_savings, write_baseline, write_sampling, write_needs];
    written.iter().for_each(|write| write(answer, &mut out).expect("a String takes everything"));
    out.trim_end().to_owned()
}

fn write_savings(answer: &Estimate, out: &mut String) -> fmt::Result {
    for (path, part) in &answer.by_path {
        write_part(out, &escaped(&path.to_string_lossy()), part)?;
    }
    if answer.by_path.len() > 1 {
        write_part(out, "all together", &answer.total)?;
        let (inline, deext) = answer.saved_across();
        let (inline, deext) = (size::show(inline), size::show(deext));
        writeln!(out, "  saved only across paths: {inline} by inline, {deext} by deext")?;
    }
    Ok(())
}

/// Writes the baseline from which all rows are counted, and the answer.
fn write_baseline(answer: &Estimate, out: &mut String) -> fmt::Result {
    writeln!(out)?;
    writeln!(
        out,
        "Saved: of whole 4 KiB blocks, which the data takes on tmpfs or ext4. Stored: with chunk entries and"
    )?;
    writeln!(
        out,
        "headers, last blocks of up to 3072 bytes packed; without inodes, names and logs. denova and nv-dedup"
    )?;
    writeln!(out, "share what inline shares, denova later, nv-dedup not always all of it.")?;
    let (policy, savings) = answer.total.best();
    match savings.saved_bytes() {
        ..=0 => writeln!(out, "No policy would save anything here; off costs least."),
        saved => {
            let (saved, percent) = (size::show(saved as u64), savings.saved_percent());
            writeln!(out, "{policy} would save most: {saved}, {percent:.1} %.")
        }
    }
}

fn write_sampling(answer: &Estimate, out: &mut String) -> fmt::Result {
    for (name, one_in, savings) in [
        ("blocks of inline", answer.one_in.0, &answer.total.inline),
        ("pieces of deext", answer.one_in.1, &answer.total.deext),
    ] {
        if one_in > 1 {
            let error = size::show(savings.distinct.bytes_error);
            writeln!(
                out,
                "Estimate: one in {one_in} {name} was followed; saved bytes are right within {error} \
                     19 times in 20. More --memory makes it exact."
            )?;
        }
    }
    if answer.links_forgotten > 0 {
        let forgotten = answer.links_forgotten;
        writeln!(out, "{forgotten} hard-linked files did not fit in memory: each of their names counts as a file.")?;
    }
    Ok(())
}

fn write_needs(answer: &Estimate, out: &mut String) -> fmt::Result {
    let needs = &answer.needs;
    writeln!(out)?;
    writeln!(out, "An nvfold device for all of it under policy inline:")?;
    let (low, high) = needs.index_dram_bytes;
    let device = match needs.device_bytes {
        Some(bytes) => format!("{} (mkfs --size {}M)", size::show(bytes), bytes >> 20),
        None => format!("more than the {} a device can have", size::show(DEVICE_BYTES_MAX)),
    };
    let rows = [
        ("data, chunk entries", size::show(answer.total.inline.distinct.bytes)),
        ("inodes, names, logs", format!("up to {}", size::show(needs.metadata_bytes))),
        ("chunk entries", format!("{}, {} of that", needs.chunk_entries, size::show(needs.chunk_table_bytes))),
        ("index in DRAM", format!("{} to {} while mounted", size::show(low), size::show(high))),
        ("device size", device),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<21}{value}")?;
    }
    Ok(())
}

fn write_part(out: &mut String, name: &str, part: &PathEstimate) -> fmt::Result {
    let counts = &part.counts;
    writeln!(
        out,
        "{name}: {} in {}, {} of data, {} in whole 4 KiB blocks",
        counted(counts.files, "file", "files"),
        counted(counts.directories, "directory", "directories"),
        size::show(counts.data_bytes),
        size::show(part.off.whole_block_bytes)
    )?;
    // The usual width, unless a name is longer.
    let width = part.policies().iter().map(|(name, _)| name.len() + 2).fold(10, usize::max);
    writeln!(out, "  {:<width$}{:>12}{:>12}{:>14}{:>14}", "policy", "pieces", "distinct", "stored", "saved")?;
    for (name, savings) in part.policies() {
        writeln!(
            out,
            "  {name:<width$}{:>12}{:>12}{:>14}{:>14}{:>7.1} %",
            savings.pieces,
            savings.distinct.pieces,
            size::show(savings.distinct.bytes),
            show_saved(savings.saved_bytes()),
            savings.saved_percent()
        )?;
    }
    writeln!(
        out,
        "  zeros: {} in blocks that only off stores, {} in holes; further hard links: {}; links and special files: {}",
        size::show(counts.zero_bytes),
        size::show(counts.hole_bytes),
        counts.hard_links,
        counts.others
    )
}

/// Formats a size that may be negative.
fn show_saved(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, size::show(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::host::EstimateOptions;
    use std::ops::ControlFlow;

    #[test]
    fn the_estimate_lists_unreadable_files_and_marks_guesses() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        // More distinct blocks than the estimate keeps in memory.
        let content: Vec<u8> = (0..2500 * 512).flat_map(u64::to_le_bytes).collect();
        std::fs::write(dir.path().join("file"), content).unwrap();
        let options = EstimateOptions {
            paths: vec![missing.clone(), dir.path().to_owned()],
            memory_bytes: 0,
            ..EstimateOptions::default()
        };
        let answer = nvfold::host::estimate(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        let json = to_json(&answer);
        assert_eq!(json["errors"]["first"][0]["path"].as_str(), missing.to_str());
        assert_eq!(json["errors"]["count"], 1);
        assert_eq!(json["sampling"]["is_estimate"], true);
        assert!(to_text(&answer).contains("19 times in 20"));
    }

    #[test]
    fn all_rows_of_an_estimate_use_one_baseline_that_is_printed() {
        let dir = tempfile::tempdir().unwrap();
        let noise = |seed: u64, len: u64| -> Vec<u8> {
            let mix = |value: u64| (value ^ value >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..len).map(|at| (mix(mix(mix(seed << 32 | at))) >> 56) as u8).collect()
        };
        // A fixed set of words, repeated in random order.
        let text: Vec<u8> = noise(1, 40 << 10).iter().flat_map(|word| noise(1000 + u64::from(*word), 6)).collect();
        for path in ["one", "two"] {
            std::fs::create_dir(dir.path().join(path)).unwrap();
            std::fs::write(dir.path().join(path).join("same"), &text).unwrap();
            (0..20).for_each(|file| {
                std::fs::write(dir.path().join(path).join(file.to_string()), noise(2 + file % 10, 100)).unwrap();
            });
        }
        std::fs::write(dir.path().join("two/shifted"), [&b"a"[..], &text].concat()).unwrap();
        let options = EstimateOptions {
            paths: vec![dir.path().join("one"), dir.path().join("two")],
            ..EstimateOptions::default()
        };
        let answer = nvfold::host::estimate(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        let canonical = dir.path().canonicalize().unwrap();
        insta::assert_snapshot!(to_text(&answer).replace(&*canonical.to_string_lossy(), "/trees"));
        let json = to_json(&answer);
        assert_eq!(json["total"]["best_policy"], "deext");
        assert_eq!(json["total"]["policies"][1]["policy"], "inline");
        assert_eq!(json["total"]["policies"][2]["saved_bytes"], answer.total.deext.saved_bytes());
    }
}
