//! A port without wire credit.

use mlx5_prm::datapath::SendOpcode;

use super::bed::{Bed, Options, pattern};
use super::requests::Request;

/// Connections whose packets use up the credit.
const PAIRS: usize = 9;
/// Bytes of their writes: more than a window of packets.
const LONG: usize = 64 << 10;

#[test]
fn port_without_credit_serves_registers_and_receives() {
    let mut bed = Bed::new(3);
    let ports = [0, 1, 2].map(|node: usize| bed.world.nodes()[node].port);
    let options = Options { mtu: 1, ..Options::default() };
    let (from, lkey) = bed.buffer(0, LONG);
    let (to, rkey) = bed.buffer(1, LONG);
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| bed.pair_on(0, 1, &options)).collect();
    let (mut sender, _receiver) = bed.pair_on(2, 0, &options);
    for (near, _) in &mut pairs {
        bed.post(near, &Request::new(SendOpcode::RDMA_WRITE, &[(from, LONG as u32, lkey)]).to(to, rkey));
        bed.ring(near);
    }
    // Node 1 takes no packets.
    let serve = |bed: &mut Bed, steps: u32| {
        for _ in 0..steps {
            bed.now += 100;
            for node in [0, 2] {
                bed.world.poll_node(node, bed.now, &mut bed.guests);
            }
        }
    };
    serve(&mut bed, 100);
    assert!(!bed.world.medium.fabric().ready(ports[0]));
    let waited = bed.hca(0).port().counters.xmit_wait;
    assert!(waited > 0);

    let data = pattern(2, 0, 200);
    let (source, source_key) = bed.buffer(2, 200);
    let (sink, sink_key) = bed.buffer(0, 200);
    bed.guests[2].write(source, &data);
    let write = Request::new(SendOpcode::RDMA_WRITE, &[(source, 200, source_key)]).to(sink, sink_key);
    bed.post(&mut sender, &write);
    bed.ring(&sender);
    let refusals = bed.hca(0).log().refusals();
    // A doorbell of a command queue that does not exist.
    bed.hca(0).bar().write(0x18, &1u32.to_be_bytes());
    serve(&mut bed, 100);
    assert!(!bed.world.medium.fabric().ready(ports[0]));
    assert_eq!(bed.guests[0].read(sink, 200), data);
    assert_eq!(bed.hca(0).log().refusals(), refusals + 1);
    assert!(bed.poll_cq(2, sender.cqn).is_none(), "an acknowledgement needs credit");

    bed.idle = false;
    assert_eq!(bed.wait(&sender).syndrome, 0);
    for (near, _) in &pairs {
        assert_eq!(bed.wait(near).syndrome, 0);
    }
    assert_eq!(bed.counters(0).retransmitted, 0, "timers stood still without credit");
}
