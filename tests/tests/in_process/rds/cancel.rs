//! Cancel and close of one socket while another one has operations and loans in flight to the same peer.

use harness::rds::{Nodes, at, message};
use rds_nostd::{Control, Lend, Msg, RdmaArgs, RdmaFlags, RdmaNotify, RdmaStatus, RdsError};
use std::rc::Rc;

const BYTES: usize = 100_000;

/// Two sockets read from node 1 and lend to it. The first cancels or closes before anything completes.
#[test]
fn close_and_cancel_spare_other_sockets() {
    for closes in [false, true] {
        let mut nodes = Nodes::new(72, "none");
        let sockets = [4000, 4001].map(|port| nodes.bind(0, port));
        let peer = nodes.bind(1, 5000);
        let [local, remote] = [0, 1].map(|node| nodes.adapters[node].dma_alloc(3 * BYTES, 4096));
        let (local, remote) = (Rc::new(local.expect("memory")), Rc::new(remote.expect("memory")));
        let text = message(1, 0, BYTES);
        remote.write(0, &text).expect("inside");
        let offered = remote.slice(0, BYTES).expect("inside");
        let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
        let cookie = rds.get_mr(adapter, peer, offered, RdmaFlags::empty()).expect("offered");
        nodes.send(0, sockets[0], at(1, 5000), b"up").expect("accepted");
        nodes.receive(1, peer, &mut [0; 8]);

        for (index, socket) in sockets.into_iter().enumerate() {
            let [read, lent] =
                [index * BYTES, 2 * BYTES].map(|offset| [local.slice(offset, BYTES).expect("inside")]);
            let args = RdmaArgs {
                cookie,
                remote_offset: 0,
                remote_bytes: BYTES as u64,
                local: &read,
                flags: RdmaFlags::NOTIFY_ME,
                user_token: 1,
            };
            let lend = Lend { payload: &lent, flags: RdmaFlags::NOTIFY_ME, user_token: 2 };
            let controls = [
                (Control { rdma: Some(args), ..Control::default() }, &b"read"[..]),
                (Control { lend: Some(lend), ..Control::default() }, &[]),
            ];
            for (control, payload) in controls {
                let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
                let sent = rds.sendmsg(adapter, socket, Msg::to(&at(1, 5000), payload).with(&control));
                sent.expect("accepted");
            }
        }
        let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
        let begun = match closes {
            true => rds.close(adapter, sockets[0]),
            false => rds.cancel_sent_to(adapter, sockets[0], at(1, 5000)),
        };
        assert_eq!(begun, Err(RdsError::Again), "the HCA is reading");
        let mut told = [vec![], vec![]];
        let mut note = |nodes: &mut Nodes, index: usize| {
            while let Ok(Some(notify)) = nodes.rds[0].take_notification(sockets[index]) {
                told[index].push(notify);
            }
            told[index].len()
        };
        if closes {
            nodes.close_socket(0, sockets[0]);
        } else {
            nodes.until("the first is told", |nodes| note(nodes, 0) == 2);
            nodes.cancel(0, sockets[0], at(1, 5000));
        }
        nodes.until("the second is told", |nodes| note(nodes, 1) == 2);
        let of = |status| [1, 2].map(|user_token| RdmaNotify { user_token, status });
        assert_eq!(told[1], of(RdmaStatus::Success));
        assert!(closes || told[0] == of(RdmaStatus::Canceled), "{:?}", told[0]);
        let mut bytes = vec![0; BYTES];
        local.read(BYTES, &mut bytes).expect("inside");
        assert!(bytes == text);
        // Messages that were in flight arrive.
        for (port, len) in [(4000, 4), (4000, BYTES), (4001, 4), (4001, BYTES)] {
            let received = nodes.receive(1, peer, &mut bytes);
            assert_eq!((received.from, received.len), (at(0, port), len));
        }
        assert!(nodes.rds.iter().all(|rds| rds.counters().conn_reset == 0));
        nodes.close_with([local, remote].map(|memory| Rc::into_inner(memory).expect("the only owner")));
    }
}
