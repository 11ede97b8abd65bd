//! Network devices at a server that is moved step by step.

use crate::link::{Address, Ends};
use crate::server::{Options, Stepped};
use rdma_fabric::infiniband::packet::{Bth, Opcode};
use rdma_fabric::ports::PortIndex;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Bed {
    server: Stepped,
    path: PathBuf,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Bed {
    fn new(name: &str) -> Self {
        Self::with(name, |options| options)
    }

    fn with(name: &str, change: impl FnOnce(Options) -> Options) -> Self {
        let path = std::env::temp_dir().join(format!("netdev-{name}-{}.sock", std::process::id()));
        let notices: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&notices);
        let server = Stepped::new(change(Options {
            netdev: Some(Address::Unix(path.clone())),
            notices: Arc::new(move |line| told.lock().expect("lines").push(line.to_owned())),
            ..Options::new(Vec::new())
        }));
        Self { server: server.expect("serves"), path, notices }
    }

    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("connects");
        stream.set_nonblocking(true).expect("a socket");
        self.settle();
        stream
    }

    fn settle(&mut self) {
        (0..20).for_each(|_| self.server.step());
    }

    fn last_notice(&self) -> String {
        self.notices.lock().expect("lines").last().cloned().unwrap_or_default()
    }
}

/// A frame from device `from` to device `to`; 0xff is the broadcast address.
fn frame(to: u8, from: u8, content: &[u8]) -> Vec<u8> {
    let to = if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] };
    [&to[..], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5], content].concat()
}

fn send(mut stream: &UnixStream, frame: &[u8]) {
    stream.write_all(&(frame.len() as u32).to_be_bytes()).expect("sends");
    stream.write_all(frame).expect("sends");
}

/// The frames that have come.
fn receive(mut stream: &UnixStream) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        other => panic!("{other:?}"),
    }
    let mut frames = Vec::new();
    let mut rest = &bytes[..];
    while let Some((length, content)) = rest.split_first_chunk::<4>() {
        let (frame, behind) = content.split_at(u32::from_be_bytes(*length) as usize);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

#[test]
fn frames_are_flooded_learned_and_padded() {
    let mut bed = Bed::new("frames");
    let [one, two, three] = [(); 3].map(|()| bed.connect());
    send(&one, &frame(0xff, 1, b"who"));
    bed.settle();
    let mut padded = frame(0xff, 1, b"who");
    padded.resize(60, 0);
    assert_eq!(receive(&two), std::slice::from_ref(&padded));
    assert_eq!(receive(&three), [padded]);
    let answer = frame(1, 2, &[7; 1500]);
    send(&two, &answer);
    bed.settle();
    assert_eq!(receive(&one), [answer]);
    assert!(receive(&three).is_empty(), "the switch knows where device 1 is");
}

/// A RoCE v2 packet with an opcode, from device 1 to device 2.
fn roce(opcode: Opcode) -> Vec<u8> {
    let ip = [0x45, 0xc2, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [0, 0, 0x12, 0xb7, 0, 40, 0, 0];
    let bth = Bth::new(opcode, 0xffff, 2, 3).to_bytes();
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &udp, &bth, &[0; 16], &[0; 4]].concat()
}

/// The port drops congestion notifications and undefined opcodes.
#[test]
fn roce_packets_reach_devices_if_their_opcodes_are_defined() {
    let mut bed = Bed::new("roce");
    let [one, two] = [(); 2].map(|()| bed.connect());
    let (defined, undefined) = ([Opcode::RC_ACKNOWLEDGE, Opcode::UD_SEND_ONLY], [Opcode::CNP, Opcode(0x1f)]);
    for opcode in defined.into_iter().chain(undefined) {
        send(&one, &roce(opcode));
        bed.settle();
        assert_eq!(receive(&two).len(), usize::from(defined.contains(&opcode)), "{opcode:?}");
    }
}

#[test]
fn a_full_switch_is_reported_once() {
    let mut bed = Bed::new("full");
    let mut streams: Vec<UnixStream> = (0..254).map(|_| bed.connect()).collect();
    assert_eq!(bed.last_notice(), "netdev 253 plugged in");
    for _ in 0..3 {
        bed.connect();
    }
    let notices = |bed: &Bed| bed.notices.lock().expect("lines").len();
    assert_eq!(bed.last_notice(), "network device refused: the switch has only 254 ports");
    assert_eq!(notices(&bed), 255);
    streams.pop();
    bed.settle();
    streams.push(bed.connect());
    bed.connect();
    assert_eq!(notices(&bed), 258, "unplugged, plugged in, refused");
}

#[test]
fn a_device_that_sends_nonsense_is_unplugged_alone() {
    let mut bed = Bed::new("nonsense");
    let [one, two, three] = [(); 3].map(|()| bed.connect());
    (&three).write_all(&70_000u32.to_be_bytes()).expect("sends");
    bed.settle();
    assert_eq!(bed.last_notice(), "netdev 2 unplugged: frame of 70000 bytes, 69632 at most");
    // Frames that no Ethernet has do no harm.
    for len in [0, 1, 13, 14, 9_500, 69_632] {
        send(&one, &vec![0x55; len]);
        bed.settle();
    }
    send(&one, &frame(0xff, 1, b"still here"));
    bed.settle();
    assert!(receive(&two).iter().any(|frame| frame.ends_with(&[0; 36]) && frame[14..].starts_with(b"still")));
    let four = bed.connect();
    assert_eq!(bed.last_notice(), "netdev 2 plugged in", "the port is free again");
    send(&one, &frame(0xff, 1, b"again"));
    bed.settle();
    assert_eq!(receive(&four).len(), 1, "nothing from before");
}

#[test]
fn a_device_that_does_not_read_delays_nobody() {
    let mut bed = Bed::new("silent");
    let [one, two, _silent] = [(); 3].map(|()| bed.connect());
    let long = frame(0xff, 1, &[7; 1486]);
    let mut came = 0;
    for _ in 0..4_000 {
        send(&one, &long);
        bed.server.step();
        bed.server.step();
        came += receive(&two).len();
    }
    bed.settle();
    came += receive(&two).len();
    assert_eq!(came, 4_000);
}

#[test]
fn datagrams_are_frames_of_a_port_and_a_peer_may_come_again() {
    let folder = std::env::temp_dir().join(format!("netdev-datagrams-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    let [local, remote] = ["server", "device"].map(|name| folder.join(name));
    let mut bed = Bed::with("datagrams", |options| Options {
        netdev_datagrams: vec![Ends::Unix { local: local.clone(), remote: remote.clone() }],
        ..options
    });
    let stream = bed.connect();
    let link_is_up = |bed: &mut Bed| bed.server.world().medium.switch().link_is_up(PortIndex(0));
    assert!(!link_is_up(&mut bed), "nobody has been heard of");
    for round in 0..3 {
        let device = UnixDatagram::bind(&remote).expect("binds");
        device.set_nonblocking(true).expect("a socket");
        // As QEMU does: a connected socket would take datagrams of the bound socket only.
        device.send_to(&frame(0xff, 1, b"here"), &local).expect("sends");
        bed.settle();
        assert!(link_is_up(&mut bed));
        assert_eq!(receive(&stream).len(), 1, "round {round}");
        // More than the device's socket has space for waits, and is not lost while the clock stands.
        let long = frame(1, 2, &[round; 9_000]);
        for _ in 0..300 {
            send(&stream, &long);
            bed.server.step_until(Duration::ZERO);
        }
        let mut bytes = [0; 10_000];
        let mut came = 0;
        while came < 300 {
            match device.recv(&mut bytes) {
                Ok(len) => {
                    assert_eq!(bytes[..len], long);
                    came += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => bed.server.step_until(Duration::ZERO),
                Err(error) => panic!("{error} after {came} frames"),
            }
        }
        // Frames that no Ethernet has, and one longer than a datagram of QEMU's.
        for len in [0, 1, 13, 9_500, 69_632, 100_000] {
            device.send_to(&vec![0x55; len], &local).expect("sends");
            bed.settle();
        }
        assert!(receive(&stream).is_empty());
        drop(device);
        std::fs::remove_file(&remote).expect("removed");
        send(&stream, &frame(1, 2, b"nobody"));
        bed.settle();
        assert!(!link_is_up(&mut bed), "the peer's socket is gone");
    }
    drop(bed);
    assert!(!local.exists(), "removed at the end");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn udp_datagrams_of_strangers_are_dropped() {
    let [device, stranger, free] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").expect("binds"));
    let [local, remote] = [&free, &device].map(|socket| socket.local_addr().expect("an address"));
    drop(free);
    let mut bed = Bed::with("udp", |options| Options {
        netdev_datagrams: vec![Ends::Udp { local: local.to_string(), remote: remote.to_string() }],
        ..options
    });
    let stream = bed.connect();
    device.set_nonblocking(true).expect("a socket");
    for _ in 0..200 {
        stranger.send_to(&frame(0xff, 3, b"let me in"), local).expect("sends");
    }
    bed.settle();
    assert!(receive(&stream).is_empty());
    device.send_to(&frame(0xff, 1, b"here"), local).expect("sends");
    let mut came = Vec::new();
    while came.is_empty() {
        bed.server.step();
        came = receive(&stream);
    }
    assert!(came[0][14..].starts_with(b"here"));
    send(&stream, &frame(1, 2, &[9; 1_400]));
    let mut bytes = [0; 2_000];
    while device.recv(&mut bytes).is_err() {
        bed.server.step();
    }
    assert_eq!(bytes[..1_414], frame(1, 2, &[9; 1_400]));
}
