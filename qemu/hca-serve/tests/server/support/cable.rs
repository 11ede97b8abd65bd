//! A joined server with one HCA that the test drives: the remote end of a cable, without a thread.

use hca_model::seams::NoMemory;
use hca_model::turn::turn;
use hca_model::{Hca, Interrupts, Profile};
use ib_mgmt::mad::Mad;
use mlx5_prm::value::PortState;
use rdma_fabric::infiniband::packet::QKEY_GSI;
use rdma_fabric::infiniband::{MadRoute, mad_packet};
use rdma_fabric::packet::Packet;
use rdma_fabric::wire::Wire;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const HELLO: u8 = 0;
const WELCOME: u8 = 1;
const PACKET: u8 = 3;
const UP: u8 = 4;
const ALIVE: u8 = 5;
/// Interval of keep-alive frames.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// LID of the subnet administrator.
const SA_LID: u16 = 1;

/// The stream of a cable.
struct End {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    enabled: bool,
    up: bool,
}

impl End {
    fn queue(&mut self, kind: u8, content: &[u8]) {
        self.output.extend((1 + content.len() as u32).to_le_bytes());
        self.output.push(kind);
        self.output.extend(content);
    }

    /// Sends as many bytes as the socket accepts.
    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads at most `most` bytes. Returns their number.
    fn read(&mut self, most: usize) -> usize {
        let mut bytes = vec![0; most];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the server cuts the cable"),
            Ok(read) => {
                self.input.extend(&bytes[..read]);
                read
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let length = u32::from_le_bytes(*self.input.first_chunk()?) as usize;
        let content = self.input.get(5..4 + length)?.to_vec();
        let kind = self.input[4];
        self.input.drain(..4 + length);
        Some((kind, content))
    }
}

impl Wire for End {
    fn send(&mut self, mut packet: Packet) {
        self.queue(PACKET, packet.sealed_bytes());
    }

    fn receive(&mut self) -> Option<Packet> {
        while let Some((kind, content)) = self.next() {
            match kind {
                PACKET => return Some(Packet::new(content)),
                UP => self.enabled = content == [1],
                WELCOME | ALIVE => {}
                other => panic!("the server sends frame {other}"),
            }
        }
        None
    }

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn set_up(&mut self, up: bool) {
        self.up = up;
        self.queue(UP, &[up.into()]);
    }
}

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&mut self, _: u16) {}
}

/// A joined server and its HCA, which has no driver.
pub struct Joined {
    end: End,
    hca: Hca,
    alive: Duration,
}

impl Joined {
    /// Connects to the server that listens at `path`. The HCA has the port GUID of node `number`.
    pub fn new(path: &Path, number: u16) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        stream.set_nonblocking(true).expect("nonblocking");
        let mut hca = Hca::new(Profile::node(number));
        hca.port_mut().set_cable(true);
        let mut end = End { stream, input: Vec::new(), output: Vec::new(), enabled: false, up: false };
        let guid = hca.profile().port_guid.to_le_bytes();
        end.queue(HELLO, &[&b"HCALINK3\0"[..], &guid, b"joined"].concat());
        Self { end, hca, alive: Duration::ZERO }
    }

    /// Reads at most `most` bytes, lets the HCA work and sends. Returns the number of bytes read.
    pub fn turn(&mut self, time: Duration, most: usize) -> usize {
        let read = self.end.read(most);
        let now = time.as_nanos() as u64;
        turn(&mut self.hca, &mut self.end, now, |hca, wire| {
            hca.poll(now, &NoMemory, &mut NoInterrupts, wire)
        });
        if self.alive <= time {
            self.end.queue(ALIVE, &[]);
            self.alive = time + KEEP_ALIVE;
        }
        self.end.flush();
        read
    }

    /// Returns whether the subnet manager has activated the port.
    pub fn is_active(&self) -> bool {
        self.hca.port().state == PortState::ACTIVE
    }

    /// Sends a request to the subnet administrator. Returns false if the socket accepts no more
    /// bytes.
    pub fn request(&mut self, mad: &Mad) -> bool {
        let free = self.end.output.is_empty();
        if free {
            let route = MadRoute {
                vl: 0,
                sl: 0,
                slid: self.hca.port().lid,
                dlid: SA_LID,
                pkey: 0xffff,
                source_qpn: 1,
                dest_qpn: 1,
                qkey: QKEY_GSI,
                psn: 0,
                grh: None,
            };
            self.end.send(mad_packet(&route, mad.as_bytes()));
            self.end.flush();
        }
        free
    }
}
