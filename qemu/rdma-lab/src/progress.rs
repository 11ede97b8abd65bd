//! Progress of long work on standard error: a line for each stage, and regular updates in between.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress of one job.
#[derive(Debug)]
pub struct Progress {
    what: String,
    started: Instant,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    /// Prints that `what` begins.
    pub fn start(what: &str) -> Self {
        let now = Instant::now();
        eprintln!("setup: {what}");
        Self { what: what.into(), started: now, shown: now, terminal: std::io::stderr().is_terminal() }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }

    /// Prints that a stage begins.
    pub fn stage(&mut self, stage: &str) {
        self.clear();
        eprintln!("setup:   {stage}");
        self.shown = Instant::now();
    }

    /// Shows elapsed seconds and received bytes. A terminal line is updated each second; otherwise
    /// a line is printed each 10 s.
    pub fn alive(&mut self, bytes: u64) {
        let seconds = self.started.elapsed().as_secs();
        let arrived = bytes / 1_000_000;
        if self.terminal {
            eprint!("\r\x1b[Ksetup:   {seconds} s, {arrived} MB");
            let _ = std::io::stderr().flush();
        } else if self.shown.elapsed() >= Duration::from_secs(10) {
            eprintln!("setup:   {seconds} s, {arrived} MB");
            self.shown = Instant::now();
        }
    }

    /// Prints that the job is done, with its duration.
    pub fn done(self) {
        self.clear();
        eprintln!("setup: {}: done in {:.1} s", self.what, self.started.elapsed().as_secs_f64());
    }
}
