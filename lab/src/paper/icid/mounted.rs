//! Programs on a mount without `nvfold run`, with a cold and with a warm page cache.
//!
//! The mount samples the data that passes through it, and recognises it in later writes. It does not see reads that
//! the kernel's page cache answers. So each program runs after each of three preparations: nothing is read; its
//! sources are read; its sources and then much other data are read.

use super::Run;
use super::lab::{nvfold_run, text};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::{Doing, LabError, Result, program};
use nvfold_bench::data::Random;
use nvfold_bench::mounts::Mounted;
use nvfold_bench::process::{output, run as run_program};
use nvfold_bench::samples::median;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A program: its name, a shell command in the folder of the sources, and the file that it makes.
type Program = (&'static str, &'static str, &'static str);

const PROGRAMS: [Program; 7] = [
    ("dd", "dd if=a of=copy bs=64k status=none", "copy"),
    ("sed -i", "sed -i 's/^line 99000:/changed:/' text", "text"),
    ("cp", "cp a copy", "copy"),
    ("cat a b > c", "cat a b > copy", "copy"),
    ("tar", "tar --format=gnu -cf copy a b", "copy"),
    ("patch", "patch -s text change", "text"),
    ("vi :wq", "vi -es -u NONE -i NONE -n -c '99000s/line/changed/' -c wq text", "text"),
];

const POLICIES: [&str; 3] = ["off", "icid", "icid+inline"];

/// Reads before the program runs.
const BEGINNINGS: [(&str, &str); 3] = [
    ("cold", ":"),
    ("warm", "cat a b text >/dev/null"),
    ("warm, long ago", "cat a b text >/dev/null; cat other >/dev/null"),
];

/// The result of one run of a program.
#[derive(Clone, Copy)]
struct Passage {
    seconds: f64,
    /// Percent of the bytes of its file that took no space.
    shared: f64,
    /// MiB of read requests to the mount during the run.
    read: f64,
}

/// Makes the figure.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let sizes = Sizes::of(run.turn.smoke);
    let programs = if run.turn.smoke { &PROGRAMS[..2] } else { &PROGRAMS[..] };
    let table = |title: &str, unit: &str| {
        Chart::new(Kind::Table, title, "", unit, programs.iter().map(|(name, ..)| (*name).into()))
    };
    let mut figure = run.turn.figure(
        "mount",
        "Programs on a mount that nobody follows: cold and warm page cache",
        format!(
            "Two files of {} MiB of random bytes, a text of 160,000 lines, and another file of {} MiB. Cold: just \
             mounted. Warm: the sources were read before, so the kernel has cached them. Long ago: the other file was \
             read after the sources. Shared: size of the new file minus growth of the stored bytes. Time: wall time of \
             the program and of sync, median of {} interleaved runs.",
            sizes.source >> 20,
            sizes.other >> 20,
            run.repeats
        ),
    );
    let sources = sources(run, &sizes)?;
    let images =
        POLICIES.iter().map(|policy| image(run, policy, &sources, &sizes)).collect::<Result<Vec<PathBuf>>>()?;
    let mut shared = table("Shared of what the program made", "%");
    let mut time = table("Time to that with policy off", "ratio");
    let mut read = table("Read through the mount by the program", "MiB");
    for (beginning, before) in BEGINNINGS {
        let rows = programs
            .iter()
            .map(|program| measure(run, *program, beginning, before, &images))
            .collect::<Result<Vec<[Passage; 3]>>>()?;
        let column = |of: &dyn Fn(&[Passage; 3]) -> f64| rows.iter().map(of).collect::<Vec<f64>>();
        read = read.with(beginning, column(&|row| row[1].read));
        for (at, policy) in POLICIES.iter().enumerate().skip(1) {
            let name = format!("{policy}, {beginning}");
            shared = shared.with(&name, column(&|row| row[at].shared));
            time = time.with(&name, column(&|row| row[at].seconds / row[0].seconds));
        }
        let least = column(&|row| row[1].shared).into_iter().fold(f64::INFINITY, f64::min);
        if beginning != "warm, long ago" {
            let aim = format!("programs without nvfold run, {beginning}: least share, %: 90");
            figure.aims.push(Aim::at_least(aim, least, 90.0));
        }
        let times = median(&column(&|row| row[1].seconds / row[0].seconds));
        figure.rows.push(Row::own(format!("{beginning}: time to that with off, median of the programs"), times, "x"));
        figure.aims.push(
            Aim::at_most(
                format!("{beginning}: time relative to policy off, median of the programs: 1.25"),
                times,
                1.25,
            )
            .by(Measure::Wall),
        );
    }
    shared.kind = Kind::Bars;
    figure.charts.extend([shared, time, read]);
    figure.reading = "The mount does not see reads that the page cache answers. It recognises the bytes because it \
                      sampled them when they were first read or written, as long as it still has the samples."
        .into();
    Ok(vec![figure])
}

/// Sizes of the files, bytes.
struct Sizes {
    source: u64,
    other: u64,
}

impl Sizes {
    fn of(smoke: bool) -> Sizes {
        if smoke { Sizes { source: 1 << 20, other: 4 << 20 } } else { Sizes { source: 16 << 20, other: 256 << 20 } }
    }
}

/// Runs a shell script in a folder.
fn shell(folder: &Path, script: &str) -> Result<()> {
    Ok(run_program(Command::new("bash").args(["-euc", script]).current_dir(folder))?)
}

/// Makes a folder on the host with the sources and the input of patch.
fn sources(run: &Run, sizes: &Sizes) -> Result<PathBuf> {
    let host = run.lab.fresh("sources")?;
    for (seed, (name, bytes)) in (1..).zip([("a", sizes.source), ("b", sizes.source), ("other", sizes.other)]) {
        let mut random = Random(seed);
        let noise: Vec<u8> = (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        fs::write(host.join(name), noise).doing(format!("write {name}"))?;
    }
    let lines = "seq 160000 | sed 's/.*/line &: a text of which each line says something else &/' > text; \
                 sed 's/^line 99000:/changed:/' text | diff -u text - > change || true";
    shell(&host, lines)?;
    Ok(host)
}

/// Makes a device that contains the sources, written under a policy.
fn image(run: &Run, policy: &str, sources: &Path, sizes: &Sizes) -> Result<PathBuf> {
    let wishes = run.lab.new_device(policy, 128 + (2 * sizes.source + sizes.other) / (1 << 19));
    run_program(nvfold_run(&wishes)?.args(["cp", "-a", text(sources), "/nvfold/direct"]))?;
    let image = run.lab.path(&format!("{policy}.image"));
    fs::rename(&wishes.device, &image).doing("rename a device")?;
    Ok(image)
}

/// Runs one program, under each policy in turn.
fn measure(run: &Run, program: Program, beginning: &str, before: &str, images: &[PathBuf]) -> Result<[Passage; 3]> {
    let (name, script, made) = program;
    run.turn.say(&format!("on a mount, {name}, {beginning}"));
    let expected = run.lab.fresh("expected")?;
    run_program(Command::new("cp").arg("-aT").arg(run.lab.path("sources")).arg(&expected))?;
    shell(&expected, script)?;
    let mut passages: [Vec<Passage>; 3] = Default::default();
    for _ in 0..run.repeats {
        for (at, passages) in passages.iter_mut().enumerate() {
            // A new file, because the process that served the last one may still be saving its state.
            let device = run.lab.path("device");
            let _ = fs::remove_file(&device);
            fs::copy(&images[at], &device).doing("copy a device")?;
            let mounted = run.lab.mount(POLICIES[at], &device, &format!("policy={}", POLICIES[at]))?;
            passages.push(pass(&mounted, before, script, made, &expected)?);
        }
    }
    Ok(passages.map(|passages| {
        let median_of = |of: fn(&Passage) -> f64| median(&passages.iter().map(of).collect::<Vec<f64>>());
        Passage {
            seconds: median_of(|passage| passage.seconds),
            shared: median_of(|passage| passage.shared),
            read: median_of(|passage| passage.read),
        }
    }))
}

fn pass(mounted: &Mounted, before: &str, script: &str, made: &str, expected: &Path) -> Result<Passage> {
    let folder = mounted.place.dir.join("direct");
    mounted.place.prove(&folder)?;
    shell(&folder, before)?;
    let (stored, read) = told(&mounted.place.dir)?;
    let began = Instant::now();
    shell(&folder, &format!("{script}; sync -f ."))?;
    let seconds = began.elapsed().as_secs_f64();
    let (stored_then, read_then) = told(&mounted.place.dir)?;
    let (made, expected) = (folder.join(made), expected.join(made));
    let compared = run_program(Command::new("cmp").arg(&made).arg(expected));
    compared.map_err(|_| LabError::wrong(script.into()))?;
    let bytes = fs::metadata(&made).doing(format!("get the size of {}", made.display()))?.len() as f64;
    Ok(Passage {
        seconds,
        shared: 100.0 * (1.0 - (stored_then - stored).max(0.0) / bytes),
        read: (read_then - read) / f64::from(1 << 20),
    })
}

/// Returns the bytes stored on a mount, and the bytes of its read requests.
fn told(dir: &Path) -> Result<(f64, f64)> {
    let printed = output(Command::new(program::nvfold()?).args(["stats", "--json"]).arg(dir))?;
    let stats: serde_json::Value =
        serde_json::from_str(&printed).map_err(|error| LabError::Miscounted(format!("nvfold stats: {error}")))?;
    let figure = |of: &str, name: &str| {
        let missing = || LabError::Miscounted(format!("nvfold stats reports no {name}"));
        stats[of][name].as_f64().ok_or_else(missing)
    };
    Ok((figure("space", "stored_bytes")?, figure("requests", "bytes_read")?))
}
