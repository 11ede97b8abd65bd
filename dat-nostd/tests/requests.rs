//! REQ and REP: contents that describe their sender's EP, which side's retries count, and REQs that
//! reach the wrong port.

use crate::common;

use std::sync::{Arc, Mutex};

use common::{Net, Options, Side, address};
use dat_nostd::*;
use harness::WorldConfig;
use ib_port::ib_mgmt::cm::message::{Message, Rep, Req};
use ib_port::ib_mgmt::mad::{MAD_LEN, Mad};
use rdma_fabric::capture::Capture;
use rdma_fabric::ports::PortIndex;

const NONE: CompletionFlags = CompletionFlags::empty();
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// The CM messages that were sent.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<Mad>>>);

impl Messages {
    fn of(net: &Net) -> Self {
        let messages = Self::default();
        net.world.capture(Box::new(messages.clone()));
        messages
    }

    /// The last REQ and the last REP.
    fn last(&self) -> (Req, Rep) {
        let sent = self.0.lock().unwrap();
        let mut found = (None, None);
        for mad in sent.iter() {
            match Message::parse(mad) {
                Some(Message::Req(req)) => found.0 = Some(req),
                Some(Message::Rep(rep)) => found.1 = Some(rep),
                _ => {}
            }
        }
        (found.0.expect("a REQ"), found.1.expect("a REP"))
    }
}

impl Capture for Messages {
    fn interface(&mut self, _: u32, _: &str) {}

    fn packet(&mut self, _: u32, _: u64, bytes: &[u8], _: Option<&str>) {
        // LRH, BTH, DETH before the datagram, ICRC behind it; no GRH on this subnet.
        if let Some(mad) = bytes.get(28..28 + MAD_LEN).filter(|_| bytes.len() == 28 + MAD_LEN + 4) {
            self.0.lock().unwrap().push(Mad::from_bytes(mad.try_into().unwrap()));
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Moves a side's EP to an SRQ.
fn to_queue(net: &mut Net, node: usize, side: &mut Side) {
    let adapter = &mut net.nodes[node];
    adapter.ep_free(side.ep).unwrap();
    let attributes = SrqAttributes { max_recv_dtos: 16, max_recv_iov: 1, low_watermark: 0 };
    let srq = adapter.srq_create(side.ia, side.pz, &attributes).unwrap();
    let (recv, request, connect) = (Some(side.recv), Some(side.request), Some(side.connect));
    side.ep = adapter
        .ep_create_with_srq(side.ia, side.pz, recv, request, connect, srq, &EpAttributes::DEFAULT)
        .unwrap();
}

#[test]
fn shared_queues_announce_themselves_and_grant_no_credits() {
    for on_queue in [[false, false], [true, false], [false, true]] {
        let mut net = Net::on_infiniband(&WorldConfig::new(91), 2);
        let mut sides = [0, 1].map(|node| net.side(node, &Options::default()));
        for node in [0, 1] {
            if on_queue[node] {
                to_queue(&mut net, node, &mut sides[node]);
            }
        }
        let messages = Messages::of(&net);
        net.connect(&sides);
        let (req, rep) = messages.last();
        assert_eq!((req.srq(), req.flow_control()), (on_queue[0], !on_queue[0]));
        assert_eq!((rep.srq(), rep.flow_control()), (on_queue[1], !on_queue[1]));
        net.assert_no_refusals();
    }
}

/// Two sides with attributes of their own, connected.
fn pair(net: &mut Net, attributes: [EpAttributes; 2]) -> [Side; 2] {
    let options = attributes.map(|attributes| Options { attributes, ..Options::default() });
    let sides = [net.side(0, &options[0]), net.side(1, &options[1])];
    net.connect(&sides);
    sides
}

#[test]
fn each_side_retries_as_its_own_attributes_say() {
    let usual = EpAttributes { rnr_timer: 10, ..EpAttributes::DEFAULT };
    let hasty = EpAttributes { rnr_retry: 0, ..usual };
    for hasty_node in [0, 1] {
        let mut net = Net::new(92, 2);
        let mut attributes = [usual; 2];
        attributes[hasty_node] = hasty;
        let sides = pair(&mut net, attributes);
        let patient_node = 1 - hasty_node;
        let (patient, other) = (&sides[patient_node], &sides[hasty_node]);
        // The patient side waits for a receive.
        net.nodes[patient_node].ep_post_send(patient.ep, &[patient.segment(0, 64)], 1, NONE).unwrap();
        net.pass(50 * MS);
        net.empty(patient_node, patient.request);
        net.nodes[hasty_node].ep_post_recv(other.ep, &[other.segment(0, 64)], 2, NONE).unwrap();
        assert_eq!(net.dto(patient_node, patient.request).status, DtoStatus::Success);
        // The hasty one does not.
        net.nodes[hasty_node].ep_post_send(other.ep, &[other.segment(0, 64)], 3, NONE).unwrap();
        assert_eq!(net.dto(hasty_node, other.request).status, DtoStatus::ErrReceiverNotReady);
    }
}

#[test]
fn the_passive_side_gives_a_dead_peer_up_after_its_own_retries() {
    let patience = |retry_count| {
        let mut net = Net::new(93, 2);
        let own = EpAttributes { retry_count, ..EpAttributes::DEFAULT };
        let [_, passive] = pair(&mut net, [EpAttributes::DEFAULT, own]);
        net.world.kill(0);
        let began = net.world.now();
        net.nodes[1].ep_post_send(passive.ep, &[passive.segment(0, 64)], 1, NONE).unwrap();
        let end = net.until("a completion", |net| net.nodes[1].evd_dequeue(passive.request).ok());
        assert!(matches!(end.data, EventData::Dto(dto) if dto.status == DtoStatus::ErrTransport));
        net.world.now() - began
    };
    let (one, seven) = (patience(1), patience(7));
    assert!(one * 3 < seven, "{one} ns with one retry, {seven} ns with seven");
}

#[test]
fn requests_that_were_taken_do_not_count_against_their_evd() {
    let mut net = Net::new(94, 2);
    let [active, passive] = [0, 1].map(|node| net.side(node, &Options::default()));
    net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    // The EVD holds eight. No request is answered.
    let mut taken = Vec::new();
    for _ in 0..12 {
        let adapter = &mut net.nodes[0];
        let ep = adapter.ep_create(active.ia, Some(active.pz), None, None, Some(active.connect), Some(&BARE));
        let ep = ep.unwrap();
        net.ask(&Side { ep, ..active }, 7, TIMEOUT_INFINITE, b"");
        match net.event(1, passive.cr) {
            EventData::ConnectionRequest { cr, .. } => taken.push(cr),
            other => panic!("{other:?}"),
        }
        net.empty(0, active.connect);
    }
    taken.sort_unstable_by_key(|cr| cr.bits());
    taken.dedup();
    assert_eq!(taken.len(), 12);
}

/// Endpoints without transfers.
const BARE: EpAttributes = EpAttributes { max_recv_dtos: 0, max_request_dtos: 0, ..EpAttributes::DEFAULT };

#[test]
fn a_lid_that_moved_to_another_node_is_looked_up_again() {
    for name in ["ib0", "ib0-dat"] {
        let mut net = Net::on_infiniband(&WorldConfig::new(95), 3);
        let options = Options { name, ..Options::default() };
        let [active, passive, other] = [0, 1, 2].map(|node| net.side(node, &options));
        let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
        // The node that gets the LID serves the same qualifier.
        net.nodes[2].psp_create(other.ia, 7, other.cr, PspFlags::Consumer).unwrap();
        net.ask(&active, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_reject(cr).unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::PeerRejected);
        net.nodes[0].ep_reset(active.ep).unwrap();
        let now = net.world.now();
        // The two nodes exchange their LIDs.
        let moved = net.world.with_fabric(|fabric| {
            let lid = fabric.port_record(PortIndex(2)).map_or(0, |record| record.lid);
            fabric.set_lid(PortIndex(1), lid, now)
        });
        assert!(moved);
        net.pass(2 * SECOND);
        net.ask(&active, 7, 10_000_000, b"");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::Established);
        assert_eq!(net.connection(1, &passive), ConnectionEvent::Established);
        net.empty(2, other.cr);
        // Not more than once more: a service that does not exist is rejected for good.
        net.pass(2 * SECOND);
        let adapter = &mut net.nodes[0];
        let ep = adapter.ep_create(active.ia, Some(active.pz), None, None, Some(active.connect), Some(&BARE));
        let side = Side { ep: ep.unwrap(), ..active };
        let queries = adapter.port_counters().sa.answered;
        net.ask(&side, 8, TIMEOUT_INFINITE, b"");
        assert_eq!(net.connection(0, &side), ConnectionEvent::NonPeerRejected);
        assert_eq!(net.nodes[0].port_counters().sa.answered, queries + 1);
        assert_eq!(net.nodes[0].ep_query(side.ep).unwrap().remote_address, address(1));
        net.assert_no_refusals();
    }
}

#[test]
fn paths_to_ports_that_come_and_go_are_resolved_again() {
    let mut net = Net::on_infiniband(&WorldConfig::new(96), 2);
    let [active, passive] = [0, 1].map(|node| net.side(node, &Options::default()));
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let ask = |net: &mut Net| {
        net.ask(&active, 7, TIMEOUT_INFINITE, b"");
        let cr = net.request(&passive, psp);
        net.nodes[1].cr_reject(cr).unwrap();
        assert_eq!(net.connection(0, &active), ConnectionEvent::PeerRejected);
        net.nodes[0].ep_reset(active.ep).unwrap();
        net.nodes[0].port_counters()
    };
    let first = ask(&mut net);
    assert_eq!(ask(&mut net).sa.answered, first.sa.answered, "the path is known");
    net.world.set_cable(1, false);
    net.pass(SECOND);
    net.world.set_cable(1, true);
    net.pass(SECOND);
    let again = ask(&mut net);
    assert_eq!((again.reports - first.reports, again.sa.answered - first.sa.answered), (2, 1));
    assert_eq!(again.moves, first.moves, "the own port has stayed");
}
