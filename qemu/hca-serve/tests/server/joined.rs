//! Several servers joined into one fabric.

use crate::support::client::{Client, IDS};
use crate::support::guest::{Guest, pair};
use crate::support::{Folder, serve_with};
use hca_serve::link::Address;
use hca_serve::{Options, Served, serve};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Starts a server with the fabric, `count` HCAs and no remote ones.
fn fabric(folder: &Path, name: &str, count: usize) -> (Served, Vec<PathBuf>) {
    member(folder, name, count, |options| Options {
        listen: Some(Address::Unix(folder.join("fabric"))),
        ..options
    })
}

/// Starts a server whose fabric is at `address`.
fn spoke(folder: &Path, name: &str, count: usize, address: &str) -> (Served, Vec<PathBuf>) {
    let uplink = Some(Address::Unix(folder.join(address)));
    member(folder, name, count, |options| Options { uplink, ..options })
}

fn member(
    folder: &Path,
    name: &str,
    count: usize,
    change: impl FnOnce(Options) -> Options,
) -> (Served, Vec<PathBuf>) {
    let sockets: Vec<PathBuf> = (0..count).map(|index| folder.join(format!("{name}{index}"))).collect();
    let options =
        Options { log: Arc::new(|_, _| {}), notices: Arc::new(|_| {}), ..Options::new(sockets.clone()) };
    (serve(change(options)).expect("served"), sockets)
}

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn exchange(guests: &mut [Guest; 2], rounds: u8) {
    let targets = guests.each_ref().map(Guest::target);
    for round in 1..=rounds {
        for (from, to) in [(0, 1), (1, 0)] {
            guests[from].write(round, targets[to]).expect("data move");
            assert!(guests[to].written().iter().all(|byte| *byte == round), "round {round}");
        }
    }
}

fn state(served: &Served, hca: usize) -> hca_serve::HcaState {
    served.handle().states().expect("served").swap_remove(hca)
}

#[test]
fn guests_on_either_side_and_on_the_same_side_move_data() {
    let folder = Folder::new();
    let (a, a_sockets) = fabric(folder.path(), "a", 1);
    let (b, b_sockets) = spoke(folder.path(), "b", 2, "fabric");
    let (c, c_sockets) = spoke(folder.path(), "c", 1, "fabric");
    exchange(&mut pair([&a_sockets[0], &b_sockets[0]]), 30);
    exchange(&mut pair([&b_sockets[0], &b_sockets[1]]), 30);
    exchange(&mut pair([&b_sockets[1], &c_sockets[0]]), 30);
    let mut guids: Vec<u64> = [(&a, 0), (&b, 0), (&b, 1), (&c, 0)]
        .iter()
        .map(|(served, hca)| state(served, *hca).port_guid)
        .collect();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), 4, "GUIDs are apart");
    let cables = a.handle().cables().expect("served");
    assert_eq!(cables.iter().map(|cable| cable.switch_port).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(b.handle().fabric_elsewhere().is_some_and(|place| place.ends_with("/fabric")));
}

#[test]
fn guids_that_are_taken_are_refused_and_nobody_there_is_said() {
    let folder = Folder::new();
    let listen = Some(Address::Unix(folder.path().join("fabric")));
    let sockets = |name: &str| vec![folder.path().join(name)];
    let uplink = || Options { uplink: listen.clone(), ..Options::new(sockets("b")) };
    let refused = serve(uplink()).expect_err("nobody").to_string();
    assert!(refused.contains("--uplink") && refused.contains("/fabric"), "{refused}");
    let base = Some(0x0002_c903_0000_0010);
    let _a = serve(Options { listen: listen.clone(), guid_base: base, ..Options::new(sockets("a")) })
        .expect("served");
    let refused = serve(Options { guid_base: base, ..uplink() }).expect_err("taken").to_string();
    assert!(refused.contains("--guid-base") && refused.contains("0x0002c90300000010"), "{refused}");
    let b = serve(uplink()).expect("served");
    assert_eq!(state(&b, 0).port_guid, 0x0002_c903_0000_0020);
}

/// Relay between two servers that can be cut.
pub struct Proxy {
    streams: Arc<Mutex<Vec<UnixStream>>>,
    open: Arc<Mutex<bool>>,
}

impl Proxy {
    pub fn new(from: &Path, to: PathBuf) -> Self {
        let listener = UnixListener::bind(from).expect("listens");
        let proxy = Self { streams: Arc::default(), open: Arc::new(Mutex::new(true)) };
        let (streams, open) = (Arc::clone(&proxy.streams), Arc::clone(&proxy.open));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let open = open.lock().expect("lock");
                let Some(far) = open.then(|| UnixStream::connect(&to).ok()).flatten() else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().expect("fd"), to.try_clone().expect("fd"));
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().expect("lock").extend([near, far]);
            }
        });
        proxy
    }

    pub fn cut(&self) {
        *self.open.lock().expect("lock") = false;
        for stream in self.streams.lock().expect("lock").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        *self.open.lock().expect("lock") = true;
    }
}

#[test]
fn a_broken_stream_is_a_cut_cable_and_a_mended_one_goes_on() {
    let folder = Folder::new();
    let (a, a_sockets) = fabric(folder.path(), "a", 2);
    let proxy = Proxy::new(&folder.path().join("proxy"), folder.path().join("fabric"));
    let (b, b_sockets) = spoke(folder.path(), "b", 1, "proxy");
    let mut guests = pair([&a_sockets[0], &b_sockets[0]]);
    exchange(&mut guests, 5);
    let lid = state(&b, 0).lid;
    for _ in 0..3 {
        proxy.cut();
        wait_for("the link goes down", || !state(&b, 0).link_up);
        wait_for("the switch notices", || a.handle().cables().expect("served").is_empty());
        assert_eq!(Client::new(&a_sockets[1]).ids(), IDS, "others are served");
        proxy.mend();
        wait_for("the port is Active again", || state(&b, 0).active);
        assert_eq!(state(&b, 0).lid, lid, "its own LID again");
        exchange(&mut guests, 5);
    }
}

#[test]
fn either_server_may_end_and_the_other_s_guests_are_served() {
    let folder = Folder::new();
    let (a, a_sockets) = fabric(folder.path(), "a", 2);
    let (b, b_sockets) = spoke(folder.path(), "b", 2, "fabric");
    exchange(&mut pair([&a_sockets[0], &b_sockets[0]]), 5);
    b.stop().expect("stops");
    exchange(&mut pair([&a_sockets[0], &a_sockets[1]]), 5);
    let (b, b_sockets) = spoke(folder.path(), "c", 2, "fabric");
    let mut guests = pair([&b_sockets[0], &b_sockets[1]]);
    exchange(&mut guests, 5);
    a.stop().expect("stops");
    wait_for("the links go down", || !state(&b, 0).link_up && !state(&b, 1).link_up);
    assert!(!guests[0].failed() && !guests[1].failed());
    let (_a, _) = fabric(folder.path(), "d", 1);
    wait_for("the ports are Active again", || state(&b, 0).active && state(&b, 1).active);
    // The LIDs differ, because the fabric is a new one.
    drop(guests);
    exchange(&mut pair([&b_sockets[0], &b_sockets[1]]), 5);
}

fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + content.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(content);
    bytes
}

/// Returns a connection after the handshake with a GUID.
fn introduced(address: &Path, guid: u64) -> UnixStream {
    let mut stream = UnixStream::connect(address).expect("connects");
    let mut hello = b"HCALINK3\0".to_vec();
    hello.extend(guid.to_le_bytes());
    stream.write_all(&frame(0, &hello)).expect("sent");
    let mut welcome = [0; 13];
    stream.read_exact(&mut welcome).expect("welcomed");
    assert_eq!(welcome[4], 1);
    stream
}

#[test]
fn cables_that_bring_nonsense_or_take_nothing_harm_nobody_else() {
    let folder = Folder::new();
    let (a, a_sockets) = fabric(folder.path(), "a", 2);
    let address = folder.path().join("fabric");
    let mut guests = pair([&a_sockets[0], &a_sockets[1]]);
    for (guid, nonsense) in [
        (0x100, vec![0xff; 64]),
        (0x110, frame(3, &[0; 3])),
        (0x120, [frame(4, &[1]), frame(3, &[0xab; 300])].concat()),
        (0x130, frame(0, b"HCALINK3")),
        (0x140, [frame(4, &[1]), frame(4, &[0]), frame(4, &[1]), frame(5, &[])].concat()),
        (0x150, frame(77, &[])),
    ] {
        let mut stream = introduced(&address, guid);
        let _ = stream.write_all(&nonsense);
        exchange(&mut guests, 2);
    }
    for nonsense in [vec![0; 64], frame(0, b"HCALINK9\0\0\0\0\0\0\0\0"), frame(3, &[1; 100]), vec![1]] {
        let mut stream = UnixStream::connect(&address).expect("connects");
        let _ = stream.write_all(&nonsense);
        exchange(&mut guests, 2);
    }
    // The switch sends management packets to this peer, which reads none and sends nothing.
    let mut silent = introduced(&address, 0x200);
    silent.write_all(&frame(4, &[1])).expect("sent");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        exchange(&mut guests, 2);
    }
    wait_for("its cable is cut", || a.handle().cables().expect("served").is_empty());
    exchange(&mut guests, 2);
}

#[test]
fn a_port_that_is_reset_comes_back() {
    let folder = Folder::new();
    let (_a, a_sockets) = fabric(folder.path(), "a", 1);
    let (b, b_sockets) = spoke(folder.path(), "b", 1, "fabric");
    for _ in 0..3 {
        // Each guest brings its HCA up again, because the previous client's disconnection reset it.
        exchange(&mut pair([&a_sockets[0], &b_sockets[0]]), 3);
        wait_for("the client has left", || !state(&b, 0).connected);
    }
    b.set_cable(0, false).expect("served");
    wait_for("the link is down", || !state(&b, 0).link_up);
    b.set_cable(0, true).expect("served");
    wait_for("the port is Active", || state(&b, 0).active);
}

#[test]
fn a_loopback_port_joins_servers_too() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = listener.local_addr().expect("address").to_string();
    drop(listener);
    let address = Address::Tcp(place);
    let (_f, _a, a_sockets) = serve_with(1, |options| Options { listen: Some(address.clone()), ..options });
    let (_g, _b, b_sockets) = serve_with(1, |options| Options { uplink: Some(address.clone()), ..options });
    exchange(&mut pair([&a_sockets[0], &b_sockets[0]]), 20);
}
