//! Tests with small crates whose graphs are given.

use super::{Graph, Root};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn graph(files: &[(&str, &str)]) -> Graph {
    let texts: BTreeMap<PathBuf, String> =
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
    let roots: Vec<Root> = files
        .iter()
        .filter_map(|(path, _)| path.strip_suffix("/lib.rs"))
        .map(|folder| Root { name: folder.to_owned(), file: Path::new(folder).join("lib.rs") })
        .collect();
    Graph::of(&roots, &|path| texts.get(path).cloned()).expect("the files are Rust")
}

/// Returns the graph as lines `from > to`.
fn edges(files: &[(&str, &str)]) -> Vec<String> {
    let graph = graph(files);
    graph.uses.keys().map(|(from, to)| format!("{} > {}", from.display(), to.display())).collect()
}

#[test]
fn uses_lead_to_the_files_that_define() {
    let files = [
        ("k/lib.rs", "mod a; mod b; mod c; mod d; pub use c::C;"),
        ("k/a.rs", "pub struct A;"),
        ("k/b.rs", "use crate::a::A; pub struct B(A);"),
        ("k/c.rs", "pub struct C; impl C { pub fn new() -> Self { let _ = super::b::B::default(); C } }"),
        // Through the re-export of lib.rs, in a group, renamed.
        ("k/d.rs", "use crate::{C as Other, a::{self}}; fn f(_: Other) -> a::A { a::A }"),
    ];
    assert_eq!(edges(&files), ["k/b.rs > k/a.rs", "k/c.rs > k/b.rs", "k/d.rs > k/a.rs", "k/d.rs > k/c.rs"]);
}

#[test]
fn re_exports_of_facades_are_no_uses_but_private_imports_are() {
    let files = [
        ("k/lib.rs", "mod x; pub use x::*; pub(crate) use x::One;"),
        (
            "k/x/mod.rs",
            "mod one; mod two; mod three; pub use one::One; pub use two::*; use three::Three; pub struct Owner(Three);",
        ),
        ("k/x/one.rs", "use super::Owner; pub struct One(Owner);"),
        ("k/x/two.rs", "pub use super::one::One as Again; pub struct Two;"),
        ("k/x/three.rs", "use crate::{Again, Two}; pub struct Three(Two, Again);"),
    ];
    let expected = [
        "k/x/mod.rs > k/x/three.rs",
        "k/x/one.rs > k/x/mod.rs",
        "k/x/three.rs > k/x/one.rs",
        "k/x/three.rs > k/x/two.rs",
        // Only `lib.rs` and `mod.rs` may re-export without a use.
        "k/x/two.rs > k/x/one.rs",
    ];
    assert_eq!(edges(&files), expected);
}

#[test]
fn names_behind_stars_lead_to_their_files_and_local_names_to_none() {
    let files = [
        ("k/lib.rs", "mod a; mod b; mod c; mod prelude;"),
        ("k/prelude.rs", "pub use crate::a::*;"),
        ("k/a.rs", "pub struct A; pub fn now() {}"),
        ("k/b.rs", "use crate::prelude::*; pub fn f(_: A) {}"),
        (
            "k/c.rs",
            "use crate::prelude::*; pub fn f() { let now = 1; drop(now); let x = X { now }; x.now(); }",
        ),
    ];
    assert_eq!(edges(&files), ["k/b.rs > k/a.rs"]);
    let called =
        [files[0], files[1], files[2], ("k/b.rs", "use crate::prelude::*; fn f() { now() }"), ("k/c.rs", "")];
    assert_eq!(edges(&called), ["k/b.rs > k/a.rs"]);
}

#[test]
fn macros_are_followed() {
    let files = [
        ("k/lib.rs", "#[macro_use] mod a; mod b; mod c; mod d;"),
        ("k/a.rs", "macro_rules! make { ($name:ident) => { pub struct $name; } }"),
        ("k/b.rs", "make!(Made);"),
        ("k/c.rs", "use crate::b::Made; pub struct C(Made); pub const LIMIT: u8 = 1;"),
        ("k/d.rs", "fn f() { assert!(1 < crate::c::LIMIT, \"{}\", super::b::Made); }"),
    ];
    let expected = ["k/b.rs > k/a.rs", "k/c.rs > k/b.rs", "k/d.rs > k/b.rs", "k/d.rs > k/c.rs"];
    assert_eq!(edges(&files), expected);
}

#[test]
fn tests_are_left_out() {
    let files = [
        ("k/lib.rs", "mod a; mod b; #[cfg(test)] mod t; #[cfg(all(test, unix))] mod u;"),
        (
            "k/a.rs",
            "#[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b::B; #[test] fn f() { crate::b::g() }",
        ),
        (
            "k/b.rs",
            "pub struct B; #[cfg(not(test))] use crate::a as _; impl B { #[cfg(test)] fn g() { crate::a::h() } }",
        ),
    ];
    assert_eq!(edges(&files), Vec::<String>::new());
    let kept = [
        ("k/lib.rs", "mod a; mod b;"),
        ("k/a.rs", "#[cfg(any(test, feature = \"testing\"))] pub fn f() { crate::b::g() }"),
        ("k/b.rs", "pub fn g() {}"),
    ];
    assert_eq!(edges(&kept), ["k/a.rs > k/b.rs"]);
}

#[test]
fn uses_cross_crates_and_attributes_and_visibilities_are_none() {
    let files = [
        ("k/lib.rs", "mod a; pub use a::A;"),
        ("k/a.rs", "pub struct A;"),
        ("l/lib.rs", "pub mod b; pub mod c; pub use k::A;"),
        ("l/b.rs", "use k::A; pub(in crate::c) struct B(A);"),
        ("l/c.rs", "use super::A; #[derive(crate::b::Nothing)] pub struct C(A, core::cell::Cell<u8>);"),
    ];
    assert_eq!(edges(&files), ["l/b.rs > k/a.rs", "l/c.rs > k/a.rs"]);
}

#[test]
fn modules_lie_where_rust_looks_for_them() {
    let files = [
        ("k/lib.rs", "mod a; mod e { pub mod f; }"),
        ("k/a.rs", "pub mod b; #[path = \"elsewhere.rs\"] mod c; use self::b::B; use c::C;"),
        ("k/a/b.rs", "pub struct B;"),
        ("k/elsewhere.rs", "use super::super::e::f::F; pub struct C(F);"),
        ("k/e/f.rs", "pub struct F;"),
    ];
    let expected = ["k/a.rs > k/a/b.rs", "k/a.rs > k/elsewhere.rs", "k/elsewhere.rs > k/e/f.rs"];
    assert_eq!(edges(&files), expected);
    let root = Root { name: "k".into(), file: "k/lib.rs".into() };
    let missing = Graph::of(&[root], &|path| path.ends_with("lib.rs").then(|| "mod gone;".to_owned()));
    assert!(missing.expect_err("no file").to_string().contains("no file for its module gone"));
}

#[test]
fn circles_are_found_described_and_judged() {
    let text = |next: &str| format!("use crate::{next}::S as T; pub struct S(T);");
    let (a, b, c, d) = (text("b"), text("c"), text("d"), text("a"));
    let four = graph(&[
        ("k/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("k/a.rs", &a),
        ("k/b.rs", &b),
        ("k/c.rs", &c),
        ("k/d.rs", &d),
    ]);
    let circles = four.circles();
    assert_eq!(circles.iter().map(Vec::len).collect::<Vec<_>>(), [4]);
    let described = four.describe(&circles[0]);
    assert!(described.contains("k/d.rs\n    uses k/a.rs: crate::a::S (line 1)"), "{described}");
    assert!(four.judge().is_err());

    let three = graph(&[
        ("k/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("k/a.rs", &a),
        ("k/b.rs", &b),
        ("k/c.rs", "use crate::a::S as T; pub struct S(T);"),
        ("k/d.rs", &d),
    ]);
    assert_eq!(three.circles(), [["k/a.rs", "k/b.rs", "k/c.rs"].map(Path::new)]);
    assert!(three.judge().is_err());
    assert_eq!(three.neighbours("d.rs"), "k/d.rs uses k/a.rs: crate::a::S (line 1)\n");

    let two = graph(&[
        ("k/lib.rs", "mod a; mod b;"),
        ("k/a.rs", &a),
        ("k/b.rs", "use crate::a::S as T; pub struct S(T);"),
    ]);
    assert_eq!(two.circles().len(), 1);
    assert!(two.judge().is_ok(), "two that belong together");
}

#[test]
fn files_with_unsafe_code_are_listed_without_tests() {
    let graph = graph(&[
        ("k/lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod t; #[allow(unsafe_code)] mod d {}"),
        ("k/a.rs", "fn f(p: *const u8) -> u8 { /* SAFETY: unsafe */ unsafe { *p } }"),
        (
            "k/b.rs",
            "/// unsafe\nfn g() -> &'static str { \"unsafe\" } #[cfg(test)] fn t() { unsafe { f() } }",
        ),
        ("k/c.rs", "macro_rules! m { () => { unsafe impl Send for X {} } }"),
        ("k/t.rs", "unsafe fn f() {}"),
    ]);
    let listed: Vec<_> = graph.unsafe_files().into_values().flatten().collect();
    assert_eq!(listed, ["a", "c"]);
}
