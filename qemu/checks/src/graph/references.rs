//! Paths in code.

use super::modules::{Leaves, attributes, only_for_tests};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// A path in code.
#[derive(Debug, Clone)]
pub struct Reference {
    /// Path segments.
    pub path: Vec<String>,
    /// Line, from 1.
    pub line: usize,
    /// True if it names a macro.
    pub is_macro: bool,
}

impl Reference {
    /// Creates a path that names no macro.
    pub fn new(path: Vec<String>, line: usize) -> Self {
        Self { path, line, is_macro: false }
    }
}

/// Collects the paths of an item.
#[derive(Debug, Default)]
pub struct Visitor {
    /// All paths except local names.
    pub references: Vec<Reference>,
    /// Names imported by `use` inside functions.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Paths of glob imports inside functions.
    pub globs: Vec<Vec<String>>,
}

/// Returns whether a single name that is not called may be an item. Local variables are lower case.
fn is_capital(name: &str) -> bool {
    name.starts_with(|first: char| first.is_uppercase())
}

impl Visitor {
    fn path(&mut self, path: &syn::Path, is_macro: bool) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        self.references.push(Reference { path: names, line, is_macro });
    }

    /// Collects the paths among the tokens of a macro, which have no syntax tree.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let punctuation = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(found)) if found.as_char() == wanted);
        let mut at = 0;
        while at < tokens.len() {
            let start = at;
            at += 1;
            match &tokens[start] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while punctuation(at, ':') && punctuation(at + 1, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    let of_another = start > 0 && punctuation(start - 1, '.');
                    let called = matches!(tokens.get(at), Some(TokenTree::Group(_)));
                    let is_macro = punctuation(at, '!') && !punctuation(at + 1, '=');
                    if !of_another && (path.len() > 1 || called || is_macro || is_capital(&path[0])) {
                        let line = first.span().start().line;
                        self.references.push(Reference { path, line, is_macro });
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes(item).iter().any(only_for_tests) {
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !item.attrs.iter().any(only_for_tests) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !field.attrs.iter().any(only_for_tests) {
            visit::visit_field(self, field);
        }
    }

    fn visit_item_use(&mut self, used: &'ast syn::ItemUse) {
        let mut leaves = Leaves::default();
        leaves.take(&used.tree, Vec::new());
        for (name, path, line) in leaves.named {
            self.references.push(Reference::new(path.clone(), line));
            self.aliases.insert(name, path);
        }
        self.globs.append(&mut leaves.globs);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let alone = path.get_ident().map(ToString::to_string);
        if alone.is_none_or(|name| is_capital(&name)) {
            self.path(path, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            self.path(&function.path, false);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.path(&called.path, true);
        self.tokens(called.tokens.clone());
    }

    // Attributes and visibilities are not uses.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// Collects all identifiers in `tokens`, including those in groups.
pub fn identifiers(tokens: TokenStream, into: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                into.insert(ident.to_string());
            }
            TokenTree::Group(group) => identifiers(group.stream(), into),
            _ => {}
        }
    }
}
