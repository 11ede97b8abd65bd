//! Connection requests: what they say, and where they go.

mod common;

use common::{Net, Options, Side};
use dat_nostd::*;

const NONE: CompletionFlags = CompletionFlags::empty();
const MS: u64 = 1_000_000;

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
    // The EVD holds eight. Nobody answers.
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
