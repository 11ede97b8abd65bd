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
mod ep_attributes;
mod evd;
mod ia;
mod judge;
mod memory;
mod provider;
mod rmr;
mod service;
mod srq;
mod transfer;
mod walk;
mod walk_evd;
mod walk_events;

use registry::Row;

/// The modules with their rows and tests.
const MODULES: [(&str, &[Row], &[&str]); 14] = [
    ("ia", ia::ROWS, ia::TESTS),
    ("context", context::ROWS, context::TESTS),
    ("cno", cno::ROWS, cno::TESTS),
    ("evd", evd::ROWS, evd::TESTS),
    ("ep", ep::ROWS, ep::TESTS),
    ("ep_attributes", ep_attributes::ROWS, ep_attributes::TESTS),
    ("srq", srq::ROWS, srq::TESTS),
    ("rmr", rmr::ROWS, rmr::TESTS),
    ("provider", provider::ROWS, provider::TESTS),
    ("connect", connect::ROWS, connect::TESTS),
    ("cr", cr::ROWS, cr::TESTS),
    ("service", service::ROWS, service::TESTS),
    ("transfer", transfer::ROWS, transfer::TESTS),
    ("memory", memory::ROWS, memory::TESTS),
];
