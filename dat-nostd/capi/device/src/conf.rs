//! `dat.conf`: names of IAs and what they stand for. DAT 1.2, static registry.

use crate::debug::complain;
use crate::target::Target;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Where names are, unless `DAT_OVERRIDE` says another file.
const FILE: &str = "/etc/dat.conf";

/// The lines of the file that the process is to go by; none if it cannot be read.
pub fn read(library: &str) -> Vec<Entry> {
    let file = std::env::var_os("DAT_OVERRIDE").unwrap_or_else(|| FILE.into());
    match bytes_of(Path::new(&file)) {
        Ok(bytes) => entries(&bytes),
        Err(error) => {
            complain(library, &format!("{}: {error}", file.display()));
            Vec::new()
        }
    }
}

/// One line: a name, and how its provider is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub ia_name: String,
    /// Version of DAT.
    pub major: u32,
    /// The same, minor.
    pub minor: u32,
    /// What the line says of threads.
    pub is_thread_safe: bool,
    /// The device; None if the line is about another provider.
    pub target: Option<Target>,
}

/// Fields of a line, with quotes and escapes taken away; None for a line whose quotes do not end.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut characters = line.chars().peekable();
    loop {
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        match characters.peek() {
            None | Some('#') => return Some(fields),
            Some('"') => {
                characters.next();
                let mut field = String::new();
                loop {
                    match characters.next()? {
                        '"' => break,
                        '\\' => field.push(characters.next()?),
                        c => field.push(c),
                    }
                }
                fields.push(field);
            }
            Some(_) => {
                let mut field = String::new();
                while let Some(c) = characters.next_if(|c| !c.is_whitespace() && *c != '#') {
                    field.push(c);
                }
                fields.push(field);
            }
        }
    }
}

/// An entry of a line: IA name, version (`u1.2`), thread safety, default, library, provider's version, IA parameters, platform
/// parameters. None for lines without one, and for those of other kinds of consumers.
fn entry(line: &str) -> Option<Entry> {
    let fields = fields(line)?;
    let [ia_name, api, thread_safety, default, _library, _version, parameters, ..] = fields.as_slice() else {
        return None;
    };
    let (major, minor) = api.strip_prefix('u')?.split_once('.')?;
    let known = !ia_name.is_empty() && ia_name.len() < 256 && default.starts_with("default");
    known.then_some(Entry {
        ia_name: ia_name.clone(),
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        is_thread_safe: thread_safety.starts_with("threadsafe"),
        target: Target::parse(parameters),
    })
}

/// A file's bytes, up to more than anybody writes by hand.
fn bytes_of(file: &Path) -> std::io::Result<Vec<u8>> {
    const MOST: u64 = 1 << 20;
    let mut bytes = Vec::new();
    File::open(file)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All entries of a file, in its order; the first of a name and version counts. Bytes that are no text spoil the line that they are in.
fn entries(bytes: &[u8]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for found in String::from_utf8_lossy(bytes).lines().filter_map(entry) {
        let same = |other: &&mut Entry| other.ia_name == found.ia_name && other.major == found.major;
        match entries.iter_mut().find(same) {
            // The lines of a name are tried in turn: one that is ours is taken.
            Some(other) if other.target.is_none() => *other = found,
            Some(_) => {}
            None => entries.push(found),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = br#"
# a comment
OpenIB-cma u1.2 nonthreadsafe default libdaplcma.so.1 dapl.1.2 "ib0 0" ""
ib0 u1.2 threadsafe default libdat.so.1 mlx5.1.2 "/run/hca0 10.0.0.1" "" # ours
kernel k1.2 nonthreadsafe default x y "/run/hca0 10.0.0.1" ""
other u1.2 nonthreadsafe nondefault x y "/run/hca0 10.0.0.1" ""
"a name" u1.1 nonthreadsafe default x y "0000:3b:00.0 10.0.0.2" ""
OpenIB-cma u1.2 nonthreadsafe default libdat.so.1 mlx5.1.2 "/run/hca1 10.0.0.3" ""
broken u1.2 nonthreadsafe default x y "/run/hca0
short u1.2
"#;
        let text = [&text[..], b"\xff\xfe u1.2"].concat();
        let names: Vec<_> = entries(&text)
            .into_iter()
            .map(|entry| (entry.ia_name, entry.minor, entry.is_thread_safe))
            .collect();
        let wanted = [("OpenIB-cma", 2, false), ("ib0", 2, true), ("a name", 1, false)];
        assert_eq!(names, wanted.map(|(name, minor, safe)| (name.to_string(), minor, safe)));
        assert!(entries(&text).iter().all(|entry| entry.target.is_some()));
    }

    #[test]
    fn quotes() {
        assert_eq!(fields(r#"a "b \"c\" \\" "" d#e"#).unwrap(), ["a", r#"b "c" \"#, "", "d"]);
        assert_eq!(fields(r#"a "b"#), None);
        assert_eq!(fields("  # nothing").unwrap(), Vec::<String>::new());
    }
}
