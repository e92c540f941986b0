//! `nvfold estimate PATH...`: estimates the savings of each policy on existing files, and the device size they need.

mod answer;

use crate::dedup_options::parse_compression;
use crate::failure::{Doing, Failure, Outcome, eprint_line, without_number};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::{counted, escaped};
use crate::{mounts, report, size};
use clap::Args;
use nvfold::host::{self, EstimateOptions};
use nvfold::{Chunker, Compression, PieceLengths};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Estimate what each policy would save on files that you have, and the device size they need; only reads
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold estimate /usr/share /var/lib")]
pub(crate) struct Estimate {
    /// Files and directories to read; symbolic links below them are not followed
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Memory limit; if the fingerprints do not fit, a sample is kept
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_memory)]
    memory: u64,
    /// Average length of the pieces that policy deext cuts by content: 2K, 4K, 8K or 16K
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = parse_average)]
    average: PieceLengths,
    /// Also report what policy deext would take if its pieces were compressed [default codec: zstd]
    #[arg(long, value_name = "CODEC", num_args = 0..=1, require_equals = true, default_value = "off",
          default_missing_value = "zstd", value_parser = parse_compression, hide_default_value = true)]
    compress: Compression,
    /// Stay on the file system of each PATH
    #[arg(short = 'x', long)]
    one_file_system: bool,
}

/// Runs the command. The exit code is 1 if something could not be read, as with du(1).
pub(crate) fn run(estimate: &Estimate, output: &Output) -> Outcome<u8> {
    require_one(&estimate.paths)?;
    let options = EstimateOptions {
        paths: estimate.paths.clone(),
        memory_bytes: estimate.memory,
        lengths: estimate.average,
        one_file_system: estimate.one_file_system,
        compression: estimate.compress,
    };
    let total_bytes = if Progress::wanted(output.progress) { options.total_bytes() } else { 0 };
    let mut progress = Progress::new(output.progress, "estimate", total_bytes);
    let mut done = host::Progress::default();
    let answer = host::estimate(&options, &mut |so_far| {
        done = so_far;
        progress.update(done.bytes, || format!("{} files", done.files));
        ControlFlow::Continue(())
    });
    progress.finish(done.bytes, || format!("{} files", done.files));
    let answer = answer.doing("estimate")?;
    for problem in &answer.problems {
        let path = escaped(&mounts::show(&problem.path));
        eprint_line(&format!("nvfold estimate: {path}: {}", without_number(&problem.problem)));
    }
    let unnamed = answer.problem_count - answer.problems.len() as u64;
    if unnamed > 0 {
        eprint_line(&format!("nvfold estimate: {} could not be read", counted(unnamed, "more file", "more files")));
    }
    report::emit(output.json, "estimate", &answer::to_json(&answer), || answer::to_text(&answer))?;
    Ok(u8::from(answer.problem_count > 0))
}

/// Fails if none of the paths exists. A missing one among others is a problem in the report, as with du(1).
fn require_one(paths: &[PathBuf]) -> Outcome<()> {
    let missing = |path: &PathBuf| std::fs::metadata(path).doing(mounts::show(path)).err();
    let mut failures: Vec<Failure> = paths.iter().map_while(missing).collect();
    match failures.pop() {
        Some(last) if failures.len() + 1 == paths.len() => {
            failures.iter().for_each(|failure| failure.report("estimate"));
            Err(last)
        }
        _ => Ok(()),
    }
}

/// The least memory that is useful, since the buffers alone take a few MiB.
const MEMORY_MIN: u64 = 16 << 20;

fn parse_average(text: &str) -> Result<PieceLengths, String> {
    let average = size::parse(text)? as usize;
    Chunker::default().lengths_of_mean(average).ok_or_else(|| "must be 2K, 4K, 8K or 16K".into())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < MEMORY_MIN => Err(format!("must be {}M or more", MEMORY_MIN >> 20)),
        bytes => Ok(bytes),
    }
}
