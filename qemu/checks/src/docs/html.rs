//! Ids and links of an HTML page.

use std::collections::HashSet;

/// Ids and links of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) ids: HashSet<String>,
    /// Values of `href`, and of `src` except those of scripts.
    pub(super) links: Vec<String>,
    /// The page that a browser opens instead of it, from `content` of a `meta` tag.
    pub(super) redirect: Option<String>,
}

impl Page {
    /// Parses a page. Comments, scripts and styles are skipped.
    pub(super) fn parse(html: &str) -> Self {
        let mut page = Self::default();
        let mut rest = html;
        while let Some((_, behind)) = rest.split_once('<') {
            rest = behind;
            if let Some(comment) = rest.strip_prefix("!--") {
                rest = comment.split_once("-->").map_or("", |(_, behind)| behind);
                continue;
            }
            if !rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
                continue;
            }
            let (name, behind) = split_at_any(rest, |c| c.is_ascii_whitespace() || matches!(c, '>' | '/'));
            rest = page.attributes(name, behind);
            if matches!(name, "script" | "style") {
                let end = format!("</{name}");
                rest = rest.split_once(&end).map_or("", |(_, behind)| behind);
            }
        }
        page
    }

    /// Parses attributes up to the tag's end, and returns the text after it.
    fn attributes<'a>(&mut self, tag: &str, mut rest: &'a str) -> &'a str {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '='));
            if rest.is_empty() {
                return rest;
            }
            if let Some(behind) = rest.strip_prefix('>') {
                return behind;
            }
            let (name, behind) =
                split_at_any(rest, |c| c.is_ascii_whitespace() || matches!(c, '=' | '>' | '/'));
            let Some(value) = behind.strip_prefix('=') else {
                rest = behind;
                continue;
            };
            let (value, behind) = match value.chars().next() {
                Some(quote @ ('"' | '\'')) => value[1..].split_once(quote).unwrap_or((&value[1..], "")),
                _ => split_at_any(value, |c| c.is_ascii_whitespace() || c == '>'),
            };
            rest = behind;
            match name {
                "id" => _ = self.ids.insert(unescaped(value)),
                "href" => self.links.push(unescaped(value)),
                // Rustdoc names scripts that exist only if other crates implement a trait.
                "src" if tag != "script" => self.links.push(unescaped(value)),
                "content" if value.len() > 6 && value.is_char_boundary(6) => {
                    let (time, to) = value.split_at(6);
                    self.redirect =
                        time.eq_ignore_ascii_case("0;url=").then(|| unescaped(to)).or(self.redirect.take());
                }
                _ => {}
            }
        }
    }
}

/// Splits before the first character that `is_end` accepts.
fn split_at_any(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// Resolves the entities that attributes contain.
fn unescaped(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#x27;", "'"), ("&amp;", "&")];
    entities.iter().fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_links_of_tags_are_found() {
        let page = Page::parse(
            "<!-- <a href='no'> --><p id=one class=\"x\">1 < 2 <a href=\"a.html?x&amp;y\" id='two'>a</a>\
             <script id=\"s\">\"<a href='no'></a>\"</script><a href=#1 id=1 data-x>1</a><br/><img src=i.png><meta content=\"0;URL=a/b.html\"><meta content='width=1'></p",
        );
        let mut ids: Vec<&str> = page.ids.iter().map(String::as_str).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["1", "one", "s", "two"]);
        assert_eq!(page.redirect.as_deref(), Some("a/b.html"));
        assert_eq!(page.links, ["a.html?x&y", "#1", "i.png"]);
    }
}
