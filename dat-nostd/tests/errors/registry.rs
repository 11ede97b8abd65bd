//! Rows of the table: what each function of DAT 1.2 answers under which condition, and the runner that judges them.
//!
//! A row does not assert anything itself. It prepares a condition and hands over calls; the runner takes everything
//! observable down, makes a call, compares the code, and compares everything observable again. So a row without the assertion
//! of the code and of the unchanged state cannot be written.

use crate::bench::Bench;
use crate::common::Node;
use crate::snapshot::Snapshot;
use dat_nostd::{DatResult, ReturnType, Subtype};

/// The functions of uDAPL 1.2, in the order of their groups in the specification.
pub const FUNCTIONS: [&str; 72] = [
    "ia_openv",
    "ia_query",
    "ia_close",
    "set_consumer_context",
    "get_consumer_context",
    "get_handle_type",
    "strerror",
    "cno_create",
    "cno_free",
    "cno_modify_agent",
    "cno_query",
    "cno_wait",
    "evd_create",
    "evd_query",
    "evd_modify_cno",
    "evd_enable",
    "evd_disable",
    "evd_set_unwaitable",
    "evd_clear_unwaitable",
    "evd_wait",
    "evd_dequeue",
    "evd_post_se",
    "evd_resize",
    "evd_free",
    "ep_create",
    "ep_create_with_srq",
    "ep_query",
    "ep_get_status",
    "ep_modify",
    "ep_reset",
    "ep_free",
    "ep_recv_query",
    "ep_set_watermark",
    "ep_connect",
    "ep_dup_connect",
    "ep_disconnect",
    "cr_query",
    "cr_accept",
    "cr_reject",
    "cr_handoff",
    "psp_create",
    "psp_create_any",
    "psp_query",
    "psp_free",
    "rsp_create",
    "rsp_query",
    "rsp_free",
    "ep_post_send",
    "ep_post_recv",
    "ep_post_rdma_read",
    "ep_post_rdma_write",
    "srq_post_recv",
    "rmr_bind",
    "srq_create",
    "srq_query",
    "srq_resize",
    "srq_set_lw",
    "srq_free",
    "pz_create",
    "pz_query",
    "pz_free",
    "lmr_create",
    "lmr_query",
    "lmr_free",
    "lmr_sync_rdma_read",
    "lmr_sync_rdma_write",
    "rmr_create",
    "rmr_query",
    "rmr_free",
    "registry_list_providers",
    "registry_add_provider",
    "registry_remove_provider",
];

/// The Rust methods that are this function; the first part of a name stands for all that go on with it.
fn is_method_of(method: &str, function: &str) -> bool {
    match function {
        "ia_openv" => method.starts_with("ia_open"),
        "evd_wait" => method.starts_with("evd_wait_"),
        "cno_wait" => method.starts_with("cno_wait_"),
        "lmr_create" => method.starts_with("lmr_create"),
        // With the mask of a C caller.
        _ => method == function || method.strip_suffix("_masked") == Some(function),
    }
}

type Run = dyn FnOnce(&mut Node) -> DatResult<()>;

/// A call that a row wants refused.
pub struct Call {
    method: &'static str,
    run: Box<Run>,
}

impl Call {
    pub fn new(method: &'static str, run: impl FnOnce(&mut Node) -> DatResult<()> + 'static) -> Self {
        Self { method, run: Box::new(run) }
    }
}

/// A call of a method of node 0's adapter, named as it is written.
#[macro_export]
macro_rules! call {
    ($method:ident($($argument:expr),* $(,)?)) => {
        $crate::registry::Call::new(stringify!($method), move |adapter: &mut $crate::common::Node| {
            adapter.$method($($argument),*).map(|_| ())
        })
    };
}

/// Makes a call on node 0 that has to succeed, and says that it did.
#[macro_export]
macro_rules! ok {
    ($bench:ident, $method:ident($($argument:expr),* $(,)?)) => {{
        $bench.succeeded.push(stringify!($method));
        match $bench.net.nodes[0].$method($($argument),*) {
            Ok(value) => value,
            Err(error) => panic!("{}: {error}", stringify!($method)),
        }
    }};
}

/// What is to be seen.
pub enum Judgement {
    /// Every call that this makes is refused with the code, and nothing changes.
    Refused(ReturnType, Option<Subtype>, fn(&mut Bench) -> Vec<Call>),
    /// Cannot occur here, for this reason.
    Impossible(ReturnType, &'static str),
    /// The function is called with success and does what it is for.
    Succeeds(fn(&mut Bench)),
}

/// One line of the table.
pub struct Row {
    pub function: &'static str,
    /// When; for a success what is looked at.
    pub condition: &'static str,
    pub judgement: Judgement,
}

/// Refused, whatever the subtype.
pub const fn refused(
    function: &'static str,
    error: ReturnType,
    condition: &'static str,
    setup: fn(&mut Bench) -> Vec<Call>,
) -> Row {
    Row { function, condition, judgement: Judgement::Refused(error, None, setup) }
}

/// Refused with the subtype that OFA and illumos implementations use.
pub const fn refused_as(
    function: &'static str,
    error: ReturnType,
    subtype: Subtype,
    condition: &'static str,
    setup: fn(&mut Bench) -> Vec<Call>,
) -> Row {
    Row { function, condition, judgement: Judgement::Refused(error, Some(subtype), setup) }
}

pub const fn impossible(
    function: &'static str,
    error: ReturnType,
    condition: &'static str,
    why: &'static str,
) -> Row {
    Row { function, condition, judgement: Judgement::Impossible(error, why) }
}

pub const fn succeeds(function: &'static str, what: &'static str, run: fn(&mut Bench)) -> Row {
    Row { function, condition: what, judgement: Judgement::Succeeds(run) }
}

/// Why a row cannot occur: what Rust's types rule out.
pub const BY_VALUE: &str = "results are returned by value";
pub const AN_ENUM: &str = "the type has no other values";
pub const A_SLICE: &str = "a slice carries its length and is never null";

/// Judges all rows of a function, one after the other on the same two nodes: a refused call changes nothing, so the next
/// row finds what it needs.
pub fn judge(function: &str, rows: &[Row]) {
    let mut bench = Bench::new();
    for row in rows.iter().filter(|row| row.function == function) {
        bench.drain();
        match &row.judgement {
            Judgement::Impossible(..) => {}
            Judgement::Refused(error, subtype, setup) => {
                let calls = setup(&mut bench);
                assert!(!calls.is_empty(), "{function}: {}: no call", row.condition);
                for (number, call) in calls.into_iter().enumerate() {
                    let what = format!("{function}: {}: call {}", row.condition, number + 1);
                    assert!(is_method_of(call.method, function), "{what}: {} is called", call.method);
                    bench.settle();
                    let before = Snapshot::take(&mut bench);
                    let result = (call.run)(&mut bench.net.nodes[0]);
                    bench.settle();
                    let after = Snapshot::take(&mut bench);
                    match result {
                        Err(code)
                            if code.is(*error)
                                && subtype.is_none_or(|wanted| code.subtype() == Some(wanted)) => {}
                        other => panic!("{what}: {other:?} instead of {error:?} {subtype:?}"),
                    }
                    before.assert_same(&after, &what);
                }
            }
            Judgement::Succeeds(run) => {
                bench.succeeded.clear();
                run(&mut bench);
                assert!(
                    bench.succeeded.iter().any(|method| is_method_of(method, function)),
                    "{function}: {}: was not called",
                    row.condition
                );
            }
        }
    }
}

/// A module's tests: one per function, which judges its rows.
#[macro_export]
macro_rules! tests {
    ($($function:ident)*) => {
        pub const TESTS: &[&str] = &[$(stringify!($function)),*];
        $(
            #[test]
            fn $function() {
                $crate::registry::judge(stringify!($function), ROWS);
            }
        )*
    };
}
