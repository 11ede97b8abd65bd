//! Common parts of the tests.

pub mod cable;
pub mod client;
pub mod guest;
pub mod overlay;

use hca_serve::{LogSink, Options, Served};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A temporary directory.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hca-serve-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("folder");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reports a skipped test past the test harness, which shows only the output of failed tests.
/// `cargo xtask test` counts these lines.
pub fn skip(why: &str) {
    // A single write: tests run in parallel.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
}

/// Log lines of the devices.
pub type Lines = Arc<Mutex<Vec<String>>>;

/// Returns a sink that stores log lines of every level.
pub fn log() -> (LogSink, Lines) {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    (Arc::new(move |node, entry| kept.lock().expect("lines").push(format!("{node}: {entry}"))), lines)
}

/// Serves `count` HCAs without log output.
pub fn serve(count: usize) -> (Folder, Served, Vec<PathBuf>) {
    serve_with(count, |options| options)
}

/// Serves `count` HCAs with the options changed by `change`.
pub fn serve_with(count: usize, change: impl FnOnce(Options) -> Options) -> (Folder, Served, Vec<PathBuf>) {
    let folder = Folder::new();
    let options = quiet(&folder, count);
    let sockets = options.sockets.clone();
    let served = hca_serve::serve(change(options)).expect("served");
    (folder, served, sockets)
}

/// Returns options for `count` HCAs without log output.
pub fn quiet(folder: &Folder, count: usize) -> Options {
    let sockets = (0..count).map(|index| folder.path().join(format!("hca{index}"))).collect();
    Options { log: Arc::new(|_, _| {}), notices: Arc::new(|_| {}), ..Options::new(sockets) }
}

/// Returns `len` bytes of memory in a file.
pub fn memory(len: u64) -> File {
    let file = File::from(rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd"));
    file.set_len(len).expect("length");
    file
}
