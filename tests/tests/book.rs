//! The book of `make book`: which pages it has, and that the messages on its page about messages exist. That its links
//! lead somewhere is a test of `tidy`, that its commands are understood a test of the command (`pages`). The commands of
//! the pages on first steps and on uses are run, as those on operating are (`operating`).

use super::tidy::{assert_none, files, links};
use nvfold_tests::{pages, requires};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns the path from the root to which a link in a page leads, without its anchor; `None` out of the repository.
fn target(page: &str, link: &str) -> Option<String> {
    let path = link.split('#').next().filter(|path| !path.is_empty() && !path.contains("://"))?;
    let mut parts: Vec<String> = Vec::new();
    for part in Path::new(page).parent()?.join(path).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    Some(parts.join("/"))
}

/// Returns the pages that the text of the summary names, in its order.
fn chapters(summary: &str) -> Vec<String> {
    links(summary).iter().filter_map(|link| target(SUMMARY, link)).collect()
}

/// Returns what is wrong with the choice of pages.
fn wrong_choices(pages: &BTreeMap<String, String>) -> Vec<String> {
    let chapters = chapters(&pages[SUMMARY]);
    let chosen: BTreeSet<&String> = chapters.iter().collect();
    let forgotten = pages.keys().filter(|page| page.starts_with("docs/") && !chosen.contains(page));
    let mut wrong: Vec<String> = forgotten.map(|page| format!("{page} is not in {SUMMARY}")).collect();
    wrong.extend(chosen.iter().filter(|page| !pages.contains_key(**page)).map(|page| format!("{page} does not exist")));
    if chosen.len() < chapters.len() {
        wrong.push("a page is there twice".into());
    }
    for page in chosen.iter().filter(|page| pages.contains_key(**page)) {
        let targets = links(&pages[*page]).into_iter().filter_map(|link| target(page, &link));
        let lost = targets.filter(|target| target.ends_with(".md") && !chosen.contains(target));
        wrong.extend(lost.map(|target| format!("{page} links to {target}, which is not in {SUMMARY}")));
    }
    wrong
}

#[test]
fn every_page_below_docs_has_its_place_in_the_book() {
    assert_none("pages of the book", wrong_choices(&files(&[".md"]).into_iter().collect()));
}

#[test]
fn a_seeded_page_without_a_place_in_the_book_is_found() {
    let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let right = [
        page(SUMMARY, "[Start](../README.md)\n- [One](faq.md)\n- [All](SUMMARY.md)"),
        page("README.md", "[o](docs/faq.md#a)"),
    ];
    let with = |more: &[(String, String)]| wrong_choices(&right.iter().chain(more).cloned().collect());
    assert_eq!(with(&[page("docs/faq.md", "")]), Vec::<String>::new());
    assert_eq!(with(&[]), ["docs/faq.md does not exist"]);
    assert_eq!(
        with(&[page("docs/faq.md", ""), page("docs/limits.md", "")]),
        ["docs/limits.md is not in docs/SUMMARY.md"]
    );
    assert_eq!(with(&[page("docs/faq.md", "[a](../SECURITY.md)"), page("SECURITY.md", "")]).len(), 1);
}

/// Returns text with one space for each run of white space, without the quotes and line ends of Rust's strings.
fn flattened(text: &str) -> String {
    text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the messages of a page: the code in the first cell of each row of a table.
fn messages(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[test]
fn every_message_on_the_page_about_messages_is_one_of_nvfold() {
    let pages: BTreeMap<String, String> = files(&[".md"]).into_iter().collect();
    let is_source = |file: &str| file.starts_with("crates/") && (file.contains("/src/") || file.ends_with(".snap"));
    let sources = files(&[".rs", ".snap"]).into_iter().filter(|(file, _)| is_source(file));
    let said: Vec<String> = sources.map(|(_, text)| flattened(&text)).collect();
    // Messages of the kernel, which nvfold passes on, are in the snapshots.
    let wanted = messages(&pages["docs/troubleshooting.md"]);
    assert!(wanted.len() > 20, "the messages were not found");
    let unknown = wanted.into_iter().filter(|message| !said.iter().any(|text| text.contains(message)));
    assert_none("messages that nvfold does not print", unknown.map(String::from).collect());
}

#[test]
fn the_first_steps_work() {
    requires!(root, fuse, tool("unshare"));
    pages::run("docs/first-steps.md");
}

#[test]
fn the_commands_on_choosing_a_policy_work() {
    requires!(root, fuse, tool("unshare"));
    pages::run("docs/choosing-a-policy.md");
}

#[test]
fn the_commands_on_worktrees_and_ci_work() {
    requires!(root, fuse, tool("unshare"));
    pages::run("docs/worktrees-and-ci.md");
}

#[test]
fn the_commands_on_databases_work() {
    requires!(root, fuse, tool("unshare"));
    pages::run("docs/databases.md");
}

#[test]
fn the_commands_on_models_work() {
    requires!(root, fuse, tool("unshare"));
    pages::run("docs/models.md");
}
