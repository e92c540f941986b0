//! Walks over trees: depth first, without recursion, and each directory once.
//!
//! The problem: the names on a device are input. They may be nested as deep as there are inodes, so a function that
//! calls itself for each level overflows the stack; damaged ones may lead from a directory back to one above it, so the
//! walk would never end; and a path for each level would take memory that grows with the square of the depth.
//!
//! The idea: the levels are a list, the path is one buffer that all levels share, and the directories that were met are
//! remembered. One that is met again is damage: it is reported, and not entered.

use nvfold::host::{self, entries};
use nvfold::{Attr, Error, FileKind, FileSystem, InodeNumber};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::hash::Hash;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::vec;

/// A tree that can be walked.
pub(crate) trait Tree {
    /// A name in a directory.
    type Name: AsRef<OsStr>;
    /// What is known of a file or directory.
    type Node;
    /// Identifies a directory.
    type Identity: Eq + Hash;
    /// Why a file or directory cannot be read.
    type Why;

    /// Returns the names in a directory, in order.
    fn names(&self, path: &Path, directory: &Self::Identity) -> Result<Vec<Self::Name>, Self::Why>;

    /// Looks at what has a name; `None` if it does not belong to the tree.
    fn look(&self, path: &Path, name: &Self::Name) -> Result<Option<Self::Node>, Self::Why>;

    /// Returns what identifies a directory; `None` for anything else.
    fn directory(&self, node: &Self::Node) -> Option<Self::Identity>;

    /// Returns the error for a directory that was met before.
    fn met_again(&self, directory: &Self::Identity) -> Self::Why;
}

/// A step of a walk. [`Descent::path`] returns the path that it is about.
pub(crate) enum Step<N, W> {
    /// A file or directory. If it is a directory, what is below it comes next, and then [`Step::Left`].
    Found(N),
    /// All that is below a directory has come. The last step is about the directory where the walk began.
    Left,
    /// A file or directory cannot be read, or is damaged: what is below it is left out.
    Problem(W),
}

/// A walk over everything below a directory.
pub(crate) struct Descent<T: Tree> {
    tree: T,
    path: Vec<u8>,
    levels: Vec<Level<T::Name>>,
    met: HashSet<T::Identity>,
    /// The directory that was found last and has not been entered.
    next: Option<T::Identity>,
}

struct Level<N> {
    names: vec::IntoIter<N>,
    /// Length of the directory's path.
    path_bytes: usize,
}

impl<T: Tree> Descent<T>
where
    T::Identity: Clone,
{
    /// Makes a walk below the directory `top`, whose path is `path`.
    pub(crate) fn new(tree: T, path: &Path, top: &T::Node) -> Descent<T> {
        let next = tree.directory(top);
        let met = next.iter().cloned().collect();
        Descent { tree, path: path.as_os_str().as_bytes().to_vec(), levels: Vec::new(), met, next }
    }

    /// Returns the path that the last step was about.
    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns true if a node is a directory.
    pub(crate) fn is_directory(&self, node: &T::Node) -> bool {
        self.tree.directory(node).is_some()
    }

    fn enter(&mut self, directory: &T::Identity) -> Result<(), T::Why> {
        let (names, why) = match self.tree.names(self.path(), directory) {
            Ok(names) => (names, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        self.levels.push(Level { names: names.into_iter(), path_bytes: self.path.len() });
        why.map_or(Ok(()), Err)
    }

    fn found(&mut self, node: T::Node) -> Step<T::Node, T::Why> {
        if let Some(directory) = self.tree.directory(&node) {
            if !self.met.insert(directory.clone()) {
                return Step::Problem(self.tree.met_again(&directory));
            }
            self.next = Some(directory);
        }
        Step::Found(node)
    }
}

impl<T: Tree> Iterator for Descent<T>
where
    T::Identity: Clone,
{
    type Item = Step<T::Node, T::Why>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(directory) = self.next.take()
            && let Err(why) = self.enter(&directory)
        {
            return Some(Step::Problem(why));
        }
        loop {
            let level = self.levels.last_mut()?;
            self.path.truncate(level.path_bytes);
            let Some(name) = level.names.next() else {
                self.levels.pop();
                return Some(Step::Left);
            };
            if !self.path.ends_with(b"/") {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.as_ref().as_bytes());
            match self.tree.look(self.path(), &name) {
                Ok(Some(node)) => return Some(self.found(node)),
                Ok(None) => {}
                Err(why) => return Some(Step::Problem(why)),
            }
        }
    }
}

/// The tree of a device that this process has mounted.
pub(crate) struct OnDevice<'f>(pub &'f FileSystem);

/// A name on a device and the inode that it leads to.
pub(crate) struct DeviceName {
    name: Vec<u8>,
    ino: InodeNumber,
}

impl AsRef<OsStr> for DeviceName {
    fn as_ref(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }
}

impl Tree for OnDevice<'_> {
    type Name = DeviceName;
    type Node = Attr;
    type Identity = InodeNumber;
    type Why = Error;

    fn names(&self, _: &Path, directory: &InodeNumber) -> Result<Vec<DeviceName>, Error> {
        let names = entries(self.0, *directory)?.into_iter();
        Ok(names.map(|entry| DeviceName { name: entry.name, ino: entry.ino }).collect())
    }

    fn look(&self, _: &Path, name: &DeviceName) -> Result<Option<Attr>, Error> {
        self.0.getattr(name.ino).map(Some)
    }

    fn directory(&self, node: &Attr) -> Option<InodeNumber> {
        (node.kind == FileKind::Directory).then_some(node.ino)
    }

    fn met_again(&self, directory: &InodeNumber) -> Error {
        self.0.met_again(*directory)
    }
}

/// A tree of the host, such as one on a mount. Symbolic links are not followed.
pub(crate) struct OnHost {
    /// Files with another device number are left out.
    pub number: Option<u64>,
}

impl Tree for OnHost {
    type Name = std::ffi::OsString;
    type Node = Metadata;
    type Identity = (u64, u64);
    type Why = io::Error;

    fn names(&self, path: &Path, _: &(u64, u64)) -> io::Result<Vec<std::ffi::OsString>> {
        host::names(path)
    }

    fn look(&self, path: &Path, _: &std::ffi::OsString) -> io::Result<Option<Metadata>> {
        let metadata = path.symlink_metadata()?;
        Ok(self.number.is_none_or(|number| number == metadata.dev()).then_some(metadata))
    }

    fn directory(&self, node: &Metadata) -> Option<(u64, u64)> {
        node.is_dir().then(|| (node.dev(), node.ino()))
    }

    fn met_again(&self, _: &(u64, u64)) -> io::Error {
        io::Error::other("this directory was met before, under another name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Directories by number, each with names and what they lead to; what has no entry is a file.
    struct Numbers(HashMap<u64, Vec<(&'static str, u64)>>);

    struct To(&'static str, u64);

    impl AsRef<OsStr> for To {
        fn as_ref(&self) -> &OsStr {
            OsStr::new(self.0)
        }
    }

    impl Tree for Numbers {
        type Name = To;
        type Node = u64;
        type Identity = u64;
        type Why = &'static str;

        fn names(&self, _: &Path, directory: &u64) -> Result<Vec<To>, &'static str> {
            let names = &self.0[directory];
            if names.is_empty() {
                Err("unreadable")
            } else {
                Ok(names.iter().map(|(name, to)| To(name, *to)).collect())
            }
        }

        fn look(&self, _: &Path, name: &To) -> Result<Option<u64>, &'static str> {
            Ok(Some(name.1).filter(|number| *number != 0))
        }

        fn directory(&self, node: &u64) -> Option<u64> {
            self.0.contains_key(node).then_some(*node)
        }

        fn met_again(&self, _: &u64) -> &'static str {
            "again"
        }
    }

    fn steps(directories: &[(u64, &[(&'static str, u64)])]) -> Vec<String> {
        let tree = Numbers(directories.iter().map(|(number, names)| (*number, names.to_vec())).collect());
        let mut descent = Descent::new(tree, Path::new("/"), &1);
        let mut steps = Vec::new();
        while let Some(step) = descent.next() {
            let path = descent.path().display();
            steps.push(match step {
                Step::Found(number) => format!("{path} {number}"),
                Step::Left => format!("{path} left"),
                Step::Problem(why) => format!("{path} {why}"),
            });
        }
        steps
    }

    #[test]
    fn a_descent_enters_a_directory_before_its_content_and_leaves_it_once() {
        let tree: &[(u64, &[_])] = &[(1, &[("a", 2), ("f", 9), ("out", 0)]), (2, &[("b", 3), ("g", 8)]), (3, &[])];
        let expected = ["/a 2", "/a/b 3", "/a/b unreadable", "/a/b left", "/a/g 8", "/a left", "/f 9", "/ left"];
        assert_eq!(steps(tree), expected);
    }

    #[test]
    fn a_descent_does_not_enter_a_directory_that_is_its_own_ancestor() {
        let tree: &[(u64, &[_])] = &[(1, &[("a", 2), ("c", 2)]), (2, &[("self", 2), ("up", 1)])];
        let expected = ["/a 2", "/a/self again", "/a/up again", "/a left", "/c again", "/ left"];
        assert_eq!(steps(tree), expected);
    }

    #[test]
    fn a_descent_of_any_depth_takes_no_stack() {
        let levels = 200_000;
        let tree = Numbers((1..=levels).map(|number| (number, vec![("d", number + 1)])).collect());
        let found = Descent::new(tree, Path::new("/"), &1).filter(|step| matches!(step, Step::Found(_))).count();
        assert_eq!(found as u64, levels);
    }
}
