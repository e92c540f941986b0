//! The modules as a test: which module may use which, that no files use each other in a circle, by paths or by calls,
//! and that `fs` names no policy.
//!
//! The problem: a dependency that points up is one line in a review and hard to remove a year later. The idea: each
//! crate has a table of its top-level modules (rooms), from the top down, each with the rooms that it uses. The test
//! reads the sources ([`source`]) and turns the paths in them into arrows ([`graph`]); an arrow that is not in the
//! table fails with its file and line. Calls that need no path, such as those among the methods of one type, are
//! arrows too ([`calls`]), and must not lead around. A row that no file uses fails too, so the table shows the present structure.

mod body;
mod calls;
mod graph;
mod kind;
mod outline;
mod program;
mod seeded_calls;
mod source;

use graph::{Arrow, Circle, Graph, name, room};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A room and the rooms that it may use.
type Row = (&'static str, &'static str);

/// The rooms of a crate, from the top down: a room is above all that it uses. All rooms may use the files in the
/// crate's root, and the root, which is the map, may use all rooms.
struct House {
    crate_name: &'static str,
    rooms: &'static [Row],
}

/// Rooms that the commands use: all of them.
const COMMANDS_USE: &str = "stored descent mount metrics statistics bounded server unmount traffic device \
                             dedup_options option_list mounts problems service stop output report progress size failure \
                             text research helpers";

const HOUSES: [House; 9] = [
    House {
        crate_name: "nvfold",
        rooms: &[
            ("internals", "jobs fs store dedup chunk media chunking fingerprint"),
            ("host", "api words error chunking compression fingerprint media"),
            ("api", "mount trees jobs fs dedup inode space media words error compression fingerprint panics"),
            ("check", "mount fs store dedup inode chunk space media words error compression fingerprint"),
            (
                "mount",
                "trees jobs fs store dedup inode chunk space media words error compression fingerprint parallel panics",
            ),
            ("trees", "fs store inode chunk space media words error panics"),
            ("jobs", "fs store dedup inode chunk space media words error compression fingerprint panics"),
            ("fs", "store dedup inode space media words error compression fingerprint panics"),
            ("store", "dedup inode chunk space media words error chunking compression fingerprint panics refusals"),
            ("dedup", "chunk space media words error chunking compression fingerprint serial"),
            ("inode", "space media words error fingerprint panics"),
            ("chunk", "space media words error compression fingerprint parallel"),
            ("space", "media error"),
            ("media", "words fingerprint"),
            ("panics", "words error"),
            ("refusals", "words error"),
            ("words", "serial"),
            ("error", ""),
            ("compression", ""),
            ("fingerprint", ""),
            ("chunking", ""),
            ("parallel", ""),
            ("serial", ""),
        ],
    },
    House {
        crate_name: "nvfold-causality",
        rooms: &[
            ("rec_tree", "pages areas sources reserve record files"),
            ("pages", "tree sources reserve record files"),
            ("areas", "sources files"),
            ("sources", "files"),
            ("reserve", "record"),
            ("record", "files"),
            ("tree", ""),
            ("files", ""),
            ("anchors", ""),
            ("hint", ""),
        ],
    },
    House {
        crate_name: "nvfold-cli",
        rooms: &[
            ("names", "cli helpers"),
            ("cli", "commands output bounded progress"),
            ("commands", COMMANDS_USE),
            ("research", "mount dedup_options option_list"),
            ("service", "mount bounded server unmount utab device mounts size failure text"),
            ("stored", "descent mount statistics device dedup_options mounts problems failure"),
            (
                "mount",
                "log metrics statistics bounded unmount utab stop device dedup_options option_list mounts report size text \
                 failure",
            ),
            ("log", "failure text"),
            ("metrics", "statistics bounded traffic mounts failure"),
            ("statistics", "bounded traffic device mounts report size failure"),
            ("bounded", "server unmount mounts failure"),
            ("server", "mounts"),
            ("unmount", "utab"),
            ("utab", "mounts"),
            ("traffic", "size"),
            ("device", "dedup_options option_list mounts size failure"),
            ("dedup_options", "option_list size failure"),
            ("problems", "stop mounts failure text"),
            ("stop", "failure"),
            ("output", "progress"),
            ("progress", "size failure"),
            ("report", "failure text"),
            ("descent", ""),
            ("failure", "errno_names remedy text"),
            ("errno_names", ""),
            ("helpers", ""),
            ("remedy", "mounts"),
            ("mounts", ""),
            ("size", ""),
            ("option_list", ""),
            ("text", ""),
        ],
    },
    House {
        crate_name: "nvfold-mount",
        rooms: &[
            (
                "mount",
                "connection front handshake daemon housekeeping reconcile access shortages notices memory background \
                 options counters events mounts",
            ),
            ("connection", "handshake options mounts"),
            (
                "front",
                "handshake access notices pages hints lookups syncs turns settings requests backups clones snapshots \
                 limits growth moves image memory rights options reports counters shortages acl convert",
            ),
            ("handshake", "options mounts"),
            ("daemon", "access background events"),
            ("housekeeping", "access background notices shortages switches events"),
            ("shortages", "events"),
            ("switches", "events"),
            ("reconcile", "access background events"),
            ("access", "background mounts"),
            ("options", "reports events"),
            ("reports", "counters"),
            ("notices", ""),
            ("pages", "memory"),
            ("hints", ""),
            ("lookups", ""),
            ("syncs", ""),
            ("turns", ""),
            ("settings", ""),
            ("requests", ""),
            ("backups", "image"),
            ("image", ""),
            ("snapshots", "clones"),
            ("growth", "clones"),
            ("limits", "clones"),
            ("clones", ""),
            ("moves", ""),
            ("rights", "acl"),
            ("memory", ""),
            ("background", ""),
            ("events", ""),
            ("counters", "latencies"),
            ("latencies", ""),
            ("mounts", ""),
            ("acl", ""),
            ("convert", ""),
        ],
    },
    House {
        crate_name: "nvfold-fuse",
        rooms: &[
            ("mount", "sys"),
            ("handshake", "protocol"),
            ("notices", "protocol"),
            ("device", "listeners workers sys reply operation protocol"),
            ("ring", "workers sys reply operation protocol"),
            ("place", "sys"),
            ("listeners", ""),
            ("workers", ""),
            ("reply", "protocol"),
            ("operation", "ask protocol"),
            ("ask", "sys"),
            ("sys", "protocol"),
            ("protocol", ""),
        ],
    },
    House {
        crate_name: "nvfold-c",
        rooms: &[
            ("exports", "names transfers table files listing paths status device options caller failure"),
            ("names", "files shared paths device causality failure"),
            ("transfers", "files mapping causality caller failure"),
            ("table", "files device failure"),
            ("files", "shared written paths status device causality failure"),
            ("shared", "written device failure"),
            ("written", "device"),
            ("listing", "device failure"),
            ("paths", "failure"),
            ("status", "failure"),
            ("device", "background causality options failure"),
            ("background", ""),
            ("causality", ""),
            ("options", "failure"),
            ("mapping", "failure"),
            ("caller", "failure"),
            ("failure", ""),
        ],
    },
    House {
        crate_name: "nvfold-preload",
        rooms: &[
            ("start", "raw calls working mappings numbers mounted evaluation device process"),
            ("evaluation", "device process"),
            ("streams", "calls prefix numbers mounted device answer process"),
            ("raw", "calls answer process"),
            ("calls", "prefix host working mappings numbers mounted device answer process"),
            ("prefix", "host working numbers device answer process"),
            ("working", "numbers process"),
            ("mappings", "numbers answer process"),
            ("numbers", "answer process"),
            ("device", "process"),
            ("mounted", "answer"),
            ("answer", "process"),
            ("process", ""),
            ("host", ""),
            ("copies", ""),
        ],
    },
    House {
        crate_name: "nvfold-bench",
        rooms: &[
            ("throughput", "report lanes mounts data samples options error"),
            ("meta", "report mounts place samples options error"),
            ("tree", "mounts scratch place process samples origin error"),
            ("clone", "copies made waits scratch samples origin error"),
            ("copies", "made waits mounts place process error"),
            ("made", "error"),
            ("waits", "error"),
            ("recovery", "scratch device process data samples origin error"),
            ("summary", "report"),
            ("report", "samples origin"),
            ("lanes", "place data error"),
            ("mounts", "scratch place process options error"),
            ("ceiling", "scratch error"),
            ("scratch", "place error"),
            ("place", "error"),
            ("device", "error"),
            ("process", "error"),
            ("data", ""),
            ("samples", "error"),
            ("origin", "error"),
            ("options", ""),
            ("error", ""),
        ],
    },
    House {
        crate_name: "nvfold-lab",
        rooms: &[
            ("origins", "cost experiment error"),
            ("cost", "experiment error"),
            ("paper", "rec_tree bounds experiment program font error rivals"),
            ("chunkers", "experiment font error"),
            ("lookups", "experiment error"),
            ("rec_tree", "experiment error"),
            ("profiles", "experiment error"),
            ("wear", "bounds experiment error"),
            ("reclaim", "bounds experiment error"),
            ("auto", "bounds experiment font error"),
            ("bounds", "error"),
            ("experiment", "error"),
            ("program", "error"),
            ("font", ""),
            ("error", "rivals"),
            ("rivals", ""),
        ],
    },
];

/// Known violations of the rules. The list may only get shorter: remove a violation once it is fixed.
struct Known {
    /// Crate, and the files of a circle.
    circles: &'static [(&'static str, &'static str)],
    /// Crate, and two rooms of which the lower one uses the upper one.
    arrows: &'static [(&'static str, &'static str, &'static str)],
    /// Files of `fs` that name a policy.
    policies: &'static [&'static str],
}

const KNOWN: Known = Known { circles: &[], arrows: &[], policies: &[] };

const NONE_KNOWN: Known = Known { circles: &[], arrows: &[], policies: &[] };

/// Ways to name a policy: in a word or a string, or as a path. Case does not matter.
const POLICIES: [&str; 7] = ["deext", "denova", "nv_dedup", "nv-dedup", "nvdedup", "policy::inline", "dedup::inline"];

impl House {
    /// Returns the folder of its sources in the repository.
    fn folder(&self) -> String {
        match self.crate_name {
            "nvfold-lab" => "lab/src".into(),
            name => format!("crates/{name}/src"),
        }
    }

    fn graph(&self) -> Graph {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace");
        let folder = root.join(self.folder());
        let (mut sources, mut pending) = (Vec::new(), vec![folder.clone()]);
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let name = path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned();
                    sources.push((name, fs::read_to_string(&path).unwrap()));
                }
            }
        }
        assert!(!sources.is_empty(), "{} has no sources", self.folder());
        Graph::new(sources.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    /// Returns the rooms that the table allows a room to use; `None`: it has no row.
    fn row(&self, room: &str) -> Option<Vec<&'static str>> {
        self.rooms.iter().find(|(name, _)| *name == room).map(|(_, below)| below.split_whitespace().collect())
    }

    fn line_of(&self, room: &str) -> Option<usize> {
        self.rooms.iter().position(|(name, _)| *name == room)
    }

    /// Returns arrows of the sources that the table does not allow, and rows of the table that no source uses.
    fn wrong_arrows(&self, graph: &Graph, known: &Known) -> Vec<String> {
        let mut wrong: Vec<String> = graph
            .unresolved
            .iter()
            .map(|what| format!("{}/{what}: the root has no such name", self.folder()))
            .collect();
        let mut used = BTreeSet::new();
        for arrow in &graph.arrows {
            let (from, to) = (room(&arrow.from), room(&arrow.to));
            if from.is_empty() || from == to {
                continue;
            }
            used.insert((from, to));
            if !self.row(from).is_some_and(|below| below.contains(&to)) {
                let Arrow { place, path, .. } = arrow;
                wrong.push(format!(
                    "{}/{place}: `{path}`: room `{from}` may not use `{to}`. Put what both need into a room below both, or \
                     let the caller of `{from}` pass it down; the table of rooms is in tests/tests/rooms.rs",
                    self.folder()
                ));
            }
        }
        let table = |what: String| format!("table of {}: {what}", self.crate_name);
        for room in graph.rooms().filter(|room| self.row(room).is_none()) {
            wrong.push(table(format!("room `{room}` has no row")));
        }
        for (from, below) in self.rooms {
            if !graph.rooms().any(|room| room == *from) {
                wrong.push(table(format!("there is no room `{from}` any more: take its row out")));
            }
            for to in below.split_whitespace() {
                if !used.contains(&(*from, to)) {
                    wrong.push(table(format!("no file of `{from}` uses `{to}` any more: take it out")));
                }
                let is_known = known.arrows.contains(&(self.crate_name, from, to));
                if (self.line_of(to) < self.line_of(from)) != is_known {
                    let why = if is_known { "KNOWN has it, but it leads down" } else { "it leads up" };
                    wrong.push(table(format!("`{from}` -> `{to}`: {why}")));
                }
            }
        }
        for (_, from, to) in known.arrows.iter().filter(|(name, ..)| *name == self.crate_name) {
            if !self.row(from).is_some_and(|below| below.contains(to)) {
                wrong.push(table(format!("`{from}` -> `{to}` is mended: take it out of KNOWN")));
            }
        }
        wrong
    }

    /// Returns files that use each other, with the shortest way around.
    fn circles(&self, graph: &Graph, known: &Known) -> Vec<String> {
        let known = known.circles.iter().filter(|(name, _)| *name == self.crate_name).map(|(_, files)| *files);
        let mut unseen: Vec<&str> = known.collect();
        let known = unseen.clone();
        let mut told = Vec::new();
        for Circle { files, way } in graph.circles() {
            let files: Vec<String> = files.iter().map(|file| name(file)).collect();
            match known.iter().find(|known| files.iter().all(|file| known.split(' ').any(|known| known == file))) {
                Some(found) => unseen.retain(|other| other != found),
                None => {
                    let step = |arrow: &Arrow| format!("{}/{}: `{}`", self.folder(), arrow.place, arrow.path);
                    let way: Vec<String> = way.iter().map(step).collect();
                    let files = files.join(", ");
                    told.push(format!(
                        "{files} use each other:\n    {}\n    Put what they share into a file below them",
                        way.join("\n    ")
                    ));
                }
            }
        }
        told.extend(unseen.iter().map(|files| format!("the circle of {files} is gone: take it out of KNOWN")));
        told
    }
}

/// Returns where the files below `folder` have one of these words in their code, and the known files that no longer
/// have one.
fn named(graph: &Graph, folder: &str, words: &[&str], known: &[&str]) -> Vec<String> {
    let has_any = |text: &str| words.iter().any(|word| text.to_lowercase().contains(word));
    let (mut found, mut mended) = (BTreeSet::new(), known.to_vec());
    for (file, source) in graph.sources().filter(|(file, _)| file.starts_with(folder)) {
        let words = source.tokens.iter().map(|token| (token.line, token.text.clone()));
        let paths = source.mentions.iter().map(|mention| (mention.line, mention.path.join("::")));
        for (line, text) in words.chain(paths).filter(|(_, text)| has_any(text)) {
            mended.retain(|known| *known != file);
            if !known.contains(&file) {
                found.insert(format!("{file}:{line}: {text}"));
            }
        }
    }
    let mended = mended.iter().map(|file| format!("{file} is mended: take it out of KNOWN"));
    found.into_iter().chain(mended).collect()
}

fn assert_none(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

#[test]
fn arrows_between_rooms_go_down() {
    let wrong = HOUSES.iter().flat_map(|house| house.wrong_arrows(&house.graph(), &KNOWN)).collect();
    assert_none("rooms that use what they may not use, or a table that differs from the sources", wrong);
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let circles = HOUSES.iter().flat_map(|house| house.circles(&house.graph(), &KNOWN)).collect();
    assert_none("circles of files", circles);
}

#[test]
fn no_room_above_dedup_knows_a_policy_by_name() {
    let graph = HOUSES[0].graph();
    let rooms = ["store/", "fs/", "jobs/"].into_iter();
    let offences = rooms.flat_map(|room| named(&graph, room, &POLICIES, KNOWN.policies)).collect();
    assert_none("files that know a policy by name; ask the policy instead, through the trait of dedup", offences);
}

/// A line of the walk through a write: depth, function, file.
struct Call {
    depth: usize,
    function: String,
    file: String,
}

/// Returns the walk in ARCHITECTURE.md.
fn walk_of(page: &str) -> Vec<Call> {
    let section =
        page.split("### One write, from the door to the medium").nth(1).expect("ARCHITECTURE.md has the walk");
    let block = section.split("```").nth(1).expect("the walk is a block of text");
    let call = |line: &str| {
        let mut words = line.split_whitespace();
        let depth = line.len() - line.trim_start().len();
        Some(Call { depth, function: words.next()?.into(), file: words.next()?.into() })
    };
    block.lines().skip(1).filter_map(call).collect()
}

/// Returns the bodies of all functions of this name in a file, without comments.
fn bodies_of(text: &str, function: &str) -> String {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let mut bodies = String::new();
    for (at, _) in code.match_indices(&format!("fn {function}")) {
        let rest = &code[at + "fn ".len() + function.len()..];
        if !rest.starts_with(['(', '<']) {
            continue;
        }
        // A body ends where a brace closes at the depth at which its function began.
        let indent = at - code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line_start = &code[at - indent..at];
        let close = format!("\n{}}}", &line_start[..line_start.len() - line_start.trim_start().len()]);
        bodies.push_str(&rest[..rest.find(&close).unwrap_or(rest.len())]);
    }
    bodies
}

/// Returns where a walk disagrees with the sources: functions that do not exist, and calls that are not made in its
/// order.
fn wrong_calls(walk: &[Call], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, call) in walk.iter().enumerate() {
        let Call { depth, function, file } = call;
        let text = read(file).unwrap_or_default();
        let is_there = ["(", "<"].iter().any(|next| text.contains(&format!("fn {function}{next}")));
        if !is_there {
            wrong.push(format!("there is no function `{function}` in {file}"));
            continue;
        }
        let Some(caller) = walk[..at].iter().rposition(|other| other.depth < *depth) else { continue };
        let body = bodies_of(&read(&walk[caller].file).unwrap_or_default(), &walk[caller].function);
        let place = |function: &str| ["(", "::<"].iter().find_map(|next| body.find(&format!("{function}{next}")));
        let before = walk[caller + 1..at].iter().rev().find(|other| other.depth == *depth);
        let earlier = before.and_then(|before| place(&before.function));
        let is_same = before.is_some_and(|before| before.function == *function);
        match place(function) {
            None => {
                wrong.push(format!("`{}` in {} does not call `{function}`", walk[caller].function, walk[caller].file))
            }
            Some(here) if !is_same && earlier.is_some_and(|earlier| earlier > here) => {
                wrong.push(format!("`{}` calls `{function}` before what stands above it", walk[caller].function));
            }
            Some(_) => {}
        }
    }
    wrong
}

#[test]
fn the_walk_through_a_write_matches_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace");
    let walk = walk_of(&fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap());
    assert!(walk.len() > 20, "{} calls", walk.len());
    let wrong = wrong_calls(&walk, |file| fs::read_to_string(root.join("crates/nvfold/src").join(file)).ok());
    assert_none("the walk in ARCHITECTURE.md", wrong);
}

/// Seeded failures: each rule must be able to fail.
mod seeded {
    use super::*;

    const SMALL: House =
        House { crate_name: "small", rooms: &[("fs", "dedup media"), ("dedup", "media"), ("media", "")] };
    const ROOT: (&str, &str) = ("lib.rs", "mod fs; mod dedup; mod media; pub use fs::File;");
    const FS: (&str, &str) = ("fs/mod.rs", "mod read;\nuse crate::{dedup::place, media::Block};\npub struct File;");
    const READ: (&str, &str) = ("fs/read.rs", "use super::File;");
    const DEDUP: (&str, &str) = ("dedup.rs", "use crate::media::Block;\npub fn place() {}");
    const MEDIA: (&str, &str) = ("media.rs", "pub struct Block;");

    fn wrong(files: [(&str, &str); 5]) -> Vec<String> {
        SMALL.wrong_arrows(&Graph::new(files), &NONE_KNOWN)
    }

    fn circles(files: [(&str, &str); 5]) -> Vec<String> {
        SMALL.circles(&Graph::new(files), &NONE_KNOWN)
    }

    #[test]
    fn arrows_that_the_table_allows_pass() {
        assert_eq!(wrong([ROOT, FS, READ, DEDUP, MEDIA]), Vec::<String>::new());
        assert_eq!(circles([ROOT, FS, READ, DEDUP, MEDIA]), Vec::<String>::new());
    }

    #[test]
    fn an_upward_import_fails_with_its_file_and_line() {
        for text in ["\nuse crate::fs::read;", "\nuse super::File;", "\nfn f() { g(crate::File) }"] {
            let told = wrong([ROOT, FS, READ, DEDUP, ("media.rs", text)]);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with("crates/small/src/media.rs:2: "), "{told:?}");
            assert!(told[0].contains("room `media` may not use `fs`. Put what both need"), "{told:?}");
        }
    }

    #[test]
    fn an_upward_path_in_a_comment_a_string_or_a_test_passes() {
        let text = "// crate::fs::File\nconst S: &str = \"crate::fs::File\";\n#[cfg(test)]\nmod tests { use crate::fs::File; }";
        assert_eq!(wrong([ROOT, FS, READ, DEDUP, ("media.rs", text)]), Vec::<String>::new());
    }

    #[test]
    fn a_row_of_the_table_without_a_use_fails() {
        let told = wrong([ROOT, FS, READ, ("dedup.rs", ""), MEDIA]);
        assert_eq!(told, ["table of small: no file of `dedup` uses `media` any more: take it out"]);
        let told = wrong([("lib.rs", "mod fs; mod dedup; mod media; mod sync;"), FS, DEDUP, MEDIA, ("sync.rs", "")]);
        assert_eq!(told, ["table of small: room `sync` has no row"]);
        let told = SMALL.wrong_arrows(&Graph::new([("lib.rs", "mod dedup; mod media;"), DEDUP, MEDIA]), &NONE_KNOWN);
        assert_eq!(told[0], "table of small: there is no room `fs` any more: take its row out");
    }

    #[test]
    fn an_upward_arrow_in_the_table_fails_unless_it_is_listed_as_known() {
        let knotted = House { crate_name: "small", rooms: &[("dedup", "media"), ("media", "dedup")] };
        let sources = [("lib.rs", "mod dedup; mod media;"), DEDUP, ("media.rs", "use crate::dedup::place;")];
        let told = knotted.wrong_arrows(&Graph::new(sources), &NONE_KNOWN);
        assert_eq!(told, ["table of small: `media` -> `dedup`: it leads up"]);
        let known = Known { arrows: &[("small", "media", "dedup")], ..NONE_KNOWN };
        assert_eq!(knotted.wrong_arrows(&Graph::new(sources), &known), Vec::<String>::new());
        let told = SMALL.wrong_arrows(&Graph::new([ROOT, FS, READ, DEDUP, MEDIA]), &known);
        assert_eq!(told, ["table of small: `media` -> `dedup` is mended: take it out of KNOWN"]);
    }

    #[test]
    fn a_circle_of_files_fails_unless_it_is_listed_as_known() {
        let sources = [
            ("lib.rs", "mod fs;"),
            ("fs/mod.rs", "mod read; mod write;"),
            ("fs/read.rs", "use super::write::W;"),
            ("fs/write.rs", "\nfn f() { super::read::r() }"),
        ];
        let told = SMALL.circles(&Graph::new(sources), &NONE_KNOWN);
        assert_eq!(
            told,
            ["fs/read, fs/write use each other:\n    crates/small/src/fs/read.rs:1: `super::write::W`\n    \
              crates/small/src/fs/write.rs:2: `super::read::r`\n    Put what they share into a file below them"]
        );
        let known = Known { circles: &[("small", "fs/read fs/write fs/share")], ..NONE_KNOWN };
        assert_eq!(SMALL.circles(&Graph::new(sources), &known), Vec::<String>::new());
        let told = SMALL.circles(&Graph::new([ROOT, FS, READ, DEDUP, MEDIA]), &known);
        assert_eq!(told, ["the circle of fs/read fs/write fs/share is gone: take it out of KNOWN"]);
    }

    #[test]
    fn a_file_and_its_parent_module_are_not_a_circle() {
        let with_child = ("fs/mod.rs", "mod read;\nuse crate::{dedup::place, media::Block};\npub use read::Reader;");
        assert_eq!(circles([ROOT, with_child, READ, DEDUP, MEDIA]), Vec::<String>::new());
    }

    #[test]
    fn a_policy_mentioned_in_fs_fails_only_in_code() {
        let named_in = |text: &str| {
            let graph = Graph::new([ROOT, FS, ("fs/read.rs", text), ("dedup.rs", "enum Policy { DeNova }"), MEDIA]);
            named(&graph, "fs/", &POLICIES, &[])
        };
        for (text, found) in [
            ("fn f(p: Policy) {\n    p == Policy::Inline\n}", "fs/read.rs:2: Policy::Inline"),
            ("use crate::dedup::{\n    inline,\n};", "fs/read.rs:2: crate::dedup::inline"),
            ("fn f() { self.policies.denova.mode() }", "fs/read.rs:1: denova"),
            ("struct DeNovaStats;", "fs/read.rs:1: DeNovaStats"),
            ("const S: &str = \"nv-dedup\";", "fs/read.rs:1: nv-dedup"),
            ("fn f(o: &NvDedupOptions) {}", "fs/read.rs:1: NvDedupOptions"),
        ] {
            assert_eq!(named_in(text), [found], "{text}");
        }
        for text in [
            "/// As DeNOVA does it, and `Policy::Inline`.\nfn f() { /* nv_dedup */ }",
            "#[inline]\nfn f(value: XattrValue) { value == XattrValue::Inline }",
            "#[cfg(test)]\nmod tests { use crate::dedup::denova; }",
        ] {
            assert_eq!(named_in(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn a_known_exception_that_is_fixed_must_be_removed_from_the_list() {
        let graph = Graph::new([ROOT, FS, ("fs/read.rs", "use crate::dedup::denova;"), DEDUP, MEDIA]);
        assert_eq!(named(&graph, "fs/", &POLICIES, &["fs/read.rs"]), Vec::<String>::new());
        let graph = Graph::new([ROOT, FS, READ, DEDUP, MEDIA]);
        assert_eq!(named(&graph, "fs/", &POLICIES, &["fs/read.rs"]), ["fs/read.rs is mended: take it out of KNOWN"]);
    }

    #[test]
    fn a_walk_that_differs_from_the_code_fails() {
        let page = |walk: &str| format!("### One write, from the door to the medium\n\n```text\n{walk}```\n");
        let source = "impl A {\n    fn top(&self) {\n        self.first();\n        second();\n    }\n}\n";
        let source = source.to_owned() + "fn first() {\n}\nfn second() {\n}\n";
        let wrong = |walk: &str| wrong_calls(&walk_of(&page(walk)), |file| (file == "a.rs").then(|| source.clone()));
        assert!(wrong("top a.rs\n  first a.rs the one\n  second a.rs\n").is_empty());
        assert_eq!(wrong("top a.rs\n  third a.rs\n"), ["there is no function `third` in a.rs"]);
        assert_eq!(wrong("top b.rs\n"), ["there is no function `top` in b.rs"]);
        assert_eq!(wrong("first a.rs\n  second a.rs\n"), ["`first` in a.rs does not call `second`"]);
        assert_eq!(
            wrong("top a.rs\n  second a.rs\n  first a.rs\n"),
            ["`top` calls `first` before what stands above it"]
        );
    }
}
