//! Table 4: the writes of four programs, and the share of them that each deduplication method finds.

use super::Run;
use super::chunks::{self, Chunked, Scheme};
use super::lab::{self, Done, Load, Wishes, text};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Row};
use crate::{Doing, LabError, Result};
use nvfold_bench::BenchError;
use nvfold_bench::process::{output, run};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Table 4 of the paper for FSC, RABIN, AE, FastCDC and ICID, percent.
const PAPER: [(&str, [f64; 5]); 4] = [
    ("LevelDB", [4.58, 4.40, 4.50, 4.60, 81.36]),
    ("Patch", [0.02, 0.00, 0.02, 0.02, 98.43]),
    ("FFmpeg", [0.09, 0.07, 0.06, 0.10, 53.24]),
    ("Download", [3.3, 13.9, 13.7, 14.3, 0.0]),
];

/// One program's writes, and the result for them.
struct Outcome {
    written: f64,
    calls: f64,
    icid: f64,
    chunked: Vec<Chunked>,
    /// Bytes that can have an origin, if known: the writes of compactions, the unchanged part of a patched file.
    copied: Option<f64>,
    shared: f64,
}

/// Makes the table.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let figure = run.turn.figure(
        "table-4",
        "Table 4: what is found of the writes of four programs",
        format!(
            "LevelDB: {} pairs with random keys of 16 bytes and values of 100 bytes, no compression. Patch: every \
             release in the corpus that has a successor. FFmpeg: the first half of one minute of video (MPEG-4, AC-3, \
             AVI), copied without recoding. Download: the releases of the corpus, fetched by wget from a local server.",
            leveldb_load(run).pairs
        ),
    );
    let mut left_out = Vec::new();
    let mut outcomes = Vec::new();
    for (name, measure) in [
        ("LevelDB", leveldb as fn(&Run) -> Result<Outcome>),
        ("Patch", patch),
        ("FFmpeg", ffmpeg),
        ("Download", download),
    ] {
        run.turn.say(&format!("table 4, {name}"));
        match measure(run) {
            Ok(outcome) => outcomes.push((name, outcome)),
            Err(error @ LabError::Bench(BenchError::Wrong(_))) => return Err(error),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    let integrated = match integrated(run) {
        Ok(shares) => shares,
        Err(error) => {
            left_out.push(format!("a download with chunks: {error}"));
            Vec::new()
        }
    };
    Ok(vec![table(figure, &outcomes, &integrated, left_out)])
}

fn table(
    mut figure: Figure,
    outcomes: &[(&str, Outcome)],
    integrated: &[(String, f64)],
    left_out: Vec<String>,
) -> Figure {
    let names = outcomes.iter().map(|(name, _)| (*name).to_string());
    let mut chart = Chart::new(Kind::Bars, "Table 4: share of the written bytes that is found", "", "%", names);
    let schemes: Vec<String> = outcomes
        .first()
        .map(|(_, outcome)| outcome.chunked.iter().map(|chunked| chunked.scheme.name()).collect())
        .unwrap_or_default();
    for (at, scheme) in schemes.iter().enumerate() {
        chart = chart.with(scheme, outcomes.iter().map(|(_, outcome)| outcome.chunked[at].percent()));
    }
    chart = chart.with("ICID", outcomes.iter().map(|(_, outcome)| outcome.icid));
    for (name, outcome) in outcomes {
        let paper = PAPER.iter().find(|(of, _)| of == name).expect("all four are in the table").1;
        let ours = outcome.chunked[..4].iter().map(Chunked::percent).chain([outcome.icid]);
        for ((scheme, paper), ours) in schemes[..4].iter().map(String::as_str).chain(["ICID"]).zip(paper).zip(ours) {
            let what = format!("{name}, {scheme}");
            figure.rows.push(match paper {
                0.0 => Row::own(format!("{what} (paper: 0 %)"), ours, "%"),
                paper => Row::value(what, paper, ours, "%"),
            });
        }
        let mean = outcome.written / outcome.calls.max(1.0);
        figure.rows.push(Row::own(format!("{name}: bytes of a write call"), mean, "B"));
        if let Some(copied) = outcome.copied {
            let share = 100.0 * copied / outcome.written;
            figure.rows.push(Row::own(format!("{name}: can have a cause, of all that is written"), share, "%"));
            let found = 100.0 * outcome.shared / copied;
            figure.rows.push(Row::own(format!("{name}, ICID: of what can have a cause"), found, "%"));
        }
        let icid = format!("ICID shares of what {name} writes, %: the paper's {}", paper[4]);
        let possible = 100.0 * outcome.copied.unwrap_or(outcome.written) / outcome.written;
        figure.aims.push(match *name {
            "Download" => Aim::at_most("ICID shares of a download, %: 0", outcome.icid, 0.0),
            "LevelDB" => Aim::at_least(icid, outcome.icid, paper[4]).with_floor(format!(
                "The log and the first table of each pair are not copied from a file: {possible:.1} % of all bytes can \
                 be shared"
            )),
            "Patch" => Aim::at_least(icid, outcome.icid, paper[4])
                .with_floor(format!("The patches add new lines: {possible:.1} % of all bytes can be shared")),
            _ => Aim::at_least(icid, outcome.icid, paper[4]),
        });
    }
    for (policy, share) in integrated {
        figure.rows.push(Row::own(format!("Download, {policy}: share"), *share, "%"));
    }
    figure.reading = "ICID finds what programs copy, at any size of their writes. Chunking finds almost nothing in \
                      single calls, and in streams only duplicates that are contiguous for long enough. A download is \
                      not copied from a file, so it is left to chunking (section 6)."
        .into();
    figure.charts.push(chart);
    figure.left_out = left_out;
    figure
}

fn outcome(done: &Done, before: &[PathBuf], copied: Option<f64>) -> Result<Outcome> {
    Ok(Outcome {
        written: done.get("written_bytes")?,
        calls: done.get("write_calls")?,
        icid: done.percent_shared()?,
        chunked: chunks::of_record(&done.writes, before, Scheme::calls_and_streams())?,
        copied,
        shared: done.get("shared_bytes")?,
    })
}

fn leveldb_load(run: &Run) -> Load {
    Load::of(if run.turn.smoke { 50_000 } else { 1_000_000 }, 100)
}

fn leveldb(run: &Run) -> Result<Outcome> {
    let load = leveldb_load(run);
    let done = run.lab.leveldb(&Wishes::in_memory("icid", load.device_mebibytes()).keeping_writes(), load)?;
    outcome(&done, &[], Some(done.get("compacted_bytes")?))
}

/// Returns all files below a folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).doing(format!("list {}", folder.display()))? {
        let entry = entry.doing(format!("list {}", folder.display()))?;
        match entry.file_type().doing(format!("get the type of {}", entry.path().display()))? {
            kind if kind.is_dir() => files.extend(files_below(&entry.path())?),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(files)
}

/// Returns the folders of the corpus with two releases of one package: the older, and the newer.
fn releases(run: &Run) -> Result<Vec<[PathBuf; 2]>> {
    let mut all = Vec::new();
    let folder = run.corpus.join("versions");
    let list =
        fs::read_dir(&folder).doing(format!("list {} (scripts/chunker-corpus.sh makes it)", folder.display()))?;
    for package in list {
        let mut tars = files_below(&package.doing(format!("list {}", folder.display()))?.path())?;
        tars.sort();
        if let Ok(pair) = <[PathBuf; 2]>::try_from(tars) {
            all.push(pair);
        }
    }
    all.sort();
    Ok(all)
}

/// Makes a device file with these files and folders in its root.
fn device_with(run: &Run, mebibytes: u64, sources: &[&Path]) -> Result<PathBuf> {
    let wishes = run.lab.new_device("off", mebibytes);
    let sources = sources.iter().map(|path| text(path));
    run.lab.run(&wishes, &["cp", "-r"].into_iter().chain(sources).chain(["/nvfold/"]).collect::<Vec<_>>())?;
    Ok(wishes.device)
}

fn patch(run_: &Run) -> Result<Outcome> {
    let lab = &run_.lab;
    let (old, new) = (lab.fresh("old")?, lab.fresh("new")?);
    for pair in releases(run_)? {
        let name = pair[0].parent().and_then(Path::file_name).expect("packages have folders");
        for (tar, tree) in pair.iter().zip([&old, &new]) {
            let tree = tree.join(name);
            fs::create_dir(&tree).doing(format!("make {}", tree.display()))?;
            run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(tree))?;
        }
        if run_.turn.smoke {
            break;
        }
    }
    let difference = lab.path("difference");
    // The exit code only says whether there are differences.
    let found = Command::new("diff").args(["-ruN", "old", "new"]).current_dir(lab.path("")).output();
    let found = found.doing("run diff")?.stdout;
    fs::write(&difference, &found).doing("save the output of diff")?;
    let device = device_with(run_, 2048, &[&old])?;
    let before = files_below(&old)?;
    let wishes = Wishes::on(&device, "icid").keeping_writes();
    let options = ["--no-backup-if-mismatch", "-s", "-p1", "-i", text(&difference), "-d"];
    let done = lab.run(&wishes, &[&["patch"][..], &options, &["/nvfold/old"]].concat())?;
    let is_new = |line: &&[u8]| line.starts_with(b"+") && !line.starts_with(b"+++");
    // Counts lines without their sign and with their line end.
    let new: usize = found.split(|byte| *byte == b'\n').filter(is_new).map(<[u8]>::len).sum();
    let outcome = outcome(&done, &before, Some(done.get("written_bytes")? - new as f64))?;
    run(Command::new("patch").args(options).arg(&old))?;
    let compared =
        lab.run(&Wishes::on(&device, "icid"), &["diff", "-r", "--no-dereference", "/nvfold/old", text(&old)]);
    compared.map_err(|_| LabError::wrong("patch".into()))?;
    Ok(outcome)
}

fn ffmpeg(run_: &Run) -> Result<Outcome> {
    let lab = &run_.lab;
    let (whole, half) = (lab.path("video.avi"), lab.path("half.avi"));
    let seconds = if run_.turn.smoke { 4 } else { 60 };
    let video = format!("testsrc2=size=1280x720:rate=30:duration={seconds},noise=alls=12:allf=t");
    let sound = format!("anoisesrc=duration={seconds}:color=pink:seed=7");
    run(Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-f", "lavfi", "-i", &video, "-f", "lavfi", "-i", &sound])
        .args(["-c:v", "mpeg4", "-b:v", "6M", "-c:a", "ac3", "-bitexact"])
        .arg(&whole))?;
    let device = device_with(run_, 1024, &[&whole])?;
    let seconds = (seconds / 2).to_string();
    let clip = |from: &str, to: &str| {
        ["ffmpeg", "-v", "error", "-y", "-i", from, "-t", &seconds, "-c", "copy", "-bitexact", to].map(String::from)
    };
    let program = clip("/nvfold/video.avi", "/nvfold/half.avi");
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let done = lab.run(&Wishes::on(&device, "icid").keeping_writes(), &program)?;
    let outcome = outcome(&done, std::slice::from_ref(&whole), None)?;
    let beside = clip(text(&whole), text(&half));
    run(Command::new(&beside[0]).args(&beside[1..]))?;
    let compared = lab.run(&Wishes::on(&device, "icid"), &["cmp", "/nvfold/half.avi", text(&half)]);
    compared.map_err(|_| LabError::wrong("ffmpeg".into()))?;
    Ok(outcome)
}

/// Serves a folder by HTTP until it is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn of(folder: &Path) -> Result<Server> {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).doing("find a free port")?.port();
        let mut command = Command::new("python3");
        command.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]).current_dir(folder);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().doing("start a file server")?;
        let server = Server { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(source).doing("wait for the file server");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Downloads the releases of the corpus to a device with this policy.
fn downloaded(run_: &Run, policy: &str) -> Result<Done> {
    let lab = &run_.lab;
    let served = lab.fresh("served")?;
    let mut addresses = String::new();
    let releases = releases(run_)?;
    let taken = if run_.turn.smoke { 1 } else { releases.len() };
    let tars: Vec<PathBuf> = releases.into_iter().take(taken).flatten().collect();
    let server = Server::of(&served)?;
    for (number, tar) in tars.iter().enumerate() {
        let name = format!("{number}.tar");
        fs::copy(tar, served.join(&name)).doing(format!("copy {}", tar.display()))?;
        addresses += &format!("http://127.0.0.1:{}/{name}\n", server.port);
    }
    let list = lab.path("addresses");
    fs::write(&list, addresses).doing("write the list of addresses")?;
    let wishes = lab.new_device(policy, 4096).keeping_writes();
    let done = lab.run(&wishes, &["wget", "-q", "-P", "/nvfold", "-i", text(&list)])?;
    let own = Wishes::on(&wishes.device, policy);
    for (number, tar) in tars.iter().enumerate() {
        // The record of the download must stay, so these runs record no writes.
        let mut command = lab::nvfold_run(&own)?;
        let compared = output(command.arg("cmp").arg(format!("/nvfold/{number}.tar")).arg(tar));
        compared.map_err(|_| LabError::wrong("wget".into()))?;
    }
    Ok(done)
}

fn download(run: &Run) -> Result<Outcome> {
    outcome(&downloaded(run, "icid")?, &[], None)
}

/// Returns the share that chunking finds of the download after ICID (section 6).
fn integrated(run: &Run) -> Result<Vec<(String, f64)>> {
    let share = |policy: &str| {
        run.turn.say(&format!("table 4, a download with {policy}"));
        let done = downloaded(run, policy)?;
        let (logical, stored) = (done.get("logical_bytes")?, done.get("stored_bytes")?);
        Ok((policy.to_string(), 100.0 * (1.0 - stored / logical.max(1.0))))
    };
    ["icid+inline", "icid+deext"].into_iter().map(share).collect()
}
