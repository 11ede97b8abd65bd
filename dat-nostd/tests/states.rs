//! Every call on an endpoint in every state that this provider reaches: the result, and the state afterwards.

use crate::common;

use common::{Net, Options, Side, address};
use dat_nostd::*;

const NONE: CompletionFlags = CompletionFlags::empty();

const STATES: [EpState; 6] = [
    EpState::Unconnected,
    EpState::ActiveConnectionPending,
    EpState::CompletionPending,
    EpState::Connected,
    EpState::DisconnectPending,
    EpState::Disconnected,
];

/// An endpoint in this state: node and side. The peer is the other node.
fn endpoint(state: EpState) -> (Net, usize, Side) {
    let mut net = Net::new(7, 2);
    let options = Options { merged: true, ..Options::default() };
    let [active, passive] = [net.side(0, &options), net.side(1, &options)];
    let psp = net.nodes[1].psp_create(passive.ia, 7, passive.cr, PspFlags::Consumer).unwrap();
    let (node, side) = match state {
        EpState::Unconnected => (0, active),
        EpState::CompletionPending => {
            net.ask(&active, 7, TIMEOUT_INFINITE, b"");
            let cr = net.request(&passive, psp);
            net.nodes[1].cr_accept(cr, Some(passive.ep), b"").unwrap();
            (1, passive)
        }
        EpState::ActiveConnectionPending => {
            net.ask(&active, 7, TIMEOUT_INFINITE, b"");
            (0, active)
        }
        _ => {
            net.nodes[1].psp_free(psp).unwrap();
            net.connect(&[active, passive]);
            if state == EpState::DisconnectPending {
                // A send without a receive keeps a graceful disconnect waiting.
                net.nodes[0].ep_post_send(active.ep, &[], 1, NONE).unwrap();
                net.nodes[0].ep_disconnect(active.ep, CloseFlags::Graceful).unwrap();
            } else if state == EpState::Disconnected {
                net.nodes[0].ep_disconnect(active.ep, CloseFlags::Abrupt).unwrap();
                assert_eq!(net.connection(0, &active), ConnectionEvent::Disconnected);
            }
            (0, active)
        }
    };
    assert_eq!(net.nodes[node].ep_get_status(side.ep).unwrap().state, state);
    (net, node, side)
}

fn subtype(state: EpState) -> Subtype {
    match state {
        EpState::Unconnected => Subtype::InvalidStateEpUnconnected,
        EpState::ActiveConnectionPending => Subtype::InvalidStateEpActconnpending,
        EpState::CompletionPending => Subtype::InvalidStateEpComplpending,
        EpState::Connected => Subtype::InvalidStateEpConnected,
        EpState::DisconnectPending => Subtype::InvalidStateEpDiscpending,
        EpState::Disconnected => Subtype::InvalidStateEpDisconnected,
        other => panic!("{other:?}"),
    }
}

/// Calls `call` in every state. `legal` gives the states afterwards (one of them) where the call succeeds.
#[track_caller]
fn in_every_state(
    legal: impl Fn(EpState) -> Option<&'static [EpState]>,
    call: impl Fn(&mut Net, usize, &Side) -> DatResult<()>,
) {
    for state in STATES {
        let (mut net, node, side) = endpoint(state);
        let result = call(&mut net, node, &side);
        let after = net.nodes[node].ep_get_status(side.ep).map(|status| status.state);
        match legal(state) {
            Some(states) => {
                assert_eq!(result, Ok(()), "in {state:?}");
                let after = after.unwrap();
                assert!(states.contains(&after), "from {state:?} to {after:?}");
            }
            None => {
                let code = DatReturn::error(ReturnType::InvalidState, subtype(state));
                assert_eq!(result, Err(code), "in {state:?}");
                assert_eq!(after, Ok(state), "unchanged");
            }
        }
    }
}

use EpState::*;

#[test]
fn connect() {
    in_every_state(
        |state| (state == Unconnected).then_some(&[ActiveConnectionPending][..]),
        |net, node, side| {
            let to = address(1 - node);
            net.nodes[node].ep_connect(side.ep, &to, 7, 1000, b"", Qos::BestEffort, ConnectFlags::Default)
        },
    );
}

#[test]
fn disconnect_abrupt() {
    in_every_state(
        |state| match state {
            Unconnected => None,
            Connected | DisconnectPending => Some(&[DisconnectPending, Disconnected]),
            _ => Some(&[Disconnected]),
        },
        |net, node, side| net.nodes[node].ep_disconnect(side.ep, CloseFlags::Abrupt),
    );
}

#[test]
fn disconnect_graceful() {
    in_every_state(
        |state| match state {
            Unconnected => None,
            DisconnectPending => Some(&[DisconnectPending]),
            Connected => Some(&[DisconnectPending, Disconnected]),
            _ => Some(&[Disconnected]),
        },
        |net, node, side| net.nodes[node].ep_disconnect(side.ep, CloseFlags::Graceful),
    );
}

#[test]
fn reset() {
    in_every_state(
        |state| matches!(state, Unconnected | Disconnected).then_some(&[Unconnected][..]),
        |net, node, side| net.nodes[node].ep_reset(side.ep),
    );
}

#[test]
fn free() {
    for state in STATES {
        let (mut net, node, side) = endpoint(state);
        net.nodes[node].ep_post_recv(side.ep, &[side.segment(0, 64)], 1, NONE).unwrap();
        assert_eq!(net.nodes[node].ep_free(side.ep), Ok(()), "in {state:?}");
        assert!(net.nodes[node].ep_free(side.ep).unwrap_err().is(ReturnType::InvalidHandle));
        net.pass(5_000_000_000);
        while let Ok(event) = net.nodes[node].evd_dequeue(side.connect) {
            assert!(matches!(event.data, EventData::ConnectionRequest { .. }), "{event:?}");
        }
        // Everything it held is free again.
        net.nodes[node]
            .evd_free(side.connect)
            .map_or_else(|error| assert_eq!(error.kind(), Some(ReturnType::InvalidState)), |()| ());
        net.nodes[node].lmr_free(side.lmr.lmr).unwrap();
        net.nodes[node].pz_free(side.pz).unwrap();
    }
}

#[test]
fn post_recv() {
    in_every_state(
        |state| match state {
            Unconnected => Some(&[Unconnected]),
            ActiveConnectionPending => Some(&[ActiveConnectionPending]),
            CompletionPending => Some(&[CompletionPending]),
            Connected => Some(&[Connected]),
            DisconnectPending => Some(&[DisconnectPending]),
            _ => Some(&[Disconnected]),
        },
        |net, node, side| net.nodes[node].ep_post_recv(side.ep, &[side.segment(0, 64)], 1, NONE),
    );
}

#[test]
fn requests() {
    let legal = |state| match state {
        Connected => Some(&[Connected][..]),
        Disconnected => Some(&[Disconnected][..]),
        _ => None,
    };
    in_every_state(legal, |net, node, side| {
        net.nodes[node].ep_post_send(side.ep, &[side.segment(0, 64)], 1, NONE)
    });
    in_every_state(legal, |net, node, side| {
        net.nodes[node].ep_post_rdma_write(side.ep, &[side.segment(0, 64)], 1, &side.remote(0, 64), NONE)
    });
    in_every_state(legal, |net, node, side| {
        net.nodes[node].ep_post_rdma_read(side.ep, &[side.segment(0, 64)], 1, &side.remote(0, 64), NONE)
    });
}

#[test]
fn queries() {
    for state in STATES {
        let (net, node, side) = endpoint(state);
        let query = net.nodes[node].ep_query(side.ep).unwrap();
        assert_eq!((query.state, query.pz, query.recv_evd), (state, Some(side.pz), Some(side.recv)));
        assert_eq!(query.local_address, address(node));
        assert!(net.nodes[node].ep_private_data(side.ep).unwrap().is_empty() || state != Unconnected);
        match state {
            Unconnected => assert!(query.remote_address.is_unspecified()),
            _ => assert_eq!(query.remote_address, address(1 - node)),
        }
    }
}

#[test]
fn accept() {
    for state in STATES {
        let (mut net, node, side) = endpoint(state);
        // Another EP of the other node asks for a connection with this one.
        let other = net.side(1 - node, &Options::default());
        let cr_evd = net.nodes[node].evd_create(side.ia, 8, None, EvdFlags::CR).unwrap();
        let psp = net.nodes[node].psp_create(side.ia, 8, cr_evd, PspFlags::Consumer).unwrap();
        let to = address(node);
        net.nodes[1 - node]
            .ep_connect(other.ep, &to, 8, TIMEOUT_INFINITE, b"", Qos::BestEffort, ConnectFlags::Default)
            .unwrap();
        // Without running this node's other connections any further than its state allows.
        let cr = net.until("a request", |net| {
            let event = net.nodes[node].evd_dequeue(cr_evd).ok()?;
            match event.data {
                EventData::ConnectionRequest { cr, sp: of, .. } if of == ServicePoint::Psp(psp) => Some(cr),
                other => panic!("{other:?}"),
            }
        });
        let now = net.nodes[node].ep_get_status(side.ep).unwrap().state;
        let result = net.nodes[node].cr_accept(cr, Some(side.ep), b"");
        if now == Unconnected {
            assert_eq!(result, Ok(()));
            assert_eq!(net.nodes[node].ep_get_status(side.ep).unwrap().state, CompletionPending);
            assert!(net.nodes[node].cr_reject(cr).unwrap_err().is(ReturnType::InvalidHandle));
        } else {
            assert_eq!(result, Err(DatReturn::error(ReturnType::InvalidState, subtype(now))));
            // Nothing changed: the request can still be answered.
            assert_eq!(net.nodes[node].ep_get_status(side.ep).unwrap().state, now);
            net.nodes[node].cr_reject(cr).unwrap();
            match net.event(1 - node, other.connect) {
                EventData::Connection { event, .. } => assert_eq!(event, ConnectionEvent::PeerRejected),
                other => panic!("{other:?}"),
            }
        }
    }
}
