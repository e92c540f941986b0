//! Metrics of real mounts: that they are what Prometheus expects, that they tell what the mount does, who may read them,
//! and that the dashboard and the alerts ask for nothing that is not there.

use nvfold_tests::mount::{Mount, command, nvfold, nvfold_json};
use nvfold_tests::random::Seed;
use nvfold_tests::requires;
use nvfold_tests::requires::find_tool;
use nvfold_tests::run::{self, Outcome};
use nvfold_tests::scratch::Scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Every policy.
const POLICIES: [&str; 9] =
    ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"];
/// A user who is neither root nor the one who mounted.
const USER: u32 = 1001;
/// Metrics that only a server with a memory limit has.
const WITH_MEMORY_LIMIT: [&str; 2] = ["nvfold_memory_limit_bytes", "nvfold_memory_limit_room_bytes"];
const MIB: usize = 1 << 20;

/// A scrape in the format of OpenMetrics, checked while it is read.
#[derive(Debug, Default)]
struct Scrape {
    /// By name and labels.
    samples: BTreeMap<String, f64>,
    /// The type of each family.
    types: BTreeMap<String, String>,
}

impl Scrape {
    /// Reads a scrape; panics if it is not as the conventions want it.
    #[track_caller]
    fn read(text: &str) -> Scrape {
        let mut scrape = Scrape::default();
        let (mut helps, mut units) = (BTreeSet::new(), BTreeMap::new());
        assert!(text.ends_with("# EOF\n") || text.ends_with("# EOF"), "it is whole: {text}");
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(meta) = line.strip_prefix("# ") {
                let mut words = meta.splitn(3, ' ');
                let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                match what {
                    "HELP" => assert!(helps.insert(name.to_owned()) && rest.len() > 5, "{line}"),
                    "TYPE" => assert!(scrape.types.insert(name.into(), rest.into()).is_none(), "twice: {line}"),
                    "UNIT" => assert!(units.insert(name.to_owned(), rest.to_owned()).is_none(), "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (key, value) = line.rsplit_once(' ').expect("a value");
            assert!(key.contains("device=\"") && key.contains("mountpoint=\""), "{line}");
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(scrape.samples.insert(key.to_owned(), value).is_none(), "twice: {line}");
        }
        scrape.check_families(&helps, &units);
        scrape
    }

    fn check_families(&self, helps: &BTreeSet<String>, units: &BTreeMap<String, String>) {
        for (name, kind) in &self.types {
            assert!(name.starts_with("nvfold_") && helps.contains(name), "{name}");
            assert!(!name.ends_with("_total"), "{name}");
            units.get(name).into_iter().for_each(|unit| assert!(name.ends_with(&format!("_{unit}")), "{name}"));
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "info" => &["_info"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => panic!("{name}: {kind}"),
            };
            for suffix in suffixes {
                let wanted = format!("{name}{suffix}{{");
                assert!(self.samples.keys().any(|key| key.starts_with(&wanted)), "no {wanted}");
            }
        }
    }

    /// Returns the names of all samples.
    fn names(&self) -> BTreeSet<String> {
        self.samples.keys().filter_map(|key| Some(key.split_once('{')?.0.to_owned())).collect()
    }

    /// Returns the value of the only sample of this name with this text in its labels.
    #[track_caller]
    fn value(&self, name: &str, label: &str) -> f64 {
        let begins = format!("{name}{{");
        let mut found = self.samples.iter().filter(|(key, _)| key.starts_with(&begins) && key.contains(label));
        let one = found.next().unwrap_or_else(|| panic!("no {name} with {label}"));
        assert!(found.next().is_none(), "several {name} with {label}");
        *one.1
    }

    fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    /// Checks that each histogram ends with the number of all, and does not fall.
    fn check_histograms(&self) {
        let counts = self.samples.iter().filter(|(key, _)| key.starts_with("nvfold_request_duration_seconds_count{"));
        for (key, count) in counts {
            let labels = key.trim_start_matches("nvfold_request_duration_seconds_count{").trim_end_matches('}');
            let of_it =
                |key: &&String| key.starts_with("nvfold_request_duration_seconds_bucket{") && key.contains(labels);
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for bucket in self.samples.keys().filter(of_it) {
                let bound = bucket.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
                buckets.push((bound.replace("+Inf", "inf").parse().unwrap(), self.samples[bucket]));
            }
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{labels}: {buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{labels}");
        }
    }
}

/// Sends a request to a Unix socket; returns the answer.
#[track_caller]
fn ask(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.write_all(request.as_bytes()).expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read the answer");
    answer
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";

#[track_caller]
fn scraped(socket: &Path) -> Scrape {
    let answer = ask(socket, GET);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text"), "{head}");
    Scrape::read(body)
}

fn noise(bytes: usize, name: &'static str) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Seed::new(name).generator().fill(&mut noise);
    noise
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "waited for: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writes the same data twice, and makes it durable.
fn write_twice(mount: &Mount) {
    let data = noise(MIB, "metrics");
    for name in ["one", "two"] {
        fs::write(mount.join(name), &data).expect("write");
    }
    nvfold(&["sync"], &[mount.path()]).success();
}

/// A mount with a socket for its metrics.
fn with_socket(policy: &str) -> (Mount, std::path::PathBuf, Scratch) {
    let scratch = Scratch::new();
    let socket = scratch.join("metrics.sock");
    let options = format!("policy={policy},metrics=unix:{}", socket.display());
    (Mount::with_options(64, &options), socket, scratch)
}

#[test]
fn metrics_show_what_a_mount_does_with_every_policy() {
    requires!(fuse);
    for policy in POLICIES {
        let (mut mount, socket, _scratch) = with_socket(policy);
        if !mount.is_real() {
            return;
        }
        let before = scraped(&socket);
        write_twice(&mount);
        if policy == "denova" {
            nvfold(&["dedup", "--drain"], &[mount.path()]).success();
        }
        let after = scraped(&socket);
        after.check_histograms();
        assert_eq!(after.value("nvfold_up", ""), 1.0);
        assert_eq!(after.value("nvfold_device_size_bytes", ""), 64.0 * MIB as f64);
        assert_eq!(after.value("nvfold_logical_bytes", ""), 2.0 * MIB as f64, "{policy}");
        assert!(after.value("nvfold_written_bytes_total", "") >= 2.0 * MIB as f64, "{policy}");
        let policy_label = format!("policy=\"{policy}\"");
        assert_eq!(after.value("nvfold_mount_info", &policy_label), 1.0);
        let writes = after.value("nvfold_request_duration_seconds_count", "operation=\"write\"");
        let ok = after.value("nvfold_requests_total", "operation=\"write\",outcome=\"ok\"");
        assert_eq!((writes, ok), (ok, writes), "no write has failed");
        for (key, value) in &before.samples {
            let name = key.split('{').next().unwrap();
            let only_grows = ["_total", "_count", "_bucket", "_sum"].iter().any(|end| name.ends_with(end));
            assert!(!only_grows || after.samples[key] >= *value, "{policy}: {key} has fallen");
        }
        // The figures are those of `nvfold stats`, once nothing is done in the background.
        wait_until("the figures are the same", || {
            let (scrape, stats) = (scraped(&socket), nvfold_json(&["stats", "--json"], &[mount.path()]));
            let is_same =
                |field: &str| Some(scrape.value(&format!("nvfold_{field}"), "")) == stats["space"][field].as_f64();
            ["stored_bytes", "saved_bytes", "inodes", "data_blocks"].into_iter().all(is_same)
        });
        // By the command, of this mount and of all.
        for target in [mount.path(), Path::new("all")] {
            let by_command = Scrape::read(&nvfold(&["metrics"], &[target]).success().stdout);
            let here = format!("mountpoint=\"{}\"", mount.path().display());
            assert_eq!(by_command.value("nvfold_logical_bytes", &here), 2.0 * MIB as f64, "{policy}");
        }
        mount.check();
        assert!(!socket.exists(), "the socket goes with the mount");
    }
}

/// Returns every name of a metric in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_of_name(c)).filter(|word| word.starts_with("nvfold_"));
    words.map(str::to_owned).collect()
}

/// Returns all queries of the dashboard and of the alerts.
fn queries() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/nvfold.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut all: Vec<String> = targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect();
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    all.extend(variables.iter().filter_map(|variable| variable["definition"].as_str()).map(str::to_owned));
    // The rules are checked as text: only queries name metrics in them.
    all.push(read("packaging/prometheus/nvfold.rules.yml"));
    assert!(all.len() > 20, "the queries are found");
    all
}

#[test]
fn the_dashboard_the_alerts_and_the_page_name_only_metrics_that_a_mount_has() {
    requires!(fuse);
    let (mut mount, socket, _scratch) = with_socket("denova");
    if !mount.is_real() {
        return;
    }
    let tree = mount.join("tree");
    fs::create_dir(&tree).expect("make a directory");
    nvfold(&["set", "limit=1M,inodes=10,expire=1w"], &[&tree]).success();
    write_twice(&mount);
    // Of a crash, only the next mount knows how long recovery took.
    mount.kill();
    mount.mount();
    wait_until("it is recovered", || scraped(&socket).has("nvfold_reconcile_duration_seconds"));
    wait_until("trees are known", || scraped(&socket).has("nvfold_tree_limit_inodes"));
    fs::read(mount.join("one")).expect("read");
    let scrape = scraped(&socket);
    assert_eq!(scrape.value("nvfold_tree_limit_bytes", "tree=\"/tree\""), MIB as f64);
    assert_eq!(scrape.value("nvfold_events_total", "event=\"recovered\""), 1.0);
    let mut known = scrape.names();
    known.extend(WITH_MEMORY_LIMIT.map(str::to_owned));
    for query in queries() {
        let unknown: Vec<String> = names_in(&query).into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {query}");
    }
    let page = include_str!("../../docs/operating/monitoring.md");
    let histogram = "nvfold_request_duration_seconds".to_owned();
    known.extend([histogram, "nvfold_".into()]);
    let unknown: Vec<String> = names_in(page).into_iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "docs/operating/monitoring.md: {unknown:?}");
    mount.check();
}

#[test]
fn the_parsers_of_prometheus_read_a_scrape() {
    requires!(fuse, tool("python3"));
    let (mut mount, _socket, scratch) = with_socket("inline");
    if !mount.is_real() {
        return;
    }
    let has_parser = fed(Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]), "").code() == 0;
    if !has_parser {
        assert!(std::env::var_os("CI").is_none(), "python3-prometheus-client is missing; run scripts/test-deps.sh");
        return eprintln!("skipped: needs python3-prometheus-client; run scripts/test-deps.sh");
    }
    write_twice(&mount);
    let open_metrics = nvfold(&["metrics"], &[mount.path()]).success().stdout;
    let prometheus = nvfold(&["metrics", "--format", "prometheus"], &[mount.path()]).success().stdout;
    let strict = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
                  print(sum(len(family.samples) for family in read(sys.stdin.read())))";
    let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    let read = fed(Command::new("/usr/bin/python3").args(["-c", strict]), &open_metrics).success();
    assert_eq!(read.stdout.trim(), lines(&open_metrics).to_string());
    let classic = strict.replace("openmetrics.parser", "parser");
    let read = fed(Command::new("/usr/bin/python3").args(["-c", &classic]), &prometheus).success();
    assert_eq!(read.stdout.trim(), lines(&prometheus).to_string());
    match find_tool("promtool") {
        // The package of Prometheus has 96 MB, so scripts/test-deps.sh does not install it.
        None => eprintln!("promtool is not installed: it does not check the scrape and the alerts"),
        Some(promtool) => {
            fed(Command::new(&promtool).args(["check", "metrics"]), &prometheus).success();
            let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/prometheus/nvfold.rules.yml");
            run::ok(Command::new(&promtool).args(["check", "rules"]).arg(rules));
        }
    }
    drop(scratch);
    mount.check();
}

/// Runs a program with a text as its input.
fn fed(program: &Command, input: &str) -> Outcome {
    let file = tempfile::NamedTempFile::new().expect("make a file");
    fs::write(file.path(), input).expect("write the input");
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec "$@" <"$0""#]).arg(file.path()).arg(program.get_program()).args(program.get_args());
    run::run(&mut shell)
}

/// Returns the answer of a port to a scrape.
fn scraped_from_port(address: &str) -> Scrape {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(GET.as_bytes()).expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read the answer");
    Scrape::read(answer.split_once("\r\n\r\n").expect("a head").1)
}

/// A command that serves metrics, ended when it is dropped.
struct Server {
    child: Child,
    /// What it has printed: where it serves.
    place: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut child = command().arg("metrics").args(arguments).stdout(Stdio::piped()).spawn().expect("start");
        let mut place = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut place).expect("read");
        Server { child, place }
    }

    fn address(&self) -> &str {
        self.place.split("http://").nth(1).and_then(|place| place.split('/').next()).expect("an address")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn users_who_may_not_see_figures_get_what_every_user_may_see() {
    requires!(root, fuse, tool("setpriv"));
    let (mut mount, socket, _scratch) = with_socket("inline");
    if !mount.is_real() {
        return;
    }
    write_twice(&mount);
    let mode = |path: &Path| fs::metadata(path).expect("look").permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    let is_in_part = |scrape: &Scrape| {
        assert_eq!(scrape.value("nvfold_up", ""), 1.0);
        assert!(scrape.has("nvfold_device_size_bytes") && scrape.has("nvfold_mount_info"));
        let figures = ["nvfold_logical_bytes", "nvfold_requests_total", "nvfold_events_total", "nvfold_inodes"];
        !figures.iter().any(|name| scrape.has(name))
    };
    assert!(!is_in_part(&scraped(&socket)));
    let dir = mount.path().to_str().expect("UTF-8");
    let asking = command().args(["metrics", dir]).get_program().to_owned();
    let user = [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into()];
    let by_user = run::run(Command::new("setpriv").args(&user).arg("--").arg(asking).args(["metrics", dir]));
    assert!(is_in_part(&Scrape::read(&by_user.success().stdout)));
    let server = Server::start(&[dir, "--listen", "127.0.0.1:0"]);
    assert!(is_in_part(&scraped_from_port(server.address())), "every user can connect");
    let server = Server::start(&[dir, "--listen", "127.0.0.1:0+all"]);
    assert!(!is_in_part(&scraped_from_port(server.address())), "it was said");
    let refused = nvfold(&["metrics", "--listen", "0.0.0.0:0"], &[]);
    assert!(refused.code() == 2 && refused.stderr.contains("+remote"), "{}", refused.report());
    mount.check();
}

#[test]
fn a_socket_of_a_dead_mount_is_replaced_and_other_files_are_not() {
    requires!(fuse);
    let (mut mount, socket, scratch) = with_socket("inline");
    if !mount.is_real() {
        return;
    }
    mount.kill();
    assert!(socket.exists(), "a killed server leaves it");
    mount.mount();
    assert_eq!(scraped(&socket).value("nvfold_up", ""), 1.0);
    // A second mount may not take it away.
    let (device, dir) = (scratch.join("second"), scratch.join("dir"));
    nvfold_tests::mount::mkfs(&device, 64 << 20);
    fs::create_dir(&dir).expect("make a directory");
    let option = format!("metrics=unix:{}", socket.display());
    let refused = nvfold(&["mount", "-o", &option], &[&device, &dir]);
    assert!(refused.code() == 1 && refused.stderr.contains("another program listens"), "{}", refused.report());
    mount.check();
    fs::write(&socket, "a file").expect("write");
    let refused = nvfold(&["mount", "-o", &option], &[&device, &dir]);
    assert!(refused.code() == 1 && refused.stderr.contains("something else"), "{}", refused.report());
    assert_eq!(fs::read_to_string(&socket).expect("read"), "a file");
}

#[test]
fn a_file_of_metrics_is_replaced_whole_and_goes_with_the_mount() {
    requires!(fuse);
    let scratch = Scratch::new();
    let file = scratch.join("nvfold.prom");
    let mut mount = Mount::with_options(64, &format!("policy=inline,metrics=textfile:{}+interval=1", file.display()));
    if !mount.is_real() {
        return;
    }
    let read = || fs::read_to_string(&file).unwrap_or_default();
    wait_until("figures are written", || read().contains("nvfold_up{"));
    assert_eq!(fs::metadata(&file).expect("look").permissions().mode() & 0o777, 0o640);
    write_twice(&mount);
    wait_until("they are written again", || {
        let text = read();
        // Whatever moment this is, the file is whole.
        assert!(text.is_empty() || text.ends_with('\n') && text.contains("nvfold_snapshots{"), "{text}");
        text.lines().any(|line| line.starts_with("nvfold_logical_bytes{") && line.ends_with(" 2097152"))
    });
    mount.check();
    assert_eq!(fs::read_dir(scratch.path()).expect("list").count(), 0, "nothing is left");
}

#[test]
fn hostile_clients_of_a_mount_neither_stop_it_nor_other_clients() {
    requires!(fuse);
    let (mut mount, socket, _scratch) = with_socket("inline");
    if !mount.is_real() {
        return;
    }
    // More silent clients than are answered at once. They are given up after a few seconds.
    let silent: Vec<UnixStream> = (0..24).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    fs::write(mount.join("file"), "while they are silent").expect("the mount serves");
    assert!(ask(&socket, &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9000))).starts_with("HTTP/1.1 431"));
    assert!(ask(&socket, "DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(&socket, "\0\0\0\0\r\n\r\n").starts_with("HTTP/1.1 400"));
    drop(silent);
    // Clients that go away in the middle of the answer.
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&socket).expect("connect");
        let _ = stream.write_all(GET.as_bytes());
        let _ = stream.read(&mut [0; 16]);
    }
    assert_eq!(scraped(&socket).value("nvfold_up", ""), 1.0);
    mount.check();
}
