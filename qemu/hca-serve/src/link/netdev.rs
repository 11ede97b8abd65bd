//! Switch ports of guests' ordinary network devices, by QEMU's network sockets (`-netdev stream`).
//!
//! Each connection is the cable of one port. A frame's length (4 bytes, big endian) precedes it. A
//! frame has neither checksum offloads nor a frame check sequence.

use super::address::Listener;
use super::buffers::{Buffers, CableWork};
use super::door::Door;
use super::roster::Roster;
use super::stream::Broken;
use crate::planted::{self, Place};
use rdma_fabric::ethernet::frame::Frame;
use rdma_fabric::medium::{LinkLayer, Medium};
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use rdma_fabric::work::STEPS_PER_CALL;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Frames received and sent on a cable in one iteration.
const FRAMES: usize = 64;
/// Longest frame of QEMU's network devices (`NET_BUFSIZE`), in bytes.
const LONGEST: usize = 4096 + 65536;
/// Shortest frame of Ethernet without its check sequence, in bytes.
const SHORTEST: usize = 60;
/// First token of cables. The listener's token precedes it.
const FIRST_TOKEN: u64 = 1 << 34;
/// Names of the ports begin with this.
const NAME: &str = "netdev ";

/// Cable of a guest.
#[derive(Debug)]
struct Cable {
    buffers: Buffers,
    port: PortIndex,
    /// True if the socket is readable.
    readable: bool,
}

/// Listener for network devices of guests, with their cables.
#[derive(Debug)]
pub struct Netdevs {
    door: Door,
    /// Cables by token.
    cables: BTreeMap<u64, Cable>,
    roster: Roster,
    next: u64,
    /// Ports whose guests have left.
    free: Vec<PortIndex>,
    ports: usize,
    /// A refusal was reported since the last device was plugged in.
    refused: bool,
    work: CableWork,
}

impl Netdevs {
    /// Accepts cables at `listener`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(listener: Listener, epoll: &OwnedFd) -> Result<Self, rustix::io::Errno> {
        let door = Door::new(listener, FIRST_TOKEN, epoll)?;
        let (cables, free, work) = (BTreeMap::new(), Vec::new(), CableWork::default());
        Ok(Self {
            door,
            cables,
            roster: Roster::default(),
            next: FIRST_TOKEN + 1,
            free,
            ports: 0,
            refused: false,
            work,
        })
    }

    /// Returns the work for cables so far.
    pub const fn work(&self) -> CableWork {
        self.work
    }

    /// Returns whether the token belongs to a network device.
    pub fn owns(token: u64) -> bool {
        (FIRST_TOKEN..FIRST_TOKEN << 1).contains(&token)
    }

    /// Handles readiness of the socket of `token`.
    pub fn event(
        &mut self,
        token: u64,
        epoll: &OwnedFd,
        medium: &mut Medium,
        now: Instant,
        tell: impl FnMut(String),
    ) {
        if let Some(cable) = self.cables.get_mut(&token) {
            cable.readable = true;
            self.roster.wake(token);
        } else if token == FIRST_TOKEN && self.accept(epoll, medium, tell).is_err() {
            self.door.rest(now);
        }
    }

    fn accept(
        &mut self,
        epoll: &OwnedFd,
        medium: &mut Medium,
        mut tell: impl FnMut(String),
    ) -> std::io::Result<()> {
        let buffers = Buffers::new(self.door.accept()?)?;
        let number = self.next;
        epoll::add(epoll, buffers.socket(), EventData::new_u64(number), EventFlags::empty())?;
        let port = match self.free.pop() {
            Some(port) => port,
            None => match medium.attach(&format!("{NAME}{}", self.ports), LinkLayer::Ethernet) {
                Ok(port) => {
                    self.ports += 1;
                    port
                }
                Err(error) => {
                    // QEMU reconnects every second.
                    if !std::mem::replace(&mut self.refused, true) {
                        tell(format!("network device refused: {error}"));
                    }
                    return Ok(());
                }
            },
        };
        self.next += 1;
        self.refused = false;
        tell(format!("{} plugged in", medium.name(port).unwrap_or(NAME)));
        self.cables.insert(number, Cable { buffers, port, readable: true });
        self.roster.plug(number, port);
        self.roster.wake(number);
        Ok(())
    }

    /// A packet has arrived at `port`, or its link or credit has changed.
    pub fn wake_port(&mut self, port: PortIndex) {
        self.roster.wake_port(port);
    }

    /// Moves frames in both directions. `tell` gets lines for the user. Returns whether there is
    /// more work.
    pub fn turn(
        &mut self,
        medium: &mut Medium,
        now: u64,
        instant: Instant,
        mut tell: impl FnMut(String),
    ) -> bool {
        let mut more = false;
        for token in self.roster.take_ready(instant) {
            let Some(cable) = self.cables.get_mut(&token) else { continue };
            // A panic must not reach other cables and HCAs.
            let served = catch_unwind(AssertUnwindSafe(|| {
                planted::here(Place::Cable(token));
                cable.serve(medium, now, &mut self.work)
            }));
            match served.unwrap_or(Err(Broken::Panicked)) {
                Ok(Served { busy, owes }) => {
                    more |= busy;
                    if busy || owes {
                        self.roster.wake(token);
                    }
                }
                Err(reason) => self.cut(token, reason, medium, now, &mut tell),
            }
        }
        more
    }

    /// Cuts the cable of `token`.
    pub fn cut(
        &mut self,
        token: u64,
        reason: Broken,
        medium: &mut Medium,
        now: u64,
        mut tell: impl FnMut(String),
    ) {
        // Closing the socket removes it from the epoll set.
        let Some(Cable { port, .. }) = self.cables.remove(&token) else { return };
        self.roster.forget(token);
        let mut wire = medium.cable(port, now);
        wire.set_congested(false);
        wire.set_up(false);
        while let Some(packet) = wire.receive() {
            wire.give_buffer(packet.into_buffer());
        }
        self.free.push(port);
        tell(format!("{} unplugged: {reason}", medium.name(port).unwrap_or(NAME)));
    }

    /// Returns the time at which work is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.door.deadline()
    }

    /// Updates the socket events to wait for.
    pub fn follow_interests(&mut self, epoll: &OwnedFd, now: Instant) {
        self.door.follow(epoll, now);
        for token in self.roster.take_touched() {
            if let Some(cable) = self.cables.get_mut(&token) {
                cable.buffers.follow(token, epoll);
            }
        }
    }
}

/// Result of a cable's turn.
struct Served {
    /// True if more work is left.
    busy: bool,
    /// Its frames may cost the switch work that the next turn pays for.
    owes: bool,
}

impl Cable {
    fn serve(&mut self, medium: &mut Medium, now: u64, work: &mut CableWork) -> Result<Served, Broken> {
        if std::mem::take(&mut self.readable) && !self.buffers.paused {
            work.reads += 1;
            self.buffers.read()?;
        }
        let mut wire = medium.cable(self.port, now);
        // A link that a fault cut comes up again.
        wire.set_up(true);
        // Its previous frames may have cost the switch more than one iteration.
        let paid = wire.pay_turn();
        work.steps += paid;
        let mut more = paid == STEPS_PER_CALL;
        self.buffers.paused = more;
        let mut owes = more;
        for taken in 0.. {
            if self.buffers.paused {
                break;
            }
            if !wire.has_credit() {
                // The receivers must first take the frames in flight.
                self.buffers.paused = true;
                break;
            }
            if taken == FRAMES {
                more = true;
                break;
            }
            let Some((length, rest)) = self.buffers.unread().split_first_chunk::<4>() else { break };
            let len = u32::from_be_bytes(*length) as usize;
            if len > LONGEST {
                return Err(Broken::Malformed);
            }
            let Some(frame) = rest.get(..len) else { break };
            let mut bytes = wire.take_buffer();
            bytes.clear();
            bytes.extend_from_slice(frame);
            bytes.resize(len.max(SHORTEST), 0);
            wire.send(Packet::frame(bytes));
            owes = true;
            self.buffers.consume(4 + len);
            work.frames += 1;
        }
        for taken in 0.. {
            let congested = self.buffers.is_congested();
            wire.set_congested(congested);
            if congested {
                break;
            }
            if taken == FRAMES {
                more = true;
                break;
            }
            let Some(mut packet) = wire.receive() else { break };
            let bytes = packet.sealed_bytes();
            if !is_undefined(bytes) {
                self.buffers.queue(&(bytes.len() as u32).to_be_bytes());
                self.buffers.queue(bytes);
            }
            work.frames += 1;
            wire.give_buffer(packet.into_buffer());
        }
        self.buffers.flush()?;
        Ok(Served { busy: more, owes })
    }
}

/// Returns whether a frame is a congestion notification (CNP) or has an undefined RoCE opcode. Linux's
/// `rdma_rxe` reports both as errors, and reads out of bounds in kernels without the check of `rxe_rcv`.
fn is_undefined(frame: &[u8]) -> bool {
    let roce = Frame::parse(frame).and_then(|frame| frame.roce());
    roce.is_some_and(|roce| roce.bth().opcode.operation().is_none())
}

#[cfg(test)]
mod tests {
    use crate::link::Address;
    use crate::server::{Options, Stepped};
    use rdma_fabric::infiniband::packet::{Bth, Opcode};
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};

    struct Bed {
        server: Stepped,
        path: PathBuf,
        notices: Arc<Mutex<Vec<String>>>,
    }

    impl Bed {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("netdev-{name}-{}.sock", std::process::id()));
            let notices: Arc<Mutex<Vec<String>>> = Arc::default();
            let told = Arc::clone(&notices);
            let server = Stepped::new(Options {
                netdev: Some(Address::Unix(path.clone())),
                notices: Arc::new(move |line| told.lock().expect("lines").push(line.to_owned())),
                ..Options::new(Vec::new())
            });
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
        let (defined, undefined) =
            ([Opcode::RC_ACKNOWLEDGE, Opcode::UD_SEND_ONLY], [Opcode::CNP, Opcode(0x1f)]);
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
        assert_eq!(bed.last_notice(), "netdev 2 unplugged: the other server makes no sense");
        // Frames that no Ethernet has do no harm.
        for len in [0, 1, 13, 14, 9_500, 69_632] {
            send(&one, &vec![0x55; len]);
            bed.settle();
        }
        send(&one, &frame(0xff, 1, b"still here"));
        bed.settle();
        assert!(
            receive(&two).iter().any(|frame| frame.ends_with(&[0; 36]) && frame[14..].starts_with(b"still"))
        );
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
}
