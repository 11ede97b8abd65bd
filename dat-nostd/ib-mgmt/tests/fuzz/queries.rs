//! The subnet administration client, transfers of several segments, and the neighbour table,
//! against hostile answers.

use crate::hostile::Random;
use ib_mgmt::Gid;
use ib_mgmt::ipoib::{
    Arp, ArpOperation, HwAddr, NeighbourAction, NeighbourConfig, NeighbourLookup, NeighbourSlot, Neighbours,
};
use ib_mgmt::mad::{Mad, attr, class, method};
use ib_mgmt::rmpp::{Received, Receiver, Sender, SenderConfig, Step};
use ib_mgmt::sa::{Action, Client, ClientConfig, PathQuery, QuerySlot, SaMad};
use ib_types::{Duration, Instant, PKey, QpNumber, Wake};
use std::collections::HashSet;
use std::net::Ipv4Addr;

const MS: Duration = Duration::from_millis(1);

/// Every question is answered or fails exactly once; everything that is no answer is counted.
pub fn client(random: &mut Random) {
    let mut slots = [QuerySlot::EMPTY; 4];
    let config = ClientConfig { timeout: 10 * MS, tries: random.below(4) as u8 };
    let mut client = Client::new(&mut slots, config, random.next());
    let (mut open, mut given) = (HashSet::new(), 0u64);
    let mut wire: Vec<Mad> = Vec::new();
    let mut now = Instant::ORIGIN;
    for step in 0..200 {
        if random.chance(30) {
            let query = PathQuery {
                sgid: Gid::new(1, random.below(3)),
                dgid: Gid::new(2, random.below(3)),
                pkey: PKey::DEFAULT,
                sl: None,
                traffic_class: None,
                service_id: None,
            };
            let asked = if random.chance(70) {
                client.query_path(now, &query, step)
            } else {
                let mask = random.edge();
                let method = [method::GET, method::SET, method::DELETE][random.index(3)];
                client.query(now, method, attr::MC_MEMBER_RECORD, mask, &random.bytes(52), step)
            };
            if asked.is_ok() {
                assert!(open.insert(step), "asked twice");
            }
        }
        loop {
            match client.poll(now) {
                Action::Send { mad, .. } => wire.push(mad),
                Action::Failed { owner, .. } => assert!(open.remove(&owner), "ended twice"),
                Action::Idle { .. } => break,
            }
        }
        if random.chance(60) {
            let mad = if wire.is_empty() || random.chance(20) {
                random.mad(class::SUBN_ADM)
            } else {
                let at = random.index(wire.len());
                let request = wire[at];
                if random.chance(70) {
                    wire.swap_remove(at);
                }
                let mut answer = request.to_response([0, 0, 0, 1, 0x0300][random.index(5)]);
                if random.chance(50) {
                    random.spoil(answer.as_bytes_mut());
                }
                answer
            };
            given += 1;
            if let Some(response) = client.input(&mad) {
                assert!(open.remove(&response.owner), "ended twice");
                let _ = response.path();
            }
        }
        now += random.time_below(8 * MS);
        let counters = client.counters();
        let seen = counters.foreign + counters.answered + counters.refused + counters.busy;
        assert_eq!((seen, client.active()), (given, open.len()));
    }
    for _ in 0..100 {
        match client.poll(now) {
            Action::Send { .. } => {}
            Action::Failed { owner, .. } => assert!(open.remove(&owner), "ended twice"),
            Action::Idle(Wake::At(at)) => now = at,
            Action::Idle(_) => break,
        }
    }
    assert!(open.is_empty() && client.active() == 0, "questions without an end");
}

/// A segment of a transfer, spoilt or not.
fn segment(random: &mut Random, payload: &[u8]) -> SaMad {
    let template = SaMad::request(method::GET_TABLE_RESP, attr::PATH_RECORD, 0, 5);
    let sender = Sender::new(payload.len(), SenderConfig::default());
    let number = 1 + random.below(u64::from(sender.segments())) as u32;
    let mut mad = sender.segment(number, &template, payload).to_mad();
    if random.chance(30) {
        random.spoil(&mut mad.as_bytes_mut()[24..56]);
    }
    SaMad::from_mad(&mad)
}

pub fn receiver(random: &mut Random) {
    let len = 1 + random.index(2_000);
    let payload = random.bytes(len);
    let mut buffer = vec![0; random.index(2_500)];
    let mut receiver = Receiver::new(random.below(5) as u32);
    for _ in 0..64 {
        let mad = segment(random, &payload);
        match receiver.input(&mad, &mut buffer) {
            Received::More | Received::Acknowledge(_) => {}
            Received::Complete { len, .. } => {
                assert!(len <= buffer.len());
                return;
            }
            Received::Failed { .. } => return,
        }
        assert!(receiver.received_len() <= buffer.len());
    }
}

pub fn sender(random: &mut Random) {
    let len = random.index(3_000);
    let mut sender = Sender::new(len, SenderConfig { timeout: MS, retries: random.below(4) as u8 });
    let (mut now, mut sent) = (0, 0u64);
    for _ in 0..10_000 {
        match sender.poll(Instant::from_nanos(now)) {
            Step::Send(number) => {
                assert!((1..=sender.segments()).contains(&number));
                sent += 1;
            }
            Step::Wait(at) if random.chance(50) => {
                let mut mad = SaMad::request(method::GET_TABLE, attr::PATH_RECORD, 0, 5);
                mad.set_rmpp_version(1)
                    .set_rmpp_type(if random.chance(90) { 2 } else { random.edge() as u8 })
                    .set_rmpp_flags(1)
                    .set_rmpp_segment(if random.chance(90) { random.below(16) } else { random.edge() } as u32)
                    .set_rmpp_payload_len(random.below(20) as u32);
                let _ = sender.input(Instant::from_nanos(now), &mad);
                assert!(at >= Instant::from_nanos(now));
            }
            Step::Wait(at) => now = at.as_nanos(),
            Step::Done | Step::Failed(_) => return,
        }
        assert!(sent < 10_000, "endless");
    }
    panic!("no end");
}

pub fn neighbours(random: &mut Random) {
    let mut slots = [NeighbourSlot::EMPTY; 4];
    let mut table = Neighbours::new(&mut slots, NeighbourConfig::DEFAULT);
    let own =
        (Ipv4Addr::new(10, 0, 0, 1), HwAddr { flags: 0, qpn: QpNumber::new(0x50), gid: Gid::new(1, 1) });
    let mut now = Instant::ORIGIN;
    let address = |random: &mut Random| {
        if random.chance(80) {
            Ipv4Addr::new(10, 0, 0, random.below(8) as u8)
        } else {
            Ipv4Addr::from_bits(random.edge() as u32)
        }
    };
    for _ in 0..300 {
        if random.chance(60) {
            let operation = [ArpOperation::Request, ArpOperation::Reply][random.index(2)];
            let hw = HwAddr {
                flags: 0,
                qpn: QpNumber::new(0x50 + random.below(3) as u32),
                gid: Gid::new(1, random.below(4)),
            };
            let (sender_ip, target_ip) = (address(random), address(random));
            let arp = Arp { operation, sender_hw: hw, sender_ip, target_hw: None, target_ip };
            let mut bytes = arp.to_bytes();
            if random.chance(40) {
                random.spoil(&mut bytes);
            }
            if let Some(arp) = Arp::parse(&bytes)
                && let Some(reply) = table.input(now, &arp, own.0, &own.1)
            {
                // Only requests for our address get a reply, with our own address.
                assert_eq!((arp.operation, arp.target_ip), (ArpOperation::Request, own.0));
                assert_eq!(
                    (reply.sender_ip, reply.sender_hw, reply.target_ip),
                    (own.0, own.1, arp.sender_ip)
                );
            }
        } else {
            let ip = address(random);
            if let NeighbourLookup::Known(hw) = table.lookup(now, ip) {
                assert!(hw.qpn > QpNumber::new(1) && !hw.gid.is_multicast() && !hw.gid.is_zero());
            }
        }
        let mut actions = 0;
        while let NeighbourAction::Request { .. } = table.poll(now) {
            actions += 1;
            assert!(actions <= 4, "a storm");
        }
        assert!(table.iter().count() <= 4);
        now += random.time_below(2_000 * MS);
    }
    for _ in 0..200 {
        match table.poll(now) {
            NeighbourAction::Request { .. } => {}
            NeighbourAction::Idle(Wake::At(at)) => now = at,
            NeighbourAction::Idle(_) => return,
        }
    }
    panic!("never rests");
}
