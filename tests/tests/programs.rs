//! Real programs on the mount: git, SQLite, fio, stress-ng, tar, cp and rsync.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use nvfold_tests::mount::{self, Mount};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires::tool;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run, tree};

// --- git -----------------------------------------------------------------------------------------

/// Commits on the clone.
const ROUNDS: usize = 6;
/// Number of files of the machine that make the repository.
const REPOSITORY_FILES: usize = 1500;

#[test]
fn git_clones_commits_and_collects_garbage_on_the_mount() {
    requires!(root, fuse, tool("git"));
    let origin = Scratch::new();
    make_repository(origin.path());
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(1024, policy);
        let clone = format!("git clone -q --no-hardlinks {} clone", origin.path().display());
        git(mount.path(), &clone);
        let repository = mount.join("clone");
        for round in 0..ROUNDS {
            // Every round changes, moves and removes some files and commits.
            git(
                &repository,
                &format!(
                    "git ls-files -z | awk 'BEGIN {{ RS = ORS = \"\\0\" }} NR % 61 == {round}' > ../changed
                 head -z -n 20 ../changed | xargs -0 -r sed -i '1s/^/round {round}\\n/'
                 tail -z -n 2 ../changed | xargs -0 -r git rm -q --
                 mkdir -p moved{round}
                 head -z -n 3 ../changed | xargs -0 -r -I X git mv X moved{round}/
                 git add -A
                 git commit -qm 'round {round}'"
                ),
            );
        }
        // The aggressive way takes a minute of git's time.
        let way = if soak_factor() > 1 { "--aggressive" } else { "" };
        git(
            &repository,
            &format!("git checkout -q -b side HEAD~3 && git merge -q -m merge master && git gc -q {way} --prune=now"),
        );
        for _ in 0..2 {
            let verdict = git(&repository, "git fsck --full --strict 2>&1; git status --porcelain");
            assert_eq!(verdict.stdout.trim(), "", "git fsck and status have nothing to say");
            mount.remount();
        }
        mount.check();
    }
}

/// Makes a repository of the machine's own files: data that programs really store.
fn make_repository(dir: &Path) {
    git(
        dir,
        &format!(
            "git init -q -b master
             find -L /usr/include /usr/share/doc /usr/share/perl /usr/lib -xdev -type f -readable -size -200k 2>/dev/null \
                 | LC_ALL=C sort | head -n {REPOSITORY_FILES} > files || true
             tar -chf - -T files 2>/dev/null | tar -xf -
             rm files
             git add -A
             git commit -qm 'files of the machine'"
        ),
    );
}

/// Runs a script with a git that ignores the user's configuration.
fn git(dir: &Path, script: &str) -> run::Outcome {
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "test");
        command.env(format!("GIT_{role}_EMAIL"), "test@example.org");
    }
    run::ok(&mut command)
}

// --- SQLite --------------------------------------------------------------------------------------

/// Transactions with each kind of journal; `make soak` does 2,000.
const TRANSACTIONS: u64 = 800;

fn transactions_of_a_run() -> u64 {
    if soak_factor() > 1 { 2000 } else { TRANSACTIONS }
}

#[test]
fn sqlite_databases_stay_intact_on_the_mount() {
    requires!(root, fuse, tool("sqlite3"));
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(256, policy);
        for journal in ["wal", "delete", "truncate", "persist"] {
            let database = mount.join(format!("{journal}.db"));
            let script = transactions(journal);
            let script_path = mount.scratch().join("script.sql");
            std::fs::write(&script_path, script).expect("write the script");
            let read_script = format!(".read {}", script_path.display());
            assert_eq!(sqlite(&database, &read_script), journal);
            verify_database(&database);
        }
        mount.remount();
        for journal in ["wal", "delete", "truncate", "persist"] {
            verify_database(&mount.join(format!("{journal}.db")));
        }
        mount.check();
    }
}

/// Returns the transactions of a bank: each moves money from one account to another and records it, so the sum never
/// changes; every seventh is rolled back.
fn transactions(journal: &str) -> String {
    let seed = Seed::new("SQLite's transactions");
    let mut random = seed.generator();
    let mut script = format!(
        "PRAGMA journal_mode={journal};
         PRAGMA synchronous=FULL;
         CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER, note BLOB);
         CREATE TABLE transfer (number INTEGER PRIMARY KEY, amount INTEGER, why TEXT);
         CREATE INDEX by_why ON transfer (why);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
         INSERT INTO account SELECT i, 1000, zeroblob(i * 50) FROM n;\n"
    );
    for number in 0..transactions_of_a_run() {
        let (from, to) = (random.u8(1..101), random.u8(1..101));
        let (amount, note) = (random.u16(..1000), random.u16(..3000));
        let end = if number % 7 == 6 { "ROLLBACK" } else { "COMMIT" };
        script += &format!(
            "BEGIN; UPDATE account SET money = money - {amount} WHERE id = {from};
             UPDATE account SET money = money + {amount}, note = zeroblob({note}) WHERE id = {to};
             INSERT INTO transfer VALUES ({number}, {amount}, hex(randomblob(40))); {end};\n"
        );
    }
    script
}

fn verify_database(database: &Path) {
    assert_eq!(sqlite(database, "PRAGMA integrity_check"), "ok");
    assert_eq!(sqlite(database, "SELECT sum(money) FROM account"), "100000");
    let committed = (0..transactions_of_a_run()).filter(|number| number % 7 != 6).count();
    assert_eq!(sqlite(database, "SELECT count(*) FROM transfer"), committed.to_string());
}

fn sqlite(database: &Path, sql: &str) -> String {
    let outcome = run::ok(Command::new(tool("sqlite3")).arg("-bail").arg(database).arg(sql));
    outcome.stdout.trim().to_owned()
}

// --- fio -----------------------------------------------------------------------------------------

#[test]
fn fio_verifies_every_block_it_wrote() {
    requires!(root, fuse, tool("fio"));
    for (number, policy) in mount::POLICIES.into_iter().enumerate() {
        let mut mount = Mount::fresh(512, policy);
        let sizes = ["512", "4k", "7k", "128k"];
        let engines = [("psync", 0, 1), ("psync", 1, 1), ("libaio", 1, 16)];
        for (size, engine) in (0..sizes.len()).flat_map(|size| (0..engines.len()).map(move |engine| (size, engine))) {
            let (name, direct, depth) = engines[engine];
            // `make test` runs one half for one policy and the other half for the next.
            let both = [0, 50].into_iter().enumerate();
            for (_, dedupe) in both.filter(|(half, _)| soak_factor() > 1 || (number + size + engine) % 2 == *half) {
                fio(&mount, dedupe, sizes[size], name, direct, depth);
            }
        }
        mount.check();
    }
}

fn fio(mount: &Mount, dedupe: u32, block_size: &str, engine: &str, direct: u32, depth: u32) {
    let seed = Seed::new("fio");
    let size_mib = if block_size == "512" { 2 } else { 16 } * soak_factor();
    let path = mount.join("fio");
    run::ok(
        Command::new(tool("fio"))
            .args(["--name=verify", "--rw=randwrite", "--verify=crc32c", "--do_verify=1"])
            .args(["--verify_fatal=1", "--fallocate=none", "--minimal"])
            .arg(format!("--dedupe_percentage={dedupe}"))
            .arg(format!("--bs={block_size}"))
            .arg(format!("--ioengine={engine}"))
            .arg(format!("--direct={direct}"))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--size={size_mib}m"))
            .arg(format!("--randseed={}", seed.value() >> 1))
            .arg(format!("--filename={}", path.display()))
            .current_dir(mount.scratch()),
    );
    std::fs::remove_file(path).expect("remove fio's file");
}

// --- stress-ng -----------------------------------------------------------------------------------

/// Stressors of the class `filesystem` that are not run, each with the reason.
const STRESSORS_LEFT_OUT: [(&str, &str); 9] = [
    ("bind-mount", "makes mounts of its own and writes nothing to the file system under test"),
    ("binderfs", "stresses another file system, binderfs"),
    ("procfs", "stresses another file system, /proc"),
    ("eventfd", "reads and writes no file"),
    ("ioprio", "sets priorities of processes, and reads and writes no file to speak of"),
    ("io", "calls sync(2), which waits for all file systems of the machine"),
    ("chattr", "inode flags by ioctl: FUSE hands the kernel's own flags through to no one here"),
    ("inode-flags", "inode flags by ioctl, as chattr"),
    ("verity", "fs-verity: the kernel has it for ext4, f2fs and btrfs only"),
];

/// Without these options stressors write up to 1 GiB.
const STRESSOR_SIZES: [&str; 5] = [
    "--hdd-bytes=32m",
    "--fallocate-bytes=32m",
    "--copy-file-bytes=128m",
    "--iomix-bytes=32m",
    "--sync-file-bytes=32m",
];

#[test]
fn stress_ng_reports_no_error_on_the_mount() {
    requires!(root, fuse, tool("stress-ng"));
    let left_out: BTreeSet<_> = STRESSORS_LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let listing = run::run(Command::new(tool("stress-ng")).args(["--class", "filesystem?"]));
    let listing = listing.stdout + &listing.stderr;
    let (_, names) = listing.split_once("stressors:").expect("a list of stressors");
    let stressors: Vec<_> = names.split_whitespace().filter(|name| !left_out.contains(name)).collect();
    assert!(stressors.len() > 25, "some 35 stressors are expected: {stressors:?}");

    let mut mount = Mount::fresh(1024, "inline");
    let seconds = soak_factor();
    // Four at a time, on the same directory tree.
    for some in stressors.chunks(4) {
        run::ok(
            Command::new(tool("stress-ng"))
                .args(some.iter().flat_map(|name| [format!("--{name}"), "1".to_owned()]))
                .args(STRESSOR_SIZES)
                .args(["--verify", "--timeout", &format!("{seconds}s")])
                .arg("--temp-path")
                .arg(mount.path())
                .current_dir(mount.scratch()),
        );
    }
    mount.check();
}

// --- tar, cp, rsync ------------------------------------------------------------------------------

/// The commands that copy everything. `$1` is the source, `$2` the target.
const COPIERS: [(&str, &str); 3] = [
    (
        "tar",
        "tar -C $1 --xattrs --xattrs-include='*' --acls --sparse --numeric-owner -cf - . \
             | tar -C $2 --xattrs --xattrs-include='*' --acls --sparse --numeric-owner -xpf -",
    ),
    ("cp", "cp -a --sparse=always $1/. $2/"),
    ("rsync", "rsync -aHAX --modify-window=-1 --sparse --numeric-ids $1/ $2/"),
];

#[test]
fn copying_in_and_out_keeps_all_metadata() {
    requires!(root, fuse, tool("rsync"), tool("tar"), tool("setfacl"), tool("setfattr"));
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(256, policy);
        let source = Scratch::new();
        make_tree_of_everything(source.path());
        let expected = tree::read(source.path());
        assert!(expected.len() > 230, "{} entries in the source", expected.len());
        for (name, script) in COPIERS {
            let inside = mount.join(name);
            copy(script, source.path(), &inside);
            tree::assert_same(&tree::read(&inside), &expected);
            mount.remount();
            tree::assert_same(&tree::read(&inside), &expected);
            let again = mount.join(format!("{name} again"));
            copy(script, &inside, &again);
            tree::assert_same(&tree::read(&again), &expected);
            let out = Scratch::new();
            copy(script, &again, out.path());
            tree::assert_same(&tree::read(out.path()), &expected);
            let sparse = inside.join("sparse").metadata().expect("stat");
            assert!(
                sparse.blocks() * 512 < sparse.len() / 4,
                "{name}: the sparse file takes {} blocks for {} bytes",
                sparse.blocks(),
                sparse.len()
            );
        }
        mount.check();
    }
}

fn copy(script: &str, from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("make the target");
    run::ok(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script.replace("$1", "\"$1\"").replace("$2", "\"$2\""), "copy"])
            .args([from, to]),
    );
}

/// Makes a tree with every kind of inode and attribute.
fn make_tree_of_everything(dir: &Path) {
    run::shell(
        dir,
        r#"
        umask 022
        mkdir -p deep/er/and/deep/er modes owners many
        for i in $(seq 200); do head -c $((i * 37)) <(seq $i 9999) > "many/file $i"; done
        for mode in 0000 0644 0755 4755 2755 1777 0400; do echo $mode > modes/$mode; chmod $mode modes/$mode; done
        mkdir modes/dir2775; chmod 2775 modes/dir2775
        for id in 1 1000 65534 4000000000; do echo $id > owners/$id; chown $id:$id owners/$id; done
        ln "many/file 1" hard1; ln "many/file 1" deep/er/hard2; ln "many/file 2" deep/hard3
        ln -s "many/file 3" link; ln -s nowhere dangling; ln -s "$(printf 'x%.0s' $(seq 1000))" longlink
        mkfifo fifo; mknod null c 1 3; mknod loop b 7 200
        printf 'start' > sparse; truncate -s 5M sparse; printf 'middle' | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
        truncate -s 3M hole; : > empty
        printf 'name that is not UTF-8' > $'\xff\xfe'
        printf 'name of 255 bytes' > "$(printf 'n%.0s' $(seq 255))"
        for i in $(seq 5); do setfattr -n trusted.key$i -v "value $i" "many/file $i"; done
        setfattr -n trusted.large -v "0x$(head -c 3000 /dev/urandom | od -An -vtx1 | tr -d ' \n')" "many/file 6"
        setfattr -n user.comment -v "a comment" "many/file 7" || true
        setfattr -n trusted.on.a.directory -v yes deep/er
        setfacl -m u:1000:rw-,g:100:r-x,m::rwx "many/file 8"
        setfacl -m u:1000:rwx deep; setfacl -d -m u:1000:r-x,g::r-x deep
        touch -d '1960-02-03 04:05:06.123456789 UTC' "many/file 9"
        touch -d '2036-02-03 04:05:06.987654321 UTC' "many/file 10"
        touch -h -d '2001-02-03 04:05:06.000000001 UTC' link
        touch -d '1999-12-31 23:59:59.999999999 UTC' many deep/er/and
        "#,
    );
}
