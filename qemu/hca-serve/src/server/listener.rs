//! Sockets at which HCAs are served.

use crate::error::{Error, IoContext, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Longest path in a Unix socket's address (`sun_path` without its terminating zero byte).
const LONGEST_PATH: usize = 107;

/// Connections that may wait for an accept.
const BACKLOG: i32 = 128;

/// The file of a socket, removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// Owns the socket's file at `path`.
    pub fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // An error means that the file is removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes a stale socket file from `path`. `connect` finds out whether a socket is there.
///
/// # Errors
/// The path is too long, a socket is there, or a file that is not a socket.
pub fn clear_way(path: &Path, connect: impl Fn(&Path) -> io::Result<()>) -> Result<()> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(Error::Serve(format!(
            "the path of a socket has at most {LONGEST_PATH} bytes: {}",
            path.display()
        )));
    }
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err(Error::Serve(format!("{} exists and is not a socket", path.display())));
        }
        match connect(path) {
            Ok(()) => return Err(in_use(path)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).context("cannot remove the stale socket", path)?;
            }
            Err(error) => return Err(error).context("cannot look at the socket", path),
        }
    }
    Ok(())
}

/// Listens at `path`. Replaces a stale socket file without a listener. The file has `mode`, or the
/// permissions of the umask, before the first connection is possible.
///
/// # Errors
/// A server listens there, a file that is not a socket is there, or a system call fails.
pub fn listen(path: &Path, mode: Option<u32>) -> Result<(UnixListener, SocketFile)> {
    clear_way(path, |path| UnixStream::connect(path).map(drop))?;
    let cannot = |error: Errno| match error {
        Errno::ADDRINUSE => in_use(path),
        _ => Error::Io { action: "cannot make the socket", path: path.to_path_buf(), source: error.into() },
    };
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(cannot)?;
    bind(&socket, &SocketAddrUnix::new(path).map_err(cannot)?).map_err(cannot)?;
    let file = SocketFile::new(path);
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .context("cannot keep others from", path)?;
    }
    rustix::net::listen(&socket, BACKLOG).map_err(cannot)?;
    Ok((socket.into(), file))
}

fn in_use(path: &Path) -> Error {
    Error::Serve(format!("the socket {} is in use: another server listens there", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_refused_a_stale_one_replaced_and_a_file_left_alone() {
        let folder = std::env::temp_dir().join(format!("hca-serve-listener-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("folder");
        let path = folder.join("hca.sock");
        let (live, guard) = listen(&path, None).expect("listens");
        let refused = listen(&path, None).expect_err("in use").to_string();
        assert!(refused.contains("is in use") && refused.contains("hca.sock"), "{refused}");
        drop(live);
        std::mem::forget(guard);
        assert!(path.exists(), "the file of a server that was killed");
        let (_live, guard) = listen(&path, None).expect("the stale file is replaced");
        drop(guard);
        assert!(!path.exists(), "removed at the end");
        std::fs::write(&path, "precious").expect("write");
        assert!(listen(&path, None).expect_err("no socket").to_string().contains("is not a socket"));
        assert_eq!(std::fs::read(&path).expect("read"), b"precious");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_path_that_does_not_fit_is_named() {
        let long = std::env::temp_dir().join("x".repeat(120));
        assert!(listen(&long, None).expect_err("too long").to_string().contains("at most 107 bytes"));
    }
}
