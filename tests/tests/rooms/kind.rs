//! Types as far as a call needs them: the name of what a value is, and the names in its angle brackets.

use super::source::{Token, group_len};

/// A type: `&mut Vec<a::B>` is `Vec` with `B` inside. References and pointers that only pass calls on are left out.
/// A callback is `Fn` with its parameters inside, whatever kind of function it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub name: String,
    pub inside: Vec<Kind>,
}

/// Types through which a method call goes to what lies in them.
const PASS_CALLS_ON: [&str; 8] =
    ["Arc", "Box", "Rc", "Padded", "MutexGuard", "RwLockReadGuard", "RwLockWriteGuard", "ManuallyDrop"];

/// Bounds that have no methods of the house.
const MARKERS: [&str; 7] = ["Send", "Sync", "Copy", "Clone", "Sized", "Unpin", "UnwindSafe"];

/// Returns whether the token at this position is this text.
pub(super) fn is_at(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.is(text))
}

/// Returns the position after the angle brackets that open here; the same position if none do.
pub(super) fn after_angles(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        let is_arrow = token.is(">") && at > 0 && (tokens[at - 1].is("-") || tokens[at - 1].is("="));
        depth += i32::from(token.is("<")) - i32::from(token.is(">") && !is_arrow);
        if depth == 0 {
            return if token.is(">") { at + 1 } else { at };
        }
        at += if ["(", "[", "{"].iter().any(|mark| token.is(mark)) { group_len(&tokens[at..]) } else { 1 };
    }
    at
}

impl Kind {
    pub(super) fn new(name: &str) -> Kind {
        Kind { name: name.into(), inside: Vec::new() }
    }

    /// Reads a type with all its bounds; of several bounds the first that can have methods counts.
    pub(super) fn read(tokens: &[Token], at: &mut usize) -> Option<Kind> {
        let mut kind = Kind::read_bound(tokens, at);
        while is_at(tokens, *at, "+") {
            *at += 1;
            let further = Kind::read_bound(tokens, at);
            let is_marker = kind.as_ref().is_none_or(|kind| MARKERS.contains(&kind.name.as_str()));
            kind = if is_marker { further.or(kind) } else { kind };
        }
        kind
    }

    fn read_bound(tokens: &[Token], at: &mut usize) -> Option<Kind> {
        const BEFORE: [&str; 9] = ["&", "*", "?", "!", "mut", "dyn", "impl", "unsafe", "const"];
        while BEFORE.iter().any(|word| is_at(tokens, *at, word)) {
            *at += 1;
        }
        if is_at(tokens, *at, "for") {
            *at = after_angles(tokens, *at + 1);
        }
        match tokens.get(*at)?.text.as_str() {
            "(" => Some(Kind { name: "()".into(), inside: Kind::read_list(tokens, at, ")") }),
            "[" => {
                let end = *at + group_len(&tokens[*at..]);
                let inside = Kind::read_list(tokens, at, "]");
                *at = end;
                Some(Kind { name: "[]".into(), inside })
            }
            "<" => {
                // `<A as B>::C`: a type that only a type checker knows.
                *at = after_angles(tokens, *at);
                while is_at(tokens, *at, "::") {
                    *at += 2;
                }
                None
            }
            _ if tokens[*at].is_word() => Kind::read_path(tokens, at),
            _ => None,
        }
    }

    /// Reads the types between brackets, the first of which is at this position.
    fn read_list(tokens: &[Token], at: &mut usize, close: &str) -> Vec<Kind> {
        let mut inside = Vec::new();
        *at += 1;
        while *at < tokens.len() && !is_at(tokens, *at, close) {
            if is_at(tokens, *at + 1, "=") || is_at(tokens, *at + 1, ":") {
                // `Item = T`, or a parameter's name.
                *at += 2;
            }
            let start = *at;
            inside.extend(Kind::read(tokens, at));
            if is_at(tokens, *at, ",") || *at == start {
                *at += 1;
            } else if !is_at(tokens, *at, close) {
                // An array's length, or an expression.
                *at += 1;
            }
        }
        *at += 1;
        inside
    }

    fn read_path(tokens: &[Token], at: &mut usize) -> Option<Kind> {
        let is_inner = is_at(tokens, *at, "Self") && is_at(tokens, *at + 1, "::");
        let mut kind = Kind::new(&tokens[*at].text);
        *at += 1;
        loop {
            let is_path = is_at(tokens, *at, "::");
            if is_path && tokens.get(*at + 1).is_some_and(Token::is_word) {
                kind = Kind::new(&tokens[*at + 1].text);
                *at += 2;
            } else if is_at(tokens, *at + usize::from(is_path), "<") {
                let end = after_angles(tokens, *at + usize::from(is_path));
                *at += usize::from(is_path);
                kind.inside = Kind::read_list(&tokens[..end], at, ">");
                *at = end;
            } else {
                break;
            }
        }
        if ["Fn", "FnMut", "FnOnce", "fn"].contains(&kind.name.as_str()) && is_at(tokens, *at, "(") {
            kind = Kind { name: "Fn".into(), inside: Kind::read_list(tokens, at, ")") };
            if is_at(tokens, *at, "-") {
                *at += 2;
                Kind::read_bound(tokens, at);
            }
        }
        match kind.inside.first() {
            Some(inner) if PASS_CALLS_ON.contains(&kind.name.as_str()) => Some(inner.clone()),
            _ => (!is_inner).then_some(kind),
        }
    }

    /// Iterates over all names in it.
    pub(super) fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(std::iter::once(self.name.as_str()).chain(self.inside.iter().flat_map(Kind::names)))
    }

    /// Returns what a method of the standard library gives back; `None`: unknown.
    pub(super) fn given_by(&self, method: &str) -> Option<Kind> {
        const SAME: [&str; 16] = [
            "iter",
            "iter_mut",
            "into_iter",
            "as_ref",
            "as_mut",
            "as_deref",
            "clone",
            "borrow",
            "ok",
            "map_err",
            "ok_or",
            "ok_or_else",
            "rev",
            "values",
            "chain",
            "filter",
        ];
        const INNER: [(&str, &[&str]); 4] = [
            ("Option", &["unwrap", "expect", "?", "unwrap_or", "unwrap_or_else"]),
            ("Result", &["unwrap", "expect", "?", "unwrap_or_else"]),
            ("Mutex", &["lock", "get_mut", "into_inner"]),
            ("RwLock", &["read", "write", "get_mut", "into_inner"]),
        ];
        if SAME.contains(&method) {
            return Some(self.clone());
        }
        let opens = INNER.iter().any(|(name, methods)| *name == self.name && methods.contains(&method));
        self.inside.first().filter(|_| opens).cloned()
    }

    /// Returns what an index, or a loop, gives of it.
    pub(super) fn element(&self) -> Option<Kind> {
        ["[]", "Vec", "VecDeque", "Option", "Iterator", "BTreeSet"]
            .contains(&self.name.as_str())
            .then(|| self.inside.first().cloned())?
    }
}
