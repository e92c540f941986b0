//! The commands in the pages of the repository are commands that this program understands: verbs, options and values are
//! checked by the definition of the command line, mount options by the parser of `nvfold mount`. Nothing is run.
//!
//! | place in a page | what is checked |
//! |---|---|
//! | `sh` blocks, and lines after `$ ` in other blocks | the whole command |
//! | lines of fstab | the mount options |
//! | `code` in the text that begins with `nvfold` | the verbs and the names of the options; the rest may be missing |

use crate::definition;
use crate::mount::Options;
use crate::names::as_nvfold;
use clap::Command;
use clap::error::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};

/// Code in a text that begins with the name and is no command, with what it is.
const NOT_COMMANDS: [(&str, &str); 1] = [("nvfold chunk md5", "the context of a key of BLAKE3")];

/// A page: its path from the root of the repository, and its text.
type Page = (String, String);

/// Returns all pages of the repository.
fn pages() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = vec![root.clone()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("list a directory") {
            let path = entry.expect("list a directory").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                pending.push(path);
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(&path).expect("read a page");
                found.push((path.strip_prefix(&root).expect("below the root").display().to_string(), text));
            }
        }
    }
    assert!(found.len() > 30, "the pages were not found");
    found
}

/// The lines of a page in blocks, each with its number and the language of its block; and the text beside them.
struct Parts<'t> {
    lines: Vec<(usize, &'t str, String)>,
    prose: String,
}

/// Takes a page apart. A line that ends in a backslash goes on in the next one.
fn parts(text: &str) -> Parts<'_> {
    let mut parts = Parts { lines: Vec::new(), prose: String::new() };
    let mut language = None;
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(fence.trim()) };
            goes_on = false;
        } else if let Some(language) = language {
            let begun = if goes_on { parts.lines.pop() } else { None };
            let (number, start) = begun.map_or((at + 1, String::new()), |(number, _, start)| (number, start));
            goes_on = line.ends_with('\\');
            parts.lines.push((number, language, start + line.trim_end_matches('\\')));
        } else {
            parts.prose.push_str(line);
            parts.prose.push(' ');
        }
    }
    parts
}

/// Returns true if a program's name may stand after `before` in a line of shell.
fn is_command_position(before: &str) -> bool {
    let before = before.trim_end();
    let words = ["do", "then", "else", "if", "sudo", "time", "exec", "--"];
    before.is_empty()
        || before.ends_with(['|', ';', '&', '(', '!', '{', '$'])
        || words.iter().any(|word| before.split(' ').next_back() == Some(word))
}

/// Returns the words of a command up to the end of it: an operator of the shell, or a comment.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let word = words.last_mut().expect("there is one");
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '\\') => word.extend(rest.next()),
            (None, '#') if word.is_empty() => break,
            // The number before a redirection is no argument.
            (None, '>') if word.len() == 1 && word.starts_with(|c: char| c.is_ascii_digit()) => {
                word.clear();
                break;
            }
            (None, '|' | ';' | '&' | ')' | '>' | '<') => break,
            (None, c) if c.is_whitespace() => words.push(String::new()),
            (None, c) => word.push(c),
        }
    }
    words.into_iter().filter(|word| !word.is_empty() && word != "...").collect()
}

/// Returns the calls of `nvfold` in a line of shell, also those in `$(...)`, as words.
fn calls(line: &str) -> Vec<Vec<String>> {
    const NAME: &str = "nvfold ";
    let starts = line.match_indices(NAME).filter(|(at, _)| is_command_position(&line[..*at]));
    starts.map(|(at, _)| words(&line[at..])).collect()
}

/// Returns why this program does not understand a call.
fn why_wrong(call: &[String]) -> Option<String> {
    let arguments = as_nvfold(call.iter().map(Into::into).collect());
    let matches = match definition().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => return None,
        // A value that the shell fills in.
        Err(error) if error.kind() == ErrorKind::ValueValidation && call.iter().any(|word| word.contains('$')) => {
            return None;
        }
        Err(error) => return Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    };
    let mount = matches.subcommand_matches("mount")?;
    let mut lists = mount.get_many::<String>("options").into_iter().flatten();
    lists.find_map(|list| why_wrong_options(list))
}

/// Returns why a list of mount options is not understood.
fn why_wrong_options(list: &str) -> Option<String> {
    let is_filled_in = list.contains('$');
    let refused = !is_filled_in && Options::new(true).take(list).is_err();
    refused.then(|| format!("wrong mount options: {list}"))
}

/// Returns the mount options of a line of fstab that mounts nvfold.
fn fstab_options(line: &str) -> Option<&str> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, dir, "fuse.nvfold" | "nvfold", options, ..] if dir.starts_with('/') => Some(options),
        _ => None,
    }
}

/// Returns what a piece of code in a text names that this program has not: a verb, or an option of that verb.
fn unknown_name(code: &str, cli: &Command) -> Option<String> {
    let mut command = cli;
    let mut below: Vec<&Command> = vec![cli];
    for word in words(code).iter().skip(1) {
        if word == "--" {
            break;
        }
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split(['=', '[']).next().unwrap_or_default();
            let is_known = |command: &&Command| command.get_arguments().any(|arg| arg.get_long() == Some(name));
            if !below.iter().any(is_known) && !["help", "help-research", "version"].contains(&name) {
                return Some(format!("--{name}"));
            }
        } else if let Some(verb) = command.find_subcommand(word) {
            command = verb;
            below.push(verb);
        } else if below.len() == 1 && word.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Some(word.clone());
        }
    }
    None
}

/// Returns what is wrong in a page, a line each.
fn offences(file: &str, text: &str, cli: &Command) -> Vec<String> {
    let parts = parts(text);
    let mut found = Vec::new();
    for (number, language, line) in &parts.lines {
        let shell = match *language {
            "sh" => Some(line.as_str()),
            _ => line.strip_prefix("$ "),
        };
        for call in shell.map(calls).unwrap_or_default() {
            found.extend(why_wrong(&call).map(|why| format!("{file}:{number}: {}: {why}", call.join(" "))));
        }
        let options = fstab_options(line).and_then(why_wrong_options);
        found.extend(options.map(|why| format!("{file}:{number}: {why}")));
    }
    let is_command = |code: &&str| code.starts_with("nvfold ") && !NOT_COMMANDS.iter().any(|(other, _)| other == code);
    for code in parts.prose.split('`').skip(1).step_by(2).filter(is_command) {
        found.extend(unknown_name(code, cli).map(|name| format!("{file}: `{code}`: there is no {name}")));
    }
    found
}

fn built() -> Command {
    let mut cli = definition();
    cli.build();
    cli
}

#[test]
fn every_command_in_the_pages_is_understood() {
    let cli = built();
    let pages = pages();
    let found: Vec<String> = pages.iter().flat_map(|(file, text)| offences(file, text, &cli)).collect();
    assert!(found.is_empty(), "commands that nvfold does not understand:\n  {}", found.join("\n  "));
}

#[test]
fn the_commands_in_a_page_are_found_with_their_quotes_pipes_and_comments() {
    let page = "```sh\nsudo nvfold df # nvfold no\nkill \"$(nvfold stats /tmp/a --json | grep x)\"\nls /nvfold x\n\
                nvfold estimate 'a b' \\\n   c 2>/dev/null || true\n```\n\n```text\n$ nvfold sync m\nnvfold no\n```\n";
    let parts = parts(page);
    let found: Vec<Vec<String>> = parts.lines.iter().flat_map(|(_, _, line)| calls(line)).collect();
    assert_eq!(
        found,
        [
            vec!["nvfold", "df"],
            vec!["nvfold", "stats", "/tmp/a", "--json"],
            vec!["nvfold", "estimate", "a b", "c"],
            vec!["nvfold", "sync", "m"],
            vec!["nvfold", "no"],
        ]
    );
    assert_eq!(offences("page", page, &built()), Vec::<String>::new(), "output is not a command");
    let page = "```sh\nnvfold set limit=$LIMIT \"$dir\"\nnvfold mount mem: /mnt -o size=$SIZE\n```\n";
    assert_eq!(offences("page", page, &built()), Vec::<String>::new(), "values of variables are unknown");
}

#[test]
fn seeded_commands_that_nvfold_does_not_have_are_found() {
    let cli = built();
    for page in [
        "```sh\nnvfold klone a b\n```",
        "```sh\nnvfold clone a\n```",
        "```sh\nnvfold df --jason\n```",
        "```sh\nx && nvfold mount mem: /tmp/a -o size=8G,polcy=inline\n```",
        "```sh\nnvfold set limit=many /tmp/a\n```",
        "```text\n$ nvfold snapshot create\n```",
        "```text\n/var/lib/pool /srv fuse.nvfold noauto,alow_other 0 0\n```",
        "Use `nvfold klone` here.",
        "Use `nvfold df --jason\nnow` here.",
    ] {
        assert_eq!(offences("page", page, &cli).len(), 1, "{page}: {:?}", offences("page", page, &cli));
    }
}
