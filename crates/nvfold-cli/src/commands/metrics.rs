//! `nvfold metrics`: the figures of mounts for monitoring, in the formats of OpenMetrics and Prometheus.

use crate::failure::{Failure, Outcome};
use crate::metrics::{self, Endpoint, Figures, Format, Opened, Scrape, Scraped, Serving};
use crate::mounts::{self, Mounted};
use crate::output::Output;
use crate::report;
use crate::statistics::mount_of;
use crate::stop::Stop;
use clap::Args;
use nvfold_mount::Reader;
use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often a command that serves looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Print metrics of mounts for Prometheus, or serve them
///
/// Without --listen and --textfile the metrics are printed once. A mount can serve its own, too: mount option metrics=.
/// Users other than root and the one who mounted get the figures that every user may see.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold metrics /tmp/fold")]
pub(crate) struct Metrics {
    /// Mount point or mounted device, or all for every mount
    #[arg(value_name = "DIR|DEVICE|all", default_value = "all")]
    target: PathBuf,
    /// Serve them until stopped: unix:PATH, for this user (+group=NAME: for a group, too), or 127.0.0.1:PORT, where all users
    /// get what every user may see (+all: all figures); another address needs +remote. Can be given more than once
    #[arg(long, value_name = "PLACE", value_parser = parse_listener)]
    listen: Vec<Endpoint>,
    /// Write them to a file until stopped, for the textfile collector of Prometheus' node exporter; its name must end in
    /// .prom. Readable for the owner and the group of the folder (FILE+all: for all users)
    #[arg(long, value_name = "FILE")]
    textfile: Vec<String>,
    /// Seconds between two writes of that file
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    interval: u64,
    /// The format to print
    #[arg(long, value_enum, default_value_t = Format::Openmetrics)]
    format: Format,
}

fn parse_listener(text: &str) -> Result<Endpoint, String> {
    match Endpoint::parse(text)? {
        Endpoint::Textfile(_) => Err("use --textfile for a file".into()),
        socket => Ok(socket),
    }
}

#[derive(Serialize)]
struct Report {
    mounts: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    device: String,
    mount_point: String,
    /// False if its server does not answer.
    up: bool,
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// Runs the command.
pub(crate) fn run(command: &Metrics, output: &Output) -> Outcome<u8> {
    let files = command.textfile.iter().map(|file| {
        let text = format!("textfile:{file}+interval={}", command.interval);
        Endpoint::parse(&text).map_err(|why| Failure::usage(format!("--textfile {file}"), why))
    });
    let endpoints: Vec<Endpoint> = command.listen.iter().cloned().map(Ok).chain(files).collect::<Outcome<_>>()?;
    if endpoints.is_empty() {
        return print(command, output);
    }
    serve(command, endpoints, output)
}

/// Prints them once. A mount that was named must answer.
fn print(command: &Metrics, output: &Output) -> Outcome<u8> {
    let scraped = match named(&command.target) {
        None => scrape(all_mounts()),
        Some(target) => {
            let mounted = mount_of(target)?;
            let figures = Some(Figures::ask(&mounted.dir)?);
            vec![Scraped { figures, ..unasked(&mounted) }]
        }
    };
    if output.json {
        let row = |one: Scraped| {
            let Scraped { device, mount_point, figures } = one;
            Row { device, mount_point, up: figures.is_some(), figures }
        };
        let report = Report { mounts: scraped.into_iter().map(row).collect() };
        return report::emit(true, "metrics", &report, String::new).map(|()| 0);
    }
    report::print(metrics::encode(&scraped, command.format).trim_end()).map(|()| 0)
}

/// Serves them until a signal comes. Mounts come and go meanwhile.
fn serve(command: &Metrics, endpoints: Vec<Endpoint>, output: &Output) -> Outcome<u8> {
    let only = named(&command.target).map(mount_of).transpose()?.map(|mounted| mounted.dir);
    let stop = Stop::on_signals()?;
    let opened = endpoints.iter().map(Opened::new).collect::<Outcome<Vec<_>>>()?;
    let places = endpoints.iter().zip(&opened).map(|(endpoint, opened)| opened.place(endpoint)).collect::<Vec<_>>();
    let source: Scrape = Arc::new(move |reader| match &only {
        None => scrape_for(reader, all_mounts()),
        Some(dir) => scrape_for(reader, mounts::at(dir).into_iter().collect()),
    });
    let _serving = opened.into_iter().map(|one| one.serve(source.clone())).collect::<Outcome<Vec<Serving>>>()?;
    if !output.quiet {
        report::print(&format!("metrics: {}", places.join(", ")))?;
    }
    while !stop.is_asked() {
        thread::sleep(LOOK_EVERY);
    }
    Ok(0)
}

fn named(target: &Path) -> Option<&Path> {
    (target != Path::new("all")).then_some(target)
}

/// Returns the mounts, of those on one directory the upper one.
fn all_mounts() -> Vec<Mounted> {
    let mut dirs = HashSet::new();
    mounts::all().into_iter().rev().filter(|mounted| dirs.insert(mounted.dir.clone())).collect()
}

fn unasked(mounted: &Mounted) -> Scraped {
    Scraped { device: mounts::show(&mounted.source), mount_point: mounts::show(&mounted.dir), figures: None }
}

/// Asks the servers of mounts. One that does not answer is not up.
fn scrape(mounts: Vec<Mounted>) -> Vec<Scraped> {
    let ask = |mounted: &Mounted| Scraped { figures: Figures::ask(&mounted.dir).ok(), ..unasked(mounted) };
    // At once: one that is stuck must not make the others wait.
    thread::scope(|scope| {
        let asking: Vec<_> = mounts.iter().map(|mounted| scope.spawn(move || ask(mounted))).collect();
        asking.into_iter().zip(&mounts).map(|(one, mounted)| one.join().unwrap_or_else(|_| unasked(mounted))).collect()
    })
}

fn scrape_for(reader: Reader, mounts: Vec<Mounted>) -> Vec<Scraped> {
    let mut scraped = scrape(mounts);
    if reader == Reader::Other {
        scraped.iter_mut().for_each(|one| one.figures = one.figures.take().map(Figures::left_for_others));
    }
    scraped
}
