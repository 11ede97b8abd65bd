//! What every function of DAT 1.2 refuses, with which code, and that nothing changes by it. The rows are transcribed from the
//! specification's pages; the crate's README shows them as a table, which has to be what the rows say.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod readme;
mod registry;
mod snapshot;

mod cno;
mod connect;
mod context;
mod cr;
mod ep;
mod evd;
mod ia;
mod judge;
mod memory;
mod service;
mod transfer;
mod walk;
mod walk_evd;
mod walk_events;

use registry::Row;

/// The modules with their rows and tests.
const MODULES: [(&str, &[Row], &[&str]); 10] = [
    ("ia", ia::ROWS, ia::TESTS),
    ("context", context::ROWS, context::TESTS),
    ("cno", cno::ROWS, cno::TESTS),
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
    "ep_create_with_srq",
    "ep_modify",
    "ep_recv_query",
    "ep_set_watermark",
    "ep_dup_connect",
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
