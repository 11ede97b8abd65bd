//! Visible fields: structs of the driver, of DAT and of RDS whose fields other modules can name.
//!
//! No field is visible outside its module, except in plain data: structs without an invariant and
//! without a method that takes `&mut self`. `.ci/fields.txt` lists those structs, and the structs
//! whose fields are not private yet. Tests are left out, and structs that macros define, unless the
//! macro's input is structs whose fields may have a value behind `=`.

use crate::graph::Graph;
use rdma_lab::error::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use syn::parse::{Parse, ParseStream};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Ident, ImplItem, Token, Type, Visibility};

/// The list, below the workspace's root.
const RECORD: &str = ".ci/fields.txt";
/// Directories of the judged sources; each has one crate.
const SOURCES: [&str; 3] = ["driver-mlx/src", "dat-nostd/src", "rds-nostd/src"];
/// Headings of the list's two sections.
const PLAIN: &str = "plain data";
const REST: &str = "not private yet";

/// A struct: its file and its name.
type Key = (PathBuf, String);

/// Findings about a struct.
#[derive(Debug, Default)]
struct Found {
    /// Fields that are not private, by name or number.
    visible: Vec<String>,
    /// Inherent methods that take `&mut self`.
    changing: Vec<String>,
}

/// Structs of some crates.
#[derive(Debug, Default)]
struct Structs {
    found: BTreeMap<Key, Found>,
    /// Method names with `&mut self`, by the file of the `impl` and the name of its type.
    methods: Vec<(Key, String)>,
}

/// Collects the structs and methods of one file.
struct Visitor<'a> {
    file: &'a Path,
    structs: &'a mut Structs,
}

/// A struct in the input of a macro.
struct InMacro {
    name: Ident,
    fields: Vec<(Visibility, Ident)>,
}

impl Parse for InMacro {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        input.parse::<Token![struct]>()?;
        let (name, body) = (input.parse()?, {
            let body;
            syn::braced!(body in input);
            body
        });
        let mut fields = Vec::new();
        while !body.is_empty() {
            body.call(Attribute::parse_outer)?;
            fields.push((body.parse()?, body.parse()?));
            body.parse::<Token![:]>()?;
            body.parse::<Type>()?;
            if body.parse::<Option<Token![=]>>()?.is_some() {
                body.parse::<Expr>()?;
            }
            body.parse::<Option<Token![,]>>()?;
        }
        Ok(Self { name, fields })
    }
}

/// Parses structs to the end of the input.
fn structs_in_macro(input: ParseStream<'_>) -> syn::Result<Vec<InMacro>> {
    let mut structs = Vec::new();
    while !input.is_empty() {
        structs.push(input.parse()?);
    }
    Ok(structs)
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !crate::graph::is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let key = (self.file.to_path_buf(), item.ident.to_string());
        let found = self.structs.found.entry(key).or_default();
        let fields = item.fields.iter().enumerate();
        found.visible.extend(
            fields
                .filter(|(_, field)| !is_private(&field.vis))
                .map(|(at, field)| field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string)),
        );
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        // The input of other macros is something else.
        for found in item.mac.parse_body_with(structs_in_macro).unwrap_or_default() {
            let key = (self.file.to_path_buf(), found.name.to_string());
            let visible = found.fields.iter().filter(|(visibility, _)| !is_private(visibility));
            let names = visible.map(|(_, name)| name.to_string());
            self.structs.found.entry(key).or_default().visible.extend(names);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(path)) = (&item.trait_, &*item.self_ty) {
            let name = path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
            for method in &item.items {
                if let ImplItem::Fn(method) = method
                    && method.sig.receiver().is_some_and(is_exclusive)
                {
                    let key = (self.file.to_path_buf(), name.clone());
                    self.structs.methods.push((key, method.sig.ident.to_string()));
                }
            }
        }
        visit::visit_item_impl(self, item);
    }
}

fn is_private(visibility: &Visibility) -> bool {
    match visibility {
        Visibility::Inherited => true,
        // `pub(self)`
        Visibility::Restricted(restricted) => restricted.path.is_ident("self"),
        Visibility::Public(_) => false,
    }
}

/// Returns whether a receiver is `&mut self` or `self: &mut Self`.
fn is_exclusive(receiver: &syn::Receiver) -> bool {
    matches!(&*receiver.ty, syn::Type::Reference(reference) if reference.mutability.is_some())
}

impl Structs {
    /// Collects the structs of `files`: path and text.
    fn of<'a>(files: impl IntoIterator<Item = (&'a Path, String)>) -> Result<Self> {
        let mut structs = Self::default();
        for (file, text) in files {
            let parsed = syn::parse_file(&text)
                .map_err(|error| Error::Format(format!("{} is not Rust: {error}", file.display())))?;
            Visitor { file, structs: &mut structs }.visit_file(&parsed);
        }
        for ((file, name), method) in std::mem::take(&mut structs.methods) {
            // An `impl` is for the struct of its file, else for those of its crate with its name.
            let root = SOURCES.iter().find(|root| file.starts_with(root));
            let own = structs.found.contains_key(&(file.clone(), name.clone()));
            for ((other, of), found) in &mut structs.found {
                let same_crate = root.is_some_and(|root| other.starts_with(root));
                if *of == name && (*other == file || !own && same_crate) {
                    found.changing.push(method.clone());
                }
            }
        }
        Ok(structs)
    }

    /// Returns a line for each fault against `record`.
    fn faults(&self, record: &Record) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, found) in &self.found {
            let listed = record.plain.contains(key) || record.rest.contains(key);
            if !found.visible.is_empty() && !listed {
                faults.push(format!(
                    "{}: visible outside their module: {}; make them private, or list plain data in {RECORD}",
                    place(key),
                    found.visible.join(", ")
                ));
            }
        }
        for (section, keys) in [(PLAIN, &record.plain), (REST, &record.rest)] {
            for key in keys {
                let place = place(key);
                match self.found.get(key) {
                    None => faults.push(format!("{place}: no such struct; delete its line in {RECORD}")),
                    Some(found) if found.visible.is_empty() => faults
                        .push(format!("{place}: all its fields are private; delete its line in {RECORD}")),
                    Some(found) if section == PLAIN && !found.changing.is_empty() => faults.push(format!(
                        "{place}: plain data has no method with `&mut self`, but this has {}; make its fields private and delete its line in {RECORD}",
                        found.changing.join(", ")
                    )),
                    Some(_) => {}
                }
            }
        }
        faults
    }
}

fn place((file, name): &Key) -> String {
    format!("{} {name}", file.display())
}

/// The list's sections.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    plain: Vec<Key>,
    rest: Vec<Key>,
}

impl Record {
    fn parse(text: &str) -> Result<Self> {
        let mut record = Self::default();
        let mut section = None;
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match (line, &mut section, line.split_once(' ')) {
                (PLAIN, _, _) => section = Some(&mut record.plain),
                (REST, _, _) => section = Some(&mut record.rest),
                (_, Some(keys), Some((file, name))) => keys.push((PathBuf::from(file), name.to_owned())),
                _ => {
                    let wrong = format!("{RECORD}: \"{line}\" is not `PATH STRUCT` below a heading");
                    return Err(Error::Format(wrong));
                }
            }
        }
        Ok(record)
    }
}

/// Fails if a struct has visible fields that the list does not allow, or a line of the list is
/// wrong.
///
/// # Errors
/// Such a fault exists, or the sources or the list cannot be read.
pub fn judge() -> Result<()> {
    let root = runner::root();
    let read = |path: &Path| {
        let path = root.join(path);
        std::fs::read_to_string(&path).map_err(|source| Error::Io { action: "cannot read", path, source })
    };
    let graph = Graph::of_project()?;
    let files = graph.files().filter(|file| SOURCES.iter().any(|source| file.starts_with(source)));
    let files: Result<Vec<_>> = files.map(|file| Ok((file, read(file)?))).collect();
    let faults = Structs::of(files?)?.faults(&Record::parse(&read(Path::new(RECORD))?)?);
    if faults.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} faults", faults.len());
    faults.iter().for_each(|fault| _ = write!(text, "\n  {fault}"));
    Err(Error::Program(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "driver-mlx/src/a.rs";

    fn faults(files: &[(&str, &str)], record: &str) -> Vec<String> {
        let files = files.iter().map(|(path, text)| (Path::new(*path), (*text).to_owned()));
        Structs::of(files).expect("Rust").faults(&Record::parse(record).expect("a list"))
    }

    #[test]
    fn visible_fields_of_an_unlisted_struct_are_a_fault() {
        for (fields, names) in [
            ("{ pub x: u8, y: u8 }", "x"),
            ("{ pub(crate) x: u8, pub(super) y: u8, z: u8 }", "x, y"),
            ("{ pub(in crate::a) x: u8 }", "x"),
            ("(u8, pub u8);", "1"),
        ] {
            let text = format!("mod inner {{ struct S{fields} }}");
            let expected = format!(
                "{FILE} S: visible outside their module: {names}; make them private, or list plain data in {RECORD}"
            );
            assert_eq!(faults(&[(FILE, &text)], ""), [expected]);
            let line = format!("{PLAIN}\n{FILE} S\n");
            assert_eq!(faults(&[(FILE, &text)], &line), Vec::<String>::new());
        }
    }

    #[test]
    fn structs_in_the_input_of_a_macro_are_seen() {
        let text = "with! { /// Doc.
            pub struct S { /// Doc.
                pub x: u8 = f(1), y: [u8; 2] = [0; 2], pub(crate) z: u8 } struct T { a: u8, } }
            other! { struct U { pub x: u8 }; more }";
        let found = faults(&[(FILE, text)], "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{FILE} S: visible outside their module: x, z;")), "{found:?}");
    }

    #[test]
    fn private_fields_tests_and_enums_are_no_fault() {
        let text = "struct S { x: u8, pub(self) y: u8 } pub struct U; enum E { V { x: u8 } }
            #[cfg(test)] mod tests { struct T { pub x: u8 } } #[cfg(test)] struct T(pub u8);";
        assert_eq!(faults(&[(FILE, text)], ""), Vec::<String>::new());
    }

    #[test]
    fn plain_data_has_no_method_that_changes_it() {
        let data = "pub struct S { pub x: u8 } impl Default for S { fn set(&mut self) {} }
            impl S { fn get(&self) {} fn take(mut self) {} }";
        let list = format!("{PLAIN}\n{FILE} S\n");
        assert_eq!(faults(&[(FILE, data)], &list), Vec::<String>::new());
        for method in ["fn set(&mut self) {}", "fn set(self: &mut Self) {}"] {
            let elsewhere = format!("impl<T> super::S<T> {{ {method} }}");
            let found = faults(&[(FILE, data), ("driver-mlx/src/b.rs", &elsewhere)], &list);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("`&mut self`, but this has set; make its fields private"), "{found:?}");
            // A struct of that name in the file of the `impl`, or another crate.
            let own = format!("struct S {{ x: u8 }} {elsewhere}");
            assert_eq!(faults(&[(FILE, data), ("driver-mlx/src/b.rs", &own)], &list), Vec::<String>::new());
            let other = [(FILE, data), ("dat-nostd/src/b.rs", elsewhere.as_str())];
            assert_eq!(faults(&other, &list), Vec::<String>::new());
        }
    }

    #[test]
    fn rest_may_only_shrink() {
        let list = format!("{PLAIN}\n{REST}\n{FILE} S\n");
        let owner = "struct S { pub x: u8 } impl S { fn set(&mut self) {} }";
        assert_eq!(faults(&[(FILE, owner)], &list), Vec::<String>::new());
        let private = faults(&[(FILE, "struct S { x: u8 }")], &list);
        assert_eq!(private, [format!("{FILE} S: all its fields are private; delete its line in {RECORD}")]);
        let gone = faults(&[(FILE, "struct T;")], &list);
        assert_eq!(gone, [format!("{FILE} S: no such struct; delete its line in {RECORD}")]);
    }

    #[test]
    fn lines_without_heading_or_struct_are_refused() {
        assert!(Record::parse(&format!("# a comment\n\n{FILE} S\n")).is_err());
        assert!(Record::parse(&format!("{PLAIN}\n{FILE}\n")).is_err());
    }
}
