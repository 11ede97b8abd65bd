//! What tests with C programs have in common: the library as it is installed, compilers, and emulated HCAs.
#![allow(clippy::missing_panics_doc)] // What is missing fails the test.

mod relay;

use hca_serve::{Options, Served, serve};
pub use mlx5_prm::opcode::Opcode;
pub use relay::{Relay, Request};
use runner::install::{Library, STATIC_NEEDS, shared_library};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Whose tests these are.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The library.
    pub library: Library,
    /// Its package's folder.
    pub here: &'static str,
}

/// Runs a program to its end; its standard output. With everything that it said if it failed.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text.into_owned()
}

/// A language and a compiler of it.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    /// Its name.
    pub program: &'static str,
    arguments: &'static [&'static str],
}

const C99: &[&str] = &["-x", "c", "-std=c99", "-D_DEFAULT_SOURCE"];
const CPP: &[&str] = &["-x", "c++"];

const COMPILERS: [Compiler; 4] = [
    Compiler { program: "gcc", arguments: C99 },
    Compiler { program: "g++", arguments: CPP },
    Compiler { program: "clang", arguments: C99 },
    Compiler { program: "clang++", arguments: CPP },
];

/// The compilers that there are; all have to be where nothing may be skipped.
pub fn compilers() -> Vec<Compiler> {
    let is_there = |compiler: &Compiler| {
        let there = Command::new(compiler.program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        assert!(there || !runner::conditions::required(), "{} is missing", compiler.program);
        there
    };
    let there: Vec<_> = COMPILERS.into_iter().filter(is_there).collect();
    assert!(!there.is_empty(), "no C compiler: install gcc and libc6-dev");
    there
}

impl Compiler {
    /// Compiles files of a package to a program, without a warning.
    pub fn compile(&self, suite: &Suite, files: &[&str], library: &[String], program: &Path) {
        self.compile_with(suite, &[], files, library, program);
    }

    /// The same with options of its own.
    pub fn compile_with(
        &self,
        suite: &Suite,
        options: &[&str],
        files: &[&str],
        library: &[String],
        program: &Path,
    ) {
        let here = Path::new(suite.here);
        run(Command::new(self.program)
            .args(["-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(self.arguments)
            .arg("-I")
            .arg(here.join("include"))
            .args(options)
            .args(files.iter().map(|file| here.join(file)))
            .arg("-o")
            .arg(program)
            .args(["-x", "none"])
            .args(library)
            .arg("-lpthread"));
    }
}

/// A folder of a test's own. Removed when dropped.
pub struct Folder {
    suite: Suite,
    path: PathBuf,
}

impl Folder {
    /// A new one.
    pub fn new(suite: &Suite, name: &str) -> Self {
        let unique = format!("{}-{name}-{}", suite.library.package, std::process::id());
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&path).expect("a folder");
        Self { suite: *suite, path }
    }

    /// Where a file of it is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The shared library in this folder; what links with it.
    pub fn shared_library(&self) -> Vec<String> {
        let Suite { library, here } = &self.suite;
        shared_library(library, &archive(library), Path::new(here), &self.path).expect("linked");
        let folder = self.path.display();
        vec![format!("-L{folder}"), format!("-l{}", library.name), format!("-Wl,-rpath,{folder}")]
    }

    /// Emulated HCAs, at sockets in this folder.
    pub fn hcas(&self, count: usize) -> Fabric {
        let sockets: Vec<_> = (0..count).map(|index| self.path(&format!("hca{index}"))).collect();
        let options = Options { file_io: true, ..Options::new(sockets.clone()) };
        Fabric { sockets, served: serve(options).expect("served") }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The static library, which cargo builds with this package's tests: beside them, under a name with a number.
pub fn archive(library: &Library) -> PathBuf {
    let prefix = format!("lib{}-", library.name);
    let here = std::env::current_exe().expect("this program's path");
    let folder = here.parent().expect("a folder");
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(prefix.as_str()).and_then(|rest| rest.strip_suffix(".a"));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let files = std::fs::read_dir(folder).expect("readable").map_while(Result::ok).map(|entry| entry.path());
    // There may be older ones, from before a change.
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).expect("a time");
    files.filter(is_ours).max_by_key(age).expect("cargo test builds it with the package's tests")
}

/// What links with the static library.
pub fn static_library(library: &Library) -> Vec<String> {
    let needs = STATIC_NEEDS.map(str::to_owned);
    std::iter::once(archive(library).display().to_string()).chain(needs).collect()
}

/// HCAs that are served.
pub struct Fabric {
    sockets: Vec<PathBuf>,
    served: Served,
}

/// Whether Valgrind is there, which it has to be where nothing may be skipped.
pub fn has_valgrind() -> bool {
    let there = runner::conditions::required() || Command::new("valgrind").arg("--version").output().is_ok();
    if !there {
        runner::conditions::skip("valgrind is missing");
    }
    there
}

impl Fabric {
    /// Whether no HCA has any object left.
    pub fn is_empty(&self) -> bool {
        let census = self.served.census().expect("the devices' thread runs");
        census.iter().all(|census| *census == Default::default())
    }

    /// An HCA falls off the bus: its registers read all ones, its link is down, its socket stays open.
    pub fn kill(&self, index: usize) {
        self.with_hca(index, hca_model::Hca::kill);
    }

    /// It comes back, as at power-on.
    pub fn revive(&self, index: usize) {
        self.with_hca(index, hca_model::Hca::revive);
    }

    /// A command takes a second from now on.
    pub fn slow_down(&self, index: usize, command: Opcode) {
        self.with_hca(index, move |hca| hca.habits_mut().slow_command = Some((command, 1_000_000_000)));
    }

    fn with_hca(&self, index: usize, act: impl FnOnce(&mut hca_model::Hca) + Send + 'static) {
        let done = self.served.with_world(move |world, _| act(world.hca_mut(index).expect("served")));
        done.expect("the devices' thread runs");
    }

    /// A relay to an HCA's server, at a socket beside the server's.
    pub fn relay(&self, index: usize, withheld: Request) -> Relay {
        Relay::new(&self.sockets[index], self.sockets[index].with_extension("relay"), withheld)
    }

    /// The IA name of an HCA: 10.0.0.1 is the first one's address.
    pub fn name(&self, index: usize) -> String {
        format!("{}@{}", self.sockets[index].display(), address(index))
    }
}

/// The address of an HCA.
pub fn address(index: usize) -> String {
    format!("10.0.0.{}", index + 1)
}

/// A program that runs. Killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts one.
    pub fn start(program: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(words);
        Self::spawn(command)
    }

    /// Starts one with whatever the command says.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits for a line of its output.
    pub fn line(&mut self, wanted: &str) {
        let output = self.0.stdout.as_mut().expect("piped");
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.lines().any(|line| line == wanted) || !text.ends_with('\n') {
            if output.read(&mut byte).expect("readable") == 0 {
                panic!("it ended without {wanted:?}: {text}{}", self.errors());
            }
            text.push(char::from(byte[0]));
        }
    }

    fn errors(&mut self) -> String {
        let mut errors = String::new();
        let _ = self.0.stderr.as_mut().expect("piped").read_to_string(&mut errors);
        errors
    }

    /// Waits for its end, which has to be a success; what it has said since.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        let _ = self.0.stdout.as_mut().expect("piped").read_to_string(&mut text);
        let errors = self.errors();
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "{status}: {text}{errors}");
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
