//! What a capture of the fabric holds: every packet whole, with right checksums, payload bytes as they were in memory.
//! `HCA_MODEL_PCAP` names a file to keep it in.

use std::io::Write;
use std::sync::{Arc, Mutex};

use mlx5_prm::datapath::SendOpcode;
use rdma_fabric::infiniband::packet::{Aeth, Operation, Reth, Shape, VCRC_LEN, icrc_is_right, vcrc};

use super::bed::{Bed, Options, pattern};
use super::requests::Request;
use rdma_fabric::capture::PcapNg;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);
impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

#[test]
fn a_capture_is_complete_and_right() {
    let file = Shared::default();
    let mut bed = Bed::new(2);
    bed.world
        .medium
        .fabric_mut()
        .set_capture(Box::new(PcapNg::new(file.clone(), 1_800_000_000_000_000_000).unwrap()));
    // A reset port is configured again, with the capture looking on.
    bed.world.set_cable(1, false);
    bed.run_for(1_000_000);
    bed.world.set_cable(1, true);
    bed.run_until("active", |bed| bed.world.nodes()[1].hca.device.port.is_active());
    let (mut a, mut b) = bed.pair(&Options { mtu: 3, ..Options::default() });
    let (from, lkey) = bed.buffer(0, 0x4000);
    let (to, rkey) = bed.buffer(1, 0x4000);
    let sent = pattern(1, 1, 3001);
    let written = pattern(1, 2, 2048);
    bed.guests[0].write(from, &sent);
    bed.receive(&mut b, &[(to, 0x4000, rkey)]);
    bed.send(&mut a, &Request::new(SendOpcode::SEND, &[(from, 3001, lkey)]));
    bed.wait(&b);
    bed.wait(&a);
    bed.guests[0].write(from, &written);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_WRITE, &[(from, 2048, lkey)]).to(to, rkey));
    bed.wait(&a);
    bed.send(&mut a, &Request::new(SendOpcode::RDMA_READ, &[(from, 1025, lkey)]).to(to, rkey));
    bed.wait(&a);
    bed.world.medium.fabric_mut().finish_capture().unwrap();

    let bytes = file.0.lock().unwrap().clone();
    if let Some(path) = std::env::var_os("HCA_MODEL_PCAP") {
        std::fs::write(path, &bytes).unwrap();
    }
    let (mut at, mut names, mut payload, mut smps) = (0, Vec::new(), [const { Vec::new() }; 3], 0);
    while at < bytes.len() {
        let len = word(&bytes, at + 4);
        let block = &bytes[at..at + len];
        at += len;
        match word(block, 0) {
            1 => names.push(String::from_utf8_lossy(&block[20..34]).into_owned()),
            6 => {
                // Behind the ERF header.
                let packet = &block[44..28 + word(block, 20)];
                let (packet, check) = packet.split_at(packet.len() - VCRC_LEN);
                let shape = Shape::of(packet).unwrap();
                assert!(icrc_is_right(packet));
                assert_eq!(check, vcrc(packet).to_le_bytes());
                let operation = shape.bth.opcode.operation().unwrap();
                let header = match operation {
                    op if op.has_reth() => Reth::LEN,
                    op if op.has_aeth() => Aeth::LEN,
                    _ => 0,
                };
                let data = &shape.content(packet)[header..];
                match operation {
                    op if shape.lrh.vl == 15 => {
                        assert_eq!(op, Operation::SendOnly);
                        smps += 1;
                    }
                    op if op.is_send() => payload[0].extend_from_slice(data),
                    op if op.is_write() => payload[1].extend_from_slice(data),
                    op if op.is_read_response() => payload[2].extend_from_slice(data),
                    _ => assert!(data.is_empty()),
                }
            }
            _ => {}
        }
    }
    assert!(names[0].starts_with("subnet manager") && names[1].starts_with("node0"), "{names:?}");
    assert!(smps >= 14, "{smps} subnet management packets");
    assert!(payload[0] == sent && payload[1] == written && payload[2] == written[..1025]);
}
