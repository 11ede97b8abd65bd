//! Every call in every state of an endpoint (uDAPL 1.2, the state tables of each call), compared with what happens and
//! with the crate's own table.

use crate::bench::{ALL_STATES, Bench, NONE};
use crate::common::address;
use dat_nostd::states::{EP_CALLS, EP_STATES, Effect, EpCall};
use dat_nostd::*;

/// `ok` does what it is for, `x` is INVALID_STATE, `no-op` succeeds without effect, `queue` and `flush` are what becomes of
/// a post, `-` cannot be asked.
const TABLE: &str = "
    |                              | UNC   | RES   | PAS   | ACT   | TEN   | CPE   | CON   | DPE   | DIS   |
    | connect                      | ok    | x     | x     | x     | x     | x     | x     | x     | x     |
    | rsp_create                   | ok    | x     | x     | x     | x     | x     | x     | x     | x     |
    | explicit EP in cr_accept     | ok    | x     | x     | x     | x     | x     | x     | x     | x     |
    | implicit EP in cr_accept     | -     | -     | ok    | -     | ok    | -     | -     | -     | -     |
    | disconnect                   | x     | x     | x     | ok    | x     | ok    | ok    | ok    | no-op |
    | reset                        | no-op | x     | x     | x     | x     | x     | x     | x     | ok    |
    | free                         | ok    | x     | x     | ok    | x     | ok    | ok    | ok    | ok    |
    | post_recv                    | queue | queue | queue | queue | -     | queue | ok    | ok    | flush |
    | post_send                    | x     | x     | x     | x     | x     | x     | ok    | x     | flush |
    | rdma_read                    | x     | x     | x     | x     | x     | x     | ok    | x     | flush |
    | rdma_write                   | x     | x     | x     | x     | x     | x     | ok    | x     | flush |
    | rmr_bind                     | x     | x     | x     | x     | x     | x     | ok    | x     | flush |
    | query                        | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    |
    | get_status                   | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    |
    | contexts                     | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    |
    | recv_query                   | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    |
    | set_watermark                | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    | ok    |
    | modify PZ                    | ok    | x     | x     | x     | ok    | x     | x     | x     | x     |
    | modify EVDs and attributes   | ok    | ok    | ok    | x     | ok    | x     | x     | x     | x     |
    | modify specific attributes   | ok    | x     | x     | x     | x     | x     | x     | x     | x     |
";

/// The columns' states, and the subtype by which INVALID_STATE names each.
const COLUMNS: [(&str, EpState, Subtype); 9] = [
    ("UNC", EpState::Unconnected, Subtype::InvalidStateEpUnconnected),
    ("RES", EpState::Reserved, Subtype::InvalidStateEpReserved),
    ("PAS", EpState::PassiveConnectionPending, Subtype::InvalidStateEpPassconnpending),
    ("ACT", EpState::ActiveConnectionPending, Subtype::InvalidStateEpActconnpending),
    ("TEN", EpState::TentativeConnectionPending, Subtype::InvalidStateEpTentconnpending),
    ("CPE", EpState::CompletionPending, Subtype::InvalidStateEpComplpending),
    ("CON", EpState::Connected, Subtype::InvalidStateEpConnected),
    ("DPE", EpState::DisconnectPending, Subtype::InvalidStateEpDiscpending),
    ("DIS", EpState::Disconnected, Subtype::InvalidStateEpDisconnected),
];

/// The cell of a row for a state.
fn cell(row: &str, state: EpState) -> &'static str {
    let cells =
        |line: &'static str| line.trim().trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines = TABLE.lines().map(cells).filter(|cells| cells.len() == 10);
    let head = lines.next().expect("the names of the states");
    let column = COLUMNS.iter().find(|column| column.1 == state).expect("all states are there").0;
    let at = head.iter().position(|name| *name == column).expect("the column");
    let line = lines.find(|cells| cells[0] == row).unwrap_or_else(|| panic!("no row {row}"));
    line[at]
}

fn invalid(state: EpState) -> DatReturn {
    let subtype = COLUMNS.iter().find(|column| column.1 == state).expect("all states are there").2;
    DatReturn::error(ReturnType::InvalidState, subtype)
}

/// Makes a call in every state; `next` says where each legal one leads (any of these).
fn walk(
    row: &str,
    next: impl Fn(EpState) -> &'static [EpState],
    call: impl Fn(&mut Bench, EpHandle) -> DatResult<()>,
) {
    walk_on(Bench::new, row, next, call);
}

/// The same on benches made so.
fn walk_on(
    bench: impl Fn() -> Bench,
    row: &str,
    next: impl Fn(EpState) -> &'static [EpState],
    call: impl Fn(&mut Bench, EpHandle) -> DatResult<()>,
) {
    let mut seen = 0;
    for state in ALL_STATES {
        let expected = cell(row, *state);
        if expected == "-" {
            continue;
        }
        let mut b = bench();
        let ep = b.ep_in(*state);
        let what = format!("{row} in {state:?}");
        let outstanding = b.a().ep_get_status(ep).unwrap();
        let result = call(&mut b, ep);
        let after = b.a().ep_get_status(ep).map(|status| status.state);
        seen += 1;
        match expected {
            "x" => {
                assert_eq!(result, Err(invalid(*state)), "{what}");
                assert_eq!(b.a().ep_get_status(ep), Ok(outstanding), "{what}: unchanged");
            }
            "no-op" => {
                assert_eq!((result, after), (Ok(()), Ok(*state)), "{what}");
                assert_eq!(b.a().ep_get_status(ep), Ok(outstanding), "{what}: unchanged");
                b.net.empty(0, b.here.connect);
            }
            "flush" => {
                assert_eq!((result, after), (Ok(()), Ok(*state)), "{what}");
                let evd = if row == "post_recv" { b.here.recv } else { b.here.request };
                let flushed = match b.net.event(0, evd) {
                    EventData::Dto(done) => (done.status, done.user_cookie),
                    EventData::RmrBind(done) => (done.status, done.user_cookie),
                    other => panic!("{what}: {other:?}"),
                };
                assert_eq!(flushed, (DtoStatus::ErrFlushed, 4711), "{what}");
            }
            "queue" => {
                assert_eq!((result, after), (Ok(()), Ok(*state)), "{what}");
                assert!(!b.a().ep_get_status(ep).unwrap().recv_idle, "{what}");
            }
            "ok" => {
                assert_eq!(result, Ok(()), "{what}");
                match next(*state) {
                    [] => assert!(after.is_err(), "{what}: the EP is gone"),
                    states => assert!(states.contains(&after.unwrap()), "{what}: to {after:?}"),
                }
            }
            other => panic!("cell {other}"),
        }
    }
    assert!(seen > 0, "{row}");
}

use EpState::*;

fn same(state: EpState) -> &'static [EpState] {
    let at = EP_STATES.iter().position(|of| *of == state).expect("all states are there");
    &EP_STATES[at..=at]
}

#[test]
fn the_crate_has_the_same_table() {
    let rows = [
        ("connect", EpCall::Connect),
        ("connect", EpCall::DupConnect),
        ("rsp_create", EpCall::Reserve),
        ("explicit EP in cr_accept", EpCall::Accept),
        ("disconnect", EpCall::Disconnect),
        ("reset", EpCall::Reset),
        ("free", EpCall::Free),
        ("post_send", EpCall::PostRequest),
        ("rdma_read", EpCall::PostRequest),
        ("rdma_write", EpCall::PostRequest),
        ("rmr_bind", EpCall::Bind),
        ("query", EpCall::Query),
        ("recv_query", EpCall::Query),
        ("modify PZ", EpCall::ModifyPz),
        ("modify EVDs and attributes", EpCall::ModifyAttributes),
        ("modify specific attributes", EpCall::ModifySpecific),
    ];
    for (row, call) in rows {
        for (state, effect) in EP_STATES.into_iter().zip(EP_CALLS[call as usize]) {
            let expected = match cell(row, state) {
                "ok" | "queue" => Effect::Run,
                "no-op" => Effect::Nothing,
                "flush" => Effect::Flush,
                "x" => Effect::Refuse,
                other => panic!("cell {other}"),
            };
            assert_eq!(effect, expected, "{call:?} in {state:?}");
        }
    }
    for (state, effect) in EP_STATES.into_iter().zip(EP_CALLS[EpCall::PostRecv as usize]) {
        assert_eq!(effect, if state == Disconnected { Effect::Flush } else { Effect::Run });
    }
    for (state, effect) in EP_STATES.into_iter().zip(EP_CALLS[EpCall::Answer as usize]) {
        let legal = cell("implicit EP in cr_accept", state) == "ok";
        assert_eq!(effect, if legal { Effect::Run } else { Effect::Refuse }, "{state:?}");
    }
}

#[test]
fn connect() {
    walk(
        "connect",
        |_| &[ActiveConnectionPending],
        |b, ep| {
            let to = address(1);
            b.a().ep_connect(ep, &to, 40, 1_000_000, b"", Qos::BestEffort, ConnectFlags::Default)
        },
    );
}

#[test]
fn reserve() {
    walk(
        "rsp_create",
        |_| &[Reserved],
        |b, ep| {
            let h = b.here;
            b.a().rsp_create(h.ia, 80, Some(ep), h.cr).map(|_| ())
        },
    );
}

#[test]
fn accept() {
    // A request has to wait, and to make one runs the peer; so it is made before the states that the peer would end.
    for state in ALL_STATES {
        let mut b = Bench::new();
        let (cr, _) = b.request();
        let ep = b.ep_in(*state);
        let result = b.a().cr_accept(cr, Some(ep), b"");
        let after = b.a().ep_get_status(ep).unwrap().state;
        match cell("explicit EP in cr_accept", *state) {
            "ok" => assert_eq!((result, after), (Ok(()), CompletionPending)),
            _ => {
                // The provider's EP has no zone, which a call may say just as well.
                let tentative = *state == TentativeConnectionPending
                    && result.is_err_and(|error| error.is(ReturnType::InvalidHandle));
                assert!(result == Err(invalid(*state)) || tentative, "{result:?} in {state:?}");
                assert_eq!(after, *state);
                assert!(b.a().cr_query(cr).is_ok(), "the request still waits");
            }
        }
    }
    let mut b = Bench::new();
    let (ep, cr, ..) = b.passive();
    assert_eq!(b.a().cr_accept(cr, None, b""), Ok(()));
    assert_eq!(b.a().ep_get_status(ep).unwrap().state, CompletionPending);
}

#[test]
fn disconnect_abrupt() {
    let next = |state| match state {
        Connected | DisconnectPending => &[DisconnectPending, Disconnected][..],
        _ => &[Disconnected],
    };
    walk("disconnect", next, |b, ep| b.a().ep_disconnect(ep, CloseFlags::Abrupt));
}

#[test]
fn disconnect_graceful() {
    let next = |state| match state {
        Connected => &[DisconnectPending, Disconnected][..],
        DisconnectPending => &[DisconnectPending],
        _ => &[Disconnected],
    };
    walk("disconnect", next, |b, ep| b.a().ep_disconnect(ep, CloseFlags::Graceful));
}

#[test]
fn reset() {
    walk("reset", |_| &[Unconnected], |b, ep| b.a().ep_reset(ep));
}

#[test]
fn free() {
    walk("free", |_| &[], |b, ep| b.a().ep_free(ep));
}

#[test]
fn post_recv() {
    walk("post_recv", same, |b, ep| {
        let iov = [b.here.segment(0, 64)];
        b.a().ep_post_recv(ep, &iov, 4711, NONE)
    });
}

#[test]
fn post_send() {
    walk("post_send", same, |b, ep| {
        let iov = [b.here.segment(0, 64)];
        b.a().ep_post_send(ep, &iov, 4711, NONE)
    });
}

#[test]
fn rdma() {
    walk("rdma_write", same, |b, ep| {
        let (iov, remote) = ([b.here.segment(0, 64)], b.there.remote(0, 64));
        b.a().ep_post_rdma_write(ep, &iov, 4711, &remote, NONE)
    });
    walk("rdma_read", same, |b, ep| {
        let (iov, remote) = ([b.here.segment(0, 64)], b.there.remote(0, 64));
        b.a().ep_post_rdma_read(ep, &iov, 4711, &remote, NONE)
    });
}

#[test]
fn bind() {
    walk("rmr_bind", same, |b, ep| {
        let (pz, segment) = (b.here.pz, b.here.segment(0, 64));
        let rmr = b.a().rmr_create(pz).unwrap();
        b.a().rmr_bind(rmr, &segment, MemPriv::REMOTE_READ, ep, 4711, NONE).map(|_| ())
    });
}

#[test]
fn duplicate() {
    // The pattern's connection runs the peer, so it is made before the states that the peer would end.
    for state in ALL_STATES {
        let mut b = Bench::new();
        let (source, _) = b.connection();
        let ep = b.ep_in(*state);
        let result = b.a().ep_dup_connect(ep, source, 1_000_000, b"", Qos::BestEffort);
        let after = b.a().ep_get_status(ep).unwrap().state;
        // The passive side's remote qualifier is no service, but one may ask for it.
        match cell("connect", *state) {
            "ok" => assert_eq!((result, after), (Ok(()), ActiveConnectionPending)),
            _ => assert_eq!((result, after), (Err(invalid(*state)), *state)),
        }
    }
    for state in ALL_STATES {
        let mut b = Bench::new();
        let source = b.ep_in(*state);
        let ep = b.endpoint();
        let result = b.a().ep_dup_connect(ep, source, 1_000_000, b"", Qos::BestEffort);
        match state {
            Connected => assert_eq!(result, Ok(())),
            _ => assert_eq!(result, Err(invalid(*state)), "the pattern is {state:?}"),
        }
        assert_eq!(b.a().ep_get_status(source).unwrap().state, *state);
    }
}

#[test]
fn modify() {
    walk("modify PZ", same, |b, ep| {
        let pz = b.here.pz;
        let parameters = EpParameters { pz: Some(pz), ..b.a().ep_query(ep).unwrap() };
        b.a().ep_modify(ep, EpFields::PZ_HANDLE, &parameters)?;
        assert_eq!(b.a().ep_query(ep).unwrap().pz, Some(pz));
        Ok(())
    });
    walk("modify EVDs and attributes", same, |b, ep| {
        let connect = b.here.connect;
        let before = b.a().ep_query(ep).unwrap();
        let parameters = EpParameters { connect_evd: Some(connect), ..before };
        b.a().ep_modify(ep, EpFields::CONNECT_EVD_HANDLE, &parameters)?;
        assert_eq!(b.a().ep_query(ep).unwrap().connect_evd, Some(connect));
        Ok(())
    });
    walk("modify EVDs and attributes", same, |b, ep| {
        let before = b.a().ep_query(ep).unwrap();
        let attributes = EpAttributes { max_message_size: 4000, ..before.attributes };
        b.a().ep_modify(ep, EpFields::MAX_MESSAGE_SIZE, &EpParameters { attributes, ..before })?;
        assert_eq!(b.a().ep_query(ep).unwrap().attributes.max_message_size, 4000);
        Ok(())
    });
    walk("modify specific attributes", same, |b, ep| {
        let before = b.a().ep_query(ep).unwrap();
        let attributes = EpAttributes { retry_count: 3, ..before.attributes };
        b.a().ep_modify(ep, EpFields::PROVIDER_SPECIFIC_ATTR, &EpParameters { attributes, ..before })?;
        assert_eq!(b.a().ep_query(ep).unwrap().attributes.retry_count, 3);
        Ok(())
    });
}

#[test]
fn watermarks() {
    walk("recv_query", same, |b, ep| b.a().ep_recv_query(ep).map(|_| ()));
    walk("set_watermark", same, |b, ep| b.a().ep_set_watermark(ep, 3, 5));
    walk_on(Bench::on_shared_queue, "set_watermark", same, |b, ep| b.a().ep_set_watermark(ep, 3, 5));
    walk_on(Bench::on_shared_queue, "recv_query", same, |b, ep| b.a().ep_recv_query(ep).map(|_| ()));
}

#[test]
fn queries() {
    walk("query", same, |b, ep| b.a().ep_query(ep).map(|_| ()));
    walk("get_status", same, |b, ep| b.a().ep_get_status(ep).map(|_| ()));
    walk("contexts", same, |b, ep| {
        b.a().set_consumer_context(ep, 99)?;
        assert_eq!(b.a().get_consumer_context(ep), Ok(99));
        Ok(())
    });
}
