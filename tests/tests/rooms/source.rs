//! The names in a Rust source file: the paths of its `use` declarations and of its code.
//!
//! The problem: dependencies are in nested `use` trees, in paths in the middle of an expression and in macro calls,
//! and the same characters in a comment, a string or a test mean nothing. The idea: cut the text into words and
//! marks, drop what only tests compile, and read the paths from the rest. A parser of the whole language is not
//! needed, and would not look into macro calls.

use std::collections::BTreeSet;

/// Names from the outermost to the innermost.
pub(super) type Path = Vec<String>;

/// A word, a mark (`::` is one) or the content of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub line: usize,
    pub text: String,
    pub is_string: bool,
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        !self.is_string && self.text == text
    }

    pub(super) fn is_word(&self) -> bool {
        !self.is_string && self.text.starts_with(is_word_char)
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The names that a `use` declaration brings into scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// One item, under this name.
    Name(String),
    /// All items of the module.
    All,
}

/// A path that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub line: usize,
    /// Modules of this file that enclose it.
    pub within: Path,
    pub path: Path,
    /// Set for a `use` declaration.
    pub brought: Option<Brought>,
}

/// A source file without the items that only tests compile.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    pub tokens: Vec<Token>,
    pub mentions: Vec<Mention>,
    /// Modules that it declares and that have their own files: names from this file on.
    pub module_files: Vec<Path>,
    /// Items that it declares at its top level.
    pub items: BTreeSet<String>,
}

impl Source {
    pub(super) fn parse(text: &str) -> Source {
        let mut source = Source { tokens: without_tests(&tokens(text)), ..Source::default() };
        let tokens = source.tokens.clone();
        // For each open brace the name of the module that it opens, if it opens one.
        let mut open: Vec<Option<String>> = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let within: Path = open.iter().flatten().cloned().collect();
            at = source.read(&tokens, at, within, &mut open);
        }
        source
    }

    /// Reads the construct at a token; returns the position of the next one.
    fn read(&mut self, tokens: &[Token], at: usize, within: Path, open: &mut Vec<Option<String>>) -> usize {
        let token = &tokens[at];
        let follows = |distance: usize, text: &str| tokens.get(at + distance).is_some_and(|token| token.is(text));
        let word = |distance: usize| tokens.get(at + distance).filter(|token| token.is_word());
        if token.is("{") {
            open.push(None);
            return at + 1;
        }
        if token.is("}") {
            open.pop();
            return at + 1;
        }
        if !token.is_word() {
            return at + 1;
        }
        if let Some(name) = declared(tokens, at)
            && open.is_empty()
        {
            self.items.insert(name);
        }
        match token.text.as_str() {
            "mod" if follows(2, ";") => {
                self.module_files.push(within.into_iter().chain([tokens[at + 1].text.clone()]).collect());
                return at + 3;
            }
            "mod" if follows(2, "{") => {
                open.push(Some(tokens[at + 1].text.clone()));
                return at + 3;
            }
            // `impl Trait + use<'a>` is no declaration.
            "use" if !follows(1, "<") => {
                let mut tree = UseTree { tokens, at: at + 1, within, mentions: &mut self.mentions };
                tree.read(Vec::new());
                return tree.at;
            }
            _ => {}
        }
        let continues = at > 0 && (tokens[at - 1].is(".") || tokens[at - 1].is("::"));
        let mut path = vec![token.text.clone()];
        while let (true, Some(next)) = (follows(2 * path.len() - 1, "::"), word(2 * path.len())) {
            path.push(next.text.clone());
        }
        let end = at + 2 * path.len() - 1;
        if path.len() > 1 && !continues {
            self.mentions.push(Mention { line: token.line, within, path, brought: None });
        }
        end
    }
}

/// Returns the name of the item whose keyword is at this position.
fn declared(tokens: &[Token], at: usize) -> Option<String> {
    const KEYWORDS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"];
    let name = match tokens[at].text.as_str() {
        "macro_rules" => tokens.get(at + 2)?,
        keyword if KEYWORDS.contains(&keyword) => tokens.get(at + 1)?,
        _ => return None,
    };
    name.is_word().then(|| name.text.clone())
}

/// A `use` declaration that is being read.
struct UseTree<'a> {
    tokens: &'a [Token],
    at: usize,
    within: Path,
    mentions: &'a mut Vec<Mention>,
}

impl UseTree<'_> {
    fn text(&self) -> &str {
        self.tokens.get(self.at).map_or(";", |token| &token.text)
    }

    /// Reads one branch, up to the mark behind it.
    fn read(&mut self, mut path: Path) {
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        let (mut brought, mut is_global) = (None, false);
        loop {
            match self.text() {
                "," | "}" | ";" => break,
                "::" => is_global |= path.is_empty(),
                "*" => brought = Some(Brought::All),
                "{" => {
                    loop {
                        self.at += 1;
                        if matches!(self.text(), "}" | ";") {
                            break;
                        }
                        self.read(path.clone());
                        if self.text() != "," {
                            break;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    self.at += 1;
                    brought = Some(Brought::Name(self.text().into()));
                }
                // `a::{self}` is `a`.
                "self" if !path.is_empty() => {}
                name => path.push(name.into()),
            }
            self.at += 1;
        }
        // `::name` is another crate.
        if let (Some(last), false) = (path.last(), is_global) {
            let brought = brought.unwrap_or_else(|| Brought::Name(last.clone()));
            self.mentions.push(Mention { line, within: self.within.clone(), path, brought: Some(brought) });
        }
    }
}

/// Cuts a text into words, marks and strings; leaves out comments, characters and lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let start = at;
        let rest = &chars[at..];
        let mut keep = |text: String, is_string: bool| found.push(Token { line, text, is_string });
        if rest.starts_with(&['/', '/']) {
            at += rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
        } else if rest.starts_with(&['/', '*']) {
            at += block_comment_len(rest);
        } else if let Some((len, content)) = string(rest) {
            keep(content, true);
            at += len;
        } else if let Some(len) = character_len(rest) {
            at += len;
        } else if rest[0] == '\'' {
            at += 1 + rest[1..].iter().take_while(|c| is_word_char(**c)).count();
        } else if is_word_char(rest[0]) {
            // `r#type` is the word `type`.
            let skipped = if rest.starts_with(&['r', '#']) { 2 } else { 0 };
            let len = rest[skipped..].iter().take_while(|c| is_word_char(**c)).count();
            keep(rest[skipped..skipped + len].iter().collect(), false);
            at += skipped + len;
        } else if rest.starts_with(&[':', ':']) {
            keep("::".into(), false);
            at += 2;
        } else {
            if !rest[0].is_whitespace() {
                keep(rest[0].into(), false);
            }
            at += 1;
        }
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// Returns the length of a block comment; comments nest.
fn block_comment_len(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Returns length and content of the string that begins here: plain, of bytes, of C, or raw.
fn string(rest: &[char]) -> Option<(usize, String)> {
    let prefix = rest.iter().take_while(|c| "bcr".contains(**c)).count();
    let is_raw = prefix > 0 && rest[prefix - 1] == 'r';
    let hashes = if is_raw { rest[prefix..].iter().take_while(|c| **c == '#').count() } else { 0 };
    let start = prefix + hashes + 1;
    if prefix > 2 || rest.get(start - 1) != Some(&'"') {
        return None;
    }
    let mut end = start;
    while end < rest.len() {
        match rest[end] {
            '\\' if !is_raw => end += 1,
            '"' if rest[end + 1..].iter().take_while(|c| **c == '#').count() >= hashes => break,
            _ => {}
        }
        end += 1;
    }
    let end = end.min(rest.len());
    Some(((end + 1 + hashes).min(rest.len()), rest[start..end].iter().collect()))
}

/// Returns the length of the character that begins here, such as `'a'`, `'\n'` or `b'a'`; `None` for a lifetime.
fn character_len(rest: &[char]) -> Option<usize> {
    let start = if rest.starts_with(&['b', '\'']) { 2 } else { 1 };
    if rest.get(start - 1) != Some(&'\'') {
        return None;
    }
    if rest.get(start) == Some(&'\\') {
        // Behind the backslash any character may follow, also a quote.
        let end = rest.get(start + 2..)?.iter().position(|c| *c == '\'')?;
        return Some(start + 2 + end + 1);
    }
    (rest.get(start + 1) == Some(&'\'')).then_some(start + 2)
}

/// Removes every item under `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match attribute(&tokens[at..]) {
            Some(attribute) if attribute.is_for_tests => {
                if attribute.is_of_file {
                    break;
                }
                at += attribute.len;
                while let Some(further) = attribute_len(&tokens[at..]) {
                    at += further;
                }
                at += item_len(&tokens[at..]);
            }
            _ => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

struct Attribute {
    len: usize,
    is_for_tests: bool,
    /// `#![..]`: it applies to everything that follows.
    is_of_file: bool,
}

fn attribute_len(tokens: &[Token]) -> Option<usize> {
    attribute(tokens).map(|attribute| attribute.len)
}

/// Parses the attribute that begins here.
fn attribute(tokens: &[Token]) -> Option<Attribute> {
    if !tokens.first()?.is("#") {
        return None;
    }
    let is_of_file = tokens.get(1)?.is("!");
    let start = if is_of_file { 2 } else { 1 };
    if !tokens.get(start)?.is("[") {
        return None;
    }
    let len = start + group_len(&tokens[start..]);
    let text = |at: usize| tokens[start + 1..len].get(at).map_or("", |token| token.text.as_str());
    let is_cfg = text(0) == "cfg" && text(1) == "(";
    let conditions = if text(2) == "all" { &tokens[start + 5..len] } else { &tokens[start + 3..len] };
    let first_level = FirstLevel { tokens: conditions, at: 0 };
    let is_test =
        if text(2) == "all" { first_level.into_iter().any(|token| token.is("test")) } else { text(2) == "test" };
    Some(Attribute { len, is_for_tests: is_cfg && is_test, is_of_file })
}

/// Iterates over tokens outside of brackets, up to the bracket that closes the enclosing group.
struct FirstLevel<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Iterator for FirstLevel<'a> {
    type Item = &'a Token;

    fn next(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.at).filter(|token| !is_closing(token))?;
        self.at += if is_opening(token) { group_len(&self.tokens[self.at..]) } else { 1 };
        Some(token)
    }
}

fn is_opening(token: &Token) -> bool {
    ["(", "[", "{"].iter().any(|mark| token.is(mark))
}

fn is_closing(token: &Token) -> bool {
    [")", "]", "}"].iter().any(|mark| token.is(mark))
}

/// Returns the number of tokens from an opening bracket to the one that closes it.
pub(super) fn group_len(tokens: &[Token]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        depth += i32::from(is_opening(token)) - i32::from(is_closing(token));
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Returns the number of tokens of the item, field or statement that begins here. An item ends with its block or a
/// semicolon; a field or an arm of a match also with a comma.
fn item_len(tokens: &[Token]) -> usize {
    const KEYWORDS: [&str; 16] = [
        "mod",
        "use",
        "fn",
        "struct",
        "enum",
        "union",
        "trait",
        "impl",
        "const",
        "static",
        "type",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
        "let",
    ];
    let mut start = usize::from(tokens.first().is_some_and(|token| token.is("pub")));
    if start == 1 && tokens.get(1).is_some_and(|token| token.is("(")) {
        start += group_len(&tokens[1..]);
    }
    let is_item = tokens.get(start).is_some_and(|token| KEYWORDS.iter().any(|keyword| token.is(keyword)));
    let mut rest = FirstLevel { tokens, at: start };
    for token in rest.by_ref() {
        if token.is(";") || token.is("{") || (token.is(",") && !is_item) {
            break;
        }
    }
    rest.at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the paths that a text names, with their lines.
    fn mentions(text: &str) -> Vec<(usize, String)> {
        Source::parse(text).mentions.into_iter().map(|mention| (mention.line, mention.path.join("::"))).collect()
    }

    fn paths(text: &str) -> Vec<String> {
        mentions(text).into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn a_nested_use_tree_gives_a_path_for_each_branch() {
        let text = "use crate::{a::{self, B as C, d::*}, e};\npub(crate) use super::f;";
        assert_eq!(
            mentions(text),
            [(1, "crate::a"), (1, "crate::a::B"), (1, "crate::a::d"), (1, "crate::e"), (2, "super::f")]
                .map(|(line, path)| (line, path.to_owned()))
        );
        let brought: Vec<Brought> =
            Source::parse(text).mentions.into_iter().filter_map(|mention| mention.brought).collect();
        let name = |name: &str| Brought::Name(name.into());
        assert_eq!(brought, [name("a"), name("C"), Brought::All, name("e"), name("f")]);
    }

    #[test]
    fn each_branch_of_a_multi_line_use_tree_has_its_own_line_number() {
        assert_eq!(
            mentions("use crate::{\n    a,\n    b::{\n        C,\n    },\n};"),
            [(2, "crate::a".into()), (4, "crate::b::C".into())]
        );
    }

    #[test]
    fn a_path_in_a_body_is_found() {
        let text = "fn f() {\n    let x = crate::a::B::new(|| super::c(1));\n    assert!(x.d == crate::e::F);\n}";
        assert_eq!(
            mentions(text),
            [(2, "crate::a::B::new"), (2, "super::c"), (3, "crate::e::F")].map(|(line, path)| (line, path.to_owned()))
        );
        assert_eq!(
            paths("fn f(x: <crate::a::B as c::D>::E) -> Vec::<crate::g::H> {}"),
            ["crate::a::B", "c::D", "crate::g::H"]
        );
        assert_eq!(paths("macro_rules! m { () => { $crate::a::b() } }"), ["crate::a::b"]);
    }

    #[test]
    fn a_global_path_of_another_crate_is_ignored() {
        assert_eq!(paths("use ::a::b; fn f() -> ::c::D {}"), Vec::<String>::new());
    }

    #[test]
    fn paths_in_comments_strings_and_characters_are_ignored() {
        let text = r####"
            // crate::a::b
            /* crate::a::b /* crate::c::d */ crate::e::f */
            /// [`crate::a::b`]
            const S: [&str; 4] = ["crate::a::b \" crate::c::d", r"\", r#"crate::a::b " "#, "\
                crate::a::b"];
            const C: [char; 4] = ['"', '\'', '\u{22}', '\\'];
            const B: (u8, &[u8], &[u8]) = (b'"', b"crate::a::b", br##"crate::a::b"# "##);
            fn f<'a>(x: &'a str) -> &'a g::H { 'l: loop { break 'l } }
            use r#crate2::r#type;
        "####;
        assert_eq!(mentions(text), [(9, "g::H".into()), (10, "crate2::type".into())]);
    }

    #[test]
    fn test_only_code_is_ignored() {
        for tests in [
            "#[cfg(test)] mod tests { use crate::a::b; fn f() { crate::c::d() } }",
            "#[cfg(test)] pub(crate) mod tests;",
            "#[cfg(test)]\n#[allow(unused)]\nfn f(x: [u8; 3]) -> crate::a::B { crate::c::d() }",
            "#[cfg(all(test, feature = \"x\"))] mod races { use crate::a::b; }",
            "#[cfg(all(feature = \"x\", test))] use crate::a::{b, c};",
            "#[cfg(test)] impl crate::a::B { fn f() {} }",
            "struct S { #[cfg(test)] a: crate::a::B, #[cfg(test)] b: crate::c::D }",
            "#![cfg(test)] use crate::a::b; fn f() { crate::c::d() }",
        ] {
            assert_eq!(paths(tests), Vec::<String>::new(), "{tests}");
            assert_eq!(Source::parse(tests).module_files, Vec::<Path>::new(), "{tests}");
        }
        let mixed =
            "#[cfg(test)] mod tests { fn f() {} } use crate::a::b; #[cfg(test)] const X: u8 = 1; fn f() { c::d() }";
        assert_eq!(paths(mixed), ["crate::a::b", "c::d"]);
    }

    #[test]
    fn code_that_tests_and_others_compile_is_read() {
        for code in [
            "#[cfg(not(test))] use crate::a::b;",
            "#[cfg(any(test, feature = \"x\"))] use crate::a::b;",
            "#[cfg(all(not(test), feature = \"x\"))] use crate::a::b;",
            "#[cfg_attr(test, derive(Debug))] use crate::a::b;",
        ] {
            assert_eq!(paths(code), ["crate::a::b"], "{code}");
        }
    }

    #[test]
    fn only_top_level_items_are_listed_and_nested_modules_are_found() {
        let source = Source::parse(
            "mod a; pub mod b { mod c; fn inner() { super::x::y() } } pub struct S; fn f() { fn g() {} } macro_rules! m {}",
        );
        assert_eq!(source.module_files, [vec!["a".to_owned()], vec!["b".into(), "c".into()]]);
        assert_eq!(source.items.iter().map(String::as_str).collect::<Vec<_>>(), ["S", "a", "b", "f", "m"]);
        assert_eq!(source.mentions[0].within, ["b"]);
    }
}
