//! What the library exports is what symbols.txt lists, and nothing else.

use crate::library::{crate_dir, has, library, run};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

fn listed() -> BTreeSet<String> {
    let text = fs::read_to_string(crate_dir().join("symbols.txt")).unwrap();
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Names of the functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(crate_dir().join("include").join(header)).unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with(['/', '*', '#']);
    let code: String = text.lines().filter(is_code).map(|line| format!("{line}\n")).collect();
    let words =
        code.split('(').filter_map(|before| before.split(|c: char| !c.is_alphanumeric() && c != '_').next_back());
    words.filter(|word| word.starts_with("nvfold_") || word.starts_with("ICID_")).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_listed_symbols_of_its_version() {
    let Some(library) = library() else { return };
    if !has("nm") {
        return;
    }
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library.lib_dir.join("libnvfold.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    let exported = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    // The version itself is a symbol, too.
    let exported: BTreeSet<String> = exported.filter(|name| name.contains('@')).map(str::to_owned).collect();
    let versions: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_once(" A ").map(|(_, name)| name)).collect();
    assert_eq!(exported, listed(), "what the library exports, and symbols.txt");
    assert_eq!(versions, BTreeSet::from(["NVFOLD_0.1"]));
    let without_version = text.lines().filter(|line| !line.contains('@') && !line.contains(" A ")).count();
    assert_eq!(without_version, 0, "symbols without a version:\n{text}");
}

#[test]
fn every_symbol_is_declared_and_every_declaration_is_a_symbol() {
    let names: BTreeSet<String> =
        listed().iter().map(|symbol| symbol.split('@').next().unwrap_or_default().to_owned()).collect();
    let declared: BTreeSet<String> = ["nvfold.h", "icid.h"].iter().flat_map(|header| declared(header)).collect();
    assert_eq!(names, declared);
}

#[test]
fn the_shared_library_has_the_soname_of_this_version() {
    let Some(library) = library() else { return };
    if !has("readelf") {
        return;
    }
    let output = run(Command::new("readelf").arg("-d").arg(library.lib_dir.join("libnvfold.so")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Library soname: [libnvfold.so.0]"), "{text}");
}
