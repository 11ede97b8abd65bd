//! Frames of any content at the Ethernet port of nodes that do RDMA: a station on the wire sends
//! broadcasts, groups, and frames to the port, well formed and not.

use dat_nostd::{CompletionFlags, DtoStatus};
use harness::World;
use harness::WorldConfig;
use harness::net::{Net, Options, Side};
use harness::seeds::Random;
use hca_model::Profile;
use hca_model::card::CONNECTX_5_EN;
use ib_types::MacAddress;
use rdma_fabric::medium::LinkLayer;
use rdma_fabric::packet::Packet;
use rdma_fabric::ports::PortIndex;
use std::rc::Rc;

const WRITES: u64 = 300;
const LEN: usize = 8192;
const DEPTH: u64 = 8;
/// Frames on the wire for each step of the world, in which a port takes a turn.
const FRAMES: u64 = 16;
/// Bytes of the longest frame of a port with the usual MTU, without check sequence.
const LONGEST: u64 = 1514;

/// A station on the wire.
struct Wire {
    world: Rc<World>,
    port: PortIndex,
    random: Random,
    sent: u64,
}

impl Wire {
    fn plug(world: &Rc<World>, seed: u64) -> Self {
        let port = world.with_medium(|medium, now| {
            let port = medium.attach("wire", LinkLayer::Ethernet).expect("a port is free");
            medium.cable(port, now).set_up(true);
            port
        });
        Self { world: Rc::clone(world), port, random: Random::new(seed), sent: 0 }
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.sent += 1;
        self.world.with_medium(|medium, now| medium.cable(self.port, now).send(Packet::frame(frame)));
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.random.next() as u8).collect()
    }

    /// A frame to both nodes or to one, from any station.
    fn frame(&mut self) -> Vec<u8> {
        let node = Profile::of(&CONNECTX_5_EN, self.random.below(2) as u16).mac();
        let to = self.random.pick(&[[0xff; 6], [0x33, 0x33, 0xff, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1], node.0]);
        let from = MacAddress([2, 0, 0, 0, self.random.next() as u8, self.random.next() as u8]);
        // ARP, IPv4, IPv6, VLAN, RoCE v1, any.
        let any = self.random.next() as u16;
        let ether_type = self.random.pick(&[0x0806, 0x0806, 0x0800, 0x86dd, 0x8100, 0x8915, any]);
        let len = self.random.pick(&[0, 1, 28, 46, 300, LONGEST - 14]);
        let mut payload = self.bytes(len);
        let well_formed: &[u8] = match ether_type {
            // Requests of Ethernet and IPv4: neighbours that come and go, some as the nodes themselves.
            0x0806 if !self.random.one_in(3) => &[0, 1, 8, 0, 6, 4, 0, 1],
            // UDP to RoCE's port, with a head of 20 bytes.
            0x0800 => {
                &[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1, 0xc0, 0, 0x12, 0xb7]
            }
            // Neighbour solicitations by hop limit 255.
            0x86dd => &[0x60, 0, 0, 0, 0, 32, 58, 255],
            _ => &[],
        };
        payload.iter_mut().zip(well_formed).for_each(|(to, from)| *to = *from);
        if ether_type == 0x0806 && payload.len() >= 28 {
            payload[14..17].copy_from_slice(&[10, 0, 0]);
            payload[24..27].copy_from_slice(&[10, 0, 0]);
            payload[27] = 1 + self.random.below(2) as u8;
        }
        [&to[..], &from.0, &ether_type.to_be_bytes(), &payload].concat()
    }

    fn flood(&mut self) {
        for _ in 0..FRAMES {
            let frame = self.frame();
            self.send(frame);
        }
    }
}

/// Writes from node 0 to node 1, beside frames from the wire. Returns the virtual time that they take,
/// in nanoseconds.
fn writes(net: &mut Net, [from, to]: &[Side; 2], mut wire: Option<&mut Wire>) -> u64 {
    let began = net.world.now();
    let (mut posted, mut done) = (0, 0);
    from.fill(0, LEN, 7);
    while done < WRITES {
        while posted < WRITES && posted < done + DEPTH {
            let (local, remote) = (from.segment(0, LEN), to.remote(LEN, LEN));
            let none = CompletionFlags::empty();
            net.nodes[0].ep_post_rdma_write(from.ep, &[local], posted, &remote, none).expect("room");
            posted += 1;
        }
        if let Some(wire) = &mut wire {
            wire.flood();
        }
        net.step();
        while let Ok(event) = net.nodes[0].evd_dequeue(from.request) {
            let dat_nostd::EventData::Dto(completion) = event.data else { panic!("{event:?}") };
            assert_eq!(completion.status, DtoStatus::Success);
            done += 1;
        }
        assert!(net.world.now() < began + 10_000_000_000, "{done} of {WRITES} writes in ten seconds");
    }
    to.check(LEN, LEN, 7);
    net.world.now() - began
}

#[test]
fn rdma_keeps_half_its_speed_beside_floods_of_any_content() {
    let profiles = (0..2).map(|node| Profile::of(&CONNECTX_5_EN, node)).collect();
    let mut net = Net::with_profiles(&WorldConfig::new(5), profiles);
    let sides = net.pair(&Options::default());
    let quiet = writes(&mut net, &sides, None);
    let mut wire = Wire::plug(&net.world, 5);
    let flooded = writes(&mut net, &sides, Some(&mut wire));
    let counters = net.nodes[1].port_counters().ip;
    println!("{WRITES} writes in {quiet} ns, beside {} frames in {flooded} ns; {counters:?}", wire.sent);
    assert!(flooded <= 2 * quiet, "{flooded} ns beside {} frames, {quiet} ns without", wire.sent);
    assert!(counters.received > 100 && counters.arp.malformed > 0, "{counters:?}");
    // The port still finds its peers: a new connection begins with ARP.
    net.ping(&sides, 100, 1);
    let again = [0, 1].map(|node| net.side(node, &Options::default()));
    net.connect(&again);
    net.ping(&again, 100, 2);
}
