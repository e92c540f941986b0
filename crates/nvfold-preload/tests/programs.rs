//! Real programs that write and read databases and media: the same results as on the host, and the same files.

use crate::lab::{Lab, PREFIX, assert_same_files, has, lab, ok};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn host(lab: &Lab) -> PathBuf {
    let host = lab.path("host");
    fs::create_dir(&host).unwrap();
    host
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
    // The one of the system: another may be a script that finds it by other programs.
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| fs::metadata(path).is_ok());
    let Some(python) = python else {
        assert!(!has("python3") || std::env::var_os("CI").is_none(), "there is no python3 of the system");
        return;
    };
    let host = host(&lab);
    let expected = ok(Command::new(python).args(["-c", PYTHON]).arg(&host));
    let ours = ok(lab.preloaded(python).args(["-c", PYTHON, PREFIX]));
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout));
    assert_same_files(&lab, &host, "what python left");
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
fn sqlite_makes_the_same_database() {
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
    // A log that processes share in memory needs a shared mapping; the one process can do without.
    let alone = "PRAGMA locking_mode = exclusive; PRAGMA journal_mode = wal; CREATE TABLE t (x); \
                 INSERT INTO t VALUES (1), (2); SELECT sum(x) FROM t;";
    let expected = ok(Command::new("sqlite3").arg(host.join("alone")).arg(alone));
    let ours = ok(lab.preloaded("sqlite3").arg(format!("{PREFIX}/alone")).arg(alone));
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&expected.stdout));
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
fn leveldb_reads_what_it_wrote() {
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
fn patch_shares_what_it_read_before_it_closed_the_file() {
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
