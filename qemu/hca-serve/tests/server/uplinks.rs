//! Throughput of HCAs on the Ethernet switch and on the InfiniBand fabric while a network device at an uplink, or the
//! guest of an Ethernet HCA, attacks. Required: at least half of the throughput without the attack, for each pair.

use crate::shares::Scene;
use crate::support::guest::{self, Guest};
use hca_serve::link::Address;
use hca_serve::{Options, Stepped};
use ib_types::{Gid, MacAddress, SplitMix64};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::*;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::steering::*;
use mlx5_prm::value::*;
use rdma_fabric::ethernet::frame::{write_checksums, write_icrc};
use rdma_fabric::infiniband::packet::Bth;
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes of each of the four guests.
const WRITES: usize = 3_000;
/// HCAs: two on InfiniBand, the attacker's, two on Ethernet.
const CARDS: [&str; 5] = ["cx-5", "cx-5", "cx-5-en", "cx-5-en", "cx-5-en"];
/// Bytes of frames that are made at once.
const BATCH: usize = 1 << 16;
/// Bytes read in one turn.
const READ: usize = 1 << 18;
/// Kinds of frames between servers.
const HELLO: u8 = 0;
const PACKET: u8 = 3;
const UP: u8 = 4;
/// MAC address of a network device.
const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// The server, its sockets for network devices and other servers, and what the program printed.
struct Ground {
    scene: Scene,
    netdev: PathBuf,
    fabric: PathBuf,
    notices: Arc<Mutex<Vec<String>>>,
    /// Each pair's time without an attack.
    alone: Vec<Duration>,
}

impl Ground {
    fn new() -> Self {
        let notices: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&notices);
        let (mut netdev, mut fabric) = (PathBuf::new(), PathBuf::new());
        let scene = Scene::of(CARDS.len(), |options| {
            netdev = options.sockets[0].with_file_name("netdev");
            fabric = options.sockets[0].with_file_name("fabric");
            Options {
                kinds: CARDS.map(|card| card.parse().expect("a card")).into(),
                netdev: Some(Address::Unix(netdev.clone())),
                listen: Some(Address::Unix(fabric.clone())),
                notices: Arc::new(move |line| told.lock().expect("lines").push(line.to_owned())),
                ..options
            }
        });
        let mut scene = scene.with_pair([3, 4], WRITES);
        let (alone, _) = scene.measure(|_| {});
        Self { scene, netdev, fabric, notices, alone }
    }

    fn device(&self) -> Device {
        Device::new(&self.netdev, &self.scene.server, netdev_header)
    }

    /// The switch of another server, as `--uplink` joins it.
    fn trunk(&self) -> Device {
        let mut trunk = Device::new(&self.fabric, &self.scene.server, |len| link_header(len, PACKET));
        let hello = [&b"HCALINK3"[..], &[1], &[0; 8], b"peer"].concat();
        trunk.output = [link_header(hello.len() as u32, HELLO), hello, link_header(1, UP), vec![1]].concat();
        assert!(trunk.flush(), "the server listens");
        trunk
    }

    /// Measures `attack`, which is called before each step of the server. The attack must take a twentieth of the
    /// time without it, otherwise it is too weak to count.
    fn stands(&mut self, what: &str, mut attack: impl FnMut()) {
        let alone = &self.alone;
        let (beside, _) = self.scene.measure(|_| attack());
        println!("{what}: {beside:?} beside it, {alone:?} alone");
        for (beside, alone) in beside.iter().zip(alone) {
            assert!(*beside <= 2 * *alone, "{what}: {beside:?} for what takes {alone:?} alone");
        }
        let (slowest, alone) = (beside.iter().max().expect("pairs"), alone.iter().max().expect("pairs"));
        assert!(
            *slowest >= *alone * 21 / 20,
            "{what}: {slowest:?} for what takes {alone:?} alone are no attack"
        );
    }
}

/// The header of a frame of a network device.
fn netdev_header(len: u32) -> Vec<u8> {
    len.to_be_bytes().into()
}

/// The header of a frame between servers.
fn link_header(len: u32, kind: u8) -> Vec<u8> {
    [&(1 + len).to_le_bytes()[..], &[kind]].concat()
}

/// A network device of QEMU's kind, or a switch: a stream in which a header with the length precedes each frame.
struct Device {
    stream: UnixStream,
    header: fn(u32) -> Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
}

impl Device {
    fn new(path: &Path, server: &Rc<RefCell<Stepped>>, header: fn(u32) -> Vec<u8>) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        stream.set_nonblocking(true).expect("nonblocking");
        server.borrow_mut().step();
        Self { stream, header, output: Vec::new(), sent: 0, input: Vec::new() }
    }

    /// Returns whether the server has not closed the stream.
    fn is_open(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0; 4096]), Ok(0))
    }

    fn queue(&mut self, frame: &[u8]) {
        self.output.extend((self.header)(frame.len() as u32));
        self.output.extend(frame);
    }

    /// Sends as many bytes as the socket accepts. Returns whether the stream is open.
    fn flush(&mut self) -> bool {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        (self.output, self.sent) = (Vec::new(), 0);
        true
    }

    /// Sends frames until the socket accepts no more.
    fn flood(&mut self, mut next: impl FnMut() -> Vec<u8>) {
        while self.flush() && self.output.is_empty() {
            while self.output.len() < BATCH {
                let frame = next();
                self.queue(&frame);
            }
        }
    }

    /// Discards what has come.
    fn drain(&mut self) {
        let _ = self.stream.read(&mut vec![0; READ]);
    }

    /// Returns the frames that have come.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let before = self.input.len();
        self.input.resize(before + READ, 0);
        let read = self.stream.read(&mut self.input[before..]).unwrap_or(0);
        self.input.truncate(before + read);
        let (mut frames, mut rest) = (Vec::new(), &self.input[..]);
        while let Some((length, content)) = rest.split_first_chunk::<4>()
            && let Some((frame, behind)) = content.split_at_checked(u32::from_be_bytes(*length) as usize)
        {
            frames.push(frame.to_vec());
            rest = behind;
        }
        self.input = rest.to_vec();
        frames
    }
}

fn frame(to: MacAddress, from: MacAddress, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5]].concat();
    frame.resize(len, 0x5a);
    frame
}

/// A source that the switch has not seen.
fn source(number: &mut u32) -> MacAddress {
    *number += 1;
    let [a, b, c, d] = number.to_be_bytes();
    MacAddress([2, 1, a, b, c, d])
}

/// The MAC address of an HCA.
fn mac(server: &Rc<RefCell<Stepped>>, hca: usize) -> MacAddress {
    server.borrow_mut().world().nodes()[hca].hca.profile().mac()
}

/// Broadcasts, and frames to addresses that the switch has not learned.
fn floods(ground: &mut Ground, mut attacker: Device) {
    let _silent = ground.device();
    let mut number = 0;
    for len in [60, 9_000] {
        ground.stands(&format!("broadcasts of {len} bytes"), || {
            attacker.flood(|| frame(MacAddress::BROADCAST, OWN, len));
            attacker.drain();
        });
    }
    ground.stands("unknown destinations from ever new sources", || {
        attacker.flood(|| frame(source(&mut number), source(&mut number), 60));
        attacker.drain();
    });
    assert!(attacker.is_open(), "floods end no stream");
    let losses = ground.scene.server.borrow_mut().world().medium.switch().losses().sum(|_| true);
    assert!(losses.overflow > 0, "nobody takes what the silent device does not");
}

#[test]
fn bystanders_get_half_beside_floods_of_a_network_device() {
    let mut ground = Ground::new();
    let device = ground.device();
    floods(&mut ground, device);
}

#[test]
fn bystanders_get_half_beside_floods_of_a_joined_server() {
    let mut ground = Ground::new();
    let trunk = ground.trunk();
    floods(&mut ground, trunk);
}

/// A device with two ports, which sends each frame of one to the other, and back.
#[test]
fn bystanders_get_half_beside_a_loop_that_carries_each_broadcast_once() {
    let mut ground = Ground::new();
    let server = Rc::clone(&ground.scene.server);
    let [mut one, mut two, mut sender] = [(); 3].map(|()| ground.device());
    let sent = |server: &Rc<RefCell<Stepped>>| server.borrow_mut().world().medium.switch().counters();
    let cross = |one: &mut Device, two: &mut Device| {
        let crossed = [one.frames(), two.frames()];
        for (frames, to) in crossed.iter().zip([&mut *two, &mut *one]) {
            frames.iter().for_each(|frame| to.queue(frame));
            assert!(to.flush());
        }
        crossed.iter().map(Vec::len).sum::<usize>()
    };
    let before = sent(&server);
    for _ in 0..10 {
        sender.queue(&frame(MacAddress::BROADCAST, OWN, 60));
    }
    assert!(sender.flush());
    let mut crossed = 0;
    for _ in 0..1_000 {
        server.borrow_mut().step();
        crossed += cross(&mut one, &mut two);
    }
    let after = sent(&server);
    assert_eq!(crossed, 20, "both ports of the device receive each broadcast once");
    assert_eq!(after.refused - before.refused, 20, "and none comes back");
    ground.stands("a loop under broadcasts", || {
        sender.flood(|| frame(MacAddress::BROADCAST, OWN, 60));
        sender.frames();
        cross(&mut one, &mut two);
    });
}

/// RoCE v2 over IPv6 to a QP, from an address of the attacker's.
fn roce(to: MacAddress, qpn: u32, random: &mut SplitMix64) -> Vec<u8> {
    let content: Vec<u8> = (0..random.next_u64() % 64).map(|_| random.next_u64() as u8).collect();
    let udp = (8 + 12 + content.len() + 4) as u16;
    let opcode = rdma_fabric::infiniband::packet::Opcode(random.next_u64() as u8);
    let psn = random.next_u64() as u32 & 0xff_ffff;
    let mut frame = [&to.0[..], &OWN.0, &[0x86, 0xdd, 0x60, 0, 0, 0], &udp.to_be_bytes(), &[17, 64]].concat();
    frame.extend(Gid::link_local(OWN).0);
    frame.extend(Gid::link_local(to).0);
    frame.extend([0xc0, 0, 0x12, 0xb7]);
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(Bth::new(opcode, 0xffff, qpn, psn).to_bytes());
    frame.extend(content);
    frame.extend([0; 4]);
    write_icrc(&mut frame);
    frame
}

/// A change of a frame, or bytes without sense.
fn nonsense(frame: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..random.next_u64() % 4 {
        let at = random.next_u64() as usize % frame.len().max(1);
        match random.next_u64() % 5 {
            0 => frame.truncate(at),
            1 => frame.resize(frame.len() + random.next_u64() as usize % 2_000, at as u8),
            _ => frame.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= random.next_u64() as u8),
        }
    }
    if random.next_u64().is_multiple_of(2) {
        write_checksums(&mut frame, true, true);
        write_icrc(&mut frame);
    }
    frame
}

#[test]
fn bystanders_get_half_beside_frames_of_any_content_and_false_sources() {
    let mut ground = Ground::new();
    let server = Rc::clone(&ground.scene.server);
    let victims = [3, 4].map(|hca| mac(&server, hca));
    let mut device = ground.device();
    let mut random = SplitMix64::new(30);
    ground.stands("frames of any content", || {
        device.flood(|| {
            let victim = victims[random.next_u64() as usize % 2];
            let qpn = random.next_u64() as u32 % 0x60;
            let frame = roce(victim, qpn, &mut random);
            match random.next_u64() % 4 {
                0 => frame,
                1 => (0..random.next_u64() % 200).map(|_| random.next_u64() as u8).collect(),
                _ => nonsense(&frame, &mut random),
            }
        });
        device.frames();
    });
    let received = |server: &Rc<RefCell<Stepped>>| {
        let mut server = server.borrow_mut();
        let nodes = server.world().nodes();
        [3, 4].map(|hca| nodes[hca].hca.counters().packets_received)
    };
    assert!(received(&server).iter().all(|packets| *packets > 1_000), "RoCE reaches the victims");
    // From the victims' own addresses: without the switch's protection, it would attract their frames.
    let before = server.borrow_mut().world().medium.switch().counters().refused;
    ground.stands("false sources", || {
        device.flood(|| frame(victims[0], victims[random.next_u64() as usize % 2], 60));
        device.frames();
    });
    let refused = server.borrow_mut().world().medium.switch().counters().refused - before;
    assert!(refused > 1_000, "{refused} frames refused");
}

/// Each connection ends at a length that no frame has.
#[test]
fn bystanders_get_half_beside_lengths_that_lie_and_few_lines_say_so() {
    let mut ground = Ground::new();
    let server = Rc::clone(&ground.scene.server);
    let lies = [u32::MAX, 1 << 31, 69_633];
    let (mut device, mut lie) = (None::<Device>, 0);
    let path = ground.netdev.clone();
    ground.stands("lengths that lie", || {
        if let Some(open) = &mut device {
            if open.is_open() {
                return;
            }
            device = None;
        }
        let mut open = Device::new(&path, &server, netdev_header);
        (0..100).for_each(|_| open.queue(&frame(MacAddress::BROADCAST, OWN, 60)));
        open.output.extend(lies[lie % lies.len()].to_be_bytes());
        assert!(open.flush());
        (device, lie) = (Some(open), lie + 1);
    });
    assert!(lie > 100, "{lie} connections");
    let time = server.borrow().time().as_secs() as usize + 1;
    let notices = ground.notices.lock().expect("lines");
    assert!(notices.len() <= 33 * time, "{} lines in {time} s", notices.len());
    let clear = "netdev 0 unplugged: frame of 4294967295 bytes, 69632 at most";
    assert!(notices.iter().any(|line| line == clear), "{:?}", notices.first_chunk::<4>());
}

/// A guest with commands that its driver has no calls for.
struct Hostile {
    guest: Guest,
    domain: u32,
}

/// Input of a command.
fn input(opcode: Opcode) -> Vec<u8> {
    let mut input = vec![0; opcode.input_layout().expect("known").size];
    input[..2].copy_from_slice(&opcode.0.to_be_bytes());
    input
}

impl Hostile {
    fn new(guest: Guest) -> Self {
        let mut hostile = Self { guest, domain: 0 };
        let output = hostile.command(&input(Opcode::ALLOC_TRANSPORT_DOMAIN));
        hostile.domain = alloc_transport_domain_out::transport_domain.get32(&output);
        hostile
    }

    fn command(&mut self, input: &[u8]) -> [u8; 16] {
        let mut output = [0; 16];
        // SAFETY: the commands are about flow tables and queues that no memory belongs to.
        let ticket = unsafe { self.guest.hca().submit(input, output.len()) }.expect("submitted");
        while !self.guest.hca().poll_command(ticket, &mut output).expect("carried out") {
            self.guest.client().step();
        }
        output
    }

    fn table(&mut self, level: u32, log_size: u32) -> u32 {
        let mut input = input(Opcode::CREATE_FLOW_TABLE);
        let context = create_flow_table_in::flow_table_context.of_mut(&mut input);
        flow_table_context::level.set(context, level);
        flow_table_context::log_size.set(context, log_size);
        create_flow_table_out::table_id.get32(&self.command(&input))
    }

    /// A group of one entry. Bits of the mask vary, so that a frame is looked up in each.
    fn group(&mut self, table: u32, index: u32, mask: u32) -> u32 {
        let mut input = input(Opcode::CREATE_FLOW_GROUP);
        create_flow_group_in::table_id.set(&mut input, table);
        create_flow_group_in::start_flow_index.set(&mut input, index);
        create_flow_group_in::end_flow_index.set(&mut input, index);
        create_flow_group_in::match_criteria_enable.set(&mut input, 1u8);
        let criteria = create_flow_group_in::match_criteria.of_mut(&mut input);
        let headers = fte_match_param::outer_headers.of_mut(criteria);
        fte_match_set_lyr_2_4::smac_47_16.set(headers, mask);
        create_flow_group_out::group_id.get32(&self.command(&input))
    }

    /// An entry that leads to other tables, for all frames of the group whose masked source is 0.
    fn lead(&mut self, table: u32, index: u32, group: u32, to: &[u32]) {
        let mut input = input(Opcode::SET_FLOW_TABLE_ENTRY);
        set_fte_in::table_id.set(&mut input, table);
        set_fte_in::flow_index.set(&mut input, index);
        let context = set_fte_in::flow_context.of_mut(&mut input);
        flow_context::group_id.set(context, group);
        flow_context::action.set(context, FlowAction::FWD_DEST.bits());
        flow_context::destination_list_size.set(context, to.len() as u32);
        for table in to {
            let mut destination = [0; 8];
            dest_format_struct::destination_type.set(&mut destination, FlowDestination::FLOW_TABLE.0);
            dest_format_struct::destination_id.set(&mut destination, *table);
            input.extend(destination);
        }
        self.command(&input);
    }

    fn receive_all(&mut self, root: u32) {
        let mut input = input(Opcode::SET_FLOW_TABLE_ROOT);
        set_flow_table_root_in::table_id.set(&mut input, root);
        self.command(&input);
        let mut input = self::input(Opcode::MODIFY_NIC_VPORT_CONTEXT);
        let select = modify_nic_vport_context_in::field_select.of_mut(&mut input);
        modify_nic_vport_field_select::promisc.set(select, 1u8);
        let context = modify_nic_vport_context_in::nic_vport_context.of_mut(&mut input);
        nic_vport_context::promisc_all.set(context, 1u8);
        self.command(&input);
    }
}

/// Each frame to the attacker's HCA is looked up in 2^16 groups, by tables that lead to one another.
#[test]
fn bystanders_get_half_beside_flow_tables_full_of_groups_under_a_flood() {
    const GROUPS: u32 = 1 << 12;
    let mut ground = Ground::new();
    let server = Rc::clone(&ground.scene.server);
    let mut guest = Guest::bring_up_stepping(&server, 2);
    assert!(matches!(guest.wait_active(), guest::Address::Mac(_)));
    let mut hostile = Hostile::new(guest);
    let last = hostile.table(9, 12);
    for index in 0..GROUPS {
        hostile.group(last, index, 0xff00_0000 | index);
    }
    let first = hostile.table(8, 1);
    let group = hostile.group(first, 0, 0);
    hostile.lead(first, 0, group, &[last; 64]);
    hostile.receive_all(first);
    let mut device = ground.device();
    let victim = mac(&server, 2);
    let steps = |server: &Rc<RefCell<Stepped>>| {
        let mut server = server.borrow_mut();
        let meter = server.world().nodes()[2].hca.meter();
        (meter.steps(), meter.most_in_call())
    };
    let before = steps(&server);
    ground.stands("flow tables", || {
        device.flood(|| frame(victim, OWN, 60));
        device.frames();
    });
    let after = steps(&server);
    assert!(after.0 - before.0 > 500_000, "{} steps", after.0 - before.0);
    assert!(after.1 < 150_000, "{} steps in a call", after.1);
}
