//! The file that describes a service.
//!
//! ```toml
//! device = "/var/lib/nvfold/pool"     # or "mem:", with a size
//! mountpoint = "/srv/pool"
//! options = ["compress=zstd", "noatime"]
//! ```
//!
//! An administrator writes it, and reads what is wrong with it in the journal. So every error names the file, the line, the
//! key and what to do. The options are checked by the code that checks `-o`.

use crate::device;
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::{Handed, Options, Plan};
use crate::size;
use crate::text::escaped;
use serde::Deserialize;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Where the files of the system are.
const SYSTEM: &str = "/etc/nvfold";
/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
const KEYS: &str =
    "the keys are device, mountpoint, size, options, log and metrics; docs/operating/service.md has an example";
const EXAMPLE: &str = "write such a file, for example: device = \"mem:\", size = \"8G\" and mountpoint = \"/srv/fold\", each on a \
                       line of its own";

/// The keys of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    device: Spanned<String>,
    mountpoint: Spanned<String>,
    size: Option<Spanned<String>>,
    #[serde(default)]
    options: Vec<Spanned<String>>,
    log: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
}

/// A service as it is described.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub device: PathBuf,
    pub mountpoint: PathBuf,
    pub options: Options,
    /// Each mount option that the file says, in words.
    pub said: Vec<String>,
}

/// Returns the file of a service, which is named by the name of the service or by a path.
pub(crate) fn file_of(named: &Path) -> Outcome<PathBuf> {
    let is_path = named.components().count() != 1 || named.extension().is_some_and(|extension| extension == "toml");
    if is_path {
        return device::absolute(named);
    }
    let folder = match rustix::process::geteuid().is_root() {
        true => SYSTEM.into(),
        false => of_user()?.join("nvfold"),
    };
    let mut file = folder.join(named).into_os_string();
    file.push(".toml");
    Ok(file.into())
}

/// Returns the folder of the configuration files of this user.
fn of_user() -> Outcome<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    folder.ok_or_else(|| {
        Failure::usage("find the file of the service", "neither XDG_CONFIG_HOME nor HOME is set")
            .hint("name the file by its path")
    })
}

impl Service {
    /// Reads a file.
    pub(crate) fn read(file: &Path) -> Outcome<Service> {
        let name = file.display();
        let wrong = |why: &'static str| Failure::usage(&name, why);
        let metadata = std::fs::metadata(file).map_err(|error| {
            let is_missing = error.kind() == ErrorKind::NotFound;
            let failure = Failure::usage(&name, error);
            if is_missing { failure.hint(EXAMPLE) } else { failure }
        })?;
        if !metadata.is_file() {
            return Err(wrong("this is no file").hint(EXAMPLE));
        }
        let mut bytes = Vec::new();
        File::open(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).doing(&name)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let most = size::show(FILE_BYTES_MAX);
            return Err(Failure::usage(&name, format!("it is larger than {most}, so it does not describe a service"))
                .hint(EXAMPLE));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let line = line_at(&bytes, error.valid_up_to());
            Failure::usage(format!("{name}, line {line}"), "this is not UTF-8 text")
                .hint("save the file as UTF-8; a path that is not UTF-8 needs a symbolic link that is")
        })?;
        Service::parse(file, text, rustix::process::geteuid().is_root())
    }

    fn parse(file: &Path, text: &str, is_root: bool) -> Outcome<Service> {
        let source = Source { file, text };
        let keys: Keys = toml::from_str(text).map_err(|error| source.refused(&error))?;
        let device = match keys.device.get_ref().as_str() {
            "mem:" => PathBuf::from("mem:"),
            _ => source.path("device", &keys.device, "write its whole path, or \"mem:\"")?,
        };
        let mountpoint = source.path("mountpoint", &keys.mountpoint, "write the whole path of a directory")?;
        let mut options = Options::new(is_root);
        let mut said = Vec::new();
        for list in &keys.options {
            source.take(&mut options, "options", list, list.get_ref())?;
            said.push(list.get_ref().clone());
        }
        for (key, value) in [("log", &keys.log), ("metrics", &keys.metrics)] {
            let Some(value) = value else { continue };
            // A comma would end the option.
            let list = format!("{key}={}", value.get_ref().replace(',', "+"));
            source.take(&mut options, key, value, &list)?;
            said.push(list);
        }
        source.check_size(&mut options, &device, &keys)?;
        options.dedup.check().map_err(|why| Failure::usage(source.place("options", None), why))?;
        Ok(Service { device, mountpoint, options, said })
    }

    /// Returns how it is mounted and served.
    pub(crate) fn plan(&self, handed: Option<Handed>, on_stop: fn()) -> Plan {
        let (device, dir) = (self.device.clone(), self.mountpoint.clone());
        Plan { device, dir, options: self.options.clone(), force: false, handed, on_stop }
    }
}

/// The file, for messages about it.
struct Source<'f> {
    file: &'f Path,
    text: &'f str,
}

impl Source<'_> {
    /// Names a place in the file.
    fn place(&self, key: &str, at: Option<Range<usize>>) -> String {
        let line = at.map(|at| format!(", line {}", line_at(self.text.as_bytes(), at.start))).unwrap_or_default();
        let key = if key.is_empty() { String::new() } else { format!(", key {key}") };
        format!("{}{line}{key}", self.file.display())
    }

    /// Explains what the parser did not accept.
    fn refused(&self, error: &toml::de::Error) -> Failure {
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        let key = error.span().map(|at| self.key_at(at.start)).unwrap_or_default();
        let hint = match key {
            _ if message.starts_with("missing field") => EXAMPLE.to_owned(),
            "options" => "write a list of mount options: options = [\"ro\", \"compress=zstd\"]".to_owned(),
            "device" | "mountpoint" | "size" | "log" | "metrics" if message.starts_with("invalid type") => {
                format!("write the value in quotes: {key} = \"...\"")
            }
            _ => KEYS.to_owned(),
        };
        Failure::usage(self.place(key, error.span()), escaped(&message)).hint(hint)
    }

    /// Returns the key in the line of an offset; empty if there is none.
    fn key_at(&self, offset: usize) -> &str {
        let before = self.text.get(..offset).unwrap_or_default();
        let line = self.text.get(before.rfind('\n').map_or(0, |end| end + 1)..).unwrap_or_default();
        let key = line.lines().next().unwrap_or_default().split('=').next().unwrap_or_default().trim();
        let is_key = key.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-');
        if is_key { key } else { "" }
    }

    /// Takes a list of mount options.
    fn take(&self, options: &mut Options, key: &str, value: &Spanned<String>, list: &str) -> Outcome<()> {
        let place = || self.place(key, Some(value.span()));
        options.take(list).map_err(|failure| failure.within(place()))?;
        if options.remount {
            let why = "option remount changes a mount that exists, and a service makes one";
            return Err(Failure::usage(place(), why).hint("remove it; `systemctl reload` changes the mount"));
        }
        Ok(())
    }

    /// Takes a path, which must be absolute, or begin with `~/`.
    fn path(&self, key: &str, value: &Spanned<String>, hint: &str) -> Outcome<PathBuf> {
        let wrong = |why: &'static str| Failure::usage(self.place(key, Some(value.span())), why).hint(hint);
        let text = value.get_ref();
        if text.contains('\0') {
            return Err(wrong("a path has no zero bytes"));
        }
        let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let path = match text.strip_prefix("~/") {
            Some(below) => home().ok_or_else(|| wrong("HOME is not set"))?.join(below),
            None => PathBuf::from(text),
        };
        if path.is_absolute() { Ok(path) } else { Err(wrong("this is not an absolute path")) }
    }

    /// Takes the size, which a device in memory has, and no other.
    fn check_size(&self, options: &mut Options, device: &Path, keys: &Keys) -> Outcome<()> {
        let is_memory = device == Path::new("mem:");
        let place = |value: &Spanned<String>| self.place("size", Some(value.span()));
        if let Some(size) = &keys.size {
            options.size_bytes = Some(
                size::parse(size.get_ref()).map_err(|why| Failure::usage(place(size), why).hint("for example: 8G"))?,
            );
        }
        let at = || keys.size.as_ref().map_or_else(|| self.place("options", None), place);
        match options.size_bytes {
            Some(_) if !is_memory => Err(Failure::usage(at(), "only a device in memory (mem:) gets a size here")
                .hint("remove it; other devices are made once, with `nvfold mkfs DEVICE --size SIZE`")),
            Some(bytes) => device::check_size(bytes).map_err(|why| Failure::usage(at(), why).hint("for example: 8G")),
            None if is_memory => {
                Err(Failure::usage(self.place("device", Some(keys.device.span())), "mem: needs a size")
                    .hint("add a line with its size, for example: size = \"8G\""))
            }
            None => Ok(()),
        }
    }
}

/// Returns the number of the line with this offset, from 1 on.
fn line_at(text: &[u8], offset: usize) -> usize {
    text[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = "device = \"/var/lib/pool\"\nmountpoint = \"/srv/pool\"\n";
    const MEMORY: &str = "device = \"mem:\"\nmountpoint = \"/srv/fold\"\n";

    fn parsed(text: &str) -> Outcome<Service> {
        Service::parse(Path::new("/etc/nvfold/it.toml"), text, true)
    }

    /// Returns the message about a file with this text, and its hint.
    fn refused(text: &str) -> String {
        let failure = parsed(text).err().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(failure.code, crate::failure::USAGE, "{text}");
        failure.to_string()
    }

    #[test]
    fn a_file_describes_device_mount_point_and_options() {
        let service = parsed(&format!("{POOL}options = [\"compress=zstd\", \"ro,nosuid\"]\n")).unwrap();
        assert_eq!((service.device.to_str(), service.mountpoint.to_str()), (Some("/var/lib/pool"), Some("/srv/pool")));
        assert!(service.options.read_only && service.options.allow_other);
        assert_eq!(service.said, ["compress=zstd", "ro,nosuid"]);
        let memory = parsed(&format!("{MEMORY}size = \"1.5GiB\" # in memory\n")).unwrap();
        assert_eq!(memory.options.size_bytes, Some(1536 << 20));
        assert_eq!(parsed(&format!("{MEMORY}options = [\"size=16M\"]")).unwrap().options.size_bytes, Some(16 << 20));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let said = refused(&format!("{POOL}\n# a comment\ndevcie = \"/x\"\n"));
        assert!(said.starts_with("/etc/nvfold/it.toml, line 5, key devcie: unknown field `devcie`"), "{said}");
        assert!(said.contains("the keys are device, mountpoint"), "{said}");
        assert!(refused(&format!("{POOL}[options]\nro = true\n")).contains("line 3"));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_what_to_write() {
        let said = refused("device = \"mem:\"\nsize = 8\nmountpoint = \"/srv/x\"\n");
        assert!(said.starts_with("/etc/nvfold/it.toml, line 2, key size: invalid type: integer"), "{said}");
        assert!(said.contains("size = \"...\""), "{said}");
        let said = refused(&format!("{POOL}options = \"ro\"\n"));
        assert!(said.contains("line 3, key options") && said.contains("options = [\"ro\""), "{said}");
        assert!(refused(&format!("{POOL}options = [1]\n")).contains("line 3, key options"));
    }

    #[test]
    fn options_are_those_of_mount_and_errors_name_them() {
        let said = refused(&format!("{POOL}options = [\n  \"ro\",\n  \"bogus=1\",\n]\n"));
        let expected = "/etc/nvfold/it.toml, line 5, key options: mount option bogus=1: there is no such option";
        assert!(said.starts_with(expected), "{said}");
        assert!(refused(&format!("{POOL}options = [\"remount,ro\"]\n")).contains("systemctl reload"));
        assert!(refused(&format!("{POOL}options = [\"size=1G\"]\n")).contains("nvfold mkfs"));
        assert!(refused(&format!("{POOL}options = [\"threads=0\"]\n")).contains("from 1 to 256"));
        assert!(parsed(&format!("{POOL}options = [\"_netdev\", \"x-systemd.automount\", \"defaults\"]\n")).is_ok());
    }

    #[test]
    fn absurd_sizes_are_refused() {
        for (size, why) in [
            ("1", "too small"),
            ("900P", "too large"),
            ("99999999999999999999999", "larger than 2^64"),
            ("-1G", "cannot be negative"),
            ("8 apples", "unknown unit"),
            ("8G,ro", "unknown unit"),
            ("", "not a size"),
            ("1000000001", "multiple of 4096"),
        ] {
            let said = refused(&format!("{MEMORY}size = \"{size}\"\n"));
            assert!(
                said.starts_with("/etc/nvfold/it.toml, line 3, key size: ") && said.contains(why),
                "{size}: {said}"
            );
        }
        assert!(refused(&format!("{POOL}size = \"1G\"\n")).contains("nvfold mkfs"), "a device on a disk");
        assert!(refused(MEMORY).contains("add a line with its size"));
    }

    #[test]
    fn paths_must_be_absolute() {
        for (device, dir) in
            [("pool", "/srv/x"), ("", "/srv/x"), ("/pool", "x"), ("/pool", "../x"), ("/po\\u0000ol", "/x")]
        {
            let said = refused(&format!("device = \"{device}\"\nmountpoint = \"{dir}\"\n"));
            assert!(said.contains("write "), "{device} {dir}: {said}");
        }
    }

    #[test]
    fn a_file_that_describes_nothing_is_refused() {
        for text in
            ["", "device = \"/x\"\n", "mountpoint = \"/x\"\n", "{}", "device", "= 1", "[[device]]", "\u{0}", "a = 'b"]
        {
            let said = refused(text);
            assert!(said.starts_with("/etc/nvfold/it.toml"), "{text:?}: {said}");
            assert!(said.contains("hint"), "{text:?}: {said}");
        }
        assert!(refused("device = \"/x\"\n").contains("missing field `mountpoint`"));
        assert!(refused(&format!("{POOL}device = \"/y\"\n")).contains("line 3"), "twice");
    }

    #[test]
    fn a_file_that_is_no_text_or_missing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |file: &Path| Service::read(file).unwrap_err().to_string();
        let file = folder.path().join("it.toml");
        assert!(refused(&file).contains("for example: device"), "missing");
        assert!(refused(folder.path()).contains("no file"), "a directory");
        assert!(refused(Path::new("/dev/zero")).contains("no file"), "endless");
        std::fs::write(&file, b"device = \"mem:\"\nmountpoint = \"/\xff\"\n").unwrap();
        assert!(refused(&file).contains("it.toml, line 2: this is not UTF-8"), "{}", refused(&file));
        std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(refused(&file).contains("larger than 64 KiB"));
        std::fs::write(&file, POOL).unwrap();
        assert!(Service::read(&file).is_ok());
    }

    #[test]
    fn a_service_is_named_by_its_name_or_its_file() {
        assert_eq!(file_of(Path::new("/x/y.toml")).unwrap(), Path::new("/x/y.toml"));
        assert_eq!(file_of(Path::new("here.toml")).unwrap(), std::env::current_dir().unwrap().join("here.toml"));
        let named = file_of(Path::new("pool.v2")).unwrap();
        assert!(named.ends_with("nvfold/pool.v2.toml"), "{}", named.display());
    }
}
