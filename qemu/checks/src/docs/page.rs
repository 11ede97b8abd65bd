//! HTML pages from Markdown and from sources, and where their links lead.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use rdma_lab::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Style of all pages.
const STYLE: &str = "body{max-width:60rem;margin:auto;padding:1rem;font-family:sans-serif;line-height:1.5}\
    pre{overflow:auto;padding:.5rem;background:#8882}td,th{padding:.2rem .6rem;border:1px solid #8886}\
    table{border-collapse:collapse}:root{color-scheme:light dark}";

/// The files that the site is made of.
pub(super) struct Site {
    /// The repository's files.
    files: BTreeSet<PathBuf>,
    /// First pages of the API by the package's directory.
    apis: BTreeMap<PathBuf, PathBuf>,
}

/// The target of a link.
enum Target {
    /// A page of the site.
    Page(PathBuf),
    /// A file whose text becomes a page.
    File(PathBuf),
    /// A directory whose list of files becomes a page.
    Directory(PathBuf),
}

impl Target {
    fn page(&self) -> PathBuf {
        match self {
            Self::Page(page) => page.clone(),
            Self::File(path) => page_of(path),
            Self::Directory(path) => page_of(&path.join("index")),
        }
    }
}

/// Returns whether a file is Markdown.
fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Returns the page of a file. Web servers hide directories with a dot, so that `.github` loses its
/// dot.
pub(super) fn page_of(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let text = text.strip_prefix('.').unwrap_or(&text);
    let text = if is_markdown(path) { text.trim_end_matches(".md") } else { text };
    PathBuf::from(format!("{text}.html"))
}

/// Resolves `..` and `.` without the file system.
pub(super) fn normalized(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = found.pop(),
            Component::CurDir => {}
            part => found.push(part),
        }
    }
    found
}

/// Returns the link from the page `from` to the page `to`.
fn relative(from: &Path, to: &Path) -> String {
    let up = from.components().count().saturating_sub(1);
    format!("{}{}", "../".repeat(up), to.display())
}

impl Site {
    pub(super) fn new(files: BTreeSet<PathBuf>, apis: BTreeMap<PathBuf, PathBuf>) -> Self {
        Self { files, apis }
    }

    /// Returns the Markdown files.
    pub(super) fn guides(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path).filter(|path| is_markdown(path))
    }

    fn target(&self, path: PathBuf) -> Option<Target> {
        let readme = path.join("README.md");
        let below = || self.files.iter().any(|file| file.starts_with(&path));
        match () {
            () if is_markdown(&path) && self.files.contains(&path) => Some(Target::Page(page_of(&path))),
            () if self.files.contains(&path) => Some(Target::File(path)),
            () if self.files.contains(&readme) => Some(Target::Page(page_of(&readme))),
            () if self.apis.contains_key(&path) => self.apis.get(&path).cloned().map(Target::Page),
            () if below() => Some(Target::Directory(path)),
            () => None,
        }
    }

    /// Returns the text of all pages by path, and a line for each link that leads to no file.
    /// `read` returns a file's text.
    ///
    /// # Errors
    /// As `read`.
    pub(super) fn pages(
        &self,
        read: &dyn Fn(&Path) -> Result<String>,
    ) -> Result<(BTreeMap<PathBuf, String>, Vec<String>)> {
        let (mut pages, mut faults, mut others) = (BTreeMap::new(), Vec::new(), Vec::new());
        for guide in self.guides() {
            let text = read(guide)?;
            let page = page_of(guide);
            let title = title(&text).unwrap_or_else(|| guide.display().to_string());
            let body = markdown(&text, &mut |line, url| match self.link(guide, &page, url) {
                Ok((url, target)) => {
                    others.extend(target);
                    url
                }
                Err(missing) => {
                    faults.push(format!("{}:{line}: no file {}", guide.display(), missing.display()));
                    url.to_owned()
                }
            });
            pages.insert(page.clone(), frame(&page, &title, &body));
        }
        while let Some(target) = others.pop() {
            let page = target.page();
            if pages.contains_key(&page) {
                continue;
            }
            let (title, body) = match &target {
                Target::Page(_) => continue,
                Target::File(path) => (path, source(&read(path)?)),
                Target::Directory(path) => {
                    let below = self.files.iter().filter(|file| file.starts_with(path));
                    let rows = below.filter_map(|file| self.target(file.clone())).map(|target| {
                        let to = target.page();
                        let row = format!(
                            "<li><a href=\"{}\">{}</a></li>\n",
                            relative(&page, &to),
                            to.with_extension("").display()
                        );
                        others.push(target);
                        row
                    });
                    (path, format!("<ul>\n{}</ul>\n", rows.collect::<String>()))
                }
            };
            let title = title.display().to_string();
            let body = format!("<h1>{}</h1>\n{body}", escaped(&title));
            pages.insert(page.clone(), frame(&page, &title, &body));
        }
        Ok((pages, faults))
    }

    /// Returns the link of the site for the link `url` of a guide, and its target if that is not
    /// external.
    ///
    /// # Errors
    /// The file that `url` leads to does not exist.
    fn link(
        &self,
        guide: &Path,
        page: &Path,
        url: &str,
    ) -> std::result::Result<(String, Option<Target>), PathBuf> {
        if url.contains("://") || url.starts_with('#') || url.starts_with("mailto:") {
            return Ok((url.to_owned(), None));
        }
        let (file, anchor) = url.split_once('#').map_or((url, None), |(file, anchor)| (file, Some(anchor)));
        let path = normalized(&guide.parent().unwrap_or(Path::new("")).join(file));
        let target = self.target(path.clone()).ok_or(path)?;
        let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        Ok((relative(page, &target.page()) + &anchor, Some(target)))
    }
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH
}

/// Returns the text of a Markdown file's first heading.
pub(super) fn title(text: &str) -> Option<String> {
    let mut events = Parser::new_ext(text, options());
    events.find(|event| matches!(event, Event::Start(Tag::Heading { level: HeadingLevel::H1, .. })))?;
    let heading = events.take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
    Some(heading.filter_map(|event| plain(&event)).collect())
}

/// Returns the text of an event.
fn plain(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Text(text) | Event::Code(text) => Some(text.to_string()),
        _ => None,
    }
}

/// Returns the id of a heading as hosting sites make it: letters, digits, `-` and `_` in lower case,
/// spaces as `-`.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Renders Markdown. `link` returns the site's link for a line number and a link of the text.
fn markdown(text: &str, link: &mut dyn FnMut(usize, &str) -> String) -> String {
    let mut events: Vec<_> = Parser::new_ext(text, options()).into_offset_iter().collect();
    let mut slugs: BTreeMap<String, usize> = BTreeMap::new();
    for at in 0..events.len() {
        if let (Event::Start(Tag::Heading { .. }), _) = &events[at] {
            let rest = events[at..].iter().take_while(|(e, _)| !matches!(e, Event::End(TagEnd::Heading(_))));
            let heading: String = rest.filter_map(|(event, _)| plain(event)).collect();
            let name = slug(&heading);
            let earlier = slugs.entry(name.clone()).or_default();
            let name = if *earlier == 0 { name } else { format!("{name}-{earlier}") };
            *earlier += 1;
            if let (Event::Start(Tag::Heading { id, .. }), _) = &mut events[at] {
                *id = Some(name.into());
            }
        }
        if let (Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }), range) =
            &mut events[at]
        {
            let line = text[..range.start].matches('\n').count() + 1;
            *dest_url = link(line, dest_url).into();
        }
    }
    let mut body = String::new();
    html::push_html(&mut body, events.into_iter().map(|(event, _)| event));
    body
}

/// Renders a Markdown text of this program, whose links are those of the site's first page.
pub(super) fn from_generated(title: &str, text: &str) -> String {
    frame(Path::new("index.html"), title, &markdown(text, &mut |_, url| url.to_owned()))
}

/// Returns a page that leads to another page.
pub(super) fn redirect(to: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<meta http-equiv=\"refresh\" content=\"0;url={to}\"><a href=\"{to}\">Contents</a>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Renders the text of a file.
fn source(text: &str) -> String {
    format!("<pre>{}</pre>\n", escaped(text))
}

/// Returns a whole page.
fn frame(page: &Path, title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title><style>{STYLE}</style></head>\n\
         <body><nav><a href=\"{}\">Contents</a></nav>\n{body}</body></html>\n",
        escaped(title),
        relative(page, Path::new("index.html"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(files: &[(&str, &str)]) -> (BTreeMap<PathBuf, String>, Vec<String>) {
        let apis = BTreeMap::from([("k".into(), "api/k/index.html".into())]);
        let site = Site::new(files.iter().map(|(path, _)| path.into()).collect(), apis);
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| path == Path::new(name));
            Ok(file.map(|(_, text)| (*text).to_owned()).unwrap_or_default())
        };
        site.pages(&read).expect("pages")
    }

    #[test]
    fn links_lead_to_pages_of_the_site() {
        let (pages, faults) = pages(&[
            (
                "README.md",
                "# Top\n[a](d/a.md#one-two), [k](k), [d](d/e), [site](https://x/y), `[no](no.md)`\n",
            ),
            (
                "d/a.md",
                "# One `two`\n# One two\n[top](../README.md), [s](../k/src/lib.rs)\n\n[gone](gone.md)\n",
            ),
            ("d/e/x.c", "int a<b;"),
            ("k/src/lib.rs", "//! `a`\n"),
            (".github/S.md", "[top](../README.md)"),
        ]);
        assert_eq!(faults, ["d/a.md:5: no file d/gone.md"]);
        let contains = |page: &str, text: &str| {
            let found = &pages[Path::new(page)];
            assert!(found.contains(text), "{page}: no {text} in {found}");
        };
        contains("README.html", "href=\"d/a.html#one-two\"");
        contains("README.html", "href=\"api/k/index.html\"");
        contains("README.html", "href=\"d/e/index.html\"");
        contains("README.html", "href=\"https://x/y\"");
        contains("README.html", "<a href=\"index.html\">Contents</a>");
        contains("d/a.html", "<h1 id=\"one-two\">One <code>two</code></h1>\n<h1 id=\"one-two-1\">");
        contains("d/a.html", "href=\"../README.html\"");
        contains("d/a.html", "href=\"../k/src/lib.rs.html\"");
        contains("d/e/index.html", "href=\"../../d/e/x.c.html\"");
        contains("d/e/x.c.html", "int a&lt;b;");
        contains("github/S.html", "href=\"../README.html\"");
        assert_eq!(pages.len(), 6);
    }
}
