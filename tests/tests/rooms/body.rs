//! The body of a function, read as chains of calls: which functions it calls, as far as declarations show it.

use super::graph::room;
use super::kind::{Kind, after_angles, is_at};
use super::outline::Function;
use super::program::{Place, Program, TypeOf};
use super::source::{Path, Token, group_len};
use std::collections::BTreeSet;
use std::ops::Range;

/// A call in the body of a function.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub to: Place,
    pub line: usize,
    /// As far as it is useful to read: `Core::publish`.
    pub shown: String,
}

/// What a body does that leads to other files.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub calls: Vec<Call>,
    /// Types whose fields it uses that are callbacks, with the lines.
    pub called_back: Vec<(TypeOf, usize)>,
    /// Structs that it makes.
    pub made: BTreeSet<TypeOf>,
}

/// The body of a function while it is read.
pub(super) struct Body<'a> {
    program: &'a Program<'a>,
    tokens: &'a [Token],
    file: &'a Path,
    function: &'a Function,
    /// Names in scope, the innermost last; `None`: of unknown type.
    locals: Vec<(String, Option<Kind>)>,
    found: Found,
}

impl<'a> Body<'a> {
    /// Reads the body of a function.
    pub(super) fn read_all(program: &'a Program, place: &'a Place) -> Found {
        let function = program.function(place);
        let (tokens, locals) = (program.tokens(&place.0), function.parameters.clone());
        let mut body = Body { program, tokens, file: &place.0, function, locals, found: Found::default() };
        body.read(function.body.clone());
        body.found
    }

    fn is(&self, at: usize, text: &str) -> bool {
        is_at(self.tokens, at, text)
    }

    /// Reads tokens up to the end of a block; names declared in it end with it.
    fn read(&mut self, range: Range<usize>) {
        let outside = self.locals.len();
        let mut at = range.start;
        while at < range.end {
            at = self.step(at);
        }
        self.locals.truncate(outside);
    }

    fn step(&mut self, at: usize) -> usize {
        let token = &self.tokens[at];
        match token.text.as_str() {
            _ if token.is_string => at + 1,
            "let" => self.binding(at + 1, "="),
            "for" if !self.is(at + 1, "<") => self.binding(at + 1, "in"),
            "fn" => self.tokens[at..].iter().position(|token| token.is("(")).map_or(at + 1, |open| at + open),
            "|" if self.begins_closure(at) => self.closure(at + 1),
            "(" | "{" | "[" => self.chain(at).1,
            _ if token.is_word() => self.chain(at).1,
            _ => at + 1,
        }
    }

    /// Reads `let pattern: Type = chain` or `for pattern in chain` up to the end of the chain.
    fn binding(&mut self, start: usize, separator: &str) -> usize {
        let (pattern, mut at) = self.pattern(start, separator);
        let mut kind = None;
        if self.is(at, ":") {
            at += 1;
            kind = Kind::read(self.tokens, &mut at);
        }
        if self.is(at, separator) {
            let (of_chain, end) = self.operand(at + 1);
            (kind, at) = (kind.or(of_chain), end);
        }
        if separator == "in" {
            kind = kind.and_then(|kind| kind.element());
        }
        let names: Vec<String> =
            pattern.iter().filter(|token| is_variable(token)).map(|token| token.text.clone()).collect();
        let kind = match pattern {
            [_] => kind,
            [word, _] if word.is("mut") => kind,
            [word, ..] if names.len() == 1 && (word.is("Some") || word.is("Ok")) => {
                kind.and_then(|kind| kind.given_by("?"))
            }
            _ => None,
        };
        self.locals.extend(names.into_iter().map(|name| (name, kind.clone())));
        at
    }

    /// Returns the pattern that begins here, up to the fields of a struct if it has some, and the position after it.
    fn pattern(&self, start: usize, separator: &str) -> (&'a [Token], usize) {
        let ends = |at: usize| [separator, ";", ":", "{"].iter().any(|mark| self.is(at, mark));
        let mut end = start;
        while end < self.tokens.len() && !ends(end) {
            end += if self.is(end, "(") || self.is(end, "[") { group_len(&self.tokens[end..]) } else { 1 };
        }
        let pattern = &self.tokens[start..end];
        (pattern, if self.is(end, "{") { end + group_len(&self.tokens[end..]) } else { end })
    }

    /// Reads a chain after `&`, `mut` and `*`; its type counts only if the expression ends with it.
    fn operand(&mut self, mut at: usize) -> (Option<Kind>, usize) {
        while ["&", "mut", "*"].iter().any(|word| self.is(at, word)) {
            at += 1;
        }
        let (kind, end) = self.chain(at);
        let is_whole = [";", "{", "else", ")", ",", "&"].iter().any(|mark| self.is(end, mark));
        (kind.filter(|_| is_whole), end)
    }

    fn begins_closure(&self, at: usize) -> bool {
        const BEFORE: [&str; 12] = ["(", ",", "=", "{", "}", ";", "move", ">", "return", "else", "[", "&"];
        at > 0 && BEFORE.iter().any(|mark| self.is(at - 1, mark))
    }

    fn closure(&mut self, mut at: usize) -> usize {
        while at < self.tokens.len() && !self.is(at, "|") {
            let name = self.tokens[at].text.clone();
            let is_name = is_variable(&self.tokens[at]);
            at += 1;
            let mut kind = None;
            if self.is(at, ":") {
                at += 1;
                kind = Kind::read(self.tokens, &mut at);
            }
            if is_name {
                self.locals.push((name, kind));
            }
        }
        at + 1
    }

    /// Reads `a.b(c)?.d` with all calls in it; returns its type, if that is known, and the position after it.
    fn chain(&mut self, at: usize) -> (Option<Kind>, usize) {
        let (mut kind, mut at) = self.beginning(at);
        loop {
            if self.is(at, "?") {
                kind = kind.and_then(|kind| kind.given_by("?"));
                at += 1;
            } else if self.is(at, "[") {
                let end = at + group_len(&self.tokens[at..]);
                self.read(at + 1..end);
                kind = kind.and_then(|kind| kind.element());
                at = end;
            } else if self.is(at, ".") && self.tokens.get(at + 1).is_some_and(Token::is_word) {
                (kind, at) = self.link(kind, at + 1);
            } else {
                return (kind, at.max(1));
            }
        }
    }

    /// Reads `name`, `name(..)` or `name::<..>(..)` after a dot.
    fn link(&mut self, kind: Option<Kind>, at: usize) -> (Option<Kind>, usize) {
        let name = &self.tokens[at];
        let open = if self.is(at + 1, "::") { after_angles(self.tokens, at + 2) } else { at + 1 };
        if !self.is(open, "(") {
            self.note_callback(kind.as_ref(), name);
            return (self.field(kind, &name.text), at + 1);
        }
        let gives = self.method(kind, &name.text, name.line);
        let end = open + group_len(&self.tokens[open..]);
        self.read(open + 1..end);
        (gives, end)
    }

    /// Reads what a chain begins with: a group, a path, or a name.
    fn beginning(&mut self, at: usize) -> (Option<Kind>, usize) {
        if ["(", "{", "["].iter().any(|mark| self.is(at, mark)) {
            let end = at + group_len(&self.tokens[at..]);
            if !self.is(at, "(") {
                self.read(at + 1..end);
                return (None, end);
            }
            let (kind, inner) = self.operand(at + 1);
            self.read(inner..end);
            return (kind.filter(|_| inner + 1 == end), end);
        }
        if !self.tokens.get(at).is_some_and(Token::is_word) {
            return (None, at + 1);
        }
        let mut path = vec![at];
        let mut end = at + 1;
        while self.is(end, "::") {
            if self.is(end + 1, "<") {
                end = after_angles(self.tokens, end + 1);
            } else if self.tokens.get(end + 1).is_some_and(Token::is_word) {
                path.push(end + 1);
                end += 2;
            } else {
                break;
            }
        }
        let kind = self.path(&path, end);
        if !self.is(end, "(") {
            return (kind, end);
        }
        let close = end + group_len(&self.tokens[end..]);
        self.read(end + 1..close);
        (kind, close)
    }

    /// Returns the type of a path: of a name in scope, of what a function returns, or of a struct that is made.
    fn path(&mut self, path: &[usize], end: usize) -> Option<Kind> {
        let last = &self.tokens[path[path.len() - 1]];
        if path.len() > 1 {
            let owner = self.tokens[path[path.len() - 2]].text.clone();
            if let Some(owner) = self.owner_named(&owner) {
                return self.call(&owner, &last.text, last.line);
            }
        }
        if path.len() == 1 && !self.is(end, "(") && !last.text.starts_with(char::is_uppercase) {
            return self.local(&last.text);
        }
        if self.is(end, "(") && last.text.starts_with(char::is_lowercase) {
            return self.free_call(path, last);
        }
        // A struct that is made here: `Name { .. }`.
        let made = self.owner_named(&last.text)?;
        self.found.made.insert(made.clone());
        Some(Kind::new(&made.0))
    }

    fn local(&self, name: &str) -> Option<Kind> {
        if name == "self" {
            return self.function.owner.as_deref().map(Kind::new);
        }
        self.locals.iter().rev().find(|(local, _)| local == name).and_then(|(_, kind)| kind.clone())
    }

    /// Notes a call of a free function of this file, of one above, or of one that a `use` or the path leads to.
    fn free_call(&mut self, path: &[usize], name: &Token) -> Option<Kind> {
        if path.len() == 1 && self.locals.iter().any(|(local, _)| *local == name.text) {
            return None;
        }
        let module = path.len().checked_sub(2).map(|at| self.tokens[path[at]].text.as_str());
        let place = self.program.free_function_for(self.file, module, &name.text)?;
        let returns = self.program.function(&place).returns.clone();
        self.found.calls.push(Call { to: place, line: name.line, shown: name.text.clone() });
        returns
    }

    fn owner_named(&self, name: &str) -> Option<TypeOf> {
        let name = if name == "Self" { self.function.owner.as_deref()? } else { name };
        let bound = self.function.bounds.get(name).map_or(name, |kind| &kind.name);
        self.program.type_named(self.file, bound)
    }

    /// Returns the type of the house that a type is, if it is one.
    fn owner(&self, kind: &Kind) -> Option<TypeOf> {
        self.owner_named(&self.program.without_alias(kind.clone()).name)
    }

    fn field(&self, kind: Option<Kind>, name: &str) -> Option<Kind> {
        let kind = kind?;
        if kind.name == "()" {
            return name.parse().ok().and_then(|at: usize| kind.inside.get(at).cloned());
        }
        let owner = self.owner(&kind)?;
        let deref = || self.field(Some(self.program.deref(&owner)?.1.clone()), name);
        self.program.field(&owner, name).or_else(deref)
    }

    fn note_callback(&mut self, kind: Option<&Kind>, field: &Token) {
        let Some(owner) = kind.and_then(|kind| self.owner(kind)) else { return };
        let kind = self.program.field(&owner, &field.text);
        if kind.is_some_and(|kind| self.program.hands_on(self.file, &kind)) {
            self.found.called_back.push((owner, field.line));
        }
    }

    /// Notes a method call; returns the type of what it gives.
    fn method(&mut self, kind: Option<Kind>, name: &str, line: usize) -> Option<Kind> {
        let Some(kind) = kind else {
            let mut places = self.program.methods_named(name);
            places.retain(|place| self.is_here(place));
            return self.note(places, name.into(), line);
        };
        let kind = self.program.without_alias(kind);
        match self.owner(&kind) {
            Some(owner) => self.call(&owner, name, line),
            None => kind.given_by(name),
        }
    }

    fn is_here(&self, place: &Place) -> bool {
        room(&place.0) == room(self.file)
    }

    /// Notes a call of a method of a type of the house.
    fn call(&mut self, owner: &TypeOf, name: &str, line: usize) -> Option<Kind> {
        let mut places = self.program.methods_of(owner, name);
        let implementers = self.program.implementers_of(owner, name).into_iter();
        places.extend(implementers.filter(|place| self.is_here(place)));
        if places.is_empty() {
            if let Some((_, target)) = self.program.deref(owner).cloned() {
                return self.method(Some(target), name, line);
            }
            let is_same = ["clone", "as_ref", "borrow"].contains(&name) || name.starts_with(char::is_uppercase);
            return is_same.then(|| Kind::new(&owner.0));
        }
        let shown = format!("{}::{name}", owner.0);
        self.note(places, shown, line).map(|kind| if kind.name == "Self" { Kind::new(&owner.0) } else { kind })
    }

    fn note(&mut self, places: Vec<Place>, shown: String, line: usize) -> Option<Kind> {
        let returns = places.first().and_then(|place| {
            let function = self.program.function(place);
            let kind = function.returns.clone()?;
            let own = function.owner.as_deref().map(Kind::new);
            Some(replace_self(kind, &own))
        });
        self.found.calls.extend(places.into_iter().map(|to| Call { to, line, shown: shown.clone() }));
        returns
    }
}

fn replace_self(kind: Kind, own: &Option<Kind>) -> Kind {
    if kind.name == "Self"
        && let Some(own) = own
    {
        return own.clone();
    }
    Kind { inside: kind.inside.into_iter().map(|kind| replace_self(kind, own)).collect(), ..kind }
}

fn is_variable(token: &Token) -> bool {
    let is_keyword = ["mut", "ref", "if", "let", "in", "box", "_"].contains(&token.text.as_str());
    token.is_word() && !is_keyword && token.text.starts_with(|c: char| c.is_lowercase() || c == '_')
}
