//! Ethernet switches of several servers, joined by `--uplink`.

use crate::joined::{Proxy, exchange, wait_for};
use crate::support::guest::pair;
use crate::support::{Folder, quiet};
use hca_serve::link::Address;
use hca_serve::{Options, Served, Stepped, serve};
use rdma_fabric::ethernet::JUMBO_FRAME;
use rdma_fabric::medium::LinkLayer;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Kinds of frames between servers.
const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const REFUSED: u8 = 2;
const PACKET: u8 = 3;
const UP: u8 = 4;

/// Starts a server with these cards, a capture, and a socket for network devices.
fn member(
    folder: &Path,
    name: &str,
    cards: &[&str],
    change: impl FnOnce(Options) -> Options,
) -> (Served, Vec<PathBuf>) {
    let sockets: Vec<PathBuf> = (0..cards.len()).map(|index| folder.join(format!("{name}{index}"))).collect();
    let options = Options {
        log: Arc::new(|_, _| {}),
        notices: Arc::new(|_| {}),
        kinds: cards.iter().map(|card| card.parse().expect("a card")).collect(),
        netdev: Some(Address::Unix(folder.join(format!("{name}-netdev")))),
        capture: Some(folder.join(format!("{name}.pcapng"))),
        ..Options::new(sockets.clone())
    };
    (serve(change(options)).expect("served"), sockets)
}

fn listening(folder: &Path, cards: &[&str]) -> (Served, Vec<PathBuf>) {
    let listen = Some(Address::Unix(folder.join("fabric")));
    member(folder, "a", cards, |options| Options { listen, ..options })
}

fn joining(folder: &Path, name: &str, cards: &[&str], address: &str) -> (Served, Vec<PathBuf>) {
    let uplink = Some(Address::Unix(folder.join(address)));
    member(folder, name, cards, |options| Options { uplink, ..options })
}

fn guids(served: &Served) -> Vec<u64> {
    served.handle().states().expect("served").iter().map(|state| state.port_guid).collect()
}

/// RoCE between two servers, before and after their cable was cut, and InfiniBand beside it.
#[test]
fn roce_crosses_servers_and_returns_after_a_cut() {
    let folder = Folder::new();
    let path = folder.path();
    let (a, a_sockets) = listening(path, &["cx-5-en", "cx-5"]);
    let proxy = Proxy::new(&path.join("proxy"), path.join("fabric"));
    let (b, b_sockets) = joining(path, "b", &["cx-5", "cx-5-en", "cx-5-en"], "proxy");
    let (c, c_sockets) = joining(path, "c", &["cx-5-en"], "fabric");
    let mut known = [guids(&a), guids(&b), guids(&c)].concat();
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), 6, "GUIDs, and thereby MAC addresses, are apart");
    let cables = || a.handle().cables().expect("served");
    let layers: Vec<LinkLayer> = cables().iter().map(|cable| cable.layer).collect();
    assert_eq!(layers, [LinkLayer::InfiniBand, LinkLayer::Ethernet, LinkLayer::Ethernet]);
    let mut guests = pair([&a_sockets[0], &b_sockets[1]]);
    let mut others = pair([&a_sockets[1], &b_sockets[0]]);
    let mut far = pair([&b_sockets[2], &c_sockets[0]]);
    exchange(&mut guests, 20);
    exchange(&mut others, 5);
    exchange(&mut far, 20);
    for _ in 0..2 {
        proxy.cut();
        wait_for("the switch notices", || cables().len() == 1);
        proxy.mend();
        wait_for("the cables are plugged in again", || cables().iter().filter(|cable| cable.up).count() == 3);
        exchange(&mut guests, 10);
        exchange(&mut far, 10);
    }
    assert!(guests.iter().all(|guest| !guest.failed()));
}

/// A network device.
struct Device(UnixStream);

impl Device {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        Self(stream)
    }

    fn send(&mut self, frame: &[u8]) {
        self.0.write_all(&(frame.len() as u32).to_be_bytes()).expect("sent");
        self.0.write_all(frame).expect("sent");
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("a frame");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).expect("a frame");
        frame
    }
}

fn frame(to: u8, from: u8, content: &[u8], len: usize) -> Vec<u8> {
    let to = if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] };
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5], content].concat();
    frame.resize(len, 0);
    frame
}

#[test]
fn frames_of_network_devices_cross_servers_and_are_captured_at_both() {
    let folder = Folder::new();
    let path = folder.path();
    let (a, _) = listening(path, &[]);
    let (b, _) = joining(path, "b", &[], "fabric");
    let (c, _) = joining(path, "c", &["cx-5-en"], "fabric");
    let [mut one, mut two, mut three] =
        ["a-netdev", "b-netdev", "c-netdev"].map(|name| Device::new(&path.join(name)));
    // Until both ends of each cable are up, frames are lost.
    let up = || a.handle().cables().expect("served").iter().filter(|cable| cable.up).count();
    wait_for("the cables are up", || up() == 2);
    let question = frame(0xff, 2, b"who is there", 60);
    two.send(&question);
    assert_eq!([one.receive(), three.receive()], [question.clone(), question]);
    let answer = frame(2, 3, b"only for two", JUMBO_FRAME);
    three.send(&answer);
    assert_eq!(two.receive(), answer);
    let last = frame(0xff, 1, b"for all", 60);
    one.send(&last);
    assert_eq!([two.receive(), three.receive()], [last.clone(), last]);
    let captured = |served: Served, name: &str, content: &[u8]| {
        drop(served);
        let bytes = std::fs::read(path.join(name)).expect("a capture");
        bytes.windows(content.len()).filter(|window| *window == content).count()
    };
    assert_eq!(captured(a, "a.pcapng", b"only for two"), 1);
    assert_eq!(captured(b, "b.pcapng", b"only for two"), 1);
    assert_eq!(captured(c, "c.pcapng", b"for all"), 1);
}

/// A server, and what it printed.
struct Stage {
    server: Stepped,
    path: PathBuf,
    notices: Arc<Mutex<Vec<String>>>,
    _folder: Folder,
}

fn link_frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + content.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(content);
    bytes
}

impl Stage {
    fn new() -> Self {
        let folder = Folder::new();
        let path = folder.path().join("fabric");
        let notices: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&notices);
        let server = Stepped::new(Options {
            listen: Some(Address::Unix(path.clone())),
            notices: Arc::new(move |line| told.lock().expect("lines").push(line.to_owned())),
            ..quiet(&folder, 0)
        });
        Self { server: server.expect("serves"), path, notices, _folder: folder }
    }

    /// Connects and sends these bytes. Returns what the server replies until it closes the stream or has no more.
    fn speak(&mut self, bytes: &[u8]) -> (UnixStream, Vec<u8>) {
        let mut stream = UnixStream::connect(&self.path).expect("connects");
        stream.set_nonblocking(true).expect("nonblocking");
        stream.write_all(bytes).expect("sent");
        let reply = self.replies(&mut stream);
        (stream, reply)
    }

    fn replies(&mut self, stream: &mut UnixStream) -> Vec<u8> {
        let mut reply = Vec::new();
        for _ in 0..8 {
            self.server.step_until(std::time::Duration::ZERO);
            match stream.read_to_end(&mut reply) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
        reply
    }

    fn notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().expect("lines"))
    }
}

#[test]
fn peers_that_make_no_sense_get_a_clear_error() {
    let mut stage = Stage::new();
    let hello = |magic: &[u8], layer: u8, guid: u64| {
        link_frame(HELLO, &[magic, &[layer], &guid.to_le_bytes(), b"peer"].concat())
    };
    let before = ", before a handshake";
    for (bytes, reason) in [
        (vec![0; 64], format!("frame without a kind{before}")),
        (vec![0xff; 64], format!("frame of 4294967295 bytes, 9216 at most{before}")),
        (link_frame(77, b""), format!("frame of unknown kind 77{before}")),
        (link_frame(PACKET, &[1; 100]), format!("Packet frame out of order{before}")),
        (link_frame(UP, &[1]), format!("Up frame out of order{before}")),
        (
            hello(b"HCALINK2", 1, 0),
            "malformed or foreign handshake: use the same release on both sides".into(),
        ),
        (
            link_frame(HELLO, b"HCALINK3"),
            "malformed or foreign handshake: use the same release on both sides".into(),
        ),
        (hello(b"HCALINK3", 2, 0), "unknown kind of link 2: use the same release on both sides".into()),
    ] {
        let (_stream, reply) = stage.speak(&bytes);
        assert_eq!(reply, link_frame(REFUSED, reason.as_bytes()), "{}", String::from_utf8_lossy(&reply));
        assert_eq!(stage.notices(), [format!("cable refused: {reason}")]);
    }
    // After the handshake: the switch of GUID 7, twice, and as an HCA.
    let (mut trunk, reply) = stage.speak(&hello(b"HCALINK3", 1, 7));
    assert_eq!(reply[..13], link_frame(WELCOME, &7u64.to_le_bytes()));
    for layer in [0, 1] {
        let (_stream, reply) = stage.speak(&hello(b"HCALINK3", layer, 7));
        assert!(String::from_utf8_lossy(&reply).contains("0x0000000000000007 is on this fabric already"));
    }
    // Frames of any content and length, then a frame that has no place here.
    trunk.write_all(&link_frame(UP, &[1])).expect("sent");
    for len in [0, 1, 13, 14, 59, 60, 1_514, JUMBO_FRAME, 9_215] {
        trunk.write_all(&link_frame(PACKET, &vec![0x55; len])).expect("sent");
    }
    trunk.write_all(&link_frame(WELCOME, &[0; 8])).expect("sent");
    stage.replies(&mut trunk);
    let last = stage.notices().pop();
    assert_eq!(last.as_deref(), Some("cable of 0x0000000000000007 cut: Welcome frame out of order"));
    let counters = stage.server.world().medium.switch().counters();
    assert_eq!((counters.sent, counters.malformed, counters.refused), (9, 3, 1));
}

/// Each connection and its refusal cost a line, of which the user sees some in a second.
#[test]
fn lines_about_refused_cables_are_limited() {
    let mut stage = Stage::new();
    for _ in 0..1_000 {
        stage.speak(&[0; 5]);
    }
    let seconds = stage.server.time().as_secs() as usize + 1;
    let lines = stage.notices().len();
    assert!((32..=33 * seconds).contains(&lines) && lines < 500, "{lines} lines in {seconds} s");
}
