//! Programs under `nvfold run`, and the figures that they report.
//!
//! Everything is in one folder in memory, which is removed when the run ends. Each line with a name and a number is a
//! figure, both in the output of a program and in the report that the library writes at exit (crates/nvfold-preload,
//! `evaluation`).

use crate::{Doing, LabError, Result, program};
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
    /// Whether its writes are recorded.
    pub keeps_writes: bool,
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
            keeps_writes: false,
        }
    }

    /// Returns options for an existing device.
    pub(crate) fn on(device: &Path, policy: &str) -> Wishes {
        Wishes { device: device.into(), options: of_policy(policy), ..Wishes::in_memory(policy, 0) }
    }

    /// Adds a record of its writes.
    pub(crate) fn keeping_writes(self) -> Wishes {
        Wishes { keeps_writes: true, ..self }
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
    /// The record of its writes, if it was kept; the next run removes it.
    pub writes: PathBuf,
}

impl Done {
    fn of(printed: &str) -> Done {
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
        Ok(100.0 * self.get("shared_bytes")? / self.get("written_bytes")?.max(1.0))
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

/// The workload of LevelDB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of pairs that are put, and number of keys.
    pub pairs: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Whether LevelDB compresses.
    pub compresses: bool,
    /// How often all pairs are put.
    pub fills: u64,
    /// Number of pairs that are read and compared.
    pub reads: u64,
}

impl Load {
    /// Returns a workload that fills the store once and reads a tenth of the pairs.
    pub(crate) fn of(pairs: u64, value_bytes: u64) -> Load {
        Load { pairs, value_bytes, compresses: false, fills: 1, reads: pairs / 10 }
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
        let asked = self.fresh("evaluation")?;
        fs::write(asked.join("variant"), wishes.variant.name()).doing("ask for a variant")?;
        let writes = asked.join("writes");
        if wishes.keeps_writes {
            fs::write(&writes, "").doing("ask for a record of writes")?;
        }
        let printed = output(nvfold_run(wishes)?.env("NVFOLD_RUN_EVALUATION", &asked).args(program))?;
        let reported = fs::read_to_string(asked.join("report")).doing("read the report of a program's run")?;
        Ok(Done { writes, ..Done::of(&(printed + &reported)) })
    }

    /// Runs LevelDB under `nvfold run --device`.
    pub(crate) fn leveldb(&self, wishes: &Wishes, load: Load) -> Result<Done> {
        let arguments = self.leveldb_arguments("/nvfold/db", load);
        self.run(wishes, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
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
        let Load { pairs, value_bytes, compresses, fills, reads } = load;
        let program = text(&self.path("leveldb")).to_string();
        let numbers = [pairs, value_bytes, compresses.into(), fills, reads].map(|number| number.to_string());
        [program, path.into()].into_iter().chain(numbers).collect()
    }
}
