//! Real programs that write and read databases and media: the same results as on the host, and the same files.

use crate::lab::{Lab, PREFIX, assert_same_files, has, lab, ok, report};
use nvfold::{FileSystem, Limits, MountOptions};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn host(lab: &Lab) -> PathBuf {
    let host = lab.path("host");
    fs::create_dir(&host).unwrap();
    host
}

/// The Python of the system: another may be a script that finds it by other programs.
fn python() -> Option<&'static str> {
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| fs::metadata(path).is_ok());
    assert!(
        python.is_some() || !has("python3") || std::env::var_os("CI").is_none(),
        "there is no python3 of the system"
    );
    python
}

const PYTHON: &str = r#"
import os, shutil, sys, tempfile, json, zipfile, pathlib, glob, mmap, gzip
base = pathlib.Path(sys.argv[1])
os.chdir(base)
(base / 'p/q').mkdir(parents=True)
for at in range(50):
    (base / f'p/{at}.txt').write_text(f'file {at}\n' * at)
with open('p/data.json', 'w') as out:
    json.dump({str(at): [at] * 20 for at in range(500)}, out)
print(len(json.load(open('p/data.json'))))
with open('lines', 'a+') as both:
    both.write('one\ntwo\nthree\n')
    both.seek(0)
    print(both.readlines())
with open('binary', 'wb', buffering=0) as out:
    out.write(bytes(range(256)) * 1000)
with open('binary', 'r+b') as both:
    both.seek(1000)
    both.write(b'X' * 10)
    both.truncate(200000)
with open('binary', 'rb') as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as memory:
    print(memory[1000:1010], len(memory))
shutil.copy2('binary', 'p/copy')
shutil.copytree('p', 'tree')
shutil.move('tree/q', 'moved')
os.replace('lines', 'p/lines')
with zipfile.ZipFile('all.zip', 'w') as archive:
    for path in sorted(glob.glob('p/*.txt')):
        archive.writestr(zipfile.ZipInfo(path), open(path).read())
print(len(zipfile.ZipFile('all.zip').namelist()))
with gzip.GzipFile('text.gz', 'wb', mtime=0) as out:
    out.write(b'text' * 10000)
print(len(gzip.open('text.gz').read()))
print(sorted(os.listdir('.')), sorted(entry.name for entry in os.scandir('p') if entry.is_dir()))
print(sorted((root[len(str(base)):], len(dirs), len(files)) for root, dirs, files in os.walk(base)))
with tempfile.NamedTemporaryFile(dir=base) as temporary:
    temporary.write(b'temporary')
    temporary.flush()
    print(os.path.getsize(temporary.name))
os.symlink('p/lines', 'link')
print(os.readlink('link'), os.path.realpath('link')[len(str(base)):], os.path.samefile('link', 'p/lines'))
os.utime('link', (5, 6))
print(os.stat('link').st_mtime, oct(os.stat('p').st_mode))
try:
    open('p/none/x')
except FileNotFoundError as error:
    print(error.errno)
shutil.rmtree('tree')
fd = os.open('by-number', os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b'abc', 5)
os.sendfile(fd, os.open('binary', os.O_RDONLY), 0, 1000)
print(os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END))
os.close(fd)
"#;

#[test]
fn python_works_with_files_as_on_the_host() {
    let Some(lab) = lab() else { return };
    let Some(python) = python() else { return };
    let host = host(&lab);
    let expected = ok(Command::new(python).args(["-c", PYTHON]).arg(&host));
    let ours = ok(lab.preloaded(python).args(["-c", PYTHON, PREFIX]));
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout));
    assert_same_files(&lab, &host, "what python left");
}

const PYTHON_MAPS: &str = r#"
import dbm.ndbm, dbm.dumb, mmap, os, shelve, sqlite3, sys
os.chdir(sys.argv[1])
for kind in dbm.ndbm, dbm.dumb:
    with kind.open('kept', 'c') as db:
        for at in range(300):
            db[f'key {at}'] = b'value %d' % at * 20
        del db['key 7']
    with kind.open('kept', 'r') as db:
        print(len(db.keys()), db['key 299'] == b'value 299' * 20, b'key 7' in db)
with shelve.open('shelf') as shelf:
    shelf['list'] = list(range(1000))
with shelve.open('shelf') as shelf:
    print(sum(shelf['list']))
with open('mapped', 'w+b') as file:
    file.truncate(10000)
    with mmap.mmap(file.fileno(), 0) as one, mmap.mmap(file.fileno(), 4096, offset=4096) as other:
        one[4096:4099] = b'abc'
        print(other[:3], os.pread(file.fileno(), 3, 4096))
        other.flush()
        one.resize(20000)
        one[19999] = 7
        print(one.size(), one[:4].hex())
print(os.path.getsize('mapped'), open('mapped', 'rb').read()[-1])
base = sqlite3.connect('base')
print(base.execute('PRAGMA journal_mode = wal').fetchone())
base.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, text)')
reader = sqlite3.connect('base')
for at in range(500):
    with base:
        base.execute('INSERT INTO t (text) VALUES (?)', ('text %d' % at * 30,))
    if at % 100 == 0:
        print(reader.execute('SELECT count(*), max(text) FROM t').fetchone()[0], os.path.exists('base-shm'))
print(base.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchone(), base.execute('PRAGMA integrity_check').fetchone())
reader.close()
base.close()
print(sorted(os.listdir('.')))
"#;

/// What the next process finds. (The files themselves have identities in them.)
const PYTHON_MAPPED: &str = r#"
import dbm.ndbm, dbm.dumb, os, shelve, sqlite3, sys
os.chdir(sys.argv[1])
for kind in dbm.ndbm, dbm.dumb:
    with kind.open('kept', 'r') as db:
        print(sorted((key, db[key]) for key in db.keys()))
print(sum(shelve.open('shelf')['list']), open('mapped', 'rb').read().count(0))
print(sqlite3.connect('base').execute('SELECT count(*), sum(length(text)) FROM t').fetchone())
"#;

#[test]
fn python_keeps_databases_in_mapped_files_as_on_the_host() {
    let Some(lab) = lab() else { return };
    let Some(python) = python() else { return };
    let host = host(&lab);
    for script in [PYTHON_MAPS, PYTHON_MAPPED] {
        let expected = ok(Command::new(python).args(["-c", script]).arg(&host));
        let ours = ok(lab.preloaded(python).args(["-c", script, PREFIX]));
        assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout));
    }
}

const SQL: &str = "
PRAGMA journal_mode = MODE;
CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value BLOB);
BEGIN;
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000)
    INSERT INTO t SELECT x, 'name ' || (x * 7919 % 3001), zeroblob(x % 300) FROM n;
COMMIT;
CREATE INDEX by_name ON t (name);
UPDATE t SET name = name || '!' WHERE id % 7 = 0;
BEGIN; DELETE FROM t; ROLLBACK;
DELETE FROM t WHERE id % 11 = 0;
VACUUM;
SELECT count(*), sum(length(value)), max(name) FROM t;
PRAGMA integrity_check;
PRAGMA journal_mode = delete;
";

#[test]
fn sqlite_makes_the_same_database_as_on_the_host() {
    let Some(lab) = lab() else { return };
    if !has("sqlite3") {
        return;
    }
    let host = host(&lab);
    for mode in ["delete", "truncate", "persist"] {
        let sql = SQL.replace("MODE", mode);
        let expected = ok(Command::new("sqlite3").arg(host.join(mode)).arg(&sql));
        let ours = ok(lab.preloaded("sqlite3").arg(format!("{PREFIX}/{mode}")).arg(&sql));
        assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout), "{mode}");
        assert!(String::from_utf8_lossy(&ours.stdout).contains("\nok\n"));
    }
    // A log whose index lies in shared memory, or in memory of its own.
    for mode in ["normal", "exclusive"] {
        let sql = SQL.replace("MODE", "wal").replace("= delete;", "= wal; SELECT sum(id) FROM t;");
        let sql = format!("PRAGMA locking_mode = {mode}; {sql}");
        let expected = ok(Command::new("sqlite3").arg(host.join(mode)).arg(&sql));
        let ours = ok(lab.preloaded("sqlite3").arg(format!("{PREFIX}/{mode}")).arg(&sql));
        assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout), "{mode}");
    }
    // A database has a counter and a version in it, and nothing else that differs from run to run.
    assert_same_files(&lab, &host, "the databases");
}

const LEVELDB: &str = r#"
import sys, plyvel
db = plyvel.DB(sys.argv[1] + '/db', create_if_missing=True, write_buffer_size=100000)
for at in range(20000):
    db.put(b'key %06d' % (at * 7919 % 20011), b'value %06d ' % at * 8)
db.compact_range()
db.close()
db = plyvel.DB(sys.argv[1] + '/db')
found = 0
for key, value in db.iterator(verify_checksums=True):
    at = int(value.split()[1])
    assert key == b'key %06d' % (at * 7919 % 20011) and value == b'value %06d ' % at * 8
    found += 1
print(found)
"#;

#[test]
fn leveldb_reads_back_its_data_below_the_prefix() {
    let Some(lab) = lab() else { return };
    let has_plyvel = Command::new("/usr/bin/python3")
        .args(["-c", "import plyvel"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_plyvel {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "python3-plyvel is missing; run scripts/test-deps.sh");
        eprintln!("skipped: there is no python3-plyvel; run scripts/test-deps.sh");
        return;
    }
    let ours = ok(lab.preloaded("/usr/bin/python3").args(["-c", LEVELDB, PREFIX]));
    assert_eq!(String::from_utf8_lossy(&ours.stdout).trim(), "20000");
}

#[test]
fn copies_of_unmodified_programs_are_shared() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("origins.c");
    let output = ok(lab.preloaded(&program).arg(PREFIX));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// What an evaluation was told of a program's run.
fn told(folder: &Path, name: &str) -> u64 {
    let report = fs::read_to_string(folder.join("report")).unwrap();
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {report}")).parse().unwrap()
}

#[test]
fn patch_shares_bytes_that_it_read_from_a_closed_file() {
    let Some(lab) = lab() else { return };
    if !has("diff") || !has("patch") {
        return;
    }
    let (old, new, change) = (lab.path("old"), lab.path("new"), lab.path("change"));
    let lines: String =
        (0..20_000_u64).map(|line| format!("{line} {}\n", line.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    fs::write(&old, &lines).unwrap();
    fs::write(&new, lines.replace("\n7000 ", "\nchanged\n7000 ").replace("\n12000 ", "\n")).unwrap();
    fs::write(&change, Command::new("diff").arg("-u").args([&old, &new]).output().unwrap().stdout).unwrap();
    let evaluation = lab.path("evaluation");
    fs::create_dir(&evaluation).unwrap();
    fs::write(evaluation.join("writes"), "").unwrap();

    let file = format!("{PREFIX}/file");
    ok(lab.preloaded("cp").arg(&old).arg(&file));
    ok(lab.preloaded("patch").args(["-s", &file]).arg(&change).env("NVFOLD_RUN_EVALUATION", &evaluation));
    ok(lab.preloaded("cmp").arg(&file).arg(&new));

    let (written, shared) = (told(&evaluation, "written_bytes"), told(&evaluation, "shared_bytes"));
    assert!(shared * 1000 > written * 995, "{shared} of {written}");
    // The file that was replaced has been read, and is gone all the same: what it alone had is free.
    let (stored, logical) = (told(&evaluation, "stored_bytes"), told(&evaluation, "logical_bytes"));
    assert!(stored < logical + (64 << 10), "{stored} bytes for {logical}");
    // The record has every write, with a head of 24 bytes.
    let record = fs::metadata(evaluation.join("writes")).unwrap().len();
    assert_eq!(record, written + 24 * told(&evaluation, "write_calls"));
}

/// Sets limits of a directory of the device.
fn limit(lab: &Lab, dir: &str, logical_bytes: u64, inodes: u64) {
    let device = DeviceSpec::Path(lab.path("device"));
    let fs =
        FileSystem::mount(Region::open(&device, &OpenOptions::default()).unwrap(), MountOptions::default()).unwrap();
    let limits = Limits { logical_bytes: Some(logical_bytes), inodes: Some(inodes), expires: None };
    fs.change_limits(fs.resolve(dir.as_bytes()).unwrap().ino, |of_tree| *of_tree = limits).unwrap();
    fs.unmount().unwrap();
}

#[test]
fn programs_in_a_limited_tree_see_the_limit_and_are_stopped_by_it() {
    let Some(lab) = lab() else { return };
    let path = |name: &str| format!("{PREFIX}/{name}");
    ok(lab.preloaded("mkdir").args(["-p", &path("work/below"), &path("other")]));
    limit(&lab, "/work", 1 << 20, 4);
    let stat = ok(lab.preloaded("stat").args(["-f", "-c", "%b %a %S %c %d", &path("work/below")]));
    assert_eq!(String::from_utf8_lossy(&stat.stdout), "256 256 4096 4 2\n");
    let refused = |program: &str, arguments: &[&str]| {
        let mut command = lab.preloaded(program);
        let output = command.args(arguments).output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr).contains("Disk quota exceeded");
        assert!(!output.status.success() && says, "{}", report(&command, &output));
    };
    let write = |to: &str, count: &str| {
        let [to, count] = [format!("of={}", path(to)), format!("count={count}")];
        ["if=/dev/urandom".to_owned(), to, "bs=64K".to_owned(), count, "status=none".to_owned()]
    };
    let words = write("work/below/file", "17");
    refused("dd", &words.each_ref().map(String::as_str));
    ok(lab.preloaded("dd").args(write("work/below/file", "16")));
    ok(lab.preloaded("ln").args([&path("work/below/file"), &path("work/link")]));
    ok(lab.preloaded("touch").arg(path("work/fourth")));
    refused("mkdir", &[&path("work/fifth")]);
    let mut link = lab.preloaded("ln");
    let output = link.args([&path("work/below/file"), &path("other/link")]).output().unwrap();
    assert!(!output.status.success(), "a link into another tree: {}", report(&link, &output));
    // Another tree: mv copies.
    ok(lab.preloaded("mv").args([&path("work/below/file"), &path("other/file")]));
    ok(lab.preloaded("rm").arg(path("work/link")));
    let stat = ok(lab.preloaded("stat").args(["-f", "-c", "%b %a %S %c %d", &path("work")]));
    assert_eq!(String::from_utf8_lossy(&stat.stdout), "256 256 4096 4 1\n");
}
