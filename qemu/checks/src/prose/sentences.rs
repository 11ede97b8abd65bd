//! Paragraphs and sentences of a block of text, and the measures of a sentence.

use super::comments::Block;
use crate::sources::pattern;
use regex::Regex;
use std::sync::LazyLock;

/// Words with a full stop that does not end a sentence.
const ABBREVIATIONS: [&str; 9] = ["e.g.", "i.e.", "cf.", "vs.", "etc.", "vol.", "sec.", "fig.", "no."];
/// Table cells of at least this many words count as prose.
const PROSE_CELL: usize = 8;

static OPENER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?i)^\W*(?:what|whatever|whether|which|who|whoever|how|one|those|of|with|nobody|there|it)\b")
});
static PERSON: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?i)\b(?:tells?|told|asks?|knows?|known|hears?|heard|nobody|somebody|whoever)\b")
});
static LABEL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^(?:SAFETY|Safety|TODO|FIXME|Note|NOTE|N\.B\.)\s*:?\s+"));
static CODE: LazyLock<Regex> = LazyLock::new(|| pattern(r"`[^`]*`"));
static STOP: LazyLock<Regex> = LazyLock::new(|| pattern(r#"[.!?][)"'*_\]]*\s+"#));
static ITEM: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\s*(?:[-*+]|\d+[.)])\s+"));
static SWITCH: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bprose: (off|on)\b"));
static LETTERS: LazyLock<Regex> = LazyLock::new(|| pattern("[a-z]{2}"));

/// A sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// The lines that it is on.
    pub(super) lines: Vec<usize>,
    pub(super) text: String,
}

impl Sentence {
    /// Returns whether it opens with a pronoun, a wh-word or a function word.
    pub(super) fn opens(&self) -> bool {
        OPENER.is_match(&LABEL.replace(&self.text, ""))
    }

    /// Returns whether it personifies a device or names no actor.
    pub(super) fn has_person(&self) -> bool {
        PERSON.is_match(&CODE.replace_all(&self.text, "x"))
    }
}

/// A word and its line.
type Word = (usize, String);

/// Returns the paragraphs, without code, headings and tables. In Markdown, a long cell of a table
/// is a paragraph.
fn paragraphs(block: &Block, markdown: bool) -> Vec<Vec<Word>> {
    let mut found = Vec::new();
    let mut paragraph: Vec<Word> = Vec::new();
    let mut finish = |paragraph: &mut Vec<Word>| {
        if !paragraph.is_empty() {
            found.push(std::mem::take(paragraph));
        }
    };
    let mut fence: Option<String> = None;
    let (mut html, mut off) = (false, false);
    for (number, raw) in block.iter().map(|(number, raw)| (*number, raw.as_str())).chain([(0, "")]) {
        let mut text = raw.trim();
        let switch = SWITCH.captures(text);
        if switch.is_some() || off {
            off = switch.map_or(off, |switch| &switch[1] == "off");
            finish(&mut paragraph);
            continue;
        }
        let ticks = text.len() - text.trim_start_matches('`').len();
        let tildes = text.len() - text.trim_start_matches('~').len();
        let mark = &text[..ticks.max(tildes)];
        if let Some(open) = &fence {
            if mark.len() >= 3 && text.starts_with(open.as_str()) {
                fence = None;
            }
            continue;
        }
        if mark.len() >= 3 {
            fence = Some(mark.to_owned());
            text = "";
        }
        if html || markdown && text.starts_with("<!--") {
            html = !text.contains("-->");
            continue;
        }
        let table = text.starts_with('|');
        let code = markdown && paragraph.is_empty() && raw.starts_with("    ");
        if text.is_empty() || table || text.starts_with('#') || code {
            finish(&mut paragraph);
            if table && markdown {
                for cell in text.trim_matches('|').split('|') {
                    let mut words: Vec<Word> =
                        cell.split_whitespace().map(|word| (number, word.to_owned())).collect();
                    if words.len() >= PROSE_CELL {
                        finish(&mut words);
                    }
                }
            }
            continue;
        }
        if ITEM.is_match(raw) {
            finish(&mut paragraph);
            text = raw[ITEM.find(raw).map_or(0, |item| item.end())..].trim();
        }
        paragraph.extend(text.split_whitespace().map(|word| (number, word.to_owned())));
    }
    found
}

/// Returns whether a sentence may begin with `rest`.
fn begins(rest: &str) -> bool {
    let rest = rest.trim_start_matches(['"', '\'', '(', '*', '_']);
    rest.starts_with(|first: char| first.is_ascii_uppercase() || first == '`' || first == '[')
}

/// Splits a paragraph.
fn split(paragraph: &[Word]) -> Vec<Sentence> {
    let words: Vec<&str> = paragraph.iter().map(|(_, word)| word.as_str()).collect();
    let text = words.join(" ");
    let mut cuts = vec![0];
    for stop in STOP.find_iter(&text) {
        let before = text[..stop.end()].trim_end().to_lowercase();
        if begins(&text[stop.end()..]) && !ABBREVIATIONS.iter().any(|word| before.ends_with(word)) {
            cuts.push(stop.end());
        }
    }
    cuts.push(text.len());
    let mut starts = Vec::new();
    let mut at = 0;
    for (number, word) in paragraph {
        starts.push((at, *number));
        at += word.len() + 1;
    }
    cuts.windows(2)
        .filter_map(|cut| {
            let part = text[cut[0]..cut[1]].trim();
            let mut lines: Vec<usize> = starts
                .iter()
                .filter(|(at, _)| (cut[0]..cut[1]).contains(at))
                .map(|(_, number)| *number)
                .collect();
            lines.dedup();
            let counts = part.split_whitespace().nth(1).is_some() && LETTERS.is_match(part);
            counts.then(|| Sentence { lines, text: part.to_owned() })
        })
        .collect()
}

/// Returns the sentences of a block.
pub(super) fn of_block(block: &Block, markdown: bool) -> Vec<Sentence> {
    paragraphs(block, markdown).iter().flat_map(|paragraph| split(paragraph)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: &[&str], markdown: bool) -> Vec<String> {
        let block: Block = (1..).zip(rows.iter().map(|row| (*row).to_owned())).collect();
        of_block(&block, markdown).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn sentences_end_at_full_stops_before_capitals() {
        let rows = ["See e.g. Linux for", "it. Then stop. (Or do not.)", "", "- One item.", "- Two items"];
        let expected = ["See e.g. Linux for it.", "Then stop.", "(Or do not.)", "One item.", "Two items"];
        assert_eq!(texts(&rows, true), expected);
    }

    #[test]
    fn code_headings_short_cells_and_unmeasured_parts_are_left_out() {
        let long = "| short | one two three four five six seven eight |";
        let rows = [
            "# A heading here",
            "```",
            "some code",
            "```",
            "    more code",
            long,
            "<!-- prose: off -->",
            "Who asks.",
            "<!-- prose: on -->",
            "A slot.",
        ];
        assert_eq!(texts(&rows, true), ["one two three four five six seven eight", "A slot."]);
    }

    #[test]
    fn openers_and_persons_are_found_outside_of_code() {
        let sentence = |text: &str| Sentence { lines: vec![1], text: text.to_owned() };
        assert!(sentence("Who asks is told.").opens() && sentence("Who asks is told.").has_person());
        assert!(sentence("SAFETY: it is there.").opens());
        assert!(!sentence("Items are there.").opens());
        assert!(!sentence("Calls `nobody` twice.").has_person());
    }
}
