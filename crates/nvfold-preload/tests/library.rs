//! The library as the loader sees it: what it stands for, and that nothing within it goes through that.

use crate::lab::{has, library, ok};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn listed() -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("interposed.txt")).unwrap();
    let names = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn it_exports_what_is_listed_and_asks_for_none_of_it() {
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
fn every_name_is_listed_once() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("interposed.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    assert_eq!(lines, listed().len());
}
