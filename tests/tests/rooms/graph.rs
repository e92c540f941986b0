//! The dependencies in a crate: an arrow from each file to each file that its paths lead to.
//!
//! A path leads to the deepest file that exists for it: `crate::a::b::C` to `a/b.rs` or else to `a/mod.rs`. A file
//! above another one (`a/mod.rs` above `a/b.rs`, the crate's root above all) holds what its family shares, so the
//! files below may use it without an arrow. But an item that such a file only re-exports (`pub use b::C`) is not its
//! own: the arrow goes to the file that defines it.

use super::calls;
use super::outline::Outline;
use super::program::{Program, Text};
use super::source::{Brought, Mention, Path, Source};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// `a` uses `b`, and the place where it does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrow {
    pub from: Path,
    pub to: Path,
    /// `folder/file.rs:12`
    pub place: String,
    /// The path as written there.
    pub path: String,
}

/// Files each of which leads to each other one.
pub(super) struct Circle {
    pub files: BTreeSet<Path>,
    /// The shortest way from one of them back to itself.
    pub way: Vec<Arrow>,
}

/// The files of a crate, and the arrows among them.
pub(super) struct Graph {
    files: BTreeMap<Path, File>,
    pub arrows: Vec<Arrow>,
    /// Arrows of calls that no path shows.
    pub calls: Vec<Arrow>,
    /// Paths to the crate's root whose target is unknown.
    pub unresolved: Vec<String>,
}

struct File {
    name: String,
    source: Source,
}

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    File(Path),
    AnotherCrate,
    Unknown,
}

/// Returns the readable name of a room or a file.
pub(super) fn name(module: &[String]) -> String {
    if module.is_empty() { "the root".into() } else { module.join("/") }
}

/// Returns the room of a file; the root has none.
pub(super) fn room(module: &[String]) -> &str {
    module.first().map_or("", String::as_str)
}

/// Returns the module of a file: `a/mod.rs` and `a.rs` are module `a`.
fn module_of(file: &str) -> Path {
    let mut module: Path = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

pub(super) fn is_above(upper: &[String], lower: &[String]) -> bool {
    lower.starts_with(upper)
}

impl Graph {
    /// Makes the graph of the files in a folder `src`, given by their names from there on and their contents. Files
    /// that the root does not reach without tests are left out.
    pub(super) fn new<'a>(sources: impl IntoIterator<Item = (&'a str, &'a str)>) -> Graph {
        let mut found: BTreeMap<Path, File> = BTreeMap::new();
        for (name, text) in sources {
            found.insert(module_of(name), File { name: name.into(), source: Source::parse(text) });
        }
        let (mut files, mut pending) = (BTreeMap::new(), vec![Path::new()]);
        while let Some(module) = pending.pop() {
            let Some(file) = found.remove(&module) else { continue };
            pending.extend(file.source.module_files.iter().map(|below| [&module[..], below].concat()));
            files.insert(module, file);
        }
        let mut graph = Graph { files, arrows: Vec::new(), calls: Vec::new(), unresolved: Vec::new() };
        graph.draw();
        graph.calls = graph.read_calls();
        graph
    }

    /// Iterates over the files, each with its parsed source.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.files.values().map(|file| (file.name.as_str(), &file.source))
    }

    /// Iterates over all rooms, each once.
    pub(super) fn rooms(&self) -> impl Iterator<Item = &str> {
        let rooms: BTreeSet<&str> =
            self.files.keys().map(|module| room(module)).filter(|room| !room.is_empty()).collect();
        rooms.into_iter()
    }

    fn draw(&mut self) {
        let (mut arrows, mut unresolved) = (BTreeSet::new(), Vec::new());
        for (from, file) in &self.files {
            for mention in &file.source.mentions {
                let place = format!("{}:{}", file.name, mention.line);
                let path = mention.path.join("::");
                match self.target(from, mention) {
                    Target::File(to) if !is_above(&to, from) => {
                        arrows.insert(Arrow { from: from.clone(), to, place, path });
                    }
                    Target::Unknown => unresolved.push(format!("{place}: {path}")),
                    _ => {}
                }
            }
        }
        (self.arrows, self.unresolved) = (arrows.into_iter().collect(), unresolved);
    }

    fn read_calls(&self) -> Vec<Arrow> {
        let texts = self.files.iter().map(|(module, File { name, source })| {
            (module.clone(), Text { name, tokens: &source.tokens, outline: Outline::read(&source.tokens) })
        });
        calls::arrows(&Program::new(texts.collect(), Box::new(|from, name| self.brought_from(from, name))))
    }

    /// Returns the file from which a `use` declaration of another file brings a name.
    fn brought_from(&self, from: &Path, name: &str) -> Option<Path> {
        let brings = |mention: &&Mention| mention.brought == Some(Brought::Name(name.into()));
        let mention = self.files[from].source.mentions.iter().find(brings)?;
        match self.target(from, mention) {
            Target::File(file) => Some(file),
            _ => None,
        }
    }

    fn target(&self, from: &[String], mention: &Mention) -> Target {
        let absolute = self.absolute(from, &mention.within, &mention.path);
        let absolute = absolute.or_else(|| match mention.brought {
            Some(_) => None,
            None => self.through_use(from, mention),
        });
        absolute.map_or(Target::AnotherCrate, |path| self.follow(from, path, 0))
    }

    /// Returns a path from the crate's root on; `None`: it leads to another crate, or begins with a name in scope.
    fn absolute(&self, from: &[String], within: &[String], path: &[String]) -> Option<Path> {
        let here = [from, within].concat();
        let supers = path.iter().take_while(|name| *name == "super").count();
        match path[0].as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&here, &path[1..]].concat()),
            "super" => Some([&here[..here.len().saturating_sub(supers)], &path[supers..]].concat()),
            _ => {
                let below = [&here[..], path].concat();
                self.files.contains_key(&below[..=here.len()]).then_some(below)
            }
        }
    }

    /// Resolves a path in a body that begins with a name that the file brought into scope.
    fn through_use(&self, from: &[String], mention: &Mention) -> Option<Path> {
        let first = &mention.path[0];
        let here = self.files[from].source.mentions.iter().filter(|other| other.within == mention.within);
        let (mut named, mut all) = (None, None);
        for brought in here {
            match &brought.brought {
                Some(Brought::Name(name)) if name == first => {
                    named = named.or_else(|| Some([&brought.path[..], &mention.path[1..]].concat()));
                }
                Some(Brought::All) => {
                    let folder = self.absolute(from, &brought.within, &brought.path);
                    let is_in = |folder: &Path| self.files.contains_key(&[&folder[..], &mention.path[..1]].concat());
                    let found = folder.filter(is_in).map(|folder| [&folder[..], &mention.path].concat());
                    all = all.or(found);
                }
                _ => {}
            }
        }
        match named {
            Some(path) => self.absolute(from, &mention.within, &path),
            None => all,
        }
    }

    /// Returns the file that a path from the root on leads to. A file above the one that asks may re-export an item
    /// of another.
    fn follow(&self, from: &[String], path: Path, steps: usize) -> Target {
        const MOST_STEPS: usize = 8;
        let depth = (0..=path.len()).rev().find(|depth| self.files.contains_key(&path[..*depth]));
        let (module, rest) = path.split_at(depth.unwrap_or(0));
        let (Some(first), true, true) = (rest.first(), is_above(module, from), steps < MOST_STEPS) else {
            return Target::File(module.to_vec());
        };
        let source = &self.files[module].source;
        if source.items.contains(first) {
            return Target::File(module.to_vec());
        }
        let handed_on = |brought: Brought| {
            source
                .mentions
                .iter()
                .filter(move |other| other.within.is_empty() && other.brought.as_ref() == Some(&brought))
        };
        let name = Brought::Name(first.clone());
        if let Some(from_where) = handed_on(name).next() {
            let origin = self.absolute(module, &[], &from_where.path);
            return origin
                .map_or(Target::AnotherCrate, |origin| self.follow(from, [&origin, &rest[1..]].concat(), steps + 1));
        }
        let globs = handed_on(Brought::All).filter_map(|glob| self.absolute(module, &[], &glob.path));
        let globs: Vec<Path> = globs.filter(|glob| self.files.contains_key(glob)).collect();
        // No keyword declares an item that a macro makes, but its name is in the file.
        let declares = |glob: &&Path| self.files[*glob].source.items.contains(first);
        let names = |glob: &&Path| self.files[*glob].source.tokens.iter().any(|token| token.text == *first);
        match globs.iter().find(declares).or_else(|| globs.iter().find(names)) {
            Some(glob) => Target::File(glob.clone()),
            None if module.is_empty() && module != from => Target::Unknown,
            None => Target::File(module.to_vec()),
        }
    }

    /// Returns the circles: groups of files each of which leads to each other one.
    pub(super) fn circles(&self) -> Vec<Circle> {
        let mut circles: Vec<Circle> = Vec::new();
        for file in self.files.keys() {
            if circles.iter().any(|circle| circle.files.contains(file)) {
                continue;
            }
            if let Some(way) = self.way_around(file) {
                let mut files = self.reached_from(file);
                files.retain(|other| self.reached_from(other).contains(file));
                circles.push(Circle { files, way });
            }
        }
        circles
    }

    fn arrows_from<'a>(&'a self, file: &'a [String]) -> impl Iterator<Item = &'a Arrow> {
        // The root is the map of the crate, and names everything.
        self.arrows.iter().chain(&self.calls).filter(move |arrow| arrow.from == *file && !file.is_empty())
    }

    fn reached_from(&self, file: &[String]) -> BTreeSet<Path> {
        let mut reached = BTreeSet::new();
        let mut pending: Vec<&Path> = self.arrows_from(file).map(|arrow| &arrow.to).collect();
        while let Some(next) = pending.pop() {
            if reached.insert(next.clone()) {
                pending.extend(self.arrows_from(next).map(|arrow| &arrow.to));
            }
        }
        reached
    }

    /// Returns the shortest way from a file back to itself.
    fn way_around(&self, start: &Path) -> Option<Vec<Arrow>> {
        let mut reached: BTreeSet<&Path> = BTreeSet::new();
        let mut pending: VecDeque<Vec<&Arrow>> = self.arrows_from(start).map(|arrow| vec![arrow]).collect();
        while let Some(way) = pending.pop_front() {
            let end = &way.last().expect("a way has an arrow").to;
            if end == start {
                return Some(way.into_iter().cloned().collect());
            }
            if reached.insert(end) {
                pending.extend(self.arrows_from(end).map(|arrow| [&way[..], &[arrow]].concat()));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns arrows as `from -> to`.
    fn arrows(sources: &[(&str, &str)]) -> Vec<String> {
        let graph = Graph::new(sources.iter().copied());
        assert_eq!(graph.unresolved, Vec::<String>::new());
        let told = graph.arrows.iter().filter(|arrow| !arrow.from.is_empty());
        let mut told: Vec<String> = told.map(|arrow| format!("{} -> {}", name(&arrow.from), name(&arrow.to))).collect();
        told.dedup();
        told
    }

    #[test]
    fn a_path_leads_to_the_deepest_file_that_exists() {
        let sources = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c; pub struct A;"),
            ("a/c.rs", "pub struct C;"),
            ("b.rs", "use crate::a::c::C; use crate::a::A; fn f() { self::g(crate::a::c::inner::D) }"),
        ];
        assert_eq!(arrows(&sources), ["b -> a", "b -> a/c"]);
    }

    #[test]
    fn super_and_self_are_resolved_from_the_enclosing_module() {
        let sources = [
            ("lib.rs", "mod a; mod b; mod d;"),
            ("a/mod.rs", "mod c; mod e;"),
            (
                "a/c.rs",
                "use super::super::b::B; mod inner { use super::super::e::E; fn f() { super::super::super::d::f() } }",
            ),
            ("a/e.rs", ""),
            ("b.rs", "mod f; use self::f::F; fn g() { f::h() }"),
            ("b/f.rs", ""),
            ("d.rs", ""),
        ];
        assert_eq!(arrows(&sources), ["a/c -> a/e", "a/c -> b", "a/c -> d", "b -> b/f"]);
    }

    #[test]
    fn a_use_of_a_parent_module_makes_no_arrow() {
        let sources = [
            ("lib.rs", "mod a; pub fn f() {} "),
            ("a/mod.rs", "mod b; pub struct A; fn g() { b::h() }"),
            ("a/b.rs", "use super::A; use super::*; fn h() { crate::f(); crate::a::g() }"),
        ];
        assert_eq!(arrows(&sources), ["a -> a/b"]);
    }

    #[test]
    fn a_reexported_name_leads_to_the_file_that_defines_it() {
        let sources = [
            (
                "lib.rs",
                "mod a; mod b; mod types; mod ids; pub use a::c::C; pub use b::B as Renamed; pub use types::*;
                        pub use ids::*; use std::sync::Arc;",
            ),
            ("a/mod.rs", "mod c; mod d; pub use d::D;"),
            ("a/c.rs", "use super::D;"),
            ("a/d.rs", ""),
            ("b.rs", "use crate::{C, Policy, Number, Arc};"),
            ("ids.rs", "id!(Number);"),
            ("types.rs", "pub enum Policy {} fn f() -> crate::Renamed {}"),
        ];
        assert_eq!(arrows(&sources), ["a -> a/d", "a/c -> a/d", "b -> a/c", "b -> ids", "b -> types", "types -> b"]);
    }

    #[test]
    fn a_module_in_scope_is_followed_in_bodies() {
        let sources = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c;"),
            ("a/c.rs", ""),
            ("b.rs", "use crate::a as other; use std::fs as a; fn f() { other::c::g(); a::read() }"),
        ];
        assert_eq!(arrows(&sources), ["b -> a", "b -> a/c"]);
        let by_glob = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c;"),
            ("a/c.rs", ""),
            ("b.rs", "use crate::a::*; fn f() { c::g() }"),
        ];
        assert_eq!(arrows(&by_glob), ["b -> a", "b -> a/c"]);
    }

    #[test]
    fn test_only_files_are_not_in_the_graph() {
        let sources = [
            ("lib.rs", "mod a; #[cfg(test)] mod b; #[cfg(all(test, feature = \"x\"))] mod races;"),
            ("a.rs", "#[cfg(test)] mod tests;"),
            ("a/tests.rs", "use crate::b;"),
            ("b.rs", "use crate::a;"),
            ("races/mod.rs", "mod c;"),
            ("races/c.rs", "use crate::a;"),
        ];
        assert_eq!(arrows(&sources), Vec::<String>::new());
    }

    #[test]
    fn a_path_that_the_crate_root_does_not_have_is_reported() {
        let graph = Graph::new([("lib.rs", "mod a;"), ("a.rs", "\nuse crate::Lost;")]);
        assert_eq!(graph.unresolved, ["a.rs:2: crate::Lost"]);
    }

    #[test]
    fn a_circle_is_reported_by_its_shortest_path() {
        let sources = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c; use crate::d;"),
            ("c.rs", "use crate::d;"),
            ("d.rs", "use crate::a;"),
        ];
        let graph = Graph::new(sources);
        let circles = graph.circles();
        assert_eq!((circles.len(), circles[0].files.len()), (1, 4));
        let places: Vec<&str> = circles[0].way.iter().map(|arrow| arrow.place.as_str()).collect();
        assert_eq!(places, ["a.rs:1", "b.rs:1", "d.rs:1"]);
    }
}
