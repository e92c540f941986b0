//! Table 4: the writes of four programs, and the share of them that each deduplication method finds.

use super::Run;
use super::chunks::{Chunked, Scheme};
use super::lab::{self, Done, LIST, Load, Stored, Wishes, text};
use crate::paper::chart::{Chart, Kind};
use crate::paper::figure::{Aim, Figure, Measure, Row};
use crate::{Doing, LabError, Result, bounds};
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
    /// LevelDB's bytes by kind of file.
    stored: Option<Stored>,
}

/// Makes the table.
pub(super) fn figures(run: &Run) -> Result<Vec<Figure>> {
    let figure = run.turn.figure(
        "table-4",
        "Table 4: what is found of the writes of four programs",
        format!(
            "LevelDB: {LIST}, {} pairs with random keys of 16 bytes and values of 100 bytes, no compression. Patch: \
             each release of Debian's Linux sources in the corpus, patched to the next one; files that a patch does not \
             touch are left out. FFmpeg: the first half of one minute of video (MPEG-4, AC-3, \
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
            Err(error @ (LabError::Bench(BenchError::Wrong(_)) | LabError::Impossible { .. })) => return Err(error),
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
        let ours = outcome.chunked[..4].iter().map(Chunked::percent);
        for ((scheme, paper), ours) in schemes[..4].iter().zip(paper).zip(ours) {
            let what = format!("{name}, {scheme}");
            figure.rows.push(match paper {
                0.0 => Row::own(format!("{what} (paper: 0 %)"), ours, "%"),
                paper => Row::value(what, paper, ours, "%").not_comparable(RIVAL),
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
        judge(&mut figure, name, outcome, paper[4]);
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

/// Why a competitor's share is no aim.
const RIVAL: &str = "it is a competitor's, and depends on what repeats in the data";

/// Adds the paper's share of ICID: an aim, or why it is none.
fn judge(figure: &mut Figure, name: &str, outcome: &Outcome, paper: f64) {
    let possible = 100.0 * outcome.copied.unwrap_or(outcome.written) / outcome.written;
    if let Some(stored) = outcome.stored {
        let row = Row::value(format!("{name}, ICID: of all that is written"), paper, outcome.icid, "%");
        figure.rows.push(row.not_comparable(format!(
            "the paper does not say whether its writes include logs, which are copied from no file: {possible:.1} % of \
             all bytes can be shared"
        )));
        let row = Row::value(format!("{name}, ICID: of the tables"), paper, stored.percent_of_tables(), "%");
        let bound = 100.0 * stored.compacted() / stored.tables.max(1.0);
        let aim = row.reach(Measure::Count).with_floor(format!(
            "The first table of each pair is made of a log: {bound:.1} % of the bytes of tables can be shared"
        ));
        figure.claim(row, aim);
        return;
    }
    let what = format!("{name}, ICID");
    match paper {
        0.0 => figure.aims.push(Aim::at_most(format!("{what}, %: 0"), outcome.icid, 0.0)),
        paper => {
            let row = Row::value(what, paper, outcome.icid, "%");
            let aim = match outcome.copied {
                Some(_) => row
                    .reach(Measure::Count)
                    .with_floor(format!("The patches add new lines: {possible:.1} % of all bytes can be shared")),
                None => row.reach(Measure::Count),
            };
            figure.claim(row, aim);
        }
    }
}

fn outcome(done: &Done, chunked: Vec<Chunked>, copied: Option<f64>) -> Result<Outcome> {
    let shared = done.get("shared_bytes")?;
    if let Some(copied) = copied {
        let why = "only bytes that were copied from a file have an origin there";
        bounds::at_most("bytes shared", shared, copied, "", why)?;
    }
    Ok(Outcome {
        written: done.get("written_bytes")?,
        calls: done.get("write_calls")?,
        icid: done.percent_shared()?,
        chunked,
        copied,
        shared,
        stored: None,
    })
}

fn leveldb_load(run: &Run) -> Load {
    Load::of(LIST, run.pairs, 100)
}

fn leveldb(run: &Run) -> Result<Outcome> {
    let load = leveldb_load(run);
    let wishes = Wishes::in_memory("icid", load.device_mebibytes());
    let (done, chunked) = run.lab.leveldb_chunked(&wishes, load, Scheme::calls_and_streams())?;
    let stored = done.stored()?;
    Ok(Outcome { stored: Some(stored), ..outcome(&done, chunked, Some(stored.compacted()))? })
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

/// Returns the releases of one package in a folder of the corpus, by age; `folder` is there after
/// `scripts/chunker-corpus.sh`.
fn releases_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut tars = files_below(folder)?;
    // Numbers within a name are compared as numbers: 6.1.99 is older than 6.1.187.
    let key = |tar: &PathBuf| -> Vec<(u64, String)> {
        let name = tar.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let parts = name.split(['.', '-', '~', '+']);
        parts.map(|part| (part.parse().unwrap_or(0), part.to_string())).collect()
    };
    tars.sort_by_key(key);
    Ok(tars)
}

/// Returns the pairs of consecutive releases of Debian's Linux sources: the older, and the newer.
fn kernels(run: &Run) -> Result<Vec<[PathBuf; 2]>> {
    let tars = releases_in(&run.corpus.join("kernels"))?;
    at_least_of(2, &tars, "Linux releases to patch")?;
    Ok(tars.windows(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect())
}

/// Returns all releases of the packages in the corpus, which are downloaded.
fn downloads(run: &Run) -> Result<Vec<PathBuf>> {
    let folder = run.corpus.join("versions");
    let mut packages = Vec::new();
    for package in
        fs::read_dir(&folder).doing(format!("list {} (scripts/chunker-corpus.sh makes it)", folder.display()))?
    {
        packages.push(package.doing(format!("list {}", folder.display()))?.path());
    }
    packages.sort();
    let mut all = Vec::new();
    for package in packages {
        all.extend(releases_in(&package)?);
    }
    at_least_of(1, &all, "releases to download")?;
    Ok(all)
}

/// Refuses a corpus with too few releases.
fn at_least_of(least: usize, tars: &[PathBuf], what: &str) -> Result<()> {
    match tars.len() >= least {
        true => Ok(()),
        false => Err(std::io::Error::from(std::io::ErrorKind::NotFound))
            .doing(format!("find {least} {what} (scripts/chunker-corpus.sh DIR --kernels makes them)")),
    }
}

/// Removes the files that are the same in both trees: a patch does not touch them.
fn remove_equal(old: &Path, new: &Path) -> Result<()> {
    for path in files_below(old)? {
        let twin = new.join(path.strip_prefix(old).expect("it is below"));
        let is_equal = fs::read(&twin).is_ok_and(|twin| fs::read(&path).is_ok_and(|content| content == twin));
        if is_equal {
            for path in [&path, &twin] {
                fs::remove_file(path).doing(format!("remove {}", path.display()))?;
            }
        }
    }
    Ok(())
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
    for pair in kernels(run_)? {
        let name = pair[1].file_stem().expect("releases have names");
        for (tar, tree) in pair.iter().zip([&old, &new]) {
            let tree = tree.join(name);
            fs::create_dir(&tree).doing(format!("make {}", tree.display()))?;
            run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(tree))?;
        }
        remove_equal(&old.join(name), &new.join(name))?;
        if run_.turn.smoke {
            break;
        }
    }
    let difference = lab.path("difference");
    // The exit code only says whether there are differences.
    let found =
        Command::new("diff").args(["-ruN", "--no-dereference", "old", "new"]).current_dir(lab.path("")).output();
    let found = found.doing("run diff")?.stdout;
    fs::write(&difference, &found).doing("save the output of diff")?;
    let device = device_with(run_, 2048, &[&old])?;
    let before = files_below(&old)?;
    let wishes = Wishes::on(&device, "icid");
    let options = ["--no-backup-if-mismatch", "-s", "-p1", "-i", text(&difference), "-d"];
    let program = [&["patch"][..], &options, &["/nvfold/old"]].concat();
    let (done, chunked) = lab.run_chunked(&wishes, &program, &before, Scheme::calls_and_streams())?;
    let is_new = |line: &&[u8]| line.starts_with(b"+") && !line.starts_with(b"+++");
    // Counts lines without their sign and with their line end.
    let new: usize = found.split(|byte| *byte == b'\n').filter(is_new).map(<[u8]>::len).sum();
    let outcome = outcome(&done, chunked, Some(done.get("written_bytes")? - new as f64))?;
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
    let (wishes, before) = (Wishes::on(&device, "icid"), std::slice::from_ref(&whole));
    let (done, chunked) = lab.run_chunked(&wishes, &program, before, Scheme::calls_and_streams())?;
    let outcome = outcome(&done, chunked, None)?;
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
fn downloaded(run_: &Run, policy: &str) -> Result<(Done, Vec<Chunked>)> {
    let lab = &run_.lab;
    let served = lab.fresh("served")?;
    let mut addresses = String::new();
    let mut tars = downloads(run_)?;
    tars.truncate(if run_.turn.smoke { 2 } else { tars.len() });
    let server = Server::of(&served)?;
    for (number, tar) in tars.iter().enumerate() {
        let name = format!("{number}.tar");
        fs::copy(tar, served.join(&name)).doing(format!("copy {}", tar.display()))?;
        addresses += &format!("http://127.0.0.1:{}/{name}\n", server.port);
    }
    let list = lab.path("addresses");
    fs::write(&list, addresses).doing("write the list of addresses")?;
    let wishes = lab.new_device(policy, 4096);
    let program = ["wget", "-q", "-P", "/nvfold", "-i", text(&list)];
    let result = lab.run_chunked(&wishes, &program, &[], Scheme::calls_and_streams())?;
    let own = Wishes::on(&wishes.device, policy);
    for (number, tar) in tars.iter().enumerate() {
        let mut command = lab::nvfold_run(&own)?;
        let compared = output(command.arg("cmp").arg(format!("/nvfold/{number}.tar")).arg(tar));
        compared.map_err(|_| LabError::wrong("wget".into()))?;
    }
    Ok(result)
}

fn download(run: &Run) -> Result<Outcome> {
    let (done, chunked) = downloaded(run, "icid")?;
    outcome(&done, chunked, None)
}

/// Returns the share that chunking finds of the download after ICID (section 6).
fn integrated(run: &Run) -> Result<Vec<(String, f64)>> {
    let share = |policy: &str| {
        run.turn.say(&format!("table 4, a download with {policy}"));
        let (done, _) = downloaded(run, policy)?;
        let (logical, stored) = (done.get("logical_bytes")?, done.get("stored_bytes")?);
        Ok((policy.to_string(), 100.0 * (1.0 - stored / logical.max(1.0))))
    };
    ["icid+inline", "icid+deext"].into_iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_shared_bytes_than_a_program_copied_are_refused() {
        let done = Done::of("shared_bytes 90\nwritten_bytes 100\nwrite_calls 1\n");
        assert!(outcome(&done, Vec::new(), Some(95.0)).is_ok());
        let error = outcome(&done, Vec::new(), Some(80.0)).err().expect("it is refused").to_string();
        assert!(error.contains("bytes shared: 90 was measured") && error.contains("at most 80"), "{error}");
    }

    #[test]
    fn releases_are_ordered_by_age_and_equal_files_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["6.1.187-1.tar", "6.1.99-1.tar", "6.1.192-2.tar", "6.1.192-1.tar"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names = releases_in(folder.path()).unwrap();
        let names: Vec<_> = names.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["6.1.99-1", "6.1.187-1", "6.1.192-1", "6.1.192-2"]);
        let trees = [folder.path().join("old"), folder.path().join("new")];
        for tree in &trees {
            fs::create_dir_all(tree.join("below")).unwrap();
            fs::write(tree.join("below/same"), "same").unwrap();
            fs::write(tree.join("changed"), tree.to_str().unwrap()).unwrap();
        }
        remove_equal(&trees[0], &trees[1]).unwrap();
        for tree in &trees {
            assert!(tree.join("changed").exists() && !tree.join("below/same").exists());
        }
    }
}
