//! Programs that print what their calls answer: in a folder of the host and on a device they print the same, and leave the same
//! files.

use crate::lab::{PREFIX, assert_same_files, has, lab, ok};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a program of `tests/c` both ways.
fn same(source: &str) {
    same_under("icid", source);
}

fn same_under(policy: &str, source: &str) {
    let Some(lab) = lab() else { return };
    if source.ends_with(".cpp") && !has("c++") {
        return;
    }
    let program = lab.compile(source);
    let host = lab.path("host");
    fs::create_dir(&host).unwrap();
    let expected = ok(Command::new(&program).arg(&host));
    let ours = ok(lab.preloaded_with(&program, &format!("create,size=128M,policy={policy}")).arg(PREFIX));
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>();
    for (ours, expected) in lines(&ours.stdout).iter().zip(lines(&expected.stdout)) {
        assert_eq!(*ours, expected, "on the device, and on the host");
    }
    assert_eq!(ours.stdout.len(), expected.stdout.len());
    assert_same_files(&lab, &host, source);
}

#[test]
fn calls_below_the_prefix_give_the_results_of_the_kernel() {
    same("calls.c");
}

#[test]
fn linux_extensions_of_posix_calls_work_below_the_prefix() {
    same("linux.c");
}

#[test]
fn stdio_works_as_on_the_host() {
    same("stdio.c");
}

#[test]
fn shared_mappings_work_like_those_of_the_kernel() {
    for policy in ["off", "icid", "inline", "icid+deext", "denova"] {
        same_under(policy, "mappings.c");
    }
}

#[test]
fn system_calls_that_bypass_libc_reach_the_prefix() {
    same("raw.c");
}

#[test]
fn streams_of_cpp_work_as_on_the_host() {
    same("streams.cpp");
}

/// A script for sh, of which each command is run by itself with DIR in place of `@`.
fn same_script(tools: &[&str], script: &str) {
    let Some(lab) = lab() else { return };
    if !tools.iter().all(|tool| has(tool)) {
        return;
    }
    let host = lab.path("host");
    fs::create_dir(&host).unwrap();
    let sample = sample(lab.dir.path());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words = |dir: &str| -> Vec<String> {
            let put = |word: &str| word.replace('@', dir).replace('%', sample.to_str().expect("a name of ours"));
            // A quoted word is one word.
            line.split('\'')
                .enumerate()
                .flat_map(|(at, part)| match at % 2 {
                    0 => part.split_whitespace().map(put).collect::<Vec<_>>(),
                    _ => vec![put(part)],
                })
                .collect()
        };
        let (on_host, on_device) = (words(host.to_str().expect("a name of ours")), words(PREFIX));
        let expected = Command::new(&on_host[0]).args(&on_host[1..]).env("LC_ALL", "C").output().unwrap();
        let mut command = lab.preloaded(&on_device[0]);
        let ours = command.args(&on_device[1..]).env("LC_ALL", "C").output().unwrap();
        let text = |bytes: &[u8], dir: &str| String::from_utf8_lossy(bytes).replace(dir, "@");
        assert_eq!(
            (text(&ours.stdout, PREFIX), text(&ours.stderr, PREFIX), ours.status.code()),
            (
                text(&expected.stdout, host.to_str().expect("a name of ours")),
                text(&expected.stderr, host.to_str().expect("a name of ours")),
                expected.status.code()
            ),
            "{line}: on the device, and on the host"
        );
    }
    assert_same_files(&lab, &host, "what the script left");
}

/// A small tree of files with content that differs.
fn sample(dir: &Path) -> std::path::PathBuf {
    let sample = dir.join("sample");
    fs::create_dir_all(sample.join("one/two")).unwrap();
    let text = |lines: usize, seed: usize| -> String {
        (0..lines)
            .map(|line| format!("line {} of {line}: {}\n", seed, (line * 7919 + seed * 104_729) % 100_003))
            .collect()
    };
    fs::write(sample.join("a.txt"), text(2000, 1)).unwrap();
    fs::write(sample.join("one/b.txt"), text(500, 2)).unwrap();
    fs::write(
        sample.join("one/two/c.bin"),
        (0..300_000_u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect::<Vec<_>>(),
    )
    .unwrap();
    fs::write(sample.join("one/two/empty"), "").unwrap();
    std::os::unix::fs::symlink("../a.txt", sample.join("one/link")).unwrap();
    fs::hard_link(sample.join("a.txt"), sample.join("one/hard")).unwrap();
    let patched = text(2000, 1).replace("line 1 of 1000:", "changed line 1000:").replace("line 1 of 5:", "new 5:");
    fs::write(sample.join("patched"), patched).unwrap();
    sample
}

#[test]
fn coreutils_leave_the_same_files_as_on_the_host() {
    same_script(
        &["cp", "mv", "ln", "rm", "sort", "dd", "sed", "split", "truncate", "shuf", "tee", "find", "du", "stat"],
        "cp -a % @/tree
         cp -r @/tree/one @/again
         cp @/tree/a.txt @/copy
         cp --sparse=always @/tree/one/two/c.bin @/sparse
         ls -R @
         ls -la @/none
         mkdir -p @/x/y/z
         mkdir @/x
         mv @/copy @/x/moved
         mv @/x/moved @/x/y/z
         ln -s y/z @/x/link
         ln @/tree/a.txt @/x/hard
         readlink -f @/x/link/moved
         realpath @/x/../x/link
         sort -k4 -n @/tree/a.txt -o @/sorted
         sort -u -S 64K -T @ @/tree/a.txt @/tree/one/b.txt -o @/unique
         sed -i s/line/LINE/g @/tree/one/b.txt
         sed -i.bak -e /5/d @/x/y/z/moved
         dd if=@/tree/one/two/c.bin of=@/part bs=1000 skip=3 count=200 status=none
         dd if=%/a.txt of=@/part bs=333 seek=7 conv=notrunc status=none
         split -b 20000 @/tree/a.txt @/piece.
         cat @/tree/a.txt @/tree/one/b.txt
         head -n 3 @/sorted
         tail -c 100 @/sorted
         wc @/sorted @/unique
         cmp @/tree/a.txt @/x/hard
         cmp @/tree/a.txt @/sorted
         md5sum @/tree/one/two/c.bin
         truncate -s 12345 @/part
         chmod 640 @/part
         chmod -R go-w @/tree
         touch -d 1990-01-02 @/part
         stat -c '%F %a' @/part @/x @/x/link
         stat -c '%s %Y' @/part
         find @/tree -type f -name 'b*.txt'
         rm @/x/hard
         rm -r @/again
         rmdir @/x
         unlink @/none
         test -e @/x/link
         du -s --apparent-size @/tree/one/b.txt
         install -m 600 %/a.txt @/installed
         rm -rf @/x",
    );
}

#[test]
fn tar_and_patch_leave_the_same_files_as_on_the_host() {
    let Some(lab) = lab() else { return };
    if !["tar", "diff", "patch", "gzip"].iter().all(|tool| has(tool)) {
        return;
    }
    let sample = sample(lab.dir.path());
    let output = Command::new("diff").args(["-u", "a.txt", "patched"]).current_dir(&sample).output().unwrap();
    fs::write(lab.path("change.diff"), output.stdout).unwrap();
    ok(Command::new("tar").arg("-cf").arg(lab.path("sample.tar")).arg("-C").arg(&sample).arg("."));
    let (archive, change) = (lab.path("sample.tar"), lab.path("change.diff"));
    let host = lab.path("host");
    fs::create_dir(&host).unwrap();
    let steps: [&[&str]; 6] = [
        &["tar", "-xf", "ARCHIVE", "-C", "DIR"],
        &["patch", "-s", "-b", "-i", "CHANGE", "DIR/a.txt"],
        &["patch", "-s", "-d", "DIR", "-R", "-i", "CHANGE", "a.txt"],
        &["tar", "--sort=name", "--mtime=@0", "-cf", "DIR/packed.tar", "-C", "DIR", "one", "patched"],
        &["tar", "-rf", "DIR/packed.tar", "-C", "DIR", "--mtime=@0", "a.txt"],
        &["tar", "--delete", "-f", "DIR/packed.tar", "patched"],
    ];
    for step in steps {
        let words = |dir: &str| -> Vec<String> {
            let put = |word: &&str| {
                let word =
                    word.replace("ARCHIVE", archive.to_str().unwrap()).replace("CHANGE", change.to_str().unwrap());
                word.replace("DIR", dir)
            };
            step.iter().map(put).collect()
        };
        let (on_host, on_device) = (words(host.to_str().unwrap()), words(PREFIX));
        ok(Command::new(&on_host[0]).args(&on_host[1..]));
        ok(lab.preloaded(&on_device[0]).args(&on_device[1..]));
    }
    assert_same_files(&lab, &host, "after tar and patch");
}
