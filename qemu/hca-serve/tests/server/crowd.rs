//! Fairness on a server with many HCAs, measured on a clock that counts work.

use crate::shares::Scene;
use crate::support::cable::Joined;
use crate::support::client::{BAR0, CONFIG, Client, DMA_MAP, DMA_READ, map, message};
use crate::support::guest::DEVICE_BASE;
use hca_model::world::Node;
use hca_serve::link::Address;
use hca_serve::{Options, Stepped};
use ib_mgmt::mad::{attr, method};
use ib_mgmt::sa::SaMad;
use mlx5_prm::value::PortState;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

/// HCAs without work, with and without a client.
const IDLE: usize = 64;
/// Time between two changes of a device's health counter.
const HEALTH_PERIOD: Duration = Duration::from_millis(100);
/// Ports of the fabric, which are all that a switch has.
const PORTS: usize = 254;
/// Bytes that a joined server reads at most, unless it is slow.
const READ: usize = 1 << 16;
/// Requests that a joined server sends at most in one turn.
const REQUESTS: usize = 64;

#[test]
fn work_of_two_clients_visits_no_idle_device() {
    let mut scene = Scene::of(2 + IDLE, |options| options);
    let _clients: Vec<_> = (2..2 + IDLE / 2).map(|index| Client::stepping(&scene.server, index)).collect();
    let visits = |scene: &Scene| {
        let visits: Vec<_> =
            scene.server.borrow().activity().clients.iter().map(|work| work.visits).collect();
        (visits[0] + visits[1], visits[2..].iter().sum::<u64>(), scene.server.borrow().time())
    };
    let before = visits(&scene);
    // An idle clock stands still.
    scene.run(|until| until.set(Duration::ZERO));
    let after = visits(&scene);
    let (busy, idle) = (after.0 - before.0, after.1 - before.1);
    // Each device counts its health up.
    let ticks = (after.2 - before.2).as_nanos() / HEALTH_PERIOD.as_nanos() + 1;
    println!("{busy} visits of 2 busy devices, {idle} of {IDLE} idle ones in {ticks} periods");
    assert!(u128::from(idle) <= IDLE as u128 * ticks, "{idle} visits in {ticks} periods");
    assert!(busy > 5_000, "{busy} visits of the busy devices");
}

/// A client with private memory that replies late to each request of its device.
struct Slow {
    client: Client,
    /// Time of the pending reply, and the reply.
    reply: Option<(Duration, Vec<u8>)>,
    replies: u32,
    /// True from a doorbell to the request that it causes.
    rung: bool,
}

impl Slow {
    /// Delay of a reply: 0.95 of what the server allows.
    const DELAY: Duration = Duration::from_millis(950);

    fn new(server: &Rc<RefCell<Stepped>>, index: usize) -> Self {
        let mut client = Client::stepping(server, index);
        assert!(!client.ask(DMA_MAP, &map(3, 0, DEVICE_BASE, 1 << 30)).is_error());
        client.write(CONFIG, 4, &6u16.to_le_bytes());
        while client.read(BAR0, 0x1fc, 4)[0] & 0x80 != 0 {}
        client.write(BAR0, 0x10, &[(DEVICE_BASE >> 32) as u32, 0].map(u32::to_be_bytes).concat());
        Self { client, reply: None, replies: 0, rung: false }
    }

    /// Has the device read its command queue.
    fn ring(&mut self) {
        self.client.write(BAR0, 0x18, &1u32.to_be_bytes());
    }

    /// Returns the time of the pending reply; 0 while the server's request is expected.
    fn due(&self) -> Duration {
        self.reply.as_ref().map_or(Duration::ZERO, |(due, _)| *due)
    }

    fn turn(&mut self) {
        let time = self.client.time().expect("a stepped server");
        match self.reply.take_if(|(due, _)| *due <= time) {
            Some((_, reply)) => {
                self.client.stream.write_all(&reply).expect("sent");
                self.replies += 1;
            }
            None if self.reply.is_none() => {
                if !std::mem::replace(&mut self.rung, true) {
                    self.ring();
                }
                // An entry that belongs to software, so that no command follows.
                let reply = self.client.request().map(|asked| {
                    assert_eq!(asked.command, DMA_READ);
                    let mut payload = asked.payload;
                    payload.resize(16 + usize::from(payload[8]), 0);
                    message(asked.id, DMA_READ, 1, &payload)
                });
                self.rung = reply.is_none();
                self.reply = reply.map(|reply| (time + Self::DELAY, reply));
            }
            None => {}
        }
    }
}

/// A joined server that sends requests to the subnet administrator.
struct Asker {
    server: Joined,
    attribute: u16,
    requests: u64,
    read: usize,
}

impl Asker {
    fn new(server: Joined, attribute: u16) -> Self {
        Self { server, attribute, requests: 0, read: 0 }
    }

    /// Reads at most `bytes` and sends at most `requests`.
    fn turn(&mut self, time: Duration, bytes: usize, requests: usize) {
        self.read += self.server.turn(time, bytes);
        for _ in 0..requests {
            let method = if self.attribute == attr::PATH_RECORD { method::GET_TABLE } else { method::GET };
            let request = SaMad::request(method, self.attribute, 0, self.requests + 1);
            if !self.server.request(&request.to_mad()) {
                return;
            }
            self.requests += 1;
        }
    }
}

#[test]
fn bystanders_get_half_beside_slow_clients_a_slow_cable_and_wildcard_queries() {
    let fabric = |options: Options| {
        let listen = Some(Address::Unix(options.sockets[0].with_file_name("fabric")));
        Options { listen, ..options }
    };
    let mut scene = Scene::of(PORTS - 2, fabric);
    let path = scene.server.borrow().sockets()[0].with_file_name("fabric");
    let server = Rc::clone(&scene.server);
    let time = || server.borrow().time();
    let join = |number, attribute| {
        let mut joined = Joined::new(&path, number);
        while !joined.is_active() {
            server.borrow_mut().step();
            joined.turn(time(), READ);
        }
        Asker::new(joined, attribute)
    };
    let (mut slow, mut flood) =
        (join(PORTS as u16, attr::CLASS_PORT_INFO), join(PORTS as u16 + 1, attr::PATH_RECORD));
    let is_active = |node: &Node| node.hca.port().state == PortState::ACTIVE;
    assert!(server.borrow_mut().world().nodes().iter().all(is_active), "paths between all ports");
    let (alone, _) = scene.run(|_| {
        slow.turn(time(), READ, 0);
        flood.turn(time(), READ, 0);
    });
    let mut clients: Vec<_> = (2..7).map(|index| Slow::new(&server, index)).collect();
    let mut rounds = 0;
    while rounds == 0 || clients.iter().any(|client| client.replies < 3) {
        let attack = |until: &Cell<Duration>| {
            clients.iter_mut().for_each(Slow::turn);
            slow.turn(time(), 1, 1);
            flood.turn(time(), READ, REQUESTS);
            until.set(clients.iter().map(Slow::due).min().expect("five"));
        };
        let (beside, _) = scene.run(attack);
        rounds += 1;
        println!("round {rounds}: {beside:?}, {alone:?} alone, {} wildcard queries", flood.requests);
        assert!(beside <= 2 * alone, "{beside:?} for what takes {alone:?} alone");
        assert!(beside >= alone * 5 / 4, "{beside:?} for what takes {alone:?} alone are no attack");
    }
    assert!(slow.requests * 100 > slow.read as u64, "the slow server read {} bytes", slow.read);
    let activity = server.borrow().activity();
    assert!(activity.clients.iter().all(|client| client.failures == 0), "{activity:?}");
}
