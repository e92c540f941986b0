//! What a source file declares: types with their fields, traits, and functions with the types of their parameters.

use super::kind::{Kind, after_angles, is_at};
use super::source::{Token, group_len};
use std::collections::BTreeMap;
use std::ops::Range;

/// The declarations of a file.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// Structs, enums and unions, each with its fields; a tuple's fields are `0`, `1`, and so on.
    pub types: BTreeMap<String, BTreeMap<String, Kind>>,
    /// `type A = B`.
    pub aliases: BTreeMap<String, Kind>,
    pub traits: Vec<String>,
    /// Trait and type of each `impl Trait for Type`.
    pub implemented: Vec<(String, String)>,
    /// What a type is when a method is not its own: `impl Deref`.
    pub derefs: Vec<(String, Kind)>,
    pub functions: Vec<Function>,
}

#[derive(Debug)]
pub(super) struct Function {
    pub name: String,
    /// The type or trait that it is a method of.
    pub owner: Option<String>,
    pub line: usize,
    pub parameters: Vec<(String, Option<Kind>)>,
    /// Generic parameters with their first bound.
    pub bounds: BTreeMap<String, Kind>,
    pub returns: Option<Kind>,
    /// Tokens between its braces; empty without a body.
    pub body: Range<usize>,
}

/// The block around an item.
#[derive(Clone, Default)]
struct Block {
    owner: Option<String>,
    bounds: BTreeMap<String, Kind>,
}

impl Outline {
    pub(super) fn read(tokens: &[Token]) -> Outline {
        let mut outline = Outline::default();
        outline.items(tokens, 0..tokens.len(), &Block::default());
        outline
    }

    fn items(&mut self, tokens: &[Token], range: Range<usize>, block: &Block) {
        let mut at = range.start;
        while at < range.end {
            let name = tokens.get(at + 1).filter(|token| token.is_word()).map(|token| token.text.clone());
            let keyword = if tokens[at].is_string { "" } else { tokens[at].text.as_str() };
            at = match (keyword, name) {
                ("struct" | "union", Some(name)) => self.structure(tokens, at + 2, name),
                ("enum", Some(name)) => {
                    self.types.insert(name, BTreeMap::new());
                    body(tokens, at + 2).end
                }
                ("trait", Some(name)) => self.trait_block(tokens, at + 2, name),
                ("impl", _) => self.impl_block(tokens, at + 1),
                ("fn", Some(name)) => self.function(tokens, at, name, block),
                ("type", Some(name)) => self.alias(tokens, at + 2, name, block),
                ("const" | "static", Some(name)) => self.constant(tokens, at + 2, name, block),
                ("macro_rules", _) => body(tokens, at).end,
                _ => at + 1,
            };
        }
    }

    fn structure(&mut self, tokens: &[Token], at: usize, name: String) -> usize {
        let mut at = after_angles(tokens, at);
        let mut fields = BTreeMap::new();
        if is_at(tokens, at, "(") {
            let end = at + group_len(&tokens[at..]);
            at += 1;
            while at < end - 1 {
                at = after_visibility(tokens, at);
                if let Some(kind) = Kind::read(tokens, &mut at) {
                    fields.insert(fields.len().to_string(), kind);
                }
                at += 1;
            }
            at = end;
        } else {
            let inside = body(tokens, at);
            at = inside.end;
            for (name, kind) in named(tokens, inside) {
                fields.extend(kind.map(|kind| (name, kind)));
            }
        }
        self.types.insert(name, fields);
        at
    }

    fn trait_block(&mut self, tokens: &[Token], at: usize, name: String) -> usize {
        let inside = body(tokens, at);
        self.traits.push(name.clone());
        let end = inside.end;
        self.items(tokens, inside, &Block { owner: Some(name), ..Block::default() });
        end
    }

    fn impl_block(&mut self, tokens: &[Token], at: usize) -> usize {
        let mut bounds = BTreeMap::new();
        let mut at = generics(tokens, at, &mut bounds);
        let mut kind = Kind::read(tokens, &mut at);
        let mut of_trait = None;
        if is_at(tokens, at, "for") {
            at += 1;
            of_trait = kind;
            kind = Kind::read(tokens, &mut at);
        }
        let inside = body(tokens, at);
        let (owner, of_trait) = (kind.map(|kind| kind.name), of_trait.map(|kind| kind.name));
        self.implemented.extend(of_trait.zip(owner.clone()));
        let end = inside.end;
        self.items(tokens, inside, &Block { owner, bounds });
        end
    }

    fn alias(&mut self, tokens: &[Token], at: usize, name: String, block: &Block) -> usize {
        let mut at = after_angles(tokens, at);
        if !is_at(tokens, at, "=") {
            return at;
        }
        at += 1;
        let kind = Kind::read(tokens, &mut at);
        match (&block.owner, kind) {
            (Some(owner), Some(kind)) if name == "Target" => self.derefs.push((owner.clone(), kind)),
            (None, Some(kind)) => drop(self.aliases.insert(name, kind)),
            _ => {}
        }
        at
    }

    /// A constant is kept as a function without parameters.
    fn constant(&mut self, tokens: &[Token], at: usize, name: String, block: &Block) -> usize {
        if !is_at(tokens, at, ":") {
            return at - 1;
        }
        let (mut start, line) = (at + 1, tokens[at].line);
        let returns = Kind::read(tokens, &mut start);
        let mut end = start;
        while end < tokens.len() && !is_at(tokens, end, ";") {
            end +=
                if ["(", "[", "{"].iter().any(|mark| is_at(tokens, end, mark)) { group_len(&tokens[end..]) } else { 1 };
        }
        let (parameters, bounds) = (Vec::new(), block.bounds.clone());
        let owner = block.owner.clone();
        self.functions.push(Function { name, owner, line, parameters, bounds, returns, body: start..end });
        end
    }

    fn function(&mut self, tokens: &[Token], at: usize, name: String, block: &Block) -> usize {
        let mut bounds = block.bounds.clone();
        let open = generics(tokens, at + 2, &mut bounds);
        if !is_at(tokens, open, "(") {
            return at + 1;
        }
        let mut end = open + group_len(&tokens[open..]);
        let parameters = named(tokens, open + 1..end);
        let mut returns = None;
        if is_at(tokens, end, "-") {
            end += 2;
            returns = Kind::read(tokens, &mut end);
        }
        if is_at(tokens, end, "where") {
            bound_list(tokens, end + 1, &mut bounds);
        }
        let body = body(tokens, end);
        let next = body.end;
        let owner = block.owner.clone();
        let line = tokens[at].line;
        self.functions.push(Function { name, owner, line, parameters, bounds, returns, body });
        next
    }
}

/// Returns the tokens in the next braces; empty if a semicolon comes first. The brace that closes is the last.
fn body(tokens: &[Token], mut at: usize) -> Range<usize> {
    while let Some(token) = tokens.get(at) {
        if token.is(";") {
            return at..at;
        }
        if token.is("{") {
            return at + 1..at + group_len(&tokens[at..]);
        }
        at += if token.is("(") || token.is("[") { group_len(&tokens[at..]) } else { 1 };
    }
    at..at
}

fn after_visibility(tokens: &[Token], mut at: usize) -> usize {
    while is_at(tokens, at, "#") {
        at += 1 + group_len(&tokens[at + 1..]);
    }
    if is_at(tokens, at, "pub") {
        at += 1;
        at += if is_at(tokens, at, "(") { group_len(&tokens[at..]) } else { 0 };
    }
    at
}

/// Returns parameters or fields: `name: Type`, with commas between them. Of a pattern that is no name nothing is kept.
fn named(tokens: &[Token], range: Range<usize>) -> Vec<(String, Option<Kind>)> {
    let (mut found, mut at) = (Vec::new(), range.start);
    while at + 1 < range.end {
        at = after_visibility(tokens, at);
        at += usize::from(is_at(tokens, at, "mut"));
        if tokens[at].is_word() && is_at(tokens, at + 1, ":") {
            let name = tokens[at].text.clone();
            at += 2;
            found.push((name, Kind::read(tokens, &mut at)));
        }
        while at < range.end && !is_at(tokens, at, ",") {
            at += if ["(", "[", "{"].iter().any(|mark| is_at(tokens, at, mark)) { group_len(&tokens[at..]) } else { 1 };
        }
        at += 1;
    }
    found
}

/// Reads generic parameters, if there are any; returns the position after them.
fn generics(tokens: &[Token], at: usize, bounds: &mut BTreeMap<String, Kind>) -> usize {
    let end = after_angles(tokens, at);
    if end > at {
        bound_list(&tokens[..end - 1], at + 1, bounds);
    }
    end
}

/// Reads `A: Bound, B: Bound`, up to a brace or a semicolon.
fn bound_list(tokens: &[Token], mut at: usize, bounds: &mut BTreeMap<String, Kind>) {
    while at < tokens.len() && !is_at(tokens, at, "{") && !is_at(tokens, at, ";") {
        if tokens[at].is_word() && is_at(tokens, at + 1, ":") {
            let name = tokens[at].text.clone();
            at += 2;
            bounds.extend(Kind::read(tokens, &mut at).map(|kind| (name, kind)));
        } else {
            at += 1;
        }
    }
}
