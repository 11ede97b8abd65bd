//! The capture, read by tshark: what the fabric records is InfiniBand to a program that is not ours.
//!
//! Without tshark the test says that it is skipped; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use dat_nostd::{CompletionFlags, EpAttributes};
use demo::Stream;
use harness::pair::Pair;
use harness::{World, WorldConfig};
use rdma_fabric::capture::{Encapsulation, PcapNg};
use rdma_fabric::ethernet::{Switch, SwitchConfig};
use rdma_fabric::packet::Packet as Frame;
use runner::{conditions, setup, tshark};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Opcodes of reliable connections (IBTA 9.2.1).
const SENDS: [u32; 4] = [0, 1, 2, 4];
const WRITES: [u32; 4] = [6, 7, 8, 10];
const READ_REQUEST: u32 = 12;
const READ_RESPONSES: [u32; 4] = [13, 14, 15, 16];
const ACKNOWLEDGE: u32 = 17;
const DATAGRAM: u32 = 100;

const SENT: Stream = Stream { sender: 1, operation: 21, seed: 77 };
const WRITTEN: Stream = Stream { sender: 1, operation: 22, seed: 77 };
const READ: Stream = Stream { sender: 2, operation: 23, seed: 77 };
/// Lengths of the messages of each kind: one packet, exactly one, several, and not a multiple of four.
const LENGTHS: [usize; 4] = [1, 4096, 10_000, 33];

/// One line of tshark's output.
struct Packet {
    opcode: u32,
    payload: Vec<u8>,
}

/// Records a connection with sends, writes and reads.
fn record(file: &Path) {
    let config = WorldConfig::new(3);
    let world = World::new(&config);
    let writer = BufWriter::new(File::create(file).expect("a file in the target directory"));
    world.capture(Box::new(PcapNg::new(writer, 0).expect("writes")));
    let mut pair = Pair::in_world(world, config.seed, "ib0");
    let eps = pair.connect(4791, &EpAttributes::DEFAULT, |sides, eps| {
        for n in 0..LENGTHS.len() {
            sides[1].receive(eps[1], n * 16_384, 16_384, n as u64).expect("receive");
        }
    });
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let number = n as u64;
        let offset = 100_000;
        let mut bytes = vec![0; len];
        SENT.payload(number).fill(0, &mut bytes);
        pair.sides[0].memory.write(offset, &bytes).expect("inside");
        pair.sides[0].send(eps[0], offset, len, number).expect("send");
        pair.success(0, false, number);
        assert_eq!(pair.success(1, true, number), len as u64);

        WRITTEN.payload(number).fill(0, &mut bytes);
        pair.sides[0].memory.write(offset, &bytes).expect("inside");
        let (local, remote) = (pair.sides[0].local(offset, len), pair.sides[1].remote(500_000, len));
        let flags = CompletionFlags::empty();
        pair.sides[0].adapter.ep_post_rdma_write(eps[0], &[local], number, &remote, flags).expect("write");
        pair.success(0, false, number);

        READ.payload(number).fill(0, &mut bytes);
        pair.sides[1].memory.write(700_000, &bytes).expect("inside");
        let (local, remote) = (pair.sides[0].local(offset, len), pair.sides[1].remote(700_000, len));
        pair.sides[0].adapter.ep_post_rdma_read(eps[0], &[local], number, &remote, flags).expect("read");
        pair.success(0, false, number);
    }
    pair.disconnect(eps);
    pair.world.clone().with_fabric(|fabric| fabric.finish_capture()).expect("the capture is complete");
    pair.finish(&[eps]);
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |d: u8| (d as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The payloads of the packets with one of `opcodes`, one after the other, are the messages of `stream`.
fn same_bytes(packets: &[Packet], opcodes: &[u32], stream: Stream) {
    let of_kind = packets.iter().filter(|packet| opcodes.contains(&packet.opcode));
    let seen: Vec<u8> = of_kind.flat_map(|packet| packet.payload.iter().copied()).collect();
    let mut expected = Vec::new();
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let mut bytes = vec![0; len];
        stream.payload(n as u64).fill(0, &mut bytes);
        expected.extend(bytes);
    }
    assert_eq!(seen.len(), expected.len(), "payload bytes of opcodes {opcodes:?}");
    assert!(seen == expected, "payload of opcodes {opcodes:?} differs from what was sent");
}

/// Returns whether tshark is installed. Without it the test is skipped, or fails if it is required.
fn has_tshark() -> bool {
    let Err(error) = setup::program("tshark", "tshark") else { return true };
    assert!(!conditions::required(), "tshark is required here: {error}");
    conditions::skip(&format!("captures are not read: {error}"));
    false
}

#[test]
fn tshark_reads_the_capture() {
    if !has_tshark() {
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("oracle_tshark.pcapng");
    record(&file);
    let read = |filter: &str, fields: &[&str]| tshark::read(&file, filter, fields).expect("tshark reads");
    let column = |filter: &str, field: &str| -> Vec<String> {
        read(filter, &[field]).into_iter().map(|row| row.concat()).collect()
    };

    let malformed = column("_ws.malformed || _ws.expert.severity == error", "frame.number");
    assert_eq!(malformed, [""; 0], "no malformed packet, no error");

    // Connection management: attribute of each general management packet of the CM class.
    let mut messages = BTreeMap::<String, usize>::new();
    for attribute in column("infiniband.mad.mgmtclass == 7", "infiniband.mad.attributeid") {
        *messages.entry(attribute).or_default() += 1;
    }
    // REQ, REP, RTU, DREQ, DREP.
    let expected = ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"];
    assert_eq!(messages, expected.map(|attribute| (attribute.to_owned(), 1)).into());
    let request =
        read("infiniband.cm.req", &["infiniband.cm.req.ip_cm.sip4", "infiniband.cm.req.ip_cm.dip4"]);
    assert_eq!(request, [["10.0.0.1", "10.0.0.2"]], "RDMA-CM addresses");

    let fields = ["infiniband.bth.opcode", "infiniband.bth.padcnt", "infiniband.payload", "data.data"];
    let packets: Vec<Packet> = read("", &fields)
        .iter()
        .map(|row| {
            let mut fields = row.iter();
            let opcode = fields.next().and_then(|text| text.parse().ok()).expect("every packet has a BTH");
            let pad: usize = fields.next().and_then(|text| text.parse().ok()).expect("and a pad count");
            // tshark shows the payload with its padding.
            let mut payload =
                fields.map(|text| hex(text)).find(|bytes| !bytes.is_empty()).unwrap_or_default();
            payload.truncate(payload.len().saturating_sub(pad));
            Packet { opcode, payload }
        })
        .collect();
    let known = [&SENDS[..], &WRITES, &[READ_REQUEST], &READ_RESPONSES, &[ACKNOWLEDGE, DATAGRAM]].concat();
    assert!(packets.iter().all(|packet| known.contains(&packet.opcode)));
    for opcode in known {
        let count = packets.iter().filter(|packet| packet.opcode == opcode).count();
        assert!(count > 0, "a packet with opcode {opcode}");
    }
    same_bytes(&packets, &SENDS, SENT);
    same_bytes(&packets, &WRITES, WRITTEN);
    same_bytes(&packets, &READ_RESPONSES, READ);

    // Acknowledgements as tshark sees them: their extended header, none of them negative.
    let acknowledged = column("infiniband.bth.opcode == 17", "infiniband.aeth.syndrome.opcode");
    assert!(acknowledged.len() >= 2 * LENGTHS.len(), "one for each send and write at least");
    assert!(acknowledged.iter().all(|opcode| opcode == "0"), "{acknowledged:?}");
}

/// RoCE frames after the addresses, without ICRC: tagged v2 over IPv4, v2 over IPv6, v1. The ICRCs of
/// the last two are published vectors.
const ROCE: [&str; 3] = [
    "8100 6005 0800 4502 0030 0000 4000 40 11 26b9 0a000001 0a000002 c132 12b7 001c 0000",
    "86dd 60000000 001c 11 40 fe80000000000000505400fffe123401 fe80000000000000505400fffe123402
     c132 12b7 001c 0000",
    "8915 60000000 0014 1b 40 fe80000000000000505400fffe123401 fe80000000000000505400fffe123402",
];
/// BTH of a SEND, and its payload "test".
const SEND: &str = "04 40 ffff 00000010 80000001 74657374";

#[test]
fn tshark_dissects_ethernet_frames_to_the_bth() {
    if !has_tshark() {
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("oracle_tshark_ethernet.pcapng");
    let mut switch = Switch::new(SwitchConfig::default());
    let port = switch.attach("station").expect("a free port");
    switch.set_link(port, true);
    let writer = BufWriter::new(File::create(&file).expect("a file in the target directory"));
    let capture = PcapNg::with_encapsulation(writer, 0, Encapsulation::Ethernet).expect("writes");
    switch.set_capture(Box::new(capture));
    for network in ROCE {
        let bytes = hex(&["525400123402 525400123401", network, SEND, "00000000"].concat());
        switch.send(port, Frame::unsealed_frame(bytes), 1_000);
    }
    switch.finish_capture().expect("the capture is complete");

    let fields = ["eth.src", "vlan.id", "udp.srcport", "infiniband.bth.opcode", "infiniband.bth.destqp"];
    let rows = tshark::read(&file, "", &fields).expect("tshark reads");
    let row = |vlan: &str, port: &str| ["52:54:00:12:34:01", vlan, port, "4", "0x000010"].map(str::to_owned);
    assert_eq!(rows, [row("5", "49458"), row("", "49458"), row("", "")]);
    let icrcs = tshark::read(&file, "", &["infiniband.invariant.crc"]).expect("tshark reads");
    assert_eq!(icrcs[1..], [["0x71eca3c2"], ["0x62d69702"]]);
}
