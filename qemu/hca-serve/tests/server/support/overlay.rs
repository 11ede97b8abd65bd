//! A file on overlayfs, mounted by an unprivileged user.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Mounts in a user namespace, reports success, and keeps the namespace until its standard input
/// closes.
const SCRIPT: &str = "mount -t tmpfs none /mnt && mkdir /mnt/lower /mnt/empty /mnt/merged && \
     head -c 4096 /dev/zero >/mnt/lower/memory && \
     mount -t overlay overlay -o lowerdir=/mnt/lower:/mnt/empty /mnt/merged && echo mounted && read _";

/// A process with an overlay in its own mount namespace. Killed when dropped.
pub struct Overlay(Child);

impl Overlay {
    /// Mounts the overlay. If users may not mount, reports a skipped test and returns `None`.
    pub fn mount() -> Option<Self> {
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut line = String::new();
        let overlay = child.map(Self).and_then(|mut overlay| {
            let output = overlay.0.stdout.take().expect("piped");
            BufReader::new(output).read_line(&mut line).map(|_| overlay)
        });
        let mounted = overlay.ok().filter(|_| line == "mounted\n");
        if mounted.is_none() {
            super::skip("users may not mount overlayfs in a namespace");
        }
        mounted
    }

    /// Opens the file on it: one page.
    pub fn file(&self) -> File {
        File::open(format!("/proc/{}/root/mnt/merged/memory", self.0.id())).expect("opens")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
