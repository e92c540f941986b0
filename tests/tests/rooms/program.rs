//! The functions of a crate and the types that have them: which file a method call leads to.
//!
//! Names are resolved as far as declarations show it, without a type checker: a type by its name (if several files
//! declare the name, by the `use` of the file that asks), a method by the type it is called on.

use super::graph::room;
use super::kind::Kind;
use super::outline::{Function, Outline};
use super::source::{Path, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A type or a trait: its name, and the file that declares it.
pub(super) type TypeOf = (String, Path);

/// A file and the position of a function in it.
pub(super) type Place = (Path, usize);

/// Methods that are common on types of the standard library: on a value of unknown type they lead nowhere.
const COMMON: &str = "abs add all and any append as_bytes as_ref as_slice begin borrow bytes capacity chars chunks clear \
                      clone close cmp collect contains contains_key count dedup drain end entry eq extend fetch_add \
                      fetch_sub fill filter find finish first flatten flush fold for_each from get get_mut hash index \
                      insert into is_empty iter iter_mut join keys last len load lock map max min name new next notify \
                      open parse path pop position push read remove replace reserve resize retain reverse rev run send set \
                      skip sort split start starts_with step store sub sum swap take tell then truncate try_from update \
                      value values wait windows with write zip";

/// A file of the crate.
pub(super) struct Text<'a> {
    pub name: &'a str,
    pub tokens: &'a [Token],
    pub outline: Outline,
}

/// Returns the file from which another file brought a name, if its `use` declarations show it.
pub(super) type Brought<'a> = Box<dyn Fn(&Path, &str) -> Option<Path> + 'a>;

/// All declarations of a crate.
pub(super) struct Program<'a> {
    files: BTreeMap<Path, Text<'a>>,
    brought: Brought<'a>,
    /// Files that declare a type or a trait of this name.
    declared: BTreeMap<String, Vec<Path>>,
    aliases: BTreeMap<String, Vec<(Path, Kind)>>,
    derefs: BTreeMap<TypeOf, (Path, Kind)>,
    methods: BTreeMap<(TypeOf, String), Vec<Place>>,
    by_name: BTreeMap<String, Vec<(TypeOf, Place)>>,
    /// Types that implement a trait.
    implementers: BTreeMap<TypeOf, Vec<TypeOf>>,
    /// Traits that a type implements.
    implemented: BTreeMap<TypeOf, Vec<TypeOf>>,
}

impl<'a> Program<'a> {
    pub(super) fn new(files: BTreeMap<Path, Text<'a>>, brought: Brought<'a>) -> Program<'a> {
        let mut program = Program {
            files: BTreeMap::new(),
            brought,
            declared: BTreeMap::new(),
            aliases: BTreeMap::new(),
            derefs: BTreeMap::new(),
            methods: BTreeMap::new(),
            by_name: BTreeMap::new(),
            implementers: BTreeMap::new(),
            implemented: BTreeMap::new(),
        };
        for (file, text) in &files {
            program.declare(file, &text.outline);
        }
        for (file, text) in &files {
            program.define(file, &text.outline);
        }
        program.files = files;
        program
    }

    fn declare(&mut self, file: &Path, outline: &Outline) {
        for name in outline.types.keys().chain(&outline.traits) {
            self.declared.entry(name.clone()).or_default().push(file.clone());
        }
        for (name, kind) in &outline.aliases {
            self.aliases.entry(name.clone()).or_default().push((file.clone(), kind.clone()));
        }
    }

    fn define(&mut self, file: &Path, outline: &Outline) {
        for (at, function) in outline.functions.iter().enumerate() {
            let owner = function.owner.as_ref().and_then(|owner| self.type_named(file, owner));
            if let Some(owner) = owner {
                let place = (file.clone(), at);
                let name = function.name.clone();
                self.methods.entry((owner.clone(), name.clone())).or_default().push(place.clone());
                self.by_name.entry(name).or_default().push((owner, place));
            }
        }
        for (of_trait, name) in &outline.implemented {
            let found = self.type_named(file, of_trait).zip(self.type_named(file, name));
            if let Some((of_trait, name)) = found {
                self.implementers.entry(of_trait.clone()).or_default().push(name.clone());
                self.implemented.entry(name).or_default().push(of_trait);
            }
        }
        for (name, kind) in &outline.derefs {
            if let Some(name) = self.type_named(file, name) {
                self.derefs.insert(name, (file.clone(), kind.clone()));
            }
        }
    }

    /// Returns the type or trait that a file means by a name.
    pub(super) fn type_named(&self, file: &Path, name: &str) -> Option<TypeOf> {
        let files = self.declared.get(name)?;
        let found = if let [only] = &files[..] {
            only
        } else if files.contains(file) {
            file
        } else {
            let from = (self.brought)(file, name);
            let above = files.iter().filter(|other| file.starts_with(other)).max_by_key(|other| other.len());
            files.iter().find(|other| Some(*other) == from.as_ref()).or(above)?
        };
        Some((name.into(), found.clone()))
    }

    /// Returns a type that an alias stands for.
    pub(super) fn without_alias(&self, kind: Kind) -> Kind {
        match self.aliases.get(&kind.name).map(Vec::as_slice) {
            Some([(_, real)]) if real.name != kind.name && !self.declared.contains_key(&kind.name) => real.clone(),
            _ => kind,
        }
    }

    /// Iterates over all functions.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let of_file = |(file, text): (&Path, &Text)| {
            let file = file.clone();
            (0..text.outline.functions.len()).map(move |at| (file.clone(), at))
        };
        self.files.iter().flat_map(of_file)
    }

    /// Returns the name of a file: `a/mod.rs`.
    pub(super) fn name(&self, file: &Path) -> &str {
        self.files[file].name
    }

    pub(super) fn tokens(&self, file: &Path) -> &[Token] {
        self.files[file].tokens
    }

    pub(super) fn function(&self, (file, at): &Place) -> &Function {
        &self.files[file].outline.functions[*at]
    }

    pub(super) fn field(&self, (name, file): &TypeOf, field: &str) -> Option<Kind> {
        self.files[file].outline.types.get(name)?.get(field).cloned()
    }

    pub(super) fn deref(&self, owner: &TypeOf) -> Option<&(Path, Kind)> {
        self.derefs.get(owner)
    }

    fn own_methods(&self, owner: &TypeOf, method: &str) -> Vec<Place> {
        self.methods.get(&(owner.clone(), method.into())).cloned().unwrap_or_default()
    }

    /// Returns the functions that a call of a method on this type runs: its own, or those that its traits give it.
    pub(super) fn methods_of(&self, owner: &TypeOf, method: &str) -> Vec<Place> {
        let own = self.own_methods(owner, method);
        let given = self.implemented.get(owner).into_iter().flatten();
        if own.is_empty() { given.flat_map(|of| self.own_methods(of, method)).collect() } else { own }
    }

    /// Returns the functions that a call of a method on this trait may run.
    pub(super) fn implementers_of(&self, of_trait: &TypeOf, method: &str) -> Vec<Place> {
        let implementers = self.implementers.get(of_trait).into_iter().flatten();
        implementers.flat_map(|owner| self.own_methods(owner, method)).collect()
    }

    /// Returns the functions that a method call on a value of unknown type runs, if one type alone has that method.
    pub(super) fn methods_named(&self, method: &str) -> Vec<Place> {
        let found = self.by_name.get(method).map_or(&[][..], Vec::as_slice);
        let is_of_one = found.iter().all(|(owner, _)| *owner == found[0].0);
        let is_common = COMMON.split_whitespace().any(|common| common == method);
        if is_of_one && !is_common { found.iter().map(|(_, place)| place.clone()).collect() } else { Vec::new() }
    }

    /// Returns whether a type is a callback that gets a type whose methods stand in several files of this room.
    pub(super) fn hands_on(&self, file: &Path, kind: &Kind) -> bool {
        let is_wide = |name: &str| {
            let owner = self.type_named(file, name);
            owner.is_some_and(|owner| self.is_in_several_files(&owner, room(file)))
        };
        match kind.name.as_str() {
            "Fn" => kind.inside.iter().flat_map(Kind::names).any(is_wide),
            "Option" | "Vec" | "[]" => kind.inside.iter().any(|kind| self.hands_on(file, kind)),
            _ => false,
        }
    }

    /// Returns whether the methods of a type stand in several files of a room.
    fn is_in_several_files(&self, owner: &TypeOf, of_room: &str) -> bool {
        let methods = self.methods.range((owner.clone(), String::new())..).take_while(|((other, _), _)| other == owner);
        let files = methods.flat_map(|(_, places)| places).map(|(file, _)| file);
        let files: BTreeSet<&Path> = files.filter(|file| room(file) == of_room).collect();
        files.len() > 1
    }

    /// Returns the free function that a file calls by a name, after the name of its module or alone: of this file, of
    /// one above, of where the name comes from, or of the module of this room.
    pub(super) fn free_function_for(&self, file: &Path, module: Option<&str>, name: &str) -> Option<Place> {
        let above = (0..=file.len()).rev().map(|depth| file[..depth].to_vec());
        let is_module = |other: &&Path| other.last().map(String::as_str) == module && room(other) == room(file);
        let by_path = self.files.keys().filter(is_module).filter(|_| module.is_some()).cloned();
        let by_use = (self.brought)(file, name);
        let mut found = above.chain(by_use).chain(by_path).filter_map(|file| self.free_function(&file, name));
        found.next()
    }

    fn free_function(&self, file: &Path, name: &str) -> Option<Place> {
        let functions = &self.files.get(file)?.outline.functions;
        let at = functions.iter().position(|function| function.owner.is_none() && function.name == name)?;
        Some((file.clone(), at))
    }
}
