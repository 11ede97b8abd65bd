//! C programs with the project's C libraries, which cargo builds.

use runner::install::{Library, STATIC_NEEDS};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project")
}

/// The static library.
fn archive(library: &Library) -> PathBuf {
    let built = Command::new("cargo")
        .current_dir(root())
        .args(["build", "--quiet", "--package", library.package])
        .stdin(Stdio::null())
        .status();
    assert!(built.expect("cargo starts").success());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("debug").join(library.archive())
}

/// A program of the project, by its file, compiled with a library, so that it needs no other: it runs here and in guests.
pub fn compile(library: &Library, options: &[&str], file: &str) -> PathBuf {
    let source = root().join(file);
    let name = source.file_stem().expect("a name");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(library.name).join(name);
    std::fs::create_dir_all(program.parent().expect("a folder")).expect("a folder");
    let compiled = Command::new("cc")
        .args(["-O2", "-static", "-I"])
        .arg(root().join(library.folder).join("include"))
        .args(options)
        .arg(source)
        .arg(archive(library))
        .args(STATIC_NEEDS)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("cc starts").success());
    program
}

/// A program that runs on this machine. Ended when dropped.
pub struct Here {
    child: Child,
    output: BufReader<ChildStdout>,
    lines: Vec<String>,
}

impl Here {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, output, lines: Vec::new() }
    }

    /// Waits for the line that begins so.
    pub fn expect(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("readable");
            assert!(read > 0, "it ended before {start:?}:\n{}", self.lines.join("\n"));
            self.lines.push(line.trim_end().to_owned());
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits for its end, which has to be a success.
    pub fn finish(mut self) {
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.lines.join("\n"));
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
