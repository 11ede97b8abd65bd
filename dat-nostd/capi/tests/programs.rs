//! C programs, compiled as their users compile them, on emulated HCAs.

mod harness;

use harness::{Compiler, Folder, HERE, Running, address, compilers, run, static_library};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const PING: [&str; 1] = ["examples/dat_ping.c"];
const CALLS: [&str; 4] =
    ["tests/c/calls.c", "tests/c/objects.c", "tests/c/endpoints.c", "tests/c/connections.c"];

/// Has a program of each compiler's.
fn each(name: &str, files: &[&str], test: impl Fn(&Folder, &Path, Compiler)) {
    let folder = Folder::new(name);
    let library = folder.shared_library();
    for compiler in compilers() {
        let program = folder.path(&format!("{name}-{}", compiler.program));
        compiler.compile(files, &library, &program);
        test(&folder, &program, compiler);
    }
}

#[test]
fn layouts_are_the_headers() {
    each("layout", &["tests/c/layout.c"], |_, program, _| drop(run(&mut Command::new(program))));
}

#[test]
fn all_calls_in_one_process() {
    each("calls", &CALLS, |folder, program, _| {
        let fabric = folder.hcas(2);
        run(Command::new(program).args(["both", &fabric.name(0), &fabric.name(1), &address(1)]));
    });
}

#[test]
fn all_calls_in_two_processes() {
    each("pair", &CALLS, |folder, program, _| {
        let fabric = folder.hcas(2);
        let mut passive = Running::start(program, &["passive", &fabric.name(0), &address(0)]);
        passive.line("ready");
        run(Command::new(program).args(["active", &fabric.name(1), &address(0)]));
        passive.finish();
    });
}

#[test]
fn the_example_pings() {
    each("ping", &PING, |folder, program, _| {
        let fabric = folder.hcas(2);
        let mut server = Running::start(program, &[&fabric.name(0)]);
        server.line("ready");
        let text = run(Command::new(program).args([&fabric.name(1), &address(0), "100"]));
        assert!(text.ends_with("100 messages and answers\n"), "{text}");
        assert!(server.finish().ends_with("100 messages answered\n"));
    });
}

#[test]
fn the_static_library_links() {
    let folder = Folder::new("static");
    let program = folder.path("ping");
    compilers()[0].compile(&PING, &static_library(), &program);
    let fabric = folder.hcas(1);
    Running::start(&program, &[&fabric.name(0)]).line("ready");
}

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let headers = ["dat.h", "udat.h", "dat_registry.h"];
    let text: String = headers
        .iter()
        .map(|name| {
            std::fs::read_to_string(Path::new(HERE).join("include/dat").join(name)).expect("readable")
        })
        .collect();
    let names = text.lines().filter_map(|line| line.strip_prefix("DAT_RETURN dat_")?.split('(').next());
    names.map(|name| format!("dat_{name}")).collect()
}

#[test]
fn the_library_exports_what_the_headers_declare() {
    let folder = Folder::new("exports");
    folder.shared_library();
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(folder.path("libdat.so.1")));
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<&str> = names.filter_map(|name| name.strip_suffix("@@DAT_1.2")).collect();
    let mut wanted = declared();
    assert_eq!(wanted.len(), 72);
    wanted.insert("dats_handle_to_provider".into());
    assert_eq!(exported, wanted.iter().map(String::as_str).collect());
}

#[test]
fn the_tests_call_every_function() {
    let files = CALLS.iter().chain(&["tests/c/check.h"]);
    let read = |file: &&str| std::fs::read_to_string(Path::new(HERE).join(file)).expect("readable");
    let text: String = files.map(read).collect();
    // A call whose answer is checked; an open is a macro for openv.
    let is_called = |name: &String| text.contains(&format!("{name}("));
    let missing: Vec<_> = declared().into_iter().filter(|name| !is_called(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}
