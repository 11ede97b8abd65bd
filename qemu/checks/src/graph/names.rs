//! Resolves a path to the file that defines its item.

use super::modules::Tree;
use super::references::Reference;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A module.
    Module(usize),
    /// An item that this module defines, or a member of that item.
    Item(usize),
    /// An item of a crate outside the tree.
    Outside,
}

/// Returns the file that defines the target of `reference` in module `at`. Returns `None` for
/// modules, for local names and for targets outside the tree.
pub fn defining_file<'a>(tree: &'a Tree, at: usize, reference: &Reference) -> Option<&'a PathBuf> {
    let path: Vec<&str> = reference.path.iter().map(String::as_str).collect();
    let mut search = Search { tree, asked: BTreeSet::new() };
    match search.path(at, &path) {
        Some(Found::Item(module)) => Some(&tree.modules[module].file),
        Some(Found::Module(_) | Found::Outside) => None,
        None if reference.is_macro && path.len() == 1 => {
            let key = (tree.modules[at].root, path[0].to_owned());
            tree.macros.get(&key).map(|module| &tree.modules[*module].file)
        }
        None => None,
    }
}

struct Search<'a> {
    tree: &'a Tree,
    /// Names being looked up. Prevents endless recursion, because modules may glob-import each
    /// other.
    asked: BTreeSet<(usize, String, bool)>,
}

impl Search<'_> {
    /// Resolves `path` from module `at`.
    fn path(&mut self, at: usize, path: &[&str]) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let last = rest.is_empty();
        let mut found = match *first {
            "crate" => Found::Module(self.tree.modules[at].root),
            "self" => Found::Module(at),
            "super" => Found::Module(self.tree.modules[at].parent?),
            "Self" | "core" | "alloc" | "std" => Found::Outside,
            name => match self.name(at, name, last) {
                Some(found) => found,
                None => Found::Module(*self.tree.roots.get(name)?),
            },
        };
        for (index, name) in rest.iter().enumerate() {
            let Found::Module(module) = found else { return Some(found) };
            found = match *name {
                "super" => Found::Module(self.tree.modules[module].parent?),
                // A name that the source does not show is defined by a macro of the module.
                name => self.name(module, name, index + 1 == rest.len()).unwrap_or(Found::Item(module)),
            };
        }
        Some(found)
    }

    /// Resolves `name` in module `at`. The last segment of a path is an item rather than a module.
    fn name(&mut self, at: usize, name: &str, last: bool) -> Option<Found> {
        if !self.asked.insert((at, name.to_owned(), last)) {
            return None;
        }
        let found = self.name_once(at, name, last);
        self.asked.remove(&(at, name.to_owned(), last));
        found
    }

    fn name_once(&mut self, at: usize, name: &str, last: bool) -> Option<Found> {
        let module = &self.tree.modules[at];
        let item = module.items.contains(name).then_some(Found::Item(at));
        let child = module.children.get(name).map(|child| Found::Module(*child));
        if let Some(found) = if last { item.or(child) } else { child.or(item) } {
            return Some(found);
        }
        for aliases in [&module.aliases, &module.local_aliases] {
            if let Some(path) = aliases.get(name) {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                // A name that refers to itself is a crate.
                return Some(self.path(at, &path).unwrap_or(Found::Outside));
            }
        }
        if module.perhaps.contains(name) {
            return Some(Found::Item(at));
        }
        module.globs.iter().find_map(|glob| {
            let glob: Vec<&str> = glob.iter().map(String::as_str).collect();
            match self.path(at, &glob)? {
                Found::Module(inside) => self.name(inside, name, last),
                // Variants of an enumeration: code that names the enumeration uses its file
                // already.
                Found::Item(_) | Found::Outside => None,
            }
        })
    }
}
