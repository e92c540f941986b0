//! The calls of a crate that no path shows: from which file to which file they lead.
//!
//! The problem: the methods of one type call each other through `self`. When they lie in several files, no `use` stands
//! between those files, and a circle of them is invisible to a test of `use` lines. The idea: each function's body is
//! read as chains (`self.core.index().find(x)?`, [`super::body`]), and the type of each link follows from declarations:
//! `self`, parameters, fields, what a function returns, `let` with a type or with such a chain. A method on a value of
//! unknown type is known if one type alone in the crate has a method of this name, in the same room, and the standard
//! library has none.
//!
//! Ways back up that have no call in them are seen, too, within a room:
//! - a trait (`dyn`, `impl` or a bound): a call of its method leads to all files that implement it;
//! - a callback that gets a type whose methods stand in several files of the room, such as `&Core` or `&Jobs`: a function
//!   that takes one calls every file that calls it, and a function that uses a field with one calls every file that
//!   makes that struct. A callback that gets data only is not counted.
//!
//! Between rooms these are doors that the lower room has for the upper one, such as what a policy asks of `fs`; which
//! room is above, the table says.
//!
//! A call to a function in a file above (`a/mod.rs` for `a/b.rs`) counts as the calls that this function makes, so no
//! circle is hidden by a step through the file that a family shares.
//!
//! What it cannot see: types that only inference tells (parameters of closures, items of iterators) where several types
//! have a method of that name, or a type of another room has it; types of which several files declare the name, where
//! they are written after their module (`a::Part`); operators and `Drop`; methods that macros make; callbacks in
//! collections.

use super::body::{Body, Call, Found};
use super::graph::{Arrow, is_above, room};
use super::program::{Place, Program, TypeOf};
use super::source::Path;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the arrows that calls draw between files.
pub(super) fn arrows(program: &Program) -> Vec<Arrow> {
    let calls = Calls {
        program,
        found: program.places().map(|place| (place.clone(), Body::read_all(program, &place))).collect(),
    };
    let mut arrows = BTreeSet::new();
    for (place, found) in &calls.found {
        for call in &found.calls {
            arrows.extend(calls.made(&place.0, call));
            arrows.extend(calls.called_back(&place.0, call));
        }
        for (owner, line) in &found.called_back {
            arrows.extend(calls.called_back_by_field(&place.0, owner, *line));
        }
    }
    arrows.into_iter().collect()
}

struct Calls<'a> {
    program: &'a Program<'a>,
    found: BTreeMap<Place, Found>,
}

impl Calls<'_> {
    fn place(&self, file: &Path, line: usize) -> String {
        format!("{}:{line}", self.program.name(file))
    }

    /// Returns the arrows of a call that a file makes.
    fn made(&self, from: &Path, call: &Call) -> Vec<Arrow> {
        let arrow = |(to, path)| Arrow { from: from.clone(), to, place: self.place(from, call.line), path };
        self.targets(from, call, &mut BTreeSet::new()).into_iter().map(arrow).collect()
    }

    /// Returns the files that a call leads to, each with how: the file of the function, or what that function calls if
    /// it stands above.
    fn targets(&self, from: &Path, call: &Call, seen: &mut BTreeSet<Place>) -> Vec<(Path, String)> {
        let to = &call.to.0;
        if !is_above(to, from) {
            return vec![(to.clone(), call.shown.clone())];
        }
        if to == from || !seen.insert(call.to.clone()) {
            return Vec::new();
        }
        let further = self.found[&call.to].calls.iter().flat_map(|next| self.targets(from, next, seen));
        let further: Vec<(Path, String)> = further.filter(|(file, _)| file != from).collect();
        further.into_iter().map(|(file, shown)| (file, format!("{} -> {shown}", call.shown))).collect()
    }

    /// Returns the arrow from a function that takes a callback back to the file that calls it.
    fn called_back(&self, caller: &Path, call: &Call) -> Option<Arrow> {
        let (taker, function) = (&call.to.0, self.program.function(&call.to));
        let kinds = function.parameters.iter().filter_map(|(_, kind)| kind.as_ref());
        let mut kinds = kinds.map(|kind| function.bounds.get(&kind.name).unwrap_or(kind));
        let is_back = room(taker) == room(caller) && !is_above(taker, caller) && !is_above(caller, taker);
        (is_back && kinds.any(|kind| self.program.hands_on(taker, kind))).then(|| Arrow {
            from: taker.clone(),
            to: caller.clone(),
            place: self.place(taker, function.line),
            path: format!("callback of {} from {}", function.name, self.place(caller, call.line)),
        })
    }

    /// Returns the arrows from the use of a field that is a callback to the files that make its struct.
    fn called_back_by_field(&self, from: &Path, owner: &TypeOf, line: usize) -> Vec<Arrow> {
        let makers = self.found.iter().filter(|(_, found)| found.made.contains(owner)).map(|((file, _), _)| file);
        let makers: BTreeSet<&Path> =
            makers.filter(|file| room(file) == room(from) && !is_above(file, from) && !is_above(from, file)).collect();
        let arrow = |to: &Path| Arrow {
            from: from.clone(),
            to: to.clone(),
            place: self.place(from, line),
            path: format!("callback in {}", owner.0),
        };
        makers.into_iter().map(arrow).collect()
    }
}
