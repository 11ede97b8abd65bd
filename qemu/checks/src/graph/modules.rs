//! Module tree of some crates, parsed from their source files.

use super::references::{Reference, Visitor};
use quote::ToTokens as _;
use rdma_lab::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A crate.
#[derive(Debug, Clone)]
pub struct Root {
    /// Name in Rust paths.
    pub name: String,
    /// Path of its `lib.rs`.
    pub file: PathBuf,
}

/// A module, inline or in its own file.
#[derive(Debug)]
pub struct Module {
    /// File that contains the module.
    pub file: PathBuf,
    /// Number of its crate's root module.
    pub root: usize,
    /// Number of its parent module.
    pub parent: Option<usize>,
    /// Child modules by name.
    pub children: BTreeMap<String, usize>,
    /// Items that it defines.
    pub items: BTreeSet<String>,
    /// Identifiers in its macro calls: these may define items with such names.
    pub perhaps: BTreeSet<String>,
    /// Names imported by `use`, and their paths.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Names imported by `use` inside functions.
    pub local_aliases: BTreeMap<String, Vec<String>>,
    /// Paths of glob imports.
    pub globs: Vec<Vec<String>>,
    /// Paths in its code.
    pub references: Vec<Reference>,
    /// True if its items contain the keyword `unsafe`.
    pub has_unsafe: bool,
}

/// All modules except those of tests.
#[derive(Debug, Default)]
pub struct Tree {
    /// Modules by number.
    pub modules: Vec<Module>,
    /// Root modules by crate.
    pub roots: BTreeMap<String, usize>,
    /// Modules that define macros, by crate root and macro name.
    pub macros: BTreeMap<(usize, String), usize>,
}

struct Loader<'a> {
    tree: Tree,
    read: &'a dyn Fn(&Path) -> Option<String>,
}

impl Tree {
    /// Parses the crates. `read` returns a file's text, or `None` if the file does not exist.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub fn load(roots: &[Root], read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut loader = Loader { tree: Self::default(), read };
        for root in roots {
            let text = read(&root.file)
                .ok_or_else(|| Error::Format(format!("{} cannot be read", root.file.display())))?;
            let number = loader.tree.modules.len();
            loader.tree.roots.insert(root.name.clone(), number);
            let folder = root.file.parent().unwrap_or(Path::new("")).to_path_buf();
            loader.file(&root.file, &text, None, &folder)?;
        }
        Ok(loader.tree)
    }
}

impl Loader<'_> {
    /// Loads a module from its file. The files of its child modules are under `folder`.
    fn file(
        &mut self,
        file: &Path,
        text: &str,
        parent: Option<usize>,
        folder: &Path,
    ) -> Result<Option<usize>> {
        let parsed = syn::parse_file(text)
            .map_err(|error| Error::Format(format!("{} is not Rust: {error}", file.display())))?;
        if parsed.attrs.iter().any(only_for_tests) {
            return Ok(None);
        }
        let number = self.module(file, parent);
        self.items(number, &parsed.items, folder)?;
        Ok(Some(number))
    }

    fn module(&mut self, file: &Path, parent: Option<usize>) -> usize {
        let number = self.tree.modules.len();
        self.tree.modules.push(Module {
            file: file.to_path_buf(),
            root: parent.map_or(number, |parent| self.tree.modules[parent].root),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            perhaps: BTreeSet::new(),
            aliases: BTreeMap::new(),
            local_aliases: BTreeMap::new(),
            globs: Vec::new(),
            references: Vec::new(),
            has_unsafe: false,
        });
        number
    }

    fn items(&mut self, number: usize, items: &[Item], folder: &Path) -> Result<()> {
        for item in items.iter().filter(|item| !is_for_tests(item)) {
            match item {
                Item::Mod(inner) => self.inner(number, inner, folder)?,
                Item::Use(used) => self.used(number, used),
                item => {
                    if let Item::Macro(called) = item {
                        self.called(number, called);
                    }
                    let mut visitor = Visitor::default();
                    visitor.visit_item(item);
                    let module = &mut self.tree.modules[number];
                    module.references.append(&mut visitor.references);
                    module.local_aliases.append(&mut visitor.aliases);
                    module.globs.append(&mut visitor.globs);
                    module.items.extend(name(item));
                    let mut words = BTreeSet::new();
                    super::references::identifiers(item.to_token_stream(), &mut words);
                    module.has_unsafe |= words.contains("unsafe");
                }
            }
        }
        Ok(())
    }

    fn inner(&mut self, number: usize, inner: &syn::ItemMod, folder: &Path) -> Result<()> {
        let name = inner.ident.to_string();
        let folder_of_inner = folder.join(&name);
        let child = match &inner.content {
            Some((_, items)) => {
                let file = self.tree.modules[number].file.clone();
                let child = self.module(&file, Some(number));
                self.items(child, items, &folder_of_inner)?;
                Some(child)
            }
            None => {
                let here = self.tree.modules[number].file.clone();
                let candidates = match named_file(&inner.attrs) {
                    Some(path) => vec![here.parent().unwrap_or(Path::new("")).join(path)],
                    None => vec![folder.join(format!("{name}.rs")), folder_of_inner.join("mod.rs")],
                };
                let Some((file, text)) =
                    candidates.iter().find_map(|file| (self.read)(file).map(|text| (file, text)))
                else {
                    let missing = format!("{} has no file for its module {name}", here.display());
                    return Err(Error::Format(missing));
                };
                self.file(file, &text, Some(number), &folder_of_inner)?
            }
        };
        if let Some(child) = child {
            self.tree.modules[number].children.insert(name, child);
        }
        Ok(())
    }

    fn used(&mut self, number: usize, used: &syn::ItemUse) {
        let mut leaves = Leaves::default();
        leaves.take(&used.tree, Vec::new());
        let module = &mut self.tree.modules[number];
        let facade = module.file.ends_with("lib.rs") || module.file.ends_with("mod.rs");
        let re_export = facade && !matches!(used.vis, Visibility::Inherited);
        for (name, path, line) in leaves.named {
            if !re_export {
                module.references.push(Reference::new(path.clone(), line));
            }
            module.aliases.insert(name, path);
        }
        module.globs.append(&mut leaves.globs);
    }

    /// Records a macro that is defined or called at item level.
    fn called(&mut self, number: usize, called: &syn::ItemMacro) {
        let module = &mut self.tree.modules[number];
        match &called.ident {
            Some(name) => {
                self.tree.macros.insert((module.root, name.to_string()), number);
            }
            None => super::references::identifiers(called.mac.tokens.clone(), &mut module.perhaps),
        }
    }
}

/// Imports of a `use`.
#[derive(Debug, Default)]
pub struct Leaves {
    /// Local name, path and line.
    pub named: Vec<(String, Vec<String>, usize)>,
    /// Paths of glob imports, without `::*`.
    pub globs: Vec<Vec<String>>,
}

impl Leaves {
    /// Collects the imports of `tree` below the path `before`.
    pub fn take(&mut self, tree: &UseTree, mut before: Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take(&path.tree, before);
            }
            UseTree::Name(name) => self.leaf(&name.ident, &name.ident, before),
            UseTree::Rename(name) => self.leaf(&name.ident, &name.rename, before),
            UseTree::Glob(_) => self.globs.push(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.take(tree, before.clone())),
        }
    }

    fn leaf(&mut self, ident: &syn::Ident, rename: &syn::Ident, mut path: Vec<String>) {
        let mut name = rename.to_string();
        if ident == "self" {
            if ident == rename {
                name = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(ident.to_string());
        }
        self.named.push((name, path, ident.span().start().line));
    }
}

/// Returns whether an attribute restricts its item to test builds.
pub fn only_for_tests(attribute: &Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    if !attribute.path().is_ident("cfg") {
        return false;
    }
    attribute.parse_args::<Meta>().is_ok_and(|meta| needs_test(&meta))
}

/// Returns whether an item exists in test builds only.
pub fn is_for_tests(item: &Item) -> bool {
    attributes(item).iter().any(only_for_tests)
}

/// Returns whether a condition holds in test builds only: `test`, an `all` that contains such a
/// condition, or an `any` of such conditions.
fn needs_test(meta: &Meta) -> bool {
    let Meta::List(list) = meta else { return meta.path().is_ident("test") };
    let Ok(inner) =
        list.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated)
    else {
        return false;
    };
    if list.path.is_ident("all") {
        inner.iter().any(needs_test)
    } else {
        list.path.is_ident("any") && !inner.is_empty() && inner.iter().all(needs_test)
    }
}

/// Returns the file in the attribute `#[path]`.
fn named_file(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Returns the attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name that an item defines in its module.
fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
