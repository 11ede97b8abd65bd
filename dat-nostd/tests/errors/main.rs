//! What every function of DAT 1.2 refuses, with which code, and that nothing changes by it. The rows are transcribed from the
//! specification's pages; the crate's README shows them as a table, which has to be what the rows say.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod readme;
mod registry;
mod snapshot;

mod connect;
mod cr;
mod ep;
mod evd;
mod ia;
mod judge;
mod memory;
mod service;
mod transfer;

use registry::Row;

/// The modules with their rows and tests.
const MODULES: [(&str, &[Row], &[&str]); 8] = [
    ("ia", ia::ROWS, ia::TESTS),
    ("evd", evd::ROWS, evd::TESTS),
    ("ep", ep::ROWS, ep::TESTS),
    ("connect", connect::ROWS, connect::TESTS),
    ("cr", cr::ROWS, cr::TESTS),
    ("service", service::ROWS, service::TESTS),
    ("transfer", transfer::ROWS, transfer::TESTS),
    ("memory", memory::ROWS, memory::TESTS),
];

/// Functions whose rows come with them.
const LATER: &[&str] = &[
    "set_consumer_context",
    "get_consumer_context",
    "get_handle_type",
    "strerror",
    "cno_create",
    "cno_free",
    "cno_modify_agent",
    "cno_query",
    "cno_wait",
    "evd_modify_cno",
    "evd_resize",
    "ep_create_with_srq",
    "ep_modify",
    "ep_recv_query",
    "ep_set_watermark",
    "ep_dup_connect",
    "cr_handoff",
    "psp_create_any",
    "rsp_create",
    "rsp_query",
    "rsp_free",
    "srq_post_recv",
    "rmr_bind",
    "srq_create",
    "srq_query",
    "srq_resize",
    "srq_set_lw",
    "srq_free",
    "rmr_create",
    "rmr_query",
    "rmr_free",
    "registry_list_providers",
    "registry_add_provider",
    "registry_remove_provider",
];
