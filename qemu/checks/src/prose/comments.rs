//! Comments of Rust and C sources, grouped into blocks.

use crate::sources::pattern;
use regex::Regex;
use std::sync::LazyLock;

/// Lines of a comment block or of a Markdown file: line number from 1, and text without the
/// comment's marks.
pub(super) type Block = Vec<(usize, String)>;

/// A language that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    C,
    Markdown,
}

impl Language {
    /// Returns the language of a file with this extension.
    pub(super) fn of_extension(extension: &str) -> Option<Self> {
        match extension {
            "rs" => Some(Self::Rust),
            "c" | "h" | "cc" => Some(Self::C),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// Matches a comment, or a literal that may contain comment marks.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    let alternatives = [
        r"(?P<line>//[^\n]*)",
        r"(?P<block>/\*)",
        r##"(?P<raw>\bb?c?r(?P<hash>#*)")"##,
        r#""(?:\\.|[^"\\])*""#,
        r"'(?:\\[^\n]{1,8}?|[^\\'\n])'",
    ];
    pattern(&format!("(?s){}", alternatives.join("|")))
});
static EDGE: LazyLock<Regex> = LazyLock::new(|| pattern(r"/\*|\*/"));
static BORDER: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\s*[*!]+ ?"));

/// Kind of a comment: only comments of the same kind form a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Outer,
    Inner,
    Delimited,
}

/// Returns the offset, kind and text of each comment.
fn comments(text: &str, language: Language) -> Vec<(usize, Kind, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = TOKEN.captures_at(text, at) {
        let Some(all) = token.get(0) else { break };
        at = all.end();
        if let Some(line) = token.name("line") {
            let line = line.as_str();
            let (kind, cut) = match line.as_bytes() {
                [_, _, b'!', ..] => (Kind::Inner, 3),
                [_, _, b'/', third, ..] if *third != b'/' => (Kind::Outer, 3),
                [_, _, b'/'] => (Kind::Outer, 3),
                _ => (Kind::Plain, 2),
            };
            found.push((all.start(), kind, &line[cut..]));
        } else if token.name("block").is_some() {
            let begin = at;
            let mut depth = 1usize;
            while depth > 0
                && let Some(edge) = EDGE.find_at(text, at)
            {
                at = edge.end();
                match edge.as_str() {
                    "*/" => depth -= 1,
                    _ if language == Language::Rust => depth += 1,
                    _ => {}
                }
            }
            let end = if depth == 0 { at - 2 } else { at.max(begin) };
            found.push((all.start(), Kind::Delimited, &text[begin..end.max(begin)]));
        } else if token.name("raw").is_some() && language == Language::Rust {
            let end = format!("\"{}", token.name("hash").map_or("", |hash| hash.as_str()));
            at = text[at..].find(&end).map_or(text.len(), |found| at + found + end.len());
        }
    }
    found
}

/// Returns the blocks of a source file: comments of one kind on adjacent lines. A Markdown file is
/// one block.
pub(super) fn blocks(text: &str, language: Language) -> Vec<Block> {
    if language == Language::Markdown {
        return vec![text.split('\n').map(str::to_owned).zip(1..).map(|(row, line)| (line, row)).collect()];
    }
    let starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let mut blocks: Vec<Block> = Vec::new();
    // Line and kind of the last comment, unless code precedes it on its line.
    let mut last = None;
    for (offset, kind, body) in comments(text, language) {
        let line = starts.partition_point(|start| *start <= offset);
        let trailing = !text[starts[line - 1]..offset].trim().is_empty();
        let rows: Vec<(usize, String)> = (line..)
            .zip(body.split('\n'))
            .map(|(line, row)| match kind {
                Kind::Delimited => (line, BORDER.replace(row, "").into_owned()),
                _ => (line, row.to_owned()),
            })
            .collect();
        let end = line + rows.len() - 1;
        match blocks.last_mut() {
            Some(block) if kind != Kind::Delimited && !trailing && last == Some((line - 1, kind)) => {
                block.extend(rows);
            }
            _ => blocks.push(rows),
        }
        last = (!trailing).then_some((end, kind));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_contain_no_comments_and_delimited_comments_nest_in_rust() {
        let text = r####"let a = "// no"; let b = r#"// "no" /*"#; let c = '"'; /* one /* two */ three */ // four"####;
        let found: Vec<&str> = comments(text, Language::Rust).into_iter().map(|(_, _, body)| body).collect();
        assert_eq!(found, [" one /* two */ three ", " four"]);
        let found: Vec<&str> =
            comments("/* a /* b */ c */", Language::C).into_iter().map(|(_, _, body)| body).collect();
        assert_eq!(found, [" a /* b "]);
    }

    #[test]
    fn adjacent_comments_of_one_kind_form_a_block() {
        let text = "/// One\n/// two.\n// Three.\nlet x = 1; // Four.\n// Five.\n";
        let lines: Vec<Vec<usize>> = blocks(text, Language::Rust)
            .iter()
            .map(|block| block.iter().map(|(line, _)| *line).collect())
            .collect();
        assert_eq!(lines, [vec![1, 2], vec![3], vec![4], vec![5]]);
    }
}
