//! Progress of long work on standard error: one line per stage, and a sign of life in between.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// One piece of long work.
#[derive(Debug)]
pub struct Progress {
    what: String,
    started: Instant,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    /// Says that `what` begins.
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

    /// Says that a stage of the work begins.
    pub fn stage(&mut self, stage: &str) {
        self.clear();
        eprintln!("setup:   {stage}");
        self.shown = Instant::now();
    }

    /// A sign of life: the seconds and what has arrived. On a terminal each second in one place, else each 10 s.
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

    /// Says that the work is done, and how long it took.
    pub fn done(self) {
        self.clear();
        eprintln!("setup: {}: done in {:.1} s", self.what, self.started.elapsed().as_secs_f64());
    }
}
