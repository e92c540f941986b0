//! Databases that are cloned while programs use them: each clone has all transactions that were acknowledged before the
//! call, in their order, and none that began after it had returned. It opens as after a power cut.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvfold_tests::mount::{Mount, nvfold};
use nvfold_tests::random::soak_factor;
use nvfold_tests::requires::tool;
use nvfold_tests::{requires, run, show};
use rustix::process::{Pid, Signal, kill_process};

/// Transactions that are acknowledged between two clones, at least.
const BETWEEN: u64 = 20;

// --- clients -------------------------------------------------------------------------------------

/// The transactions of a client: their numbers rise by one, and each begins after the one before is acknowledged.
#[derive(Default)]
struct Transactions {
    begun: AtomicU64,
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

/// A client that is told to end when this is dropped, also by a panic.
struct Running<'t>(&'t Transactions);

impl Transactions {
    /// Commits one transaction after the other by a program that reads one a line, and prints its number when it is
    /// committed.
    fn commit(&self, program: &mut Command, transaction: impl Fn(u64) -> String) {
        let mut client = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the client");
        let (mut to, from) = (client.stdin.take().expect("a pipe"), client.stdout.take().expect("a pipe"));
        let mut lines = BufReader::new(from).lines();
        for number in 1.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            self.begun.store(number, Ordering::SeqCst);
            writeln!(to, "{}", transaction(number)).expect("tell the client");
            let wanted = number.to_string();
            let acknowledged = lines.find(|line| line.as_ref().is_ok_and(|line| *line == wanted));
            assert!(acknowledged.is_some(), "the client has ended before it committed {number}");
            self.acknowledged.store(number, Ordering::SeqCst);
        }
        drop(to);
        assert!(client.wait().expect("wait for the client").success());
    }

    /// Clones a directory, after some more transactions. Returns the numbers that the last one in the clone may have.
    fn clone_between(&self, source: &Path, target: &Path) -> RangeInclusive<u64> {
        let enough = self.acknowledged.load(Ordering::SeqCst) + BETWEEN;
        while self.acknowledged.load(Ordering::SeqCst) < enough {
            assert!(!self.is_over.load(Ordering::Relaxed), "the client has ended");
            thread::sleep(Duration::from_millis(1));
        }
        let before = self.acknowledged.load(Ordering::SeqCst);
        nvfold(&["clone"], &[source, target]).success();
        before..=self.begun.load(Ordering::SeqCst)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Checks what a clone answered about its transactions: how many there are, and the number of the last one.
#[track_caller]
fn assert_all(answer: &str, expected: &RangeInclusive<u64>, what: &str) {
    let numbers: Vec<u64> = answer.split('|').map(|number| number.parse().expect("a number")).collect();
    let [count, last] = numbers[..] else { panic!("{what}: {answer}") };
    assert!(count == last && expected.contains(&last), "{what}: {count} to number {last}, not {expected:?}");
}

// --- SQLite --------------------------------------------------------------------------------------

const SQLITE_MOUNTS: [&str; 6] = [
    "policy=inline,writeback=on",
    "policy=inline,writeback=off,transport=device",
    "policy=denova,writeback=on,cache=full",
    "policy=deext,writeback=on",
    "policy=icid+inline,writeback=off",
    "policy=auto,cache=none",
];

/// Each transaction changes the database in three places. The log is taken into it every few transactions.
const SQLITE_TABLES: &str = "
    PRAGMA journal_mode = wal;
    PRAGMA synchronous = full;
    PRAGMA wal_autocheckpoint = 20;
    CREATE TABLE entry (number INTEGER PRIMARY KEY, content BLOB);
    CREATE INDEX by_content ON entry (content);
    CREATE TABLE total (count INTEGER);
    INSERT INTO total VALUES (0);";

#[test]
fn clones_of_a_sqlite_database_in_use_have_all_acknowledged_transactions() {
    requires!(root, fuse, tool("sqlite3"));
    let clones = if soak_factor() > 1 { 20 } else { 4 };
    for options in SQLITE_MOUNTS {
        let mut mount = Mount::with_options(256, options);
        let source = mount.join("work");
        fs::create_dir(&source).expect("mkdir");
        let database = source.join("database");
        sqlite(&database, SQLITE_TABLES);
        let transactions = Transactions::default();
        thread::scope(|scope| {
            let running = Running(&transactions);
            scope.spawn(|| {
                let _over = Running(&transactions);
                let mut client = Command::new(tool("sqlite3"));
                client.args(["-bail", "-cmd", "PRAGMA synchronous = full", "-cmd", "PRAGMA wal_autocheckpoint = 20"]);
                transactions.commit(client.arg(&database), |number| {
                    let restart = if number % 50 == 0 { "PRAGMA wal_checkpoint(TRUNCATE);" } else { "" };
                    format!(
                        "BEGIN; INSERT INTO entry VALUES ({number}, randomblob(900)); \
                         UPDATE total SET count = count + 1; COMMIT; {restart} SELECT {number};"
                    )
                });
            });
            for round in 0..clones {
                let target = mount.join(format!("copy{round}"));
                let expected = transactions.clone_between(&source, &target);
                let what = format!("{options}, clone {round}");
                let copy = target.join("database");
                assert_eq!(sqlite(&copy, "PRAGMA integrity_check"), "ok", "{what}");
                assert_all(&sqlite(&copy, "SELECT count(*), max(number) FROM entry"), &expected, &what);
                assert_all(&sqlite(&copy, "SELECT count, count FROM total"), &expected, &what);
            }
            drop(running);
        });
        let last = transactions.acknowledged.into_inner();
        assert_all(&sqlite(&database, "SELECT count(*), max(number) FROM entry"), &(last..=last), options);
        show(&format!("{options}: {clones} clones of SQLite beside {last} transactions"));
        mount.check();
    }
}

fn sqlite(database: &Path, sql: &str) -> String {
    let outcome = run::ok(Command::new(tool("sqlite3")).arg("-bail").arg(database).arg(sql));
    outcome.stdout.trim().to_owned()
}

// --- PostgreSQL ----------------------------------------------------------------------------------

/// `make test` takes the first one.
const POSTGRES_MOUNTS: [&str; 5] = [
    "policy=inline,writeback=on",
    "policy=inline,writeback=off",
    "policy=denova,writeback=on,cache=full",
    "policy=icid+deext,writeback=off",
    "policy=auto,writeback=on,transport=device",
];
/// The server refuses to be root's.
const SERVERS_USER: u32 = 65534;
/// Segments of the log are small and checkpoints frequent, so that clones fall into all of it.
const SETTINGS: &str = "
    listen_addresses = ''
    shared_buffers = 8MB
    max_wal_size = 4MB
    min_wal_size = 2MB
    autovacuum_naptime = 1s
    log_checkpoints = off";

const CONSISTENT: &str = "
    SELECT (SELECT sum(abalance) FROM pgbench_accounts) = all(array[
        (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches),
        (SELECT coalesce(sum(delta), 0) FROM pgbench_history)])";

#[test]
fn clones_of_a_running_postgresql_start_as_servers_with_all_acknowledged_transactions() {
    requires!(root, fuse, tool("initdb"), tool("setpriv"));
    let (mounts, clones) = if soak_factor() > 1 { (&POSTGRES_MOUNTS[..], 20) } else { (&POSTGRES_MOUNTS[..1], 2) };
    for options in mounts {
        let mut mount = Mount::with_options(1024, options);
        fs::set_permissions(mount.scratch(), fs::Permissions::from_mode(0o755)).expect("let the server in");
        let home = mount.scratch().join("sockets");
        fs::create_dir(&home).expect("mkdir");
        let source = mount.join("data");
        fs::create_dir(&source).expect("mkdir");
        for dir in [&home, &source] {
            chown(dir, Some(SERVERS_USER), Some(SERVERS_USER)).expect("chown");
        }
        let initdb = ["--auth=trust", "--username=postgres", "--no-sync", "--data-checksums", "--wal-segsize=1"];
        run::ok(as_server("initdb").args(initdb).args(["--locale=C", "--encoding=UTF8", "-D"]).arg(&source));
        let mut settings = fs::File::options().append(true).open(source.join("postgresql.conf")).expect("open");
        settings.write_all(SETTINGS.as_bytes()).expect("write");
        drop(settings);
        let server = Postgres::start(&source, &home, 5432);
        server.ask("CREATE TABLE entry (number bigint PRIMARY KEY, content text); CREATE EXTENSION amcheck");
        run::ok(server.client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]));
        let mut load = Load(start(server.client("pgbench").args(["-n", "-c", "4", "-T", "100000", "postgres"])));
        let transactions = Transactions::default();
        thread::scope(|scope| {
            let running = Running(&transactions);
            scope.spawn(|| {
                let _over = Running(&transactions);
                transactions.commit(&mut server.psql(), |number| {
                    format!("INSERT INTO entry VALUES ({number}, repeat('x', {number} % 500)) RETURNING number;")
                });
            });
            for round in 0..clones {
                let target = mount.join(format!("copy{round}"));
                let expected = transactions.clone_between(&source, &target);
                let what = format!("{options}, clone {round}");
                assert!(load.is_running(), "{what}: pgbench has ended");
                // It names the server of the source, which runs.
                fs::remove_file(target.join("postmaster.pid")).expect("remove the lock of the other server");
                let copy = Postgres::start(&target, &home, 5433);
                assert_all(&copy.ask("SELECT count(*), max(number) FROM entry"), &expected, &what);
                assert_eq!(copy.ask(CONSISTENT), "t", "{what}");
                let indexes = "SELECT count(bt_index_check(oid, true)) FROM pg_class \
                               WHERE relname IN ('entry_pkey', 'pgbench_accounts_pkey', 'pg_class_oid_index')";
                assert_eq!(copy.ask(indexes), "3", "{what}");
                copy.ask("INSERT INTO entry VALUES (0, 'of the copy')");
                copy.stop();
                nvfold(&["remove"], &[&target]).success();
            }
            drop(running);
        });
        drop(load);
        let last = transactions.acknowledged.into_inner();
        assert_all(&server.ask("SELECT count(*), max(number) FROM entry"), &(last..=last), options);
        let history = server.ask("SELECT count(*) FROM pgbench_history");
        let version = server.ask("SHOW server_version");
        show(&format!("{options}: {clones} clones of PostgreSQL {version} beside {last} + {history} transactions"));
        server.stop();
        mount.check();
    }
}

/// A server of PostgreSQL, killed when it is dropped.
struct Postgres {
    process: Child,
    home: PathBuf,
    port: u16,
}

/// A program of the load, killed when it is dropped.
struct Load(Child);

impl Load {
    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("wait").is_none()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Postgres {
    /// Starts a server of a data directory, and waits until it answers.
    #[track_caller]
    fn start(data: &Path, home: &Path, port: u16) -> Postgres {
        let mut command = as_server("postgres");
        command.arg("-D").arg(data).arg("-k").arg(home).args(["-p", &port.to_string()]);
        let mut server = Postgres { process: start(&mut command), home: home.to_owned(), port };
        let end = Instant::now() + run::limit();
        while !run::run(server.client("pg_isready").arg("-q")).status.success() {
            let ended = server.process.try_wait().expect("wait");
            assert!(ended.is_none() && Instant::now() < end, "the server of {} has ended: {ended:?}", data.display());
            thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn client(&self, name: &str) -> Command {
        let mut client = Command::new(program(name));
        client.args(["-U", "postgres", "-h"]).arg(&self.home).args(["-p", &self.port.to_string()]);
        client
    }

    fn psql(&self) -> Command {
        let mut psql = self.client("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]);
        psql
    }

    /// Runs SQL; returns what it prints.
    #[track_caller]
    fn ask(&self, sql: &str) -> String {
        run::ok(self.psql().args(["-c", sql])).stdout.trim().to_owned()
    }

    /// Ends the server at once; the next one of its directory recovers.
    #[track_caller]
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::QUIT).expect("stop the server");
        assert!(run::wait_at_most(&mut self.process, run::limit()).is_some(), "the server does not end");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the path of a program of PostgreSQL, beside the first one.
fn program(name: &str) -> PathBuf {
    tool("initdb").canonicalize().expect("it is there").with_file_name(name)
}

/// Returns a program of PostgreSQL that runs as the user of its servers, and dies with this process.
fn as_server(name: &str) -> Command {
    let mut command = Command::new(tool("setpriv"));
    command.args([format!("--reuid={SERVERS_USER}"), format!("--regid={SERVERS_USER}")]);
    command.args(["--clear-groups", "--pdeathsig", "KILL", "--"]).arg(program(name)).current_dir("/");
    command
}

fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"))
}
