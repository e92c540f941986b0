//! The project's rules as a test: a remark that a reviewer would have to repeat is checked here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace").to_owned()
}

/// Returns the text files of the repository whose names end in one of `endings`, as path from the root and content.
pub(crate) fn files(endings: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut pending = vec![root.clone()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                // Hidden folders except .ci do not belong to the project; nor does the build output.
                if name != "target" && (!name.starts_with('.') || name == ".ci") {
                    pending.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let from_root = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push((from_root, text));
                }
            }
        }
    }
    assert!(!found.is_empty(), "no file ends in {endings:?}");
    found.sort();
    found
}

fn sources() -> Vec<(String, String)> {
    files(&[".rs"])
}

/// Fails with all offences at once.
pub(crate) fn assert_none(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// Returns the lines of `text` for which `is_offence` is true, as `file:line: content`.
fn offending_lines(file: &str, text: &str, is_offence: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|(_, line)| is_offence(line));
    lines.map(|(at, line)| format!("{file}:{}: {}", at + 1, line.trim())).collect()
}

/// Returns a line without its comment and without the content of its string literals, roughly.
fn code_of(line: &str) -> String {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').step_by(2).collect()
}

/// Files at the C boundary that access memory unknown to the compiler: pointers from C, errno, mappings.
const C_BOUNDARY: [&str; 3] =
    ["crates/nvfold-c/src/caller.rs", "crates/nvfold-c/src/failure.rs", "crates/nvfold-c/src/mapping.rs"];
/// Functions that C calls: only their exported names need `unsafe`.
const C_EXPORTS: &str = "crates/nvfold-c/src/exports/";

/// Memory shared with the kernel, and two system calls without a safe wrapper.
const KERNEL_BOUNDARY: &str = "crates/nvfold-fuse/src/sys.rs";

/// Replacements for libc functions, which get pointers of all kinds from programs.
const PRELOADED: &str = "crates/nvfold-preload/src/";

/// Returns where a file has unsafe code that it may not have.
fn unsafe_offences(file: &str, text: &str) -> Vec<String> {
    if file.starts_with("crates/pmem/")
        || file.starts_with(PRELOADED)
        || C_BOUNDARY.contains(&file)
        || file == KERNEL_BOUNDARY
    {
        return Vec::new();
    }
    offending_lines(file, text, |line| {
        let is_word = |word: &str| word == "unsafe";
        let has_unsafe = code_of(line).split(|c: char| !c.is_alphanumeric() && c != '_').any(is_word);
        has_unsafe && !(file.starts_with(C_EXPORTS) && line.trim() == "#[unsafe(no_mangle)]")
    })
}

#[test]
fn unsafe_code_lives_in_pmem_and_at_the_c_boundary_only() {
    let offences = sources().iter().flat_map(|(file, text)| unsafe_offences(file, text)).collect();
    assert_none(
        "`unsafe` outside crates/pmem and the C boundary (C_BOUNDARY, C_EXPORTS, PRELOADED, KERNEL_BOUNDARY)",
        offences,
    );
}

#[test]
fn seeded_unsafe_code_elsewhere_is_found() {
    let block = "let value = unsafe { pointer.read() };";
    for file in ["crates/nvfold/src/lib.rs", "crates/nvfold-c/src/files.rs", "crates/nvfold-c/src/exports/icid.rs"] {
        assert_eq!(unsafe_offences(file, block).len(), 1, "{file}");
    }
    let export = "    #[unsafe(no_mangle)]";
    assert_eq!(unsafe_offences("crates/nvfold-c/src/exports/icid.rs", export), Vec::<String>::new());
    assert_eq!(unsafe_offences("crates/nvfold-c/src/files.rs", export).len(), 1);
    assert_eq!(unsafe_offences(C_BOUNDARY[0], block), Vec::<String>::new());
}

/// In crates/nvfold-c the root cannot forbid unsafe code, because the boundary needs it; so every other file forbids
/// it.
#[test]
fn files_within_the_c_boundary_forbid_unsafe_code() {
    let is_inside = |file: &str| file.starts_with("crates/nvfold-c/src/") && !C_BOUNDARY.contains(&file);
    let exports_symbols = |text: &str| text.contains("#[unsafe(no_mangle)]");
    let inside: Vec<_> = sources().into_iter().filter(|(file, _)| is_inside(file)).collect();
    assert!(inside.len() >= 10, "the files were not found");
    let mut offences: Vec<String> = Vec::new();
    for (file, text) in inside {
        // These contain modules of both kinds.
        let is_map = file.ends_with("src/lib.rs") || file.ends_with("exports/mod.rs");
        if !is_map && !exports_symbols(&text) && !text.contains("#![forbid(unsafe_code)]") {
            offences.push(file);
        }
    }
    assert_none("files of crates/nvfold-c without #![forbid(unsafe_code)]", offences);
}

/// Returns the lines of front ends that use what leaves the core for tests and benchmarks alone.
fn uses_of_internals(file: &str, text: &str) -> Vec<String> {
    let is_front_end = file.starts_with("crates/") && file.contains("/src/");
    if !is_front_end || ["nvfold", "nvfold-bench"].iter().any(|name| file.starts_with(&format!("crates/{name}/"))) {
        return Vec::new();
    }
    offending_lines(file, text, |line| code_of(line).contains("internals"))
}

#[test]
fn front_ends_use_no_internals_of_the_core() {
    let offences = sources().iter().flat_map(|(file, text)| uses_of_internals(file, text)).collect();
    assert_none("uses of nvfold::internals; give crates/nvfold/src/lib.rs a name that may leave", offences);
    let line = "use nvfold::internals::media::SEGMENT_BYTES;";
    assert_eq!(uses_of_internals("crates/nvfold-cli/src/main.rs", line).len(), 1);
    for file in ["crates/nvfold/tests/room.rs", "crates/nvfold-bench/src/lib.rs", "tests/src/lib.rs"] {
        assert_eq!(uses_of_internals(file, line), Vec::<String>::new());
    }
}

/// Returns the lines of the libraries that start a thread which would run signal handlers of the program. The unit tests at
/// the end of a file may.
fn unguarded_threads(file: &str, text: &str) -> Vec<String> {
    let is_library = ["pmem", "nvfold", "nvfold-causality", "nvfold-mount", "nvfold-c"]
        .iter()
        .any(|name| file.starts_with(&format!("crates/{name}/src/")));
    let tests = ["#[cfg(test)]\nmod ", "#[cfg(all(test, "].iter().filter_map(|mark| text.find(mark)).min();
    let code = &text[..tests.unwrap_or(text.len())];
    let starts = |line: &str| [".spawn(", "thread::spawn("].iter().any(|call| code_of(line).contains(call));
    let is_offence = |line: &str| starts(line) && !line.contains("with_signals_blocked(");
    if is_library && !file.contains("/races/") { offending_lines(file, code, is_offence) } else { Vec::new() }
}

#[test]
fn threads_of_the_libraries_block_the_signals_of_the_program() {
    let offences = sources().iter().flat_map(|(file, text)| unguarded_threads(file, text)).collect();
    assert_none("threads that are not started by pmem::with_signals_blocked", offences);
    let bare = "let thread = std::thread::spawn(work);";
    assert_eq!(unguarded_threads("crates/nvfold/src/lib.rs", bare).len(), 1);
    assert_eq!(unguarded_threads("crates/nvfold-cli/src/main.rs", bare).len(), 0, "a program has its own signals");
    let blocked = "with_signals_blocked(|| scope.spawn(work));";
    assert_eq!(unguarded_threads("crates/nvfold/src/lib.rs", blocked), Vec::<String>::new());
}

#[test]
fn tests_draw_their_seeds_in_one_place() {
    let sources_of_entropy = ["Rng::new()", "thread_rng", "getrandom", "urandom", "RandomState"];
    let is_global = |code: &str| {
        code.match_indices("fastrand::")
            .any(|(at, name)| code[at + name.len()..].starts_with(|c: char| c.is_lowercase()))
    };
    let is_test = |file: &str| file.starts_with("tests/") || file.contains("/tests/");
    let offences = sources()
        .iter()
        .filter(|(file, _)| is_test(file) && file != "tests/src/random.rs")
        .flat_map(|(file, text)| {
            offending_lines(file, text, |line| {
                let code = code_of(line);
                is_global(&code) || sources_of_entropy.iter().any(|name| code.contains(name))
            })
        })
        .collect();
    assert_none("random tests take a `Seed` (tests/src/random.rs)", offences);
}

#[test]
fn every_crate_root_but_pmem_and_the_libraries_for_c_forbids_unsafe_code() {
    let is_root = |file: &str| {
        let parts: Vec<&str> = file.split('/').collect();
        matches!(
            parts[..],
            ["crates", _, "src", "lib.rs" | "main.rs"]
                | ["crates", _, "src", "bin", _]
                | ["lab" | "tests", "src", "lib.rs"]
                | ["lab", "src", "bin", _]
        )
    };
    let roots: Vec<_> = sources().into_iter().filter(|(file, _)| is_root(file)).collect();
    assert!(roots.len() >= 5, "the crate roots were not found");
    let offences = roots
        .into_iter()
        .filter(|(file, text)| match file.as_str() {
            "crates/pmem/src/lib.rs" => false,
            // Denied, not forbidden, because KERNEL_BOUNDARY allows it.
            "crates/nvfold-fuse/src/lib.rs" => !text.contains("#![deny(unsafe_code)]"),
            "crates/nvfold-c/src/lib.rs" | "crates/nvfold-preload/src/lib.rs" => {
                !text.contains("#![deny(unsafe_op_in_unsafe_fn)]")
            }
            _ => !text.contains("#![forbid(unsafe_code)]"),
        })
        .map(|(file, _)| file)
        .collect();
    assert_none("crate roots without #![forbid(unsafe_code)]", offences);
}

#[test]
fn no_work_is_marked_as_unfinished() {
    // Assembled here so that this file does not violate its own rule.
    let marks = ["TO", "FIX", "XX"].iter().zip(["DO", "ME", "X"]).map(|(a, b)| format!("{a}{b}")).collect::<Vec<_>>();
    let calls = ["todo", "unimplemented"].map(|name| format!("{name}!("));
    let mut offences = Vec::new();
    for (file, text) in files(&[".rs", ".toml", ".sh", ".md", "Makefile", "run"]) {
        let is_word = |line: &str, mark: &str| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == mark);
        offences.extend(offending_lines(&file, &text, |line| {
            marks.iter().any(|mark| is_word(line, mark)) || calls.iter().any(|call| line.contains(call.as_str()))
        }));
    }
    assert_none("work left for later", offences);
}

#[test]
fn the_repository_mentions_no_particular_machine() {
    let hosts = ["crates.io", "pypi.org", "registry.npmjs.org", "deb.debian.org", "proxy.golang.org"];
    let folders = ["root", "work", "farm", "Users"].map(|name| format!("/{name}/"));
    let home = format!("/{}/", "home");
    let mut offences = Vec::new();
    for (file, text) in files(&[".rs", ".toml", ".sh", ".md", ".svg", ".skips", "Makefile", "run"]) {
        if file == "tests/tests/tidy.rs" {
            continue;
        }
        offences.extend(offending_lines(&file, &text, |line| {
            let starts_path = |folder: &str| {
                line.match_indices(folder).any(|(at, _)| {
                    let before = line[..at].chars().next_back().unwrap_or(' ');
                    !before.is_alphanumeric() && !"._-}$*)/".contains(before)
                })
            };
            folders.iter().any(|folder| starts_path(folder))
                || starts_path(&home)
                || hosts.iter().any(|host| line.contains(host))
        }));
    }
    assert_none("absolute paths of a machine, or hosts of a registry", offences);
}

#[test]
fn no_line_is_too_long_to_read() {
    let mut offences = Vec::new();
    for (file, text) in files(&[".rs"]) {
        let is_table = |line: &str| line.trim_start().trim_start_matches(['/', '!', ' ']).starts_with('|');
        offences.extend(offending_lines(&file, &text, |line| line.chars().count() > 140 && !is_table(line)));
    }
    for (file, text) in files(&[".md"]) {
        // Tables and links cannot be wrapped.
        let is_long = |line: &str| line.chars().count() > 120 && !line.starts_with('|') && !line.contains("](");
        offences.extend(offending_lines(&file, &text, is_long));
    }
    assert_none("lines too long to read", offences);
}

/// Returns the handwritten pages, as path and text, without the generated parts. Most of docs/benchmarks.md and
/// docs/cli.md, and all of docs/results, are generated.
fn pages() -> Vec<(String, String)> {
    let is_written = |file: &str| {
        let in_docs = file
            .strip_prefix("docs/")
            .is_some_and(|name| !name.strip_prefix("operating/").unwrap_or(name).contains('/'));
        let is_made = ["docs/benchmarks.md", "docs/cli.md"].contains(&file);
        (in_docs && !is_made) || ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&file)
    };
    let written = files(&[".md"]).into_iter().filter(|(file, _)| is_written(file));
    // The reasons in the table of mutations come from a test; the glossary contains the words that it forbids.
    let ends = ["<!-- mutations -->", FORBIDDEN];
    let cut = |text: String| ends.iter().fold(text, |text, end| text.split(end).next().unwrap_or_default().to_owned());
    written.map(|(file, text)| (file, cut(text))).collect()
}

/// Heading of the glossary's table of words that are not used.
const FORBIDDEN: &str = "## Words that are not used";
/// Maximum number of words in a sentence.
const SENTENCE_WORDS_MAX: usize = 40;

/// Returns paragraphs, list items and cells of tables outside code blocks and hidden steps of tests, with the number of
/// their first line. Code in a line counts as one word, and the target of a link does not count.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut goes_on) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            in_code = !in_code;
        }
        // `<!-- test`, steps, `-->`: operating.rs runs them.
        in_code = (in_code || start == "<!-- test") && start != "-->";
        let is_item = start.starts_with("- ") || start.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        match start.chars().next() {
            _ if in_code => goes_on = false,
            None | Some('#' | '<' | '`') if !goes_on || start.is_empty() || !start.starts_with('`') => goes_on = false,
            Some('|') => {
                goes_on = false;
                found.extend(line.split('|').map(|cell| (at + 1, plain(cell))));
            }
            _ if goes_on && !is_item => {
                let (_, last) = found.last_mut().expect("it goes on");
                last.push(' ');
                last.push_str(start);
            }
            _ => {
                goes_on = true;
                found.push((at + 1, start.to_owned()));
            }
        }
    }
    found.into_iter().map(|(at, text)| (at, plain(&text))).collect()
}

/// Returns text with `code` as one word and without the targets of links.
fn plain(text: &str) -> String {
    let words: String = text.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { "code" } else { part }).collect();
    let mut parts = words.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, after)| after))
}

/// Splits a paragraph into sentences: parts that end in a full stop, a question mark or an exclamation mark.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for word in paragraph.split_whitespace() {
        let sentence = found.last_mut().expect("there is one");
        sentence.push_str(word);
        sentence.push(' ');
        if word.trim_end_matches(['*', ')', '"']).ends_with(['.', '?', '!']) {
            found.push(String::new());
        }
    }
    found
}

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[test]
fn sentences_of_the_docs_are_short() {
    let mut offences = Vec::new();
    for (file, text) in pages() {
        for (at, paragraph) in paragraphs(&text) {
            let long = sentences(&paragraph).into_iter().filter(|sentence| words(sentence) > SENTENCE_WORDS_MAX);
            // The cells of a table hold lists, whose parts are separated by semicolons.
            let is_cell = text.lines().nth(at - 1).is_some_and(|line| line.starts_with('|'));
            let long = long.filter(|sentence| !is_cell || sentence.split(&[';', ':']).any(|part| words(part) > 40));
            offences.extend(long.map(|sentence| format!("{file}:{at}: {} words: {sentence}", words(&sentence))));
        }
    }
    assert_none("sentences of more than 40 words", offences);
}

#[test]
fn the_docs_use_no_word_that_the_glossary_forbids() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let rows = glossary.split(FORBIDDEN).nth(1).expect("the glossary has the table").lines();
    let rows = rows.filter(|line| line.starts_with('|')).skip(2);
    let forbidden: Vec<&str> = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(',')).map(str::trim).collect();
    assert!(forbidden.len() > 5, "the table was not read: {forbidden:?}");
    let mut offences = Vec::new();
    for (file, text) in pages() {
        for (at, paragraph) in paragraphs(&text) {
            let spoken: String =
                paragraph.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
            let spoken = format!(" {} ", spoken.split_whitespace().collect::<Vec<_>>().join(" "));
            let is_used = |word: &&&str| spoken.contains(&format!(" {} ", word.replace('-', " ")));
            offences.extend(forbidden.iter().filter(is_used).map(|word| format!("{file}:{at}: {word}")));
        }
    }
    assert_none("words that docs/glossary.md forbids", offences);
}

/// Returns whether the first sentence of a doc comment has a verb, roughly: an auxiliary, or a word that ends in `s`
/// or `ed`, as verbs of the third person and plurals do. It misses some offences, but has no known false alarms.
fn has_verb(sentence: &str) -> bool {
    let auxiliaries = [
        "is", "was", "are", "were", "be", "been", "has", "have", "had", "can", "could", "may", "might", "must", "will",
        "would", "do", "does", "did", "if", "see", "asks",
    ];
    // A heading such as `# Safety`.
    let is_heading = sentence.trim().starts_with("# ");
    let mut words =
        plain(sentence).split(|c: char| !c.is_alphabetic()).map(str::to_lowercase).collect::<Vec<_>>().into_iter();
    is_heading
        || words.any(|word| {
            let is_third_person = word.len() > 3 && word.ends_with('s') && !word.ends_with("ss");
            auxiliaries.contains(&word.as_str()) || is_third_person || word.ends_with("ed")
        })
}

/// Returns the doc comments of public functions, as line number and first sentence.
fn function_docs(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut doc, mut begins) = (Vec::new(), String::new(), 0);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("///") {
            begins = if doc.is_empty() { at + 1 } else { begins };
            doc.push_str(words);
        } else if !line.starts_with('#') {
            let words: Vec<&str> = line.split(' ').collect();
            let is_function = words[0].starts_with("pub") && words.iter().take(4).any(|word| *word == "fn");
            let is_exported = line.contains("extern");
            if is_function && !is_exported && !doc.is_empty() {
                found.push((begins, doc.split(". ").next().unwrap_or_default().to_owned()));
            }
            doc.clear();
        }
    }
    found
}

#[test]
fn the_first_sentence_of_a_function_doc_has_a_verb() {
    let is_checked =
        |file: &str| ["crates/", "lab/"].iter().any(|root| file.starts_with(root)) && file.contains("/src/");
    let mut offences = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| is_checked(file)) {
        let silent = function_docs(&text).into_iter().filter(|(_, sentence)| !has_verb(sentence));
        offences.extend(silent.map(|(at, sentence)| format!("{file}:{at}:{sentence}")));
    }
    assert_none("doc comments of functions without a verb", offences);
}

#[test]
fn the_prose_linter_finds_seeded_offences() {
    let long = "word ".repeat(41) + "ends.\n\nShort.\n\n```\n" + &"code ".repeat(50) + "\n```\n";
    let found = paragraphs(&long);
    assert_eq!((found.len(), found[0].0, words(&found[0].1)), (2, 1, 42));
    assert_eq!(
        paragraphs("- one\n  two\n- three [four](five)\n"),
        [(1, "- one two".into()), (3, "- three [four".into())]
    );
    assert_eq!(sentences("One is. Two `a.b` are (both)? Three").len(), 3);
    assert!(has_verb("Returns the offset.") && has_verb("True if it is.") && !has_verb("The segment of a part."));
    assert_eq!(
        function_docs("/// One.\n/// Two.\n#[inline]\npub fn a() {}\n/// None.\nfn b() {}\n"),
        [(1, " One".into())]
    );
}

#[test]
fn the_diagrams_are_drawn_from_their_text() {
    for (file, _) in files(&[".txt"]).into_iter().filter(|(file, _)| file.starts_with("docs/img/")) {
        let drawn = std::process::Command::new(root().join("scripts/diagrams.sh")).arg(&file).output().unwrap();
        assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
        let picture = fs::read_to_string(root().join(file.replace(".txt", ".svg"))).unwrap();
        assert!(picture == String::from_utf8_lossy(&drawn.stdout), "{file} has changed; run scripts/diagrams.sh");
    }
}

/// Returns the names of source files, pages and scripts in a line.
fn file_names(line: &str) -> impl Iterator<Item = &str> {
    let words =
        line.split(|c: char| !c.is_alphanumeric() && !"_-./*$".contains(c)).map(|word| word.trim_end_matches('.'));
    let is_name =
        |word: &str| [".rs", ".md", ".sh"].iter().any(|ending| word.len() > ending.len() && word.ends_with(ending));
    // Left out are patterns, paths that a program assembles, and build output. FILE.md stands for a name that the
    // user gives.
    let is_open = |word: &&str| word.contains(['*', '$']) || word.starts_with("target/") || word.starts_with("FILE.");
    words.filter(move |word| is_name(word) && !is_open(word))
}

#[test]
fn every_file_mentioned_in_docs_and_comments_exists() {
    let all: Vec<String> = files(&[".rs", ".md", ".sh"]).into_iter().map(|(file, _)| format!("/{file}")).collect();
    let exists = |name: &str| {
        let name = name.trim_start_matches("../").trim_start_matches("./").trim_start_matches('/');
        all.iter().any(|file| file.ends_with(&format!("/{name}")))
    };
    let mut offences = Vec::new();
    for (file, text) in files(&[".rs", ".toml", ".sh", ".md", "Makefile", "run"]) {
        // The crates in it are fictitious.
        if file.starts_with("tests/tests/rooms") {
            continue;
        }
        offences.extend(offending_lines(&file, &text, |line| file_names(line).any(|name| !exists(name))));
    }
    assert_none("files that do not exist", offences);
}

/// First lines of the tables that are maps of a room.
const MAP_HEADS: [&str; 3] = ["//! | file |", "//! | module |", "//! | room |"];

/// Returns the modules that a source file declares, without its tests.
fn declared_modules(text: &str) -> Vec<&str> {
    let declares = |line: &&str| line.starts_with("mod ") || line.starts_with("pub") && line.contains(" mod ");
    let names = text.lines().filter(declares).filter_map(|line| line.strip_suffix(';')?.rsplit(' ').next());
    names.filter(|name| *name != "tests").collect()
}

/// Returns the modules that the map at the head of a file lists; `None`: it has no map.
fn mapped_modules(text: &str) -> Option<Vec<String>> {
    let head: Vec<&str> = text.lines().filter(|line| line.starts_with("//!")).collect();
    let start = head.iter().position(|line| MAP_HEADS.iter().any(|map| line.starts_with(map)))?;
    let rows = head[start + 1..].iter().take_while(|line| line.starts_with("//! |"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    Some(names.map(|name| name.trim_end_matches(".rs").trim_end_matches('/').to_owned()).collect())
}

/// Returns where the map of a file differs from the modules that the file declares. The file itself may be listed, as
/// `mod`.
fn map_offences(text: &str) -> Vec<String> {
    let declared = declared_modules(text);
    let Some(mapped) = mapped_modules(text).filter(|_| !declared.is_empty()) else { return Vec::new() };
    let forgotten = declared.iter().filter(|name| !mapped.iter().any(|other| other == *name));
    let gone = mapped.iter().filter(|name| *name != "mod" && !declared.contains(&name.as_str()));
    let forgotten = forgotten.map(|name| format!("`{name}` is not in the map"));
    forgotten.chain(gone.map(|name| format!("`{name}` is in the map and no module"))).collect()
}

#[test]
fn the_map_of_a_room_lists_each_of_its_files_and_nothing_else() {
    let offences = sources()
        .into_iter()
        .flat_map(|(file, text)| map_offences(&text).into_iter().map(move |offence| format!("{file}: {offence}")));
    assert_none("the table at the head of a module lists all modules below it", offences.collect());
    let wrong = "//! | file | contents |\n//! |---|---|\n//! | `a`, `c/` | x |\n\nmod a;\npub(crate) mod b;\n";
    assert_eq!(map_offences(wrong), ["`b` is not in the map", "`c` is in the map and no module"]);
}

/// A room with fewer files than this needs no map.
const FILES_WITHOUT_MAP_MAX: usize = 2;

#[test]
fn every_room_of_the_file_system_has_a_map() {
    let is_room = |file: &str| {
        let parts: Vec<&str> = file.split('/').collect();
        // The files of `races` are tests; its head says what they have in common.
        matches!(parts[..], ["crates", "nvfold", "src", room, "mod.rs"] if room != "races")
    };
    let rooms: Vec<_> = sources().into_iter().filter(|(file, _)| is_room(file)).collect();
    assert!(rooms.len() >= 10, "the rooms were not found");
    let needs_map = |text: &str| declared_modules(text).len() > FILES_WITHOUT_MAP_MAX;
    let offences = rooms.into_iter().filter(|(_, text)| needs_map(text) && mapped_modules(text).is_none());
    assert_none("rooms without a table of their files", offences.map(|(file, _)| file).collect());
}

#[test]
fn architecture_md_has_at_most_3000_words() {
    let words = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().split_whitespace().count();
    assert!(words <= 3000, "{words} words: details go to the heads of the modules and to docs/");
}

#[test]
fn the_lock_order_is_written_in_one_place() {
    let heads = sources().into_iter().filter(|(file, _)| file.starts_with("crates/nvfold/src/"));
    let files: Vec<String> =
        heads.filter(|(_, text)| text.contains("//! **Lock order**")).map(|(file, _)| file).collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

/// Words that a stranger must read twice in the name of a test, and the first words of sentences without a subject.
const ODD_WORDS: [&str; 14] = [
    "told", "tell", "tells", "say", "says", "said", "behind", "beside", "anew", "whoever", "whatever", "nobody",
    "wholly", "whence",
];
const ODD_BEGINNINGS: [&str; 8] = ["what", "who", "whose", "it", "of", "that", "though", "where"];

/// Returns the names of the tests in a source file.
fn test_names(text: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        is_test |= line.starts_with("#[test") || line.ends_with("::test]");
        let name = line.split_once("fn ").filter(|(before, _)| ["", "pub ", "async "].contains(before));
        if let Some((_, rest)) = name {
            names.extend(rest.split(['(', '<']).next().filter(|_| is_test));
            is_test = false;
        }
    }
    names
}

fn is_odd(name: &str) -> bool {
    // scripts/miri.sh runs these by name, and expects Miri to object.
    let is_expected_to_fail = name.starts_with("on_purpose_");
    let mut words = name.split('_');
    let begins_oddly = words.clone().next().is_some_and(|first| ODD_BEGINNINGS.contains(&first));
    !is_expected_to_fail && (begins_oddly || words.any(|word| ODD_WORDS.contains(&word)))
}

/// The name of a test is a promise: subject, what happens, under which condition.
#[test]
fn names_of_tests_have_a_subject_and_plain_verbs() {
    let odd = |(file, text): &(String, String)| {
        let names = test_names(text).into_iter().filter(|name| is_odd(name));
        names.map(|name| format!("{file}: {name}")).collect::<Vec<_>>()
    };
    assert_none("names of tests that must be read twice", sources().iter().flat_map(odd).collect());
    let seeded = "#[test]\nfn a_call_is_told() {}\n#[test]\n#[ignore]\nfn what_is_free() {}\nfn it_helps() {}\n";
    assert_eq!(test_names(seeded), ["a_call_is_told", "what_is_free"]);
    assert!(test_names(seeded).into_iter().all(is_odd));
    assert!(!is_odd("a_lost_device_gives_eio"));
}

/// CHANGELOG.md is for users: what a version gives them, by kind.
#[test]
fn the_changelog_of_a_version_is_one_page() {
    const LINES_MAX: usize = 150;
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    for version in changelog.split("\n## [").skip(1) {
        let lines = version.lines().count();
        assert!(lines <= LINES_MAX, "version {}: {lines} lines", version.lines().next().unwrap_or_default());
    }
}

/// Returns the lines of a module's head that begin as the line before them does: half a sentence that was left behind.
fn repeated_lines(text: &str) -> Vec<&str> {
    const START: usize = 40;
    let lines: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let is_prose = |line: &str| line.as_bytes().get(4).is_some_and(u8::is_ascii_alphabetic);
    let is_repeated =
        |pair: &&[&str]| is_prose(pair[0]) && pair[0].get(..START).is_some_and(|start| pair[1].starts_with(start));
    lines.windows(2).filter(is_repeated).map(|pair| pair[1]).collect()
}

#[test]
fn no_module_head_repeats_a_line() {
    let offences = sources().into_iter().flat_map(|(file, text)| {
        repeated_lines(&text).into_iter().map(|line| format!("{file}: {line}")).collect::<Vec<_>>()
    });
    assert_none("each line is said once", offences.collect());
    let twice =
        "//! cannot fail. The last blocks are kept for that, so\n//! cannot fail. The last blocks are kept for that:\n";
    assert_eq!(repeated_lines(twice).len(), 1);
}

/// Returns the types that a file declares, without those that only tests compile. Associated types belong to their trait.
fn declared_types(text: &str) -> Vec<&str> {
    let code = &text[..text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len())];
    let start_of_name = |line: &str| {
        let start = line.len() - line.trim_start().len();
        let is_restricted = line[start..].starts_with("pub(");
        let visibility = match line[start..].find(if is_restricted { ") " } else { "pub " }) {
            Some(end) if is_restricted => end + ") ".len(),
            Some(0) => "pub ".len(),
            _ => 0,
        };
        let keywords: &[&str] = &["struct ", "enum ", "union ", "trait ", "type "][..if start > 0 { 4 } else { 5 }];
        let keyword = keywords.iter().find(|keyword| line[start + visibility..].starts_with(**keyword))?;
        Some(start + visibility + keyword.len())
    };
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    code.lines().filter_map(|line| line[start_of_name(line)?..].split(is_end).next()).collect()
}

/// Returns the names that several types have, with the files that declare them.
fn names_used_twice(sources: &[(String, String)]) -> Vec<String> {
    let mut declared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, text) in sources {
        declared_types(text).into_iter().for_each(|name| declared.entry(name).or_default().push(file));
    }
    let twice = declared.iter().filter(|(_, files)| files.len() > 1);
    twice.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect()
}

#[test]
fn every_type_of_the_core_has_a_name_of_its_own() {
    const CORE: &str = "crates/nvfold/src/";
    let is_test = |file: &str| file.contains("/races/") || file.contains("/tests/") || file.ends_with("/tests.rs");
    let of_core = sources().into_iter().filter(|(file, _)| file.starts_with(CORE) && !is_test(file));
    let sources: Vec<(String, String)> = of_core.collect();
    assert!(sources.len() > 100, "the files were not found");
    assert_none("names of several types; each says what it is", names_used_twice(&sources));
}

#[test]
fn a_seeded_second_type_with_the_same_name_is_found() {
    let twice = |second: &str| {
        names_used_twice(&[("one".into(), "pub(crate) struct Part<'a>(u8);".into()), ("other".into(), second.into())])
    };
    for second in
        ["struct Part;", "pub enum Part {}", "type Part = u8;", "fn f() {\n    struct Part {}\n}", "pub trait Part {"]
    {
        assert_eq!(twice(second), ["Part: one, other"], "{second}");
    }
    for second in [
        "struct Parts;",
        "impl Iterator for Parts {\n    type Part = u8;",
        "/// struct Part",
        "use a::Part;",
        "#[cfg(test)]\nmod tests {\n    struct Part;",
    ] {
        assert_eq!(twice(second), Vec::<String>::new(), "{second}");
    }
}

/// Returns true if three numbers follow one another in a text, with commas between them.
fn is_a_list_of_numbers(text: &str) -> bool {
    let is_number = |part: &str| {
        let word = part.split_whitespace().next_back().unwrap_or_default();
        !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let parts: Vec<&str> = text.split(", ").collect();
    parts.windows(3).any(|three| is_number(three[0]) && is_number(three[1]) && three[1].split_whitespace().count() == 1)
}

/// A caption says what a figure shows; the values are in its tables.
#[test]
fn no_figure_caption_is_a_list_of_numbers() {
    let captions = files(&[".json"]).into_iter().filter(|(file, _)| file.starts_with("docs/results/")).filter_map(
        |(file, text)| {
            let figure: serde_json::Value = serde_json::from_str(&text).expect("a result is JSON");
            Some((file, figure["reading"].as_str()?.to_string()))
        },
    );
    let offences =
        captions.filter(|(_, text)| is_a_list_of_numbers(text)).map(|(file, text)| format!("{file}: {text}"));
    assert_none("a caption says what a figure shows", offences.collect());
    assert!(is_a_list_of_numbers("slower by 44.2, 44.7, 44.7, 72.6 % (one value per aim)"));
    assert!(!is_a_list_of_numbers("from 5.12 % on one, from 0.74 % on another, 3 on the third"));
}

/// Returns the targets of the links in a Markdown text, outside code blocks.
pub(crate) fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push(rest[..end].to_owned());
        }
        // Pictures that HTML sizes.
        for part in line.split("src=\"").skip(1) {
            found.extend(part.split('"').next().map(String::from));
        }
    }
    found
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept: String = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
    kept.replace(' ', "-")
}

/// Returns how many aims a page of results says are met, as `2 of 8`.
fn aims_met(page: &str) -> Option<&str> {
    page.lines().find_map(|line| line.strip_prefix("## Aims: ")?.strip_suffix(" met"))
}

#[test]
fn the_docs_count_the_aims_met_as_the_pages_of_results_do() {
    let seeded = "# A paper\n\n## Aims: 2 of 8 met\n";
    assert_eq!(aims_met(seeded), Some("2 of 8"));
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    for paper in ["nv-dedup", "denova", "deext", "icid"] {
        let page = format!("results/{paper}/README.md");
        let text = read(&format!("docs/{page}"));
        let link = format!("[{}]({page})", aims_met(&text).unwrap_or_else(|| panic!("{page} counts its aims")));
        for doc in ["docs/papers.md", "docs/benchmarks.md"] {
            assert!(read(doc).contains(&link), "{doc} has {link}");
        }
    }
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    let mut offences = Vec::new();
    for (file, text) in files(&[".md"]) {
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let here = root().join(&file);
            let target = if path.is_empty() { here } else { here.parent().unwrap().join(path) };
            if !target.exists() {
                offences.push(format!("{file}: {link}"));
            } else if !fragment.is_empty() {
                let headings = fs::read_to_string(&target).unwrap();
                if !headings.lines().any(|line| line.starts_with('#') && anchor(line) == fragment) {
                    offences.push(format!("{file}: {link}: no such heading"));
                }
            }
        }
    }
    assert_none("links that lead nowhere", offences);
}

#[test]
fn every_page_can_be_reached_from_the_readme() {
    let pages: BTreeMap<String, String> = files(&[".md"]).into_iter().collect();
    let mut reached = vec!["README.md".to_owned()];
    let mut at = 0;
    while at < reached.len() {
        let folder = Path::new(&reached[at]).parent().unwrap().to_owned();
        for link in links(&pages[&reached[at]]) {
            let joined = folder.join(link.split('#').next().unwrap_or_default());
            let mut parts: Vec<String> = Vec::new();
            for part in joined.iter().map(|part| part.to_string_lossy()) {
                if part == ".." {
                    parts.pop();
                } else {
                    parts.push(part.into_owned());
                }
            }
            let page = parts.join("/");
            if pages.contains_key(&page) && !reached.contains(&page) {
                reached.push(page);
            }
        }
        at += 1;
    }
    let lost = pages.keys().filter(|page| !reached.contains(page)).cloned().collect();
    assert_none("pages that no link leads to", lost);
}

#[test]
fn the_changelog_mentions_the_version() {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(changelog.contains(&format!("## [{version}]")), "CHANGELOG.md has no section for version {version}");
}

/// A field of a media struct: offset, bytes, name.
type Field = (u64, u64, String);

/// Returns the `#[repr(C)]` structs in a source file with their fields, laid out without gaps (which zerocopy's
/// `IntoBytes` guarantees).
fn media_structs(text: &str, sizes: &BTreeMap<String, u64>) -> Vec<(String, Vec<Field>)> {
    let mut structs = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[repr(C)]" {
            continue;
        }
        let head = lines.next().expect("a struct follows its repr");
        let name = head.split("struct ").nth(1).expect("a struct").trim_end_matches(" {").to_owned();
        let (mut fields, mut offset) = (Vec::new(), 0);
        for line in lines.by_ref().take_while(|line| *line != "}") {
            let line = line.trim().trim_start_matches("pub ");
            if line.is_empty() || line.starts_with("//") || line.starts_with('#') {
                continue;
            }
            let (field, kind) = line.trim_end_matches(',').split_once(": ").expect("a field");
            let bytes = size_of_type(kind, sizes);
            fields.push((offset, bytes, field.to_owned()));
            offset += bytes;
        }
        structs.push((name, fields));
    }
    structs
}

fn size_of_type(kind: &str, sizes: &BTreeMap<String, u64>) -> u64 {
    if let Some((element, count)) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')?.split_once("; ")) {
        let count = count.parse().unwrap_or_else(|_| sizes[count]);
        return size_of_type(element, sizes) * count;
    }
    match kind {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" | "i64" | "TimeNs" => 8,
        other => *sizes.get(other).unwrap_or_else(|| panic!("unknown type {other} in a media struct")),
    }
}

/// Returns the tables of docs/media-format.md: name and size from the comment above, then the rows.
fn documented_structs(text: &str) -> BTreeMap<String, (u64, Vec<Field>)> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("<!-- struct ").and_then(|line| line.strip_suffix(" -->")) else {
            continue;
        };
        let (name, size) = head.split_once(' ').expect("name and size");
        let mut fields = Vec::new();
        for row in lines.by_ref().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            fields.push((cells[1].parse().unwrap(), cells[2].parse().unwrap(), cells[3].trim_matches('`').to_owned()));
        }
        found.insert(name.to_owned(), (size.parse().unwrap(), fields));
    }
    found
}

#[test]
fn the_structs_in_the_format_page_match_the_code() {
    let page = fs::read_to_string(root().join("docs/media-format.md")).unwrap();
    let mut documented = documented_structs(&page);
    let sizes = BTreeMap::from([
        ("WordStore".to_owned(), 16),
        ("JOURNAL_WORDS".to_owned(), 7),
        ("SavedRun".to_owned(), 16),
        ("SAVED_RUNS".to_owned(), 248),
        ("ZONES_MAX".to_owned(), 32),
    ]);
    assert_eq!(size_of::<nvfold::internals::media::journal::WordStore>(), 16);
    assert_eq!(nvfold::internals::media::journal::JOURNAL_WORDS, 7);
    assert_eq!(size_of::<nvfold::internals::media::saved_state::SavedRun>(), 16);
    assert_eq!(nvfold::internals::media::saved_state::SAVED_RUNS, 248);
    assert_eq!(nvfold::internals::media::zone::ZONES_MAX, 32);
    let media = sources().into_iter().filter(|(file, _)| file.starts_with("crates/nvfold/src/media/"));
    for (name, fields) in media.flat_map(|(_, text)| media_structs(&text, &sizes)) {
        let (size, rows) = documented.remove(&name).unwrap_or_else(|| panic!("{name} is not in docs/media-format.md"));
        assert_eq!(rows, fields, "{name}: the page and the code differ");
        let (offset, bytes, _) = fields.last().expect("a struct has fields");
        assert_eq!(size, offset + bytes, "{name}: size");
    }
    assert!(documented.is_empty(), "the page has structs that the code has not: {:?}", documented.keys());
}

#[test]
fn the_offsets_in_the_format_page_match_the_code() {
    use nvfold::internals::media::superblock::Geometry;
    let geometry = Geometry::of(64 << 20).unwrap();
    let page = fs::read_to_string(root().join("docs/media-format.md")).unwrap();
    for (field, offset) in
        [("journal_offset", geometry.journal_offset), ("segment_table_offset", geometry.segment_table_offset)]
    {
        let row = page.lines().find(|line| line.contains(&format!("`{field}`"))).expect("a row");
        assert!(row.contains(&format!("| {offset} |")), "{field} is {offset}; the page says: {row}");
    }
}

#[test]
fn docs_cli_md_matches_the_help_of_the_command() {
    let Some(nvfold) = std::env::var_os("NVFOLD_BIN") else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "NVFOLD_BIN is not set; run `make test`");
        return eprintln!("skipped: NVFOLD_BIN does not name the command; run `make test`");
    };
    let script = root().join("scripts/cli-page.sh");
    let output = std::process::Command::new(script).env("NVFOLD_BIN", nvfold).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(root().join("docs/cli.md")).unwrap();
    assert!(page == String::from_utf8_lossy(&output.stdout), "docs/cli.md is out of date; run `make cli-page`");
}
