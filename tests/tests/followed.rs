//! `nvfold run --mount`: unmodified programs on a mount, in any number of processes. Their copies are shared, and
//! they notice no difference.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nvfold_tests::mount::{self, Mount, in_own_namespace, nvfold_json};
use nvfold_tests::probe::compiled;
use nvfold_tests::random::{self, Seed};
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};

const SOURCE_BYTES: usize = 1 << 20;

/// libnvfold_preload.so: `NVFOLD_PRELOAD`, or made once a test run of what cargo has just built.
fn library() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| match std::env::var_os("NVFOLD_PRELOAD") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let beside = std::env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
    let folder = beside.join("preload");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/preload-library.sh");
    run::ok(Command::new(script).arg(&beside).arg(&folder));
    folder.join("libnvfold_preload.so")
}

/// A mount with a file of random bytes in it, and the program that copies.
struct House {
    mount: Mount,
    program: PathBuf,
}

impl House {
    fn new(options: &str) -> House {
        let mount = Mount::with_options(128, options);
        let program = compiled("followed", mount.scratch());
        let mut bytes = vec![0; SOURCE_BYTES];
        random::fill(&mut Seed::new("followed").generator(), &mut bytes);
        // No zero bytes, for the ways that read text lines.
        bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 1);
        fs::write(mount.join("source"), &bytes).expect("write the source");
        House { mount, program }
    }

    /// Returns the command `nvfold run --mount MOUNT -- WORDS`.
    fn followed(&self, words: &[&str]) -> Command {
        followed(self.mount.path(), words)
    }

    /// Runs one way of the copying program; returns how many bytes it wrote and how many of them are shared.
    #[track_caller]
    fn copy(&mut self, way: &str) -> (u64, u64) {
        let path = |path: PathBuf| path.to_str().expect("a path of the test's own").to_owned();
        let (source, target) = (path(self.mount.join("source")), path(self.mount.join("target")));
        let expected = path(self.mount.scratch().join("expected"));
        let program = path(self.program.clone());
        let before = self.shared();
        run::ok(&mut self.followed(&[&program, way, &source, &target, &expected]));
        let shared = self.shared() - before;
        let written = fs::read(&expected).unwrap();
        assert!(fs::read(&target).unwrap() == written, "{way}: as written");
        self.mount.remount();
        assert!(fs::read(&target).unwrap() == written, "{way}: as stored");
        fs::remove_file(&target).unwrap();
        println!("{way}: {shared} of {} bytes shared", written.len());
        (written.len() as u64, shared)
    }

    /// Returns the bytes of files that are shared through hints, after the kernel has written its cached data to the
    /// server.
    fn shared(&self) -> u64 {
        run::ok(Command::new("sync").arg("-f").arg(self.mount.path()));
        nvfold_json(&["stats", "--json"], &[self.mount.path()])["origins"]["shared_bytes"]
            .as_u64()
            .expect("origins in stats")
    }
}

fn followed(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(mount::binary());
    command.args(["run", "--mount"]).arg(dir).arg("--").args(words).env("NVFOLD_PRELOAD", library());
    command
}

#[track_caller]
fn assert_shared((written, shared): (u64, u64), percent: u64, what: &str) {
    assert!(shared * 100 >= written * percent, "{what}: {shared} of {written} bytes shared, not {percent} %");
}

#[test]
fn short_records_that_a_program_copies_are_shared() {
    requires!(fuse, tool("cc"));
    for options in ["policy=icid,writeback=on", "policy=icid,writeback=off", "policy=icid+inline"] {
        let mut house = House::new(&format!("{options},origin_min=64"));
        for way in ["records", "mapped"] {
            assert_shared(house.copy(way), 95, &format!("{way}, {options}"));
        }
        house.mount.check();
    }
}

#[test]
fn copies_through_stdio_are_shared() {
    requires!(fuse, tool("cc"));
    let mut house = House::new("policy=icid");
    assert_shared(house.copy("lines"), 95, "lines");
    house.mount.check();
}

#[test]
fn a_forked_child_shares_copies_of_data_that_its_parent_read() {
    requires!(fuse, tool("cc"));
    let mut house = House::new("policy=icid,origin_min=64");
    assert_shared(house.copy("forks"), 95, "forks");
    house.mount.check();
}

#[test]
fn reused_descriptors_and_two_hundred_threads_give_correct_hints() {
    requires!(fuse, tool("cc"));
    let mut house = House::new("policy=icid");
    assert_shared(house.copy("reuse"), 95, "reuse");
    // A thread that finds a lock taken drops its record.
    assert_shared(house.copy("threads"), 50, "threads");
    house.mount.check();
}

#[test]
fn copies_in_threads_forks_and_signal_handlers_never_deadlock() {
    requires!(fuse, tool("cc"));
    let mut house = House::new("policy=icid");
    house.copy("storm");
    house.mount.check();
}

#[test]
fn programs_work_normally_if_nothing_can_be_shared() {
    requires!(fuse, tool("cc"));
    let mut house = House::new("policy=inline");
    assert_eq!(house.copy("records").1, 0);
    house.mount.check();
}

#[test]
fn a_file_that_the_program_may_not_reopen_is_copied_without_hints() {
    requires!(root, fuse, tool("cc"), tool("setpriv"));
    use std::os::unix::fs::PermissionsExt;
    let mut house = House::new("policy=icid,allow_other");
    let source = house.mount.join("source");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(house.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The descriptor is inherited, open for reading; the process may not open the file itself.
    let script = "exec 3<source; exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                  sh -c 'head -c 100000 <&3 >target'";
    run::ok(house.followed(&["bash", "-c", script]).current_dir(house.mount.path()));
    let (read, target) = (fs::read(&source).unwrap(), fs::read(house.mount.join("target")).unwrap());
    assert!(target == read[..100_000], "copied all the same");
    house.mount.check();
}

/// Runs a script in a directory of a followed mount, and in one of the host without nvfold. Both must print the same
/// and leave the same files.
#[track_caller]
fn same_as_on_the_host(script: &str) {
    let mut house = House::new("policy=icid");
    let (ours, host) = (house.mount.join("work"), house.mount.scratch().join("work"));
    let plain = &["bash", "-euo", "pipefail", "-c", script];
    let mut said = Vec::new();
    for (dir, mut command) in [(&ours, house.followed(plain)), (&host, Command::new(plain[0]))] {
        fs::create_dir(dir).unwrap();
        if dir == &host {
            command.args(&plain[1..]);
        }
        let date = "2020-02-02T02:02:02Z";
        command.envs([("GIT_AUTHOR_DATE", date), ("GIT_COMMITTER_DATE", date), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
        command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "n")));
        command.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "n@n")));
        let outcome = run::ok(command.current_dir(dir));
        assert_eq!(outcome.stderr, "", "{}", outcome.report());
        said.push(outcome.stdout);
    }
    assert_eq!(said[0], said[1], "what the programs print");
    let compare = || run::ok(Command::new("diff").args(["-r", "--exclude=.git"]).arg(&ours).arg(&host));
    compare();
    house.mount.remount();
    compare();
    house.mount.check();
}

/// Some hundred files with fixed content.
const SOME_FILES: &str = "mkdir files; for n in $(seq 120); do seq $n $((n * 37)) >files/$n; done; ";

#[test]
fn under_run_mount_shells_and_their_programs_work_as_on_the_host() {
    requires!(fuse);
    same_as_on_the_host(&format!(
        "{SOME_FILES} cat files/* >all; sort all files/7 >sorted; cp -r files again; sed -i s/1/one/ again/1*
         head -c 100000 all | tail -c 50000 >part; tac part >tac; split -l 5000 all part-; cat part-* | cmp - all
         dd if=all of=by-dd bs=3000 conv=notrunc status=none; tar -cf all.tar --sort=name --mtime=@0 files; mv part x
         mkdir out; tar -C out -xf all.tar; diff -r files out/files; wc -c all sorted part-aa; grep -c 77 all"
    ));
}

#[test]
fn under_run_mount_git_works_as_on_the_host() {
    requires!(fuse, tool("git"));
    same_as_on_the_host(&format!(
        "{SOME_FILES} git init -q -b main .; git add .; git commit -qm one; git rev-parse HEAD
         sed -i s/7/seven/ files/*; git commit -qam two; git mv files/9 nine; git commit -qm three; git gc -q
         git fsck --full --strict 2>&1; git rev-parse HEAD; git ls-tree -r HEAD | sha256sum; git status --porcelain
         git clone -q . ../work-clone-$$ 2>&1; rm -rf ../work-clone-$$; git checkout -q HEAD~2
         git log --oneline | wc -l"
    ));
}

#[test]
fn under_run_mount_sqlite_make_rsync_and_python_work_as_on_the_host() {
    requires!(fuse, tool("cc"), tool("make"), tool("sqlite3"), tool("rsync"));
    same_as_on_the_host(
        "sqlite3 db 'CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value BLOB);
             WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000)
             INSERT INTO t SELECT x, x * 7919 % 3001, zeroblob(x % 300) FROM n; CREATE INDEX i ON t (name);
             UPDATE t SET name = name || 1 WHERE id % 7 = 0; DELETE FROM t WHERE id % 11 = 0; VACUUM;
             SELECT count(*), sum(length(value)), max(name) FROM t; PRAGMA integrity_check;'
         sqlite3 db .dump | sqlite3 db2; sqlite3 db2 'SELECT count(*) FROM t'; rm db db2",
    );
    same_as_on_the_host(
        "for n in 1 2 3 4 5; do echo \"int f$n(void) { return $n; }\" >f$n.c; done
         echo 'int f1(void), f5(void); int main(void) { return f1() + f5() - 6; }' >main.c
         printf 'main: main.o f1.o f2.o f3.o f4.o f5.o\\n\\tcc -o $@ $^\\n' >Makefile
         make -s -j4; ./main; echo made; cp main other; ./other; strip other; ./other; ar rc lib.a f*.o; ar t lib.a",
    );
    same_as_on_the_host(&format!(
        "{SOME_FILES} rsync -a --no-times files/ copy; sed -i s/3/three/ files/1*
         rsync -ac --no-times --no-whole-file --inplace files/ copy; diff -r files copy; rsync -ac files/ other"
    ));
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).is_file());
    let Some(python) = python else { return };
    same_as_on_the_host(&format!(
        "{SOME_FILES} {python} -c '
import glob, mmap, os, shutil, subprocess, zipfile
data = b\"\".join(open(name, \"rb\").read() for name in sorted(glob.glob(\"files/*\")))
with open(\"all\", \"wb\") as out:
    for at in range(0, len(data), 777):
        out.write(data[at:at + 777])
shutil.copytree(\"files\", \"tree\")
with open(\"all\", \"r+b\") as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[100:200] = memory[5100:5200]
    open(\"part\", \"wb\").write(memory[1000:90000])
with zipfile.ZipFile(\"zip\", \"w\") as archive:
    info = zipfile.ZipInfo(\"all\")
    archive.writestr(info, open(\"all\", \"rb\").read())
print(len(data), subprocess.run([\"wc\", \"-c\", \"all\"], capture_output=True).stdout)
print(os.fork() and os.wait()[1])
'"
    ));
}

#[test]
fn run_mount_rejects_a_plain_directory_and_warns_of_a_policy_without_origins() {
    requires!(fuse);
    let house = House::new("policy=inline");
    let outcome = run::run(&mut followed(house.mount.scratch(), &["true"]));
    assert!(outcome.code() == 1 && outcome.stderr.contains("no nvfold is mounted there"), "{}", outcome.report());
    let outcome = run::ok(&mut house.followed(&["sh", "-c", "exit 0"]));
    assert!(outcome.stderr.contains("policy inline") && outcome.stderr.contains("policy=icid"), "{}", outcome.report());
    let none = run::run(house.followed(&["true"]).arg("x").env("NVFOLD_PRELOAD", "/no/library.so"));
    assert!(none.code() == 1 && none.stderr.contains("hint: `make install`"), "{}", none.report());
}

#[test]
fn cp_clones_with_reflink_always_under_run_mount() {
    requires!(fuse, tool("cc"));
    for options in ["policy=off,writeback=on", "policy=icid,writeback=off", "policy=inline,cache=none"] {
        let mut house = House::new(options);
        let (source, target) = (house.mount.join("source"), house.mount.join("target"));
        let words = ["cp", "--reflink=always", source.to_str().unwrap(), target.to_str().unwrap()];
        let refused = run::run(Command::new(words[0]).args(&words[1..]).env("LC_ALL", "C"));
        assert!(refused.stderr.contains("Operation not supported"), "{}", refused.report());
        let stored = |house: &House| {
            let stats = nvfold_json(&["stats", "--json"], &[house.mount.path()]);
            stats["space"]["stored_bytes"].as_u64().expect("what is stored")
        };
        run::ok(Command::new("sync").arg("-f").arg(house.mount.path()));
        let before = stored(&house);
        run::ok(&mut house.followed(&words));
        assert_eq!(stored(&house), before, "{options}: a clone stores nothing");
        assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{options}: as cloned");
        // A clone of a clone, over a longer file.
        fs::write(&target, vec![1; 2 * SOURCE_BYTES]).unwrap();
        run::ok(&mut house.followed(&words));
        house.mount.remount();
        assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{options}: as stored");
        house.mount.check();
    }
}

/// Makes clones by ioctl in the working directory, right ones and wrong ones, and prints what becomes of each.
const CLONES: &str = r#"
import errno, fcntl, os, struct, zlib
FICLONE, FICLONERANGE, BLOCK = 0x40049409, 0x4020940d, 4096
noise = b''.join(b'%8d' % (n * n) for n in range(4 * BLOCK // 8)) + b'the end'
def make(name, content):
    with open(name, 'wb') as file: file.write(content)
def outcome(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
def show(*what):
    print(*what, [(os.path.getsize(name), zlib.crc32(open(name, 'rb').read())) for name in ('source', 'target')])
def clone(of='source', onto='target', read=os.O_RDONLY, write=os.O_RDWR):
    make('source', noise); make('target', noise[:BLOCK][::-1] * 4)
    source, target = os.open(of, read | os.O_NONBLOCK), os.open(onto, write | os.O_NONBLOCK)
    show('whole', of, onto, read, write, outcome(fcntl.ioctl, target, FICLONE, source))
    os.close(source); os.close(target)
def clone_range(source_at, length, target_at, onto='target'):
    make('source', noise); make('target', noise[:BLOCK][::-1] * 4)
    source, target = os.open('source', os.O_RDONLY), os.open(onto, os.O_RDWR)
    os.lseek(source, 5, 0); os.lseek(target, 6, 0)
    argument = struct.pack('qQQQ', source, source_at, length, target_at)
    done = outcome(fcntl.ioctl, target, FICLONERANGE, argument)
    places = os.lseek(source, 0, 1), os.lseek(target, 0, 1)
    show('range', source_at, length, target_at, onto, done if isinstance(done, str) else 'done', places)
    os.close(source); os.close(target)
make('empty', b''); make('readonly', b'x'); os.mkdir('directory'); os.mkfifo('fifo')
clone(); clone(of='empty'); clone(onto='source'); clone(of='directory'); clone(of='fifo'); clone(onto='fifo')
clone(onto='directory', write=os.O_RDONLY); clone(write=os.O_RDONLY); clone(read=os.O_WRONLY)
clone(write=os.O_WRONLY | os.O_APPEND); clone(of='/proc/self/status'); clone(of='/dev/null'); clone(onto='/dev/null')
for range_ in [(0, 0, 0), (BLOCK, BLOCK, 0), (BLOCK, 0, 2 * BLOCK), (0, BLOCK, 9 * BLOCK), (4 * BLOCK, 7, 6 * BLOCK),
               (4 * BLOCK, 7, 8 * BLOCK), (0, 5 * BLOCK, 0), (4 * BLOCK, BLOCK, 0), (5 * BLOCK, 0, 0), (9 * BLOCK, BLOCK, 0),
               (0, BLOCK, 1 << 63), (1 << 63, BLOCK, 0), (0, 1 << 63, 0), (BLOCK, (1 << 64) - BLOCK, 0),
               (0, BLOCK, (1 << 63) - BLOCK)]:
    clone_range(*range_)
for range_ in [(0, BLOCK, BLOCK), (0, 2 * BLOCK, BLOCK), (BLOCK, 2 * BLOCK, 0), (0, BLOCK, 0), (0, BLOCK, 7 * BLOCK)]:
    clone_range(*range_, onto='source')
print(outcome(fcntl.ioctl, os.open('target', os.O_RDWR), FICLONE, 999), outcome(fcntl.ioctl, 999, FICLONE, 1))
"#;

/// FUSE has no request for them: `nvfold run --mount` makes them by copy_file_range.
#[test]
fn clones_by_ioctl_under_run_mount_have_the_results_of_btrfs() {
    requires!(root, fuse, tool("python3"), tool("mkfs.btrfs"));
    let scratch = Scratch::on_disk();
    fs::write(scratch.join("clones.py"), CLONES).unwrap();
    let script = "truncate -s 256M disk
        mkfs.btrfs -q disk
        mkdir btrfs
        mount -o loop disk btrfs
        (cd btrfs && python3 ../clones.py) > printed
        umount btrfs";
    run::ok(&mut in_own_namespace(scratch.path(), script));
    let expected = fs::read_to_string(scratch.join("printed")).unwrap();
    let mut mount = Mount::fresh(64, "inline");
    let script = scratch.join("clones.py");
    let mut python = followed(mount.path(), &["python3", script.to_str().unwrap()]);
    let found = run::ok(python.current_dir(mount.path())).stdout;
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(expected, found, "left: btrfs, right: nvfold");
    }
    assert_eq!(expected.lines().count(), found.lines().count());
    mount.check();
}
