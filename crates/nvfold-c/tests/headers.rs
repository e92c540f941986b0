//! The headers are what cbindgen makes of the sources. To write them anew: `NVFOLD_WRITE_HEADERS=1 cargo test -p nvfold-c headers::`.

use std::fs;
use std::path::{Path, PathBuf};

fn crate_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// A header as it should be: what it begins with, the structures and functions of these sources, and its end.
fn header(name: &str, sources: &[&str], structures: &[&str]) -> String {
    let dir = crate_dir();
    let mut config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).expect("cbindgen.toml can be read");
    config.export.include = structures.iter().map(|name| name.to_string()).collect();
    // The heads open `extern "C"` themselves, before their own types.
    config.cpp_compat = false;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(dir.join("src/exports").join(source));
    }
    let mut made = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    let head = fs::read_to_string(dir.join(format!("include/{name}.head.h"))).expect("a header has a head");
    let guard = format!("{}_H", name.to_uppercase());
    // A type renamed to `const char *` is written with a space behind it.
    let is_comment = |line: &str| line.trim_start().starts_with(['*', '/']);
    let tidy = |line: &str| if is_comment(line) { line.trim_end().to_owned() } else { line.replace(" * ", " *") };
    let made: Vec<String> = made.lines().map(tidy).collect();
    let made = made.join("\n");
    format!("{head}\n{}\n\n#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {guard} */\n", made.trim())
}

fn check(name: &str, sources: &[&str], structures: &[&str]) {
    let made = header(name, sources, structures);
    let path = crate_dir().join(format!("include/{name}.h"));
    if std::env::var_os("NVFOLD_WRITE_HEADERS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    assert!(
        there == made,
        "{} is not what the sources say (line {:?}); run NVFOLD_WRITE_HEADERS=1 cargo test -p nvfold-c headers::",
        path.display(),
        differs.map(|line| line + 1)
    );
}

#[test]
fn nvfold_h_is_generated_from_the_current_sources() {
    let sources =
        ["devices.rs", "descriptors.rs", "names.rs", "limits.rs", "directories.rs", "attributes.rs", "memory.rs"];
    check("nvfold", &sources, &["Stats", "Limits", "Dirent"]);
}

#[test]
fn icid_h_is_generated_from_the_current_sources() {
    check("icid", &["icid.rs"], &[]);
}
