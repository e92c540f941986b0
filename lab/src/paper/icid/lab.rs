//! Programs under `nvfold run`, and the figures that they report.
//!
//! Everything is in one folder in memory, which is removed when the run ends. Each line with a name and a number is a
//! figure, both in the output of a program and in the report that the library writes at exit (crates/nvfold-preload,
//! `evaluation`).

use super::chunks::{self, Chunked, Scheme};
use crate::{Doing, LabError, Result, bounds, program};
use nvfold_bench::mounts::{self, Mounted};
use nvfold_bench::process::{output, run};
use nvfold_bench::scratch::Scratch;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEVELDB: &str = include_str!("leveldb.cc");

/// The variants of the rec-tree (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The variant that nvfold uses.
    Icid,
    /// An insertion deletes all records that it overlaps.
    DeleteOverlapping,
    /// Nothing is deleted.
    KeepAll,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Icid => "icid",
            Variant::DeleteOverlapping => "icid-do",
            Variant::KeepAll => "icid-ka",
        }
    }
}

/// Options of a program's run.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    /// The device.
    pub device: PathBuf,
    /// Its options.
    pub options: String,
    /// The variant of the rec-tree.
    pub variant: Variant,
}

/// Returns the options of a policy. The paper shares runs of 64 bytes, whatever that costs.
fn of_policy(policy: &str) -> String {
    format!("policy={policy},origin_min=64")
}

impl Wishes {
    /// Returns options for a device in the memory of the process.
    pub(crate) fn in_memory(policy: &str, mebibytes: u64) -> Wishes {
        Wishes {
            device: "mem:".into(),
            options: format!("size={mebibytes}M,{}", of_policy(policy)),
            variant: Variant::Icid,
        }
    }

    /// Returns options for an existing device.
    pub(crate) fn on(device: &Path, policy: &str) -> Wishes {
        Wishes { device: device.into(), options: of_policy(policy), ..Wishes::in_memory(policy, 0) }
    }

    /// Changes the variant of the rec-tree.
    pub(crate) fn with(self, variant: Variant) -> Wishes {
        Wishes { variant, ..self }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    figures: HashMap<String, Vec<f64>>,
}

impl Done {
    /// Reads the figures of a program's output, one a line.
    pub(super) fn of(printed: &str) -> Done {
        let mut done = Done::default();
        for line in printed.lines() {
            if let Some((name, value)) = line.split_once(' ')
                && let Ok(value) = value.trim().parse()
            {
                done.figures.entry(name.into()).or_default().push(value);
            }
        }
        done
    }

    /// Returns a figure; the last one if it was reported several times.
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        let missing = || LabError::Miscounted(format!("the program did not report {name}"));
        self.all(name).last().copied().ok_or_else(missing)
    }

    /// Returns all values that were reported for a figure.
    pub(crate) fn all(&self, name: &str) -> &[f64] {
        self.figures.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the share of its writes that was shared by causality, percent.
    pub(crate) fn percent_shared(&self) -> Result<f64> {
        share(self.get("shared_bytes")?, self.get("written_bytes")?)
    }

    /// Returns what LevelDB wrote to its tables and logs.
    pub(crate) fn stored(&self) -> Result<Stored> {
        // A small store may have no tables.
        let of = |name: &str| self.all(name).last().copied().unwrap_or(0.0);
        let [tables, tables_shared] = [of("written_bytes.ldb"), of("shared_bytes.ldb")];
        let [logs, logs_shared] = [of("written_bytes.log"), of("shared_bytes.log")];
        let (written, flushed) = (self.get("written_bytes")?, self.get("flushed_bytes")?);
        Stored { written, tables, tables_shared, logs, logs_shared, flushed }.checked()
    }
}

/// Returns a share in percent, unless it is above 100.
fn share(shared: f64, written: f64) -> Result<f64> {
    bounds::at_most("bytes shared", shared, written, "", "a byte is shared when it is written")?;
    Ok(100.0 * shared / written.max(1.0))
}

/// What LevelDB wrote by kind of file, in bytes. A record goes to a log first. A full log is *flushed*: a table is made of
/// it. Compactions make tables of tables, so only their bytes are copied from files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    /// Everything, with its lists of files.
    pub written: f64,
    /// Tables.
    pub tables: f64,
    /// Of them, shared with their origin.
    pub tables_shared: f64,
    /// Logs.
    pub logs: f64,
    /// Of them, shared with their origin.
    pub logs_shared: f64,
    /// Tables that were made of logs.
    pub flushed: f64,
}

impl Stored {
    /// Refuses more shared bytes than were copied from files.
    fn checked(self) -> Result<Stored> {
        let Stored { written, tables, tables_shared, logs, logs_shared, .. } = self;
        let why = "each file is a table, a log or a list of files";
        bounds::at_most("LevelDB: bytes of tables and logs", tables + logs, written, "", why)?;
        let why = "the records of a log come from the program and not from a file";
        bounds::at_most("LevelDB: bytes of logs that are shared", logs_shared, 0.0, "", why)?;
        let why = "only compactions copy from tables; all other tables are made of logs";
        bounds::at_most("LevelDB: bytes of tables that are shared", tables_shared, self.compacted(), "", why)?;
        Ok(self)
    }

    /// Returns the bytes of tables that compactions made.
    pub(crate) fn compacted(&self) -> f64 {
        (self.tables - self.flushed).max(0.0)
    }

    /// Returns the share of the tables that is shared, percent.
    pub(crate) fn percent_of_tables(&self) -> f64 {
        100.0 * self.tables_shared / self.tables.max(1.0)
    }
}

/// Returns a path of the lab as an argument.
pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("folders of a run have plain names")
}

/// Returns an `nvfold run` command on a device, to which the program is added.
pub(super) fn nvfold_run(wishes: &Wishes) -> Result<Command> {
    let mut command = Command::new(program::nvfold()?);
    command.args(["run", "--device"]).arg(&wishes.device).args(["-o", &wishes.options, "--"]);
    Ok(command)
}

/// The folder in which programs run.
pub(crate) struct Lab {
    folder: Scratch,
}

/// The phases of db_bench's own list that write.
pub(crate) const LIST: &str = "fillrandom,overwrite,compact";
/// Its first phase.
pub(crate) const FILL: &str = "fillrandom";

/// The workload of LevelDB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of pairs that a phase puts, and number of keys.
    pub pairs: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Whether LevelDB compresses.
    pub compresses: bool,
    /// What is done, as db_bench's `--benchmarks`.
    pub phases: &'static str,
    /// Number of pairs that are read and compared.
    pub reads: u64,
}

impl Load {
    /// Returns a workload with these phases that reads a tenth of the pairs.
    pub(crate) fn of(phases: &'static str, pairs: u64, value_bytes: u64) -> Load {
        Load { pairs, value_bytes, compresses: false, phases, reads: pairs / 10 }
    }

    /// Returns the MiB of a device with space for the store, its log and compactions.
    pub(crate) fn device_mebibytes(&self) -> u64 {
        512 + ((self.pairs * (self.value_bytes + 16) * 4) >> 20)
    }
}

impl Lab {
    /// Makes a folder in /dev/shm and compiles the LevelDB driver in it.
    pub(crate) fn new() -> Result<Lab> {
        let folder = Scratch::new_in(Path::new("/dev/shm"))?;
        let lab = Lab { folder };
        let source = lab.path("leveldb.cc");
        fs::write(&source, LEVELDB).doing("write the LevelDB driver")?;
        let mut compiler = Command::new("c++");
        run(compiler.args(["-O2", "-std=c++17", "-o"]).arg(lab.path("leveldb")).arg(source).arg("-lleveldb"))?;
        Ok(lab)
    }

    /// Returns a path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns an empty folder with this name.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path).doing(format!("remove {}", path.display()))?;
        }
        fs::create_dir(&path).doing(format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Returns options for a new device in a file, which replaces the last one; the first run creates it.
    pub(crate) fn new_device(&self, policy: &str, mebibytes: u64) -> Wishes {
        let device = self.path("device");
        let _ = fs::remove_file(&device);
        Wishes { options: format!("create,size={mebibytes}M,{}", of_policy(policy)), ..Wishes::on(&device, policy) }
    }

    /// Mounts nvfold on a device (`mem:` is a memory device).
    pub(crate) fn mount(&self, policy: &str, device: &Path, options: &str) -> Result<Mounted> {
        let dir = self.path("mount");
        fs::create_dir_all(&dir).doing(format!("make {}", dir.display()))?;
        Ok(mounts::nvfold(&program::nvfold()?, policy, device, &dir, options)?)
    }

    /// Runs a program with its files below `/nvfold`.
    pub(crate) fn run(&self, wishes: &Wishes, program: &[&str]) -> Result<Done> {
        let asked = self.asked(wishes)?;
        run_in(&asked, wishes, program)
    }

    /// Does the same, and gives each of its writes to competitors, who know the files of `before` already. The writes
    /// come through a pipe, because those of a large store fit in no memory. The program waits while they are cut, so
    /// it takes no processor time from the competitors.
    pub(super) fn run_chunked(
        &self,
        wishes: &Wishes,
        program: &[&str],
        before: &[PathBuf],
        schemes: impl IntoIterator<Item = Scheme>,
    ) -> Result<(Done, Vec<Chunked>)> {
        let asked = self.asked(wishes)?;
        let pipe = asked.join("writes");
        run(Command::new("mkfifo").arg(&pipe))?;
        let mut all = chunks::knowing(before, schemes)?;
        std::thread::scope(|scope| {
            let cutting = scope.spawn(|| chunks::cut_record(&pipe, &mut all));
            // Holds the pipe open for as long as the program may open it, and then lets its reader see the end.
            let held = fs::OpenOptions::new().write(true).open(&pipe).doing("open the pipe of writes")?;
            let done = run_in(&asked, wishes, program);
            drop(held);
            let cut = cutting.join().expect("competitors do not panic");
            let done = done?;
            cut.map(|()| done)
        })
        .map(|done| (done, all))
    }

    /// Returns an empty folder for the report of a run, with what it is asked for.
    fn asked(&self, wishes: &Wishes) -> Result<PathBuf> {
        let asked = self.fresh("evaluation")?;
        fs::write(asked.join("variant"), wishes.variant.name()).doing("ask for a variant")?;
        Ok(asked)
    }

    /// Runs LevelDB under `nvfold run --device`.
    pub(crate) fn leveldb(&self, wishes: &Wishes, load: Load) -> Result<Done> {
        let arguments = self.leveldb_arguments("/nvfold/db", load);
        self.run(wishes, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Does the same, and gives each of its writes to competitors.
    pub(super) fn leveldb_chunked(
        &self,
        wishes: &Wishes,
        load: Load,
        schemes: impl IntoIterator<Item = Scheme>,
    ) -> Result<(Done, Vec<Chunked>)> {
        let arguments = self.leveldb_arguments("/nvfold/db", load);
        self.run_chunked(wishes, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), &[], schemes)
    }

    /// Runs LevelDB without nvfold in a folder, whose store is removed first; `before` is a prefix of the command.
    pub(crate) fn leveldb_in(&self, folder: &Path, before: &[&str], load: Load) -> Result<Done> {
        let database = folder.join("db");
        if database.exists() {
            fs::remove_dir_all(&database).doing(format!("remove {}", database.display()))?;
        }
        let whole: Vec<String> =
            before.iter().map(ToString::to_string).chain(self.leveldb_arguments(text(&database), load)).collect();
        Ok(Done::of(&output(Command::new(&whole[0]).args(&whole[1..]))?))
    }

    fn leveldb_arguments(&self, path: &str, load: Load) -> Vec<String> {
        let Load { pairs, value_bytes, compresses, phases, reads } = load;
        let program = text(&self.path("leveldb")).to_string();
        let [pairs, value_bytes, compresses, reads] =
            [pairs, value_bytes, compresses.into(), reads].map(|number| number.to_string());
        vec![program, path.into(), pairs, value_bytes, compresses, phases.into(), reads]
    }
}

/// Runs a program, whose report goes to a folder.
fn run_in(asked: &Path, wishes: &Wishes, program: &[&str]) -> Result<Done> {
    let printed = output(nvfold_run(wishes)?.env("NVFOLD_RUN_EVALUATION", asked).args(program))?;
    let reported = fs::read_to_string(asked.join("report")).doing("read the report of a program's run")?;
    Ok(Done::of(&(printed + &reported)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a store wrote: 100 bytes of logs, 100 flushed ones, and 300 that compactions made.
    fn stored(tables_shared: f64, logs_shared: f64) -> Result<Stored> {
        let report = format!(
            "flushed_bytes 100\nwritten_bytes 510\nwritten_bytes.ldb 400\nshared_bytes.ldb {tables_shared}\n\
             written_bytes.log 100\nshared_bytes.log {logs_shared}\n"
        );
        Done::of(&report).stored()
    }

    #[test]
    fn tables_are_counted_apart_from_logs() {
        let stored = stored(280.0, 0.0).unwrap();
        assert_eq!((stored.compacted(), stored.percent_of_tables()), (300.0, 70.0));
    }

    #[test]
    fn more_shared_bytes_than_were_copied_from_files_are_refused() {
        let error = stored(310.0, 0.0).unwrap_err().to_string();
        assert!(error.contains("bytes of tables that are shared: 310 was measured"), "{error}");
        let error = stored(280.0, 5.0).unwrap_err().to_string();
        assert!(error.contains("bytes of logs that are shared: 5 was measured"), "{error}");
        assert!(share(101.0, 100.0).is_err());
    }
}
