//! Lists of mount options for pages of help. clap knows them only as values of `-o`.

/// The heading of arguments for experiments.
pub(crate) const RESEARCH: &str = "Options for experiments";

/// The width of lines that are wrapped here.
pub(crate) const WIDTH: usize = 90;
/// The column of the descriptions.
pub(crate) const COLUMN: usize = 28;

/// Mount options (`-o`) with a common subject.
pub(crate) struct Group {
    pub heading: &'static str,
    /// The syntax and the description of each. A line of a description begins a new one in help too: a value, for example.
    pub options: &'static [(&'static str, &'static str)],
}

/// Lists groups of options for a page of help.
pub(crate) fn listed<'g>(groups: impl IntoIterator<Item = &'g Group>) -> String {
    let group = |group: &Group| {
        let options = group.options.iter().map(|(syntax, text)| listed_option(syntax, text));
        format!("{}:\n{}", group.heading, options.collect::<Vec<_>>().join("\n"))
    };
    groups.into_iter().map(group).collect::<Vec<_>>().join("\n\n")
}

/// Describes an option: its syntax on the left, and the wrapped text on the right or below.
fn listed_option(syntax: &str, text: &str) -> String {
    let mut lines = vec![format!("  {syntax}")];
    if lines[0].len() + 2 > COLUMN {
        lines.push(String::new());
    }
    for (at, paragraph) in text.split('\n').enumerate() {
        if at > 0 {
            lines.push(" ".repeat(COLUMN));
        }
        add_words(&mut lines, paragraph);
    }
    lines.join("\n")
}

/// Adds words to the last line, and to lines after it that are wrapped.
fn add_words(lines: &mut Vec<String>, words: &str) {
    for word in words.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.len() <= COLUMN {
            line.push_str(&" ".repeat(COLUMN.saturating_sub(line.len())));
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(" ".repeat(COLUMN) + word);
        }
    }
}
