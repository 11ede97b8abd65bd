//! The programs beside this package: the example embedder runs, and the freestanding one links without an allocator.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn cargo(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    Command::new(env!("CARGO")).args(arguments).current_dir(root).output().expect("cargo starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = cargo(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}:\n{errors}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_example_embedder_moves_data() {
    let output = succeeds(&["run", "--quiet", "--package", "embedder"]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines,
        [
            "port active, MTU 4096",
            "ConnectionEstablished",
            "ConnectionEstablished",
            "100000 bytes written and verified"
        ]
    );
}

/// The path of the executable, from what cargo says about its artifacts.
fn built(messages: &str) -> PathBuf {
    let line = messages.lines().rev().find(|line| line.contains("\"executable\":\"")).expect("an executable");
    let path = line.split("\"executable\":\"").nth(1).and_then(|rest| rest.split('"').next());
    path.expect("a path").into()
}

#[test]
fn all_three_libraries_link_without_an_allocator() {
    // `EM_X86_64`, `EM_AARCH64` of the ELF header.
    for (target, machine) in [("x86_64-unknown-none", 62u16), ("aarch64-unknown-none", 183)] {
        let options = ["build", "--package", "freestanding", "--message-format", "json", "--target", target];
        let file = std::fs::read(built(&succeeds(&options))).expect("the program");
        assert_eq!(file.get(..4), Some(b"\x7fELF".as_slice()));
        assert_eq!(file.get(18..20), Some(machine.to_le_bytes().as_slice()), "{target}");
        // What `extern crate alloc` would bring in; names are in the symbol table, which is not stripped.
        for symbol in ["__rust_alloc", "__rust_dealloc", "__rg_alloc", "__rust_alloc_error_handler"] {
            let found = file.windows(symbol.len()).any(|window| window == symbol.as_bytes());
            assert!(!found, "{target}: {symbol} is linked");
        }
        let code = ["bring_up", "rds_nostd", "dat_nostd"].map(str::as_bytes);
        for name in code {
            assert!(
                file.windows(name.len()).any(|window| window == name),
                "{target}: the libraries are linked"
            );
        }
    }
}
