//! Frames of an Ethernet port: sent and received by raw-packet QPs, filtered, checked, counted, and
//! received again after a reset.

use crate::common;

use common::World;
use common::node::{Node, kept, sound};
use common::recovery::{SECOND, ready, until_fatal};
use driver_mlx::{
    Completion, CompletionKind, Config, CqConfig, Cqe, Duration, Error, FrameChecksums, Gid, MAX_FRAME_HEAD,
    MacAddress, PostError, QpConfig, QpState, SendFlags, Service, Sge,
};
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN, Card};
use hca_model::{Habits, Profile};
use mlx5_prm::Field;
use mlx5_prm::caps::per_protocol_networking_offload_caps as offloads;
use mlx5_prm::datapath::SendOpcode;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CqeSyndrome, HealthSyndrome};
use mlx5_prm::value::CapType;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

const GROUP: MacAddress = MacAddress([0x01, 0x00, 0x5e, 0, 0, 7]);
/// Distance of receive buffers, bytes.
const BUFFER: usize = 2048;
/// Bytes of a frame that the posts here hand over by value, if no more are needed.
const HEAD: usize = 18;

fn two() -> Rc<World> {
    let profiles = [0, 1].map(|index| Profile::of(&CONNECTX_5_EN, index));
    World::new(profiles, FabricConfig::default())
}

fn raw(config: &mut QpConfig) {
    *config = QpConfig {
        max_send_wr: 16,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 1,
        user_index: config.user_index,
        ..QpConfig::raw_packet(config.pd, config.send_cq)
    };
}

/// A node whose raw-packet QP receives into 8 buffers.
fn node(world: &Rc<World>, index: usize) -> Node {
    started(Node::new(world, index, raw))
}

fn started(mut node: Node) -> Node {
    node.hca.start_raw_packet(&mut node.qp).expect("starts");
    assert_eq!(node.qp.state(), QpState::ReadyToSend);
    for buffer in 0..8 {
        post_receive(&mut node, buffer);
    }
    node
}

fn post_receive(node: &mut Node, buffer: u64) {
    let sge = node.sge(buffer as usize * BUFFER, BUFFER);
    node.qp.post_recv(&[sge], buffer).expect("room");
}

fn mac(node: &mut Node) -> MacAddress {
    node.hca.port().expect("a port").ethernet().expect("Ethernet").mac
}

/// A frame of `len` bytes of one kind of payload.
fn frame(to: MacAddress, from: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &ether_type.to_be_bytes(), payload].concat()
}

/// Posts a frame, all but its first `head` bytes from memory, and waits for its completion.
fn send(world: &Rc<World>, node: &mut Node, frame: &[u8], head: usize, checksums: FrameChecksums) {
    let at = 64 * BUFFER;
    node.put(at, frame);
    let (head, rest) = frame.split_at(head.min(frame.len()));
    let rest = [node.sge(at + head.len(), rest.len())];
    let rest = if rest[0].length == 0 { &[][..] } else { &rest[..] };
    let doorbell = node.qp.post_frame(head, rest, checksums, 77, SendFlags::SIGNALED).expect("room");
    node.qp.ring(doorbell);
    let sent = node.completion(world);
    let retired = node.qp.retire(&sent);
    let Some(Completion::Sent(sent)) = retired else { panic!("{retired:?}") };
    assert_eq!((sent.wr_id.id, sent.opcode), (77, SendOpcode::SEND));
}

/// Takes the next received frame, and posts its buffer again.
fn take(world: &Rc<World>, node: &mut Node) -> (Vec<u8>, Cqe<'static>) {
    let (cqe, buffer) = node.expect(world, CompletionKind::Receive);
    let bytes = node.get(buffer as usize * BUFFER, cqe.byte_len() as usize);
    post_receive(node, buffer);
    (bytes, cqe)
}

/// Nothing has arrived.
fn nothing(world: &Rc<World>, node: &mut Node) {
    world.pass(1_000_000);
    let found = node.cq.poll(kept).expect("sound");
    assert!(found.is_none(), "{found:?}");
}

/// One's complement sum of 16-bit words, folded and inverted (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into()));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// An IPv4 packet with a UDP datagram and both checksums, to which 0 is added or not.
fn udp(payload: &[u8]) -> Vec<u8> {
    let len = 28 + payload.len() as u16;
    let mut ip =
        vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut udp = [&[0x10, 0, 0x20, 0][..], &(len - 20).to_be_bytes(), &[0, 0], payload].concat();
    let sum = checksum(&[&ip[12..20], &[0, 17], &(len - 20).to_be_bytes(), &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    [ip, udp].concat()
}

#[test]
fn frames_of_any_length_arrive_as_they_were_sent() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    let (from, to) = (mac(&mut a), mac(&mut b));
    // More frames than either ring has entries. A short frame is padded to 60 bytes by the device.
    for round in 0..40 {
        let payload: Vec<u8> = (0..round * 37).map(|byte| (byte + round) as u8).collect();
        let sent = frame(to, from, 0x88b5, &payload);
        let head = [HEAD, 14, MAX_FRAME_HEAD, 33][round % 4];
        send(&world, &mut a, &sent, head, FrameChecksums::empty());
        let (received, _) = take(&world, &mut b);
        assert_eq!(received.len(), sent.len().max(60));
        assert!(received.starts_with(&sent), "round {round}");
    }
    sound(&world);
    a.end();
    b.end();
}

#[test]
fn the_filter_takes_own_broadcast_and_joined_addresses() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    let (from, to) = (mac(&mut a), mac(&mut b));
    let other = MacAddress([2, 0, 0, 0, 0, 9]);
    let arrives = |a: &mut Node, b: &mut Node, destination, does| {
        send(&world, a, &frame(destination, from, 0x88b5, &[7; 50]), HEAD, FrameChecksums::empty());
        if does { assert_eq!(take(&world, b).0[..6], destination.0) } else { nothing(&world, b) }
    };
    for (destination, does) in [(to, true), (MacAddress::BROADCAST, true), (other, false), (GROUP, false)] {
        arrives(&mut a, &mut b, destination, does);
    }
    assert_eq!([b.hca.join_ethernet_group(GROUP), b.hca.join_ethernet_group(GROUP)], [Ok(true), Ok(false)]);
    arrives(&mut a, &mut b, GROUP, true);
    assert_eq!([b.hca.leave_ethernet_group(GROUP), b.hca.leave_ethernet_group(GROUP)], [Ok(true), Ok(false)]);
    arrives(&mut a, &mut b, GROUP, false);
    for none in [to, MacAddress::BROADCAST] {
        assert_eq!(b.hca.join_ethernet_group(none), Err(Error::InvalidArgument("group")));
    }
    for group in 0..32 {
        assert_eq!(b.hca.join_ethernet_group(MacAddress([0x33, 0x33, 0, 0, 1, group])), Ok(true));
    }
    let full = b.hca.join_ethernet_group(GROUP);
    assert!(matches!(full, Err(Error::Limit { what: "groups", asked: 33, limit: 32 })), "{full:?}");
    arrives(&mut a, &mut b, MacAddress([0x33, 0x33, 0, 0, 1, 31]), true);
    sound(&world);
    a.end();
    b.end();
}

#[test]
fn the_device_computes_and_checks_checksums() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    let (from, to) = (mac(&mut a), mac(&mut b));
    assert!(a.qp.has_frame_checksums());
    let right = udp(b"checked by the device");
    let mut blank = right.clone();
    blank[10..12].fill(0);
    blank[26..28].fill(0);
    let both = FrameChecksums::all();
    for (packet, computed) in [(&right, FrameChecksums::empty()), (&blank, both)] {
        send(&world, &mut a, &frame(to, from, 0x0800, packet), HEAD, computed);
        let (received, cqe) = take(&world, &mut b);
        assert!(received[14..14 + right.len()] == right[..], "as computed here");
        assert_eq!(cqe.frame_checksums(), both);
    }
    send(&world, &mut a, &frame(to, from, 0x0800, &blank), HEAD, FrameChecksums::TRANSPORT);
    let (received, cqe) = take(&world, &mut b);
    assert_eq!(received[24..26], [0, 0], "nobody asked for it");
    assert_eq!(cqe.frame_checksums(), FrameChecksums::TRANSPORT);
    let mut wrong = right.clone();
    wrong[40] ^= 1;
    send(&world, &mut a, &frame(to, from, 0x0800, &wrong), HEAD, FrameChecksums::empty());
    assert_eq!(take(&world, &mut b).1.frame_checksums(), FrameChecksums::IP);
    // What is no IP has no checksum to check.
    send(&world, &mut a, &frame(to, from, 0x0806, &[0; 46]), HEAD, FrameChecksums::empty());
    assert_eq!(take(&world, &mut b).1.frame_checksums(), FrameChecksums::empty());
    sound(&world);
}

/// A VLAN tag stays in the frame, which the device takes whatever VLAN it is of.
#[test]
fn tagged_frames_keep_their_tag() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    let (from, to) = (mac(&mut a), mac(&mut b));
    let sent = frame(to, from, 0x8100, &[&[0x60, 5, 0x88, 0xb5][..], &[3; 60]].concat());
    send(&world, &mut a, &sent, HEAD, FrameChecksums::empty());
    assert!(take(&world, &mut b).0 == sent);
    sound(&world);
}

#[test]
fn posts_that_cannot_be_are_refused() {
    let world = two();
    let mut a = node(&world, 0);
    let none = FrameChecksums::empty();
    let sge = a.sge(0, 100);
    let mut post = |head: &[u8], rest: &[Sge]| a.qp.post_frame(head, rest, none, 1, SendFlags::SIGNALED);
    assert_eq!(post(&[0; MAX_FRAME_HEAD + 1], &[]), Err(PostError::TooLong));
    assert_eq!(post(&[0; 18], &[sge; 3]), Err(PostError::TooManySges));
    let posted = (0..100).map_while(|_| post(&[0xff; 64], &[]).ok()).count();
    assert!((16..100).contains(&posted), "{posted}");
    assert_eq!(post(&[0; 18], &[]), Err(PostError::Full));
    let send = a.qp.post_send(driver_mlx::SendOp::Send, &[sge], 1, SendFlags::SIGNALED);
    assert_eq!(send, Err(PostError::WrongService));
    // Other QPs send no frames, and this one has none of their states.
    let rc = a.hca.create_qp(&QpConfig::rc(a.pd, a.cq.number())).map(|mut rc| {
        let frame = rc.post_frame(&[0; 18], &[], none, 1, SendFlags::SIGNALED);
        assert_eq!(frame, Err(PostError::WrongService));
        assert_eq!(a.hca.start_raw_packet(&mut rc), Err(Error::InvalidArgument("service")));
        a.hca.destroy_qp(rc)
    });
    assert_eq!(rc, Ok(Ok(())));
    let params = driver_mlx::InitParams { port: 1, pkey_index: 0, access: common::node::ALL };
    for refused in [
        a.hca.modify_to_init(&mut a.qp, &params),
        a.hca.modify_to_error(&mut a.qp),
        a.hca.modify_to_reset(&mut a.qp),
        a.hca.query_qp_state(&a.qp).map(|_| ()),
    ] {
        assert_eq!(refused, Err(Error::InvalidArgument("service")));
    }
    assert_eq!(a.hca.start_raw_packet(&mut a.qp), Err(Error::WrongState));
    let mut config = QpConfig::rc(a.pd, a.cq.number());
    raw(&mut config);
    let refused = a.hca.create_qp(&config);
    assert!(matches!(refused, Err(Error::Limit { asked: 2, limit: 1, .. })), "{refused:?}");
    a.hca.destroy_qp(a.qp).expect("destroyed");
    for without in [QpConfig { max_send_wr: 0, ..config }, QpConfig { max_recv_wr: 0, ..config }] {
        assert!(matches!(a.hca.create_qp(&without), Err(Error::InvalidArgument(_))));
    }
    // InfiniBand has no frames.
    let world = World::new([Profile::of(&CONNECTX_5, 0)], FabricConfig::default());
    let mut hca = world.ready(0);
    assert!(!hca.caps().raw_packet);
    let pd = hca.alloc_pd().expect("a PD");
    let refused = hca.create_qp(&QpConfig { pd, ..config });
    assert!(matches!(refused, Err(Error::MissingCapability(_))), "{refused:?}");
}

/// A frame that is longer than its buffer, and frames that find no buffer.
#[test]
fn frames_without_room_are_counted_and_harm_nobody_else() {
    let world = two();
    let mut a = node(&world, 0);
    let mut hca = world.ready(1);
    let counters = hca.alloc_q_counters().expect("counters");
    let with_counters = |config: &mut QpConfig| {
        raw(config);
        config.counters = Some(counters);
    };
    let mut b = Node::on(hca, 1, with_counters);
    b.hca.start_raw_packet(&mut b.qp).expect("starts");
    let (from, to) = (mac(&mut a), mac(&mut b));
    for _ in 0..3 {
        send(&world, &mut a, &frame(to, from, 0x88b5, &[1; 100]), HEAD, FrameChecksums::empty());
    }
    nothing(&world, &mut b);
    assert_eq!(b.hca.query_q_counters(counters, false).map(|q| q.out_of_buffer), Ok(3));
    let port = b.hca.port_counters().expect("counters");
    assert_eq!((port.received_frames.packets, port.transmitted_frames.packets), (3, 0));
    let short = b.sge(0, 64);
    b.qp.post_recv(&[short], 5).expect("room");
    send(&world, &mut a, &frame(to, from, 0x88b5, &[1; 100]), HEAD, FrameChecksums::empty());
    let cqe = b.completion(&world);
    let Some(Completion::Failed(failed)) = b.qp.retire(&cqe) else { panic!("{cqe:?}") };
    assert_eq!((failed.wr_id.id, failed.error.syndrome), (5, CqeSyndrome::LOCAL_LENGTH_ERR));
    // The queue has stopped. Another one receives.
    let mut config = QpConfig::rc(b.pd, b.cq.number());
    raw(&mut config);
    let Node { mut hca, pd, cq, qp, memory, key } = b;
    hca.destroy_qp(qp).expect("destroyed");
    let qp = hca.create_qp(&config).expect("a QP");
    b = started(Node { hca, pd, cq, qp, memory, key });
    send(&world, &mut a, &frame(to, from, 0x88b5, &[1; 100]), HEAD, FrameChecksums::empty());
    take(&world, &mut b);
    let port = a.hca.port_counters().expect("counters");
    assert_eq!(port.transmitted_frames.packets, 5);
}

/// RoCE and frames share the port: neither sees the other's packets.
#[test]
fn packets_of_roce_reach_their_qp_only() {
    let world = two();
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    let [own, peer] = [1, 2].map(|host| Gid::from_ipv4([10, 0, 0, host]));
    a.hca.add_roce_address(own, None).expect("room");
    b.hca.add_roce_address(peer, None).expect("room");
    // A datagram to port 4791 of an address of RoCE, with nothing of a packet in it.
    let mut packet = udp(&[0; 32]);
    packet[22..24].copy_from_slice(&4791u16.to_be_bytes());
    let sent = frame(mac(&mut b), mac(&mut a), 0x0800, &packet);
    send(&world, &mut a, &sent, HEAD, FrameChecksums::empty());
    nothing(&world, &mut b);
    // The same to an address that is not RoCE's, and to another port.
    packet[22..24].copy_from_slice(&4792u16.to_be_bytes());
    let sent = frame(mac(&mut b), mac(&mut a), 0x0800, &packet);
    send(&world, &mut a, &sent, HEAD, FrameChecksums::empty());
    take(&world, &mut b);
}

/// Firmware refuses one of the commands: everything that was created before is destroyed.
#[test]
fn a_refused_command_leaves_nothing_behind() {
    for refused in [
        Opcode::ALLOC_TRANSPORT_DOMAIN,
        Opcode::CREATE_TIS,
        Opcode::CREATE_SQ,
        Opcode::CREATE_RQ,
        Opcode::CREATE_TIR,
        Opcode::CREATE_FLOW_TABLE,
        Opcode::CREATE_FLOW_GROUP,
        Opcode::SET_FLOW_TABLE_ENTRY,
        Opcode::SET_FLOW_TABLE_ROOT,
        Opcode::MODIFY_RQ,
        Opcode::MODIFY_SQ,
    ] {
        let habits = Habits { refused_commands: vec![refused], ..Habits::default() };
        let profile = Profile { habits, ..Profile::of(&CONNECTX_5_EN, 0) };
        let world = World::new([profile], FabricConfig::default());
        let mut hca = world.ready(0);
        let pd = hca.alloc_pd().expect("a PD");
        let cq = hca.create_cq(&CqConfig { entries: 64, eq: 0 }).expect("a CQ");
        let mut config = QpConfig::rc(pd, cq.number());
        raw(&mut config);
        let free = hca.free_bytes();
        for _ in 0..2 {
            let done = hca.create_qp(&config).and_then(|mut qp| {
                let started = hca.start_raw_packet(&mut qp);
                hca.destroy_qp(qp).expect("destroyed");
                started
            });
            let Err(Error::Command(error)) = done else { panic!("{refused}: {done:?}") };
            assert_eq!((error.opcode, hca.free_bytes()), (refused, free));
        }
        // Firmware refuses to take a domain or a PD away that is still in use.
        hca.destroy_cq(cq).expect("destroyed");
        hca.dealloc_pd(pd).expect("ended");
        hca.tear_down().expect("torn down");
        assert_eq!(world.complaints(0).len(), 2, "{refused}: {:?}", world.complaints(0));
    }
}

#[test]
fn a_reset_leaves_groups_joined() {
    let world = two();
    let config = Config { recovery_grace: Duration::ZERO, ..Config::DEFAULT };
    let hca = world.bring_up(0, &config).expect("comes up");
    let mut a = started(Node::on(hca, 0, raw));
    let mut b = node(&world, 1);
    a.hca.join_ethernet_group(GROUP).expect("room");
    for round in 0..3 {
        let (from, to) = (mac(&mut b), mac(&mut a));
        for destination in [to, MacAddress::BROADCAST, GROUP] {
            send(&world, &mut b, &frame(destination, from, 0x88b5, &[1; 50]), HEAD, FrameChecksums::empty());
            take(&world, &mut a);
        }
        send(&world, &mut a, &frame(from, to, 0x88b5, &[1; 50]), HEAD, FrameChecksums::empty());
        take(&world, &mut b);
        world.model(0, |m| if round == 1 { m.fail(HealthSyndrome(1)) } else { m.reset() });
        until_fatal(&world, &mut a.hca, 5 * SECOND);
        a.hca.recover().expect("recovers");
        ready(&world, &mut a.hca);
        assert_eq!(a.hca.start_raw_packet(&mut a.qp), Err(Error::Stale));
        a.renew_with(raw);
        a = started(a);
    }
}

/// All Ethernet cards that there are.
#[test]
fn every_ethernet_card_sends_frames() {
    for card in Card::ALL.iter().filter(|card| card.is_ethernet()) {
        let profiles = [0, 1].map(|index| Profile { init_pages: 64, ..Profile::of(card, index) });
        let world = World::new(profiles, FabricConfig::default());
        let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
        assert_eq!(a.qp.service(), Service::RawPacket);
        let sent = frame(mac(&mut b), mac(&mut a), 0x88b5, &[5; 300]);
        let head = a.qp.min_frame_head().max(HEAD);
        send(&world, &mut a, &sent, head, FrameChecksums::empty());
        assert!(take(&world, &mut b).0 == sent, "{}", card.name);
        sound(&world);
        a.end();
        b.end();
    }
}

/// A ConnectX-4 reads the frame's head from the request: less of it is refused before a card sees it.
#[test]
fn a_card_may_need_the_frame_s_head_in_the_request() {
    const L2: &[(CapType, Field, u32)] = &[(CapType::ETHERNET_OFFLOADS, offloads::wqe_inline_mode, 0)];
    let card: &Card = Box::leak(Box::new(Card { other_capabilities: L2, ..CONNECTX_5_EN }));
    let world = World::new([0, 1].map(|index| Profile::of(card, index)), FabricConfig::default());
    let [mut a, mut b] = [0, 1].map(|index| node(&world, index));
    assert_eq!(a.qp.min_frame_head(), HEAD);
    let (from, to) = (mac(&mut a), mac(&mut b));
    let (none, rest) = (FrameChecksums::empty(), a.sge(0, 100));
    let post = a.qp.post_frame(&[0; HEAD - 1], &[rest], none, 1, SendFlags::SIGNALED);
    assert_eq!(post, Err(PostError::TooShort));
    let whole = frame(to, from, 0x88b5, &[7; 200]);
    send(&world, &mut a, &whole, HEAD, none);
    assert_eq!(take(&world, &mut b).0, whole);
    sound(&world);
}
