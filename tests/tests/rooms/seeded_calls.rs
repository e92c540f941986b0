//! Seeded circles by calls: each kind must fail, and calls that lead down must pass.

use super::graph::{Graph, name};
use super::{House, NONE_KNOWN};

const SMALL: House = House { crate_name: "small", rooms: &[("fs", "media"), ("media", "")] };
const ROOT: (&str, &str) = ("lib.rs", "mod fs; mod media;");
const FS: (&str, &str) = ("fs/mod.rs", "mod read; mod write; mod log; pub struct Core { log: Log }");

fn graph(read: &str, write: &str, log: &str) -> Graph {
    Graph::new([ROOT, FS, ("fs/read.rs", read), ("fs/write.rs", write), ("fs/log.rs", log), ("media.rs", "")])
}

/// Returns the files of each circle.
fn circles(read: &str, write: &str, log: &str) -> Vec<String> {
    let graph = graph(read, write, log);
    let files =
        graph.circles().into_iter().map(|circle| circle.files.iter().map(|file| name(file)).collect::<Vec<_>>());
    files.map(|files| files.join(" ")).collect()
}

const BOTH: [&str; 1] = ["fs/read fs/write"];
const NONE: [&str; 0] = [];

const READS: &str = "impl super::Core { pub fn read(&self) -> u8 { 0 } }";
const READS_AND_WRITES: &str = "impl Core { fn read(&self) { self.write_run(1) } }";
const WRITES: &str = "impl Core { fn write_run(&self, x: u8) {} fn other(&self) {} }";
const WRITES_AND_READS: &str = "impl Core {\n    fn write_run(&self) {\n        self.read()\n    }\n}";

#[test]
fn methods_of_one_type_that_call_down_pass() {
    assert_eq!(circles(READS_AND_WRITES, WRITES, ""), NONE);
    assert_eq!(circles(READS, WRITES_AND_READS, ""), NONE);
    let arrows = graph(READS, WRITES_AND_READS, "").calls;
    assert_eq!((arrows[0].place.as_str(), arrows[0].path.as_str()), ("fs/write.rs:3", "Core::read"));
    assert_eq!(arrows.len(), 1);
}

#[test]
fn methods_of_one_type_that_call_each_other_fail_with_their_places() {
    assert_eq!(circles(READS_AND_WRITES, WRITES_AND_READS, ""), BOTH);
    let told = SMALL.circles(&graph(READS_AND_WRITES, WRITES_AND_READS, ""), &NONE_KNOWN);
    assert_eq!(
        told,
        ["fs/read, fs/write use each other:\n    crates/small/src/fs/read.rs:1: `Core::write_run`\n    \
          crates/small/src/fs/write.rs:3: `Core::read`\n    Put what they share into a file below them"]
    );
}

#[test]
fn a_receiver_is_known_by_its_declaration() {
    for read in [
        "fn f(core: &Core) { core.write_run(1) }",
        "fn f(core: &super::Core) { let other = core; other.write_run(1) }",
        "fn f(cores: &[Arc<Core>]) { for core in cores { core.write_run(1) } }",
        "fn f(core: Option<&Core>) { core.unwrap().write_run(1) }",
        "fn f(core: Option<&Core>) -> Option<()> { core?.write_run(1) }",
        "fn f(core: Option<&Core>) { if let Some(core) = core { core.write_run(1) } }",
        "fn f(core: &Mutex<Core>) { core.lock().write_run(1) }",
        "fn f(core: &Core) { Core::write_run(core, 1) }",
        "fn f(x: &[u8]) { x.iter().for_each(Core::write_run) }",
        "fn f() { g(|core: &Core| core.write_run(1)) }",
        "fn f() { g(|_, at| at.write_run(1)) }",
        "fn f(core: &Core) { assert!(core.write_run(1) == 0) }",
        "struct Reader<'c> { core: &'c Core } impl Reader<'_> { fn f(&self) { self.core.write_run(1) } }",
        "struct Reader(u8, Core); impl Reader { fn f(&self) { let core = &self.1; core.write_run(1) } }",
        "struct Jobs<'c>(&'c Core); impl Deref for Jobs<'_> { type Target = Core; fn deref(&self) -> &Core { self.0 } }
         impl Jobs<'_> { fn f(&self) { self.write_run(1) } }",
        "struct A; impl A { fn core(&self) -> Result<&Core> { g() } fn f(&self) { self.core()?.write_run(1) } }",
        "type Shared = Arc<Core>; fn f(core: Shared) { core.write_run(1) }",
        "fn core() -> Core { g() } fn f() { core().write_run(1) }",
        "const TABLE: [fn(&Core); 1] = [Core::write_run];",
    ] {
        let also_there = "struct Log; impl Log { fn write_it(&self) {} }";
        let calls = graph(read, &format!("{WRITES} {also_there}"), "").calls;
        assert_eq!(calls.len(), 1, "{read}: {calls:?}");
        assert_eq!((name(&calls[0].from), name(&calls[0].to)), ("fs/read".into(), "fs/write".into()), "{read}");
    }
}

#[test]
fn a_name_equal_to_a_method_makes_no_arrow() {
    for read in [
        "fn f(log: &Vec<u8>) { log.write_run(1) }",
        "fn f(core: &Core) { core.write_run }",
        "struct Log; impl Log { fn write_run(&self) {} } fn f(log: &Log) { log.write_run(1) }",
        "// core.write_run()\nfn f(core: &Core) -> &str { \"core.write_run()\" }",
        "#[cfg(test)] mod tests { fn f(core: &Core) { core.write_run(1) } }",
    ] {
        assert_eq!(graph(read, WRITES, "").calls, [], "{read}");
    }
    // Of two types with that method the declaration decides; without one nothing is known.
    let log = "pub struct Log; impl Log { fn write_run(&self) {} }";
    assert_eq!(graph("fn f() { g(|at| at.write_run(1)) }", WRITES, log).calls, []);
    let calls = graph("impl Core { fn f(&self) { self.log.write_run() } }", WRITES, log).calls;
    assert_eq!(calls.iter().map(|call| name(&call.to)).collect::<Vec<_>>(), ["fs/log"]);
    // Common names on unknown values are those of the standard library.
    assert_eq!(graph("fn f() { g(|at| at.push(1)) }", "impl Core { fn push(&self, x: u8) {} }", "").calls, []);
}

#[test]
fn a_circle_by_a_free_function_fails() {
    let write = "pub fn write(core: &Core) { core.read() }";
    assert_eq!(circles("impl Core { fn read(&self) { super::write::write(self) } }", write, ""), BOTH);
    assert_eq!(circles("use super::write::write; impl Core { fn read(&self) { write(self) } }", write, ""), BOTH);
    assert_eq!(circles(READS, write, ""), NONE);
}

#[test]
fn a_circle_by_a_trait_fails() {
    let plan = "pub trait Plan { fn place(&self, core: &Core); }";
    let read = "use super::log::Plan; pub struct Reader; impl Plan for Reader { fn place(&self, core: &Core) { core.place_all(self) } }";
    for write in [
        "impl Core { pub fn place_all(&self, plan: &dyn Plan) { plan.place(self) } }",
        "impl Core { pub fn place_all(&self, plan: &mut impl Plan) { plan.place(self) } }",
        "impl Core { pub fn place_all<P: Plan + Send>(&self, plan: &P) { plan.place(self) } }",
        "impl Core { pub fn place_all<P>(&self, plan: P) where P: Plan { plan.place(self) } }",
        "impl Core { pub fn place_all(&self, plans: Vec<Box<dyn Plan>>) { for plan in &plans { plan.place(self) } } }",
    ] {
        assert_eq!(circles(read, write, plan), BOTH, "{write}");
    }
    // A plan that only looks, and leaves the order to its caller, passes.
    let reader = "use super::log::Plan; pub struct Reader; impl Plan for Reader { fn place(&self, core: &Core) {} }";
    let write = "impl Core { pub fn place_all(&self, plan: &dyn Plan) { plan.place(self) } }";
    assert_eq!(circles(reader, write, plan), NONE);
}

#[test]
fn a_trait_of_a_lower_room_that_an_upper_one_implements_passes() {
    let sources = [
        ("lib.rs", "mod fs; mod media;"),
        ("fs.rs", "use crate::media::Host; struct Core; impl Host for Core { fn wake(&self) {} }"),
        ("media.rs", "pub trait Host { fn wake(&self); } pub fn run(host: &dyn Host) { host.wake() }"),
    ];
    assert_eq!(Graph::new(sources).calls, []);
}

#[test]
fn a_circle_by_a_callback_fails() {
    let other = "impl Core { fn third(&self) {} }";
    for write in [
        "impl Core { pub fn each(&self, work: impl Fn(&Core)) { work(self) } }",
        "impl Core { pub fn each(&self, work: &dyn Fn(&Core, u8) -> u8) { work(self, 1) } }",
        "impl Core { pub fn each<F: FnOnce(&Core)>(&self, work: F) { work(self) } }",
        "impl Core { pub fn each<F>(&self, work: F) where F: FnMut(&Core) -> bool { work(self) } }",
        "impl Core { pub fn each(&self, work: fn(&Core)) { work(self) } }",
        "impl Core { pub fn each(&self, work: Option<fn(&Core)>) { work(self) } }",
    ] {
        let read = "impl Core { fn read(&self) { self.each(|core| core.third()) } }";
        assert_eq!(circles(read, write, other), BOTH, "{write}");
    }
    let write = "pub fn each(core: &Core, work: impl Fn(&Core)) { work(core) }";
    for read in [
        "use super::write::each; impl Core { fn read(&self) { each(self, |core| core.third()) } }",
        "use super::write; impl Core { fn read(&self) { write::each(self, |core| core.third()) } }",
    ] {
        assert_eq!(circles(read, write, other), BOTH, "{read}");
    }
    // One that gets data only passes.
    let write = "impl Core { pub fn each(&self, work: impl Fn(&[u8])) { work(&[]) } }";
    assert_eq!(circles("impl Core { fn read(&self) { self.each(|bytes| ()) } }", write, other), NONE);
}

#[test]
fn a_circle_by_a_callback_in_a_field_fails() {
    let write = "pub struct Job { run: fn(&Core) } impl Core { fn run(&self, job: &Job) { (job.run)(self) } }";
    let other = "impl Core { fn third(&self) {} }";
    for read in [
        "const JOBS: [super::write::Job; 1] = [super::write::Job { run: Core::third }];",
        "use super::write::Job; impl Core { fn read(&self) { self.run(&Job { run: Core::third }) } }",
    ] {
        assert_eq!(circles(read, write, other), BOTH, "{read}");
    }
    let write = "pub struct Job { run: fn(u8) } impl Core { fn run(&self, job: &Job) { (job.run)(1) } }";
    assert_eq!(circles("const JOBS: [super::write::Job; 1] = [super::write::Job { run: f }];", write, other), NONE);
}

/// The file that a family shares may be called, but hides no circle.
#[test]
fn a_circle_through_the_file_above_fails() {
    let through = |log: &str| {
        let fs = "mod read; mod write; pub struct Core; impl Core { fn open(&self) { self.write_run(1) } fn plain(&self) {} }";
        let read = format!("impl Core {{ fn read(&self) {{ {log} }} }}");
        let write = "impl Core { fn write_run(&self, x: u8) { self.read() } }";
        let sources = [("lib.rs", "mod fs;"), ("fs/mod.rs", fs), ("fs/read.rs", &read), ("fs/write.rs", write)];
        Graph::new(sources).circles().len()
    };
    assert_eq!(through("self.plain()"), 0);
    assert_eq!(through("self.open()"), 1);
}
