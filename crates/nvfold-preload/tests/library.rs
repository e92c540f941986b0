//! The library as the loader sees it: what it stands for, and that nothing within it goes through that.

use crate::lab::{has, library, ok};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn read(list: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(list)).unwrap()
}

pub(crate) fn listed() -> BTreeSet<String> {
    let text = read("interposed.txt");
    let names = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_preload_library_exports_the_listed_names_and_imports_none_of_them() {
    let Some(library) = library() else { return };
    if !has("nm") {
        return;
    }
    let text = String::from_utf8(ok(Command::new("nm").arg("-D").arg(library)).stdout).unwrap();
    let names = |kinds: &[&str]| -> BTreeSet<String> {
        let of = |line: &str| {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next()?, words.next()?);
            kinds.contains(&kind).then(|| name.split('@').next().unwrap_or_default().to_owned())
        };
        text.lines().filter_map(of).collect()
    };
    assert_eq!(names(&["T", "W", "D", "B", "A"]), listed());
    // A name that is listed and asked for would be found in the library itself: the core would run through its own interposition.
    let asked: Vec<String> = names(&["U", "w"]).intersection(&listed()).cloned().collect();
    assert_eq!(asked, Vec::<String>::new());
}

#[test]
fn every_interposed_name_is_listed_once() {
    let text = read("interposed.txt");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    assert_eq!(lines, listed().len());
}

/// The names that are passed on, each with its reason.
fn passed_on() -> Vec<(String, String)> {
    let text = read("passed-on.txt");
    let mut reason = "";
    let mut names = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("= ") {
            Some(of) => reason = of,
            None => names.extend(line.split_whitespace().map(|name| (name.to_owned(), reason.to_owned()))),
        }
    }
    names
}

/// What libc exports for programs, from `nm -D`: functions and variables, without those that only its own parts use.
fn exported(libc: &str) -> BTreeSet<String> {
    let text = String::from_utf8(ok(Command::new("nm").args(["-D", "--defined-only", libc])).stdout).unwrap();
    let name = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let (symbol, kind) = (words.next()?, words.next()?);
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        (kind != "A" && !version.ends_with("GLIBC_PRIVATE")).then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn every_name_of_libc_is_interposed_or_has_a_reason_to_be_passed_on() {
    let (listed, passed_on) = (listed(), passed_on());
    let without: Vec<_> = passed_on.iter().filter(|(_, reason)| reason.len() < 20).collect();
    assert!(without.is_empty(), "without a reason in passed-on.txt: {without:?}");
    let names: BTreeSet<String> = passed_on.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), passed_on.len(), "a name is twice in passed-on.txt");
    let both: Vec<_> = names.intersection(&listed).collect();
    assert!(both.is_empty(), "in interposed.txt and in passed-on.txt: {both:?}");
    // The libc that this test runs with.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.ends_with("/libc.so.6"));
    let Some(libc) = libc.filter(|_| has("nm")) else { return };
    let exported = exported(libc);
    assert!(exported.len() > 2000, "nm says what {libc} exports: {}", exported.len());
    let unknown: Vec<_> = exported.iter().filter(|name| !listed.contains(*name) && !names.contains(*name)).collect();
    assert!(
        unknown.is_empty(),
        "{libc} exports {} names that nvfold-preload does not know: {unknown:?}\n\
         Put each into interposed.txt if it takes a path, a descriptor or a stream, or copies memory; else into \
         passed-on.txt, under the reason why it is passed on.",
        unknown.len()
    );
    let of_libc = |names: &BTreeSet<String>| names.intersection(&exported).count();
    println!("{} names: {} interposed, {} passed on", exported.len(), of_libc(&listed), of_libc(&names));
}
