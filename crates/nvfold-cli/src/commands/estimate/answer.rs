//! An estimate, for programs and for people.

use crate::{mounts, size};
use nvfold::host::{Estimate, Needs, Part, Problem, Savings};
use nvfold::media::DEVICE_BYTES_MAX;
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// For programs.
pub fn to_json(answer: &Estimate) -> Value {
    let by_path: Vec<Value> = answer
        .by_path
        .iter()
        .map(|(path, part)| {
            let mut value = part_json(part);
            value["path"] = json!(path.to_string_lossy());
            value
        })
        .collect();
    let problem = |problem: &Problem| json!({"path": mounts::show(&problem.path), "error": problem.problem});
    let (blocks_across, pieces_across) = answer.saved_across();
    json!({
        "paths": by_path,
        "total": part_json(&answer.total),
        "saved_across_paths": {"blocks_4k": blocks_across, "content_defined": pieces_across},
        "sampling": {
            "is_estimate": answer.one_in != (1, 1),
            "blocks_4k_one_in": answer.one_in.0,
            "content_defined_one_in": answer.one_in.1,
        },
        "device": needs_json(&answer.needs),
        "errors": {
            "count": answer.problem_count,
            "first": answer.problems.iter().map(problem).collect::<Vec<_>>(),
        },
        "hard_links_forgotten": answer.links_forgotten,
    })
}

fn part_json(part: &Part) -> Value {
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
        "blocks_4k": savings_json(&part.blocks),
        "content_defined": savings_json(&part.pieces),
    })
}

fn savings_json(savings: &Savings) -> Value {
    json!({
        "pieces": savings.pieces,
        "bytes": savings.bytes,
        "distinct_pieces": savings.distinct.pieces,
        "distinct_bytes": savings.distinct.bytes,
        "distinct_bytes_error_95": savings.distinct.bytes_error,
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

/// For people.
pub fn to_text(answer: &Estimate) -> String {
    let mut out = String::new();
    let written = [write_savings, write_sampling, write_needs];
    written.iter().for_each(|write| write(answer, &mut out).expect("a String takes everything"));
    out.trim_end().to_owned()
}

fn write_savings(answer: &Estimate, out: &mut String) -> fmt::Result {
    for (path, part) in &answer.by_path {
        write_part(out, &path.to_string_lossy(), part)?;
    }
    if answer.by_path.len() > 1 {
        write_part(out, "all together", &answer.total)?;
        let (blocks, pieces) = answer.saved_across();
        let (blocks, pieces) = (size::show(blocks), size::show(pieces));
        writeln!(out, "  saved only across paths: {blocks} by 4 KiB blocks, {pieces} by content-defined pieces")?;
    }
    Ok(())
}

fn write_sampling(answer: &Estimate, out: &mut String) -> fmt::Result {
    for (name, one_in, savings) in [
        ("4 KiB blocks", answer.one_in.0, &answer.total.blocks),
        ("content-defined pieces", answer.one_in.1, &answer.total.pieces),
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
    writeln!(out, "An nvfold device for all of it (4 KiB blocks shared):")?;
    let (low, high) = needs.index_dram_bytes;
    let device = match needs.device_bytes {
        Some(bytes) => format!("{} (mkfs --size {}M)", size::show(bytes), bytes >> 20),
        None => format!("more than the {} a device can have", size::show(DEVICE_BYTES_MAX)),
    };
    let rows = [
        ("data", size::show(answer.total.blocks.distinct.bytes)),
        ("inodes, names, logs", format!("up to {}", size::show(needs.metadata_bytes))),
        ("chunk entries", format!("{}, {} on the device", needs.chunk_entries, size::show(needs.chunk_table_bytes))),
        ("index in DRAM", format!("{} to {} while mounted", size::show(low), size::show(high))),
        ("device size", device),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<21}{value}")?;
    }
    Ok(())
}

fn write_part(out: &mut String, name: &str, part: &Part) -> fmt::Result {
    let counts = &part.counts;
    writeln!(
        out,
        "{name}: {} files in {} directories, {} of data",
        counts.files,
        counts.directories,
        size::show(counts.data_bytes)
    )?;
    writeln!(out, "  {:<22}{:>12}{:>12}{:>14}{:>8}", "cut into", "pieces", "distinct", "saved", "")?;
    for (name, savings) in [("4 KiB blocks", &part.blocks), ("content-defined pieces", &part.pieces)] {
        writeln!(
            out,
            "  {name:<22}{:>12}{:>12}{:>14}{:>6.1} %",
            savings.pieces,
            savings.distinct.pieces,
            size::show(savings.saved_bytes()),
            savings.saved_percent()
        )?;
    }
    writeln!(
        out,
        "  beside: {} in blocks of zeros, {} in holes, {} further hard links, {} links and special files",
        size::show(counts.zero_bytes),
        size::show(counts.hole_bytes),
        counts.hard_links,
        counts.others
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::host::EstimateOptions;
    use std::ops::ControlFlow;

    #[test]
    fn the_report_names_what_could_not_be_read_and_what_is_a_guess() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        // More distinct blocks than are held without memory.
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
}
