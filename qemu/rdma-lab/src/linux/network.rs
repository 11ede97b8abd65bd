//! Ethernet between Linux guests. Each guest's virtio-net device connects to a hub by QEMU's
//! `-netdev stream`, in which the length precedes each frame. Frames are never lost, and a guest
//! may disconnect and reconnect.

use crate::error::{Error, IoContext, Result};
use crate::process::Temporary;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Upper bound of frame lengths, segmentation offload included, in bytes.
const LONGEST_FRAME: usize = 128 * 1024;

/// Connected guests, by a number that the hub assigns.
type Ports = Arc<Mutex<Vec<(u64, UnixStream)>>>;

fn lock(ports: &Ports) -> MutexGuard<'_, Vec<(u64, UnixStream)>> {
    ports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A hub. Dropping it closes its socket and connections.
#[derive(Debug)]
pub struct Hub {
    socket: Temporary,
    listener: UnixListener,
    ports: Ports,
    stopping: Arc<AtomicBool>,
}

impl Hub {
    /// Starts a hub at the socket `path`.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn new(path: PathBuf) -> Result<Self> {
        let listener = UnixListener::bind(&path).context("cannot make the socket", &path)?;
        let accepting = listener.try_clone().context("cannot listen at", &path)?;
        let (ports, stopping): (Ports, Arc<AtomicBool>) = (Arc::default(), Arc::default());
        let hub = Self { socket: Temporary::adopt(path), listener, ports, stopping };
        let (ports, stopping) = (Arc::clone(&hub.ports), Arc::clone(&hub.stopping));
        std::thread::Builder::new()
            .name("hub".into())
            .spawn(move || accept(&accepting, &ports, &stopping))
            .map_err(|error| Error::Program(format!("cannot start a thread: {error}")))?;
        Ok(hub)
    }

    /// Returns QEMU's arguments for the device of guest `number`.
    pub fn arguments(&self, number: usize) -> Vec<String> {
        stream("link", self.socket.path(), [0, number as u8])
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // An error means that the socket is closed already.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for (_, port) in lock(&self.ports).iter() {
            let _ = port.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Returns QEMU's arguments for a virtio-net device, connected to a socket. The MAC address ends in
/// network and number of the device.
pub fn stream(name: &str, socket: &Path, [network, number]: [u8; 2]) -> Vec<String> {
    let path = socket.to_string_lossy().replace(',', ",,");
    vec![
        "-netdev".into(),
        format!("stream,id={name},server=off,addr.type=unix,addr.path={path}"),
        "-device".into(),
        format!("virtio-net-pci,netdev={name},romfile=,mac=52:54:00:{network:02x}:00:{number:02x}"),
    ]
}

fn accept(listener: &UnixListener, ports: &Ports, stopping: &AtomicBool) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { return };
        let Ok(writing) = stream.try_clone() else { continue };
        lock(ports).push((number, writing));
        let of_thread = Arc::clone(ports);
        let started = std::thread::Builder::new().name("hub port".into()).spawn(move || {
            // End of stream or an invalid length: the guest has disconnected.
            let _ = forward(stream, number, &of_thread);
            lock(&of_thread).retain(|(other, _)| *other != number);
        });
        if started.is_err() {
            lock(ports).retain(|(other, _)| *other != number);
        }
    }
}

/// Forwards the frames of a guest to all other guests until it disconnects.
fn forward(mut stream: UnixStream, number: u64, ports: &Ports) -> io::Result<()> {
    let mut frame = vec![0; 4];
    loop {
        frame.resize(4, 0);
        stream.read_exact(&mut frame)?;
        let length = match frame.as_slice() {
            &[a, b, c, d] => usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX),
            _ => 0,
        };
        if length > LONGEST_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        frame.resize(4 + length, 0);
        stream.read_exact(frame.get_mut(4..).unwrap_or_default())?;
        for (other, port) in lock(ports).iter_mut() {
            if *other != number {
                // The thread of a disconnected guest removes its port.
                let _ = port.write_all(&frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn connect(hub: &Hub) -> UnixStream {
        let stream = UnixStream::connect(hub.path()).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        stream
    }

    #[test]
    fn a_frame_reaches_all_others_and_a_guest_may_come_back() {
        let folder = Temporary::folder("hub-test").expect("folder");
        let hub = Hub::new(folder.path().join("hub.sock")).expect("a hub");
        let (mut one, mut two, three) = (connect(&hub), connect(&hub), connect(&hub));
        let wait_for = |count: usize| {
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while lock(&hub.ports).len() != count {
                assert!(std::time::Instant::now() < deadline, "{count} guests at the hub");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(3);
        let frame = [&5u32.to_be_bytes()[..], b"hello"].concat();
        one.write_all(&frame).expect("sends");
        for mut other in [&two, &three] {
            let mut seen = [0; 9];
            other.read_exact(&mut seen).expect("the frame");
            assert_eq!(seen, frame[..]);
        }
        drop(three);
        wait_for(2);
        let mut again = connect(&hub);
        wait_for(3);
        two.write_all(&frame).expect("sends");
        let mut seen = [0; 9];
        again.read_exact(&mut seen).expect("the frame");
        assert_eq!(seen, frame[..]);
        // An invalid length closes the connection.
        again.write_all(&u32::MAX.to_be_bytes()).expect("sends");
        wait_for(2);
        one.read_exact(&mut seen).expect("what the second sent");
    }
}
