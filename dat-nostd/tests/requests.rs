//! Connection requests: what they say, and where they go.

mod common;

use common::{Net, Options, Side};
use dat_nostd::*;

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
