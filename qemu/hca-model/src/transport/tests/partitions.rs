//! What becomes of sends whose P_Key entry is empty, or names a partition that the subnet manager did not give to the port.

use mlx5_prm::datapath::SendOpcode;
use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::{QpState, ServiceType};

use super::bed::{Bed, Handle, Options};
use super::requests::Request;

/// A bed with a connected pair, and a WRITE from the first to the second.
fn pair(service: ServiceType, retry_count: u8) -> (Bed, [Handle; 2], Request) {
    let mut bed = Bed::new(2);
    let options = Options { retry_count, ack_timeout: 8, ..Options::default() };
    let (a, b) = bed.pair_of(service, 0, 1, &options);
    let (from, lkey) = bed.buffer(0, 0x1000);
    let (to, rkey) = bed.buffer(1, 0x1000);
    let mut write = Request::new(SendOpcode::RDMA_WRITE, &[(from, 0x1000, lkey)]).to(to, rkey);
    write.xrc_srqn = (service == ServiceType::XRC).then_some(1);
    (bed, [a, b], write)
}

#[test]
fn a_request_through_an_empty_entry_runs_out_of_retries() {
    for service in [ServiceType::RC, ServiceType::XRC] {
        let (mut bed, [mut a, _], write) = pair(service, 2);
        bed.hca(0).device.port.pkeys[0] = 0;
        let discards = bed.hca(0).device.port.counters.xmit_discards;
        bed.send(&mut a, &write);
        assert_eq!(bed.wait(&a).syndrome, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR.0);
        assert_eq!(bed.qp(&a).state(), QpState::ERR, "a reliable service fails as a whole");
        let discards = bed.hca(0).device.port.counters.xmit_discards - discards;
        assert_eq!(discards, 3, "sent once and twice again");
    }
}

#[test]
fn a_request_goes_when_its_partition_is_back_in_time() {
    let (mut bed, [mut a, _], write) = pair(ServiceType::RC, 7);
    bed.hca(0).device.port.pkeys[0] = 0;
    bed.send(&mut a, &write);
    bed.run_for(100_000);
    assert_eq!(bed.poll_cq(0, a.cqn), None);
    bed.hca(0).device.port.pkeys[0] = 0xffff;
    assert_eq!(bed.wait(&a).syndrome, 0);
}

#[test]
fn a_responder_without_its_partition_stays_silent() {
    let (mut bed, [mut a, b], write) = pair(ServiceType::RC, 1);
    bed.hca(1).device.port.pkeys[0] = 0;
    bed.send(&mut a, &write);
    assert_eq!(bed.wait(&a).syndrome, CqeSyndrome::TRANSPORT_RETRY_EXC_ERR.0);
    assert_eq!(bed.qp(&b).state(), QpState::RTS);
}

#[test]
fn an_unreliable_connection_without_its_partition_sends_into_the_void() {
    let (mut bed, [mut a, _], write) = pair(ServiceType::UC, 7);
    bed.hca(0).device.port.pkeys[0] = 0;
    let before = bed.counters(1).packets_received;
    bed.send(&mut a, &write);
    assert_eq!(bed.wait(&a).syndrome, 0, "nobody acknowledges, so nothing is missed");
    assert_eq!(bed.counters(1).packets_received, before);
}
