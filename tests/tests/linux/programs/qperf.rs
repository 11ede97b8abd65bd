//! qperf: one server for all measurements, each of which lasts a second.

use super::Ground;
use crate::guests::run as in_guest;

const MEASUREMENTS: [&str; 13] = [
    "rc_bw",
    "rc_lat",
    "rc_bi_bw",
    "uc_bw",
    "uc_lat",
    "ud_bw",
    "ud_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "uc_rdma_write_bw",
    "rc_compare_swap_mr",
    // These compare what they find with what they expect.
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// With connections made by RDMA-CM, for which the server goes by its address on InfiniBand.
const BY_CM: [&str; 2] = ["-cm1 rc_bw", "-cm1 rc_rdma_write_bw"];

pub fn run(ground: &mut Ground, long: bool) {
    in_guest(&mut ground.lab, 0, "background qperf qperf && listening qperf 19765");
    let seconds = if long { 5 } else { 1 };
    let by_tcp = MEASUREMENTS.map(|measurement| ("guest0", measurement));
    for (server, measurement) in
        by_tcp.into_iter().chain(BY_CM.map(|measurement| ("172.16.0.1", measurement)))
    {
        let line = format!("timeout 60 qperf -t {seconds} {server} {measurement}");
        let answer = ground.try_in(1, &line);
        let text = answer.text();
        let name = measurement.rsplit(' ').next().unwrap_or_default();
        let good = answer.success() && text.contains(name) && text.contains('=') && !text.contains("failed");
        ground.report(measurement, answer.time, good, || format!("{line}:\n{text}"));
    }
    in_guest(&mut ground.lab, 1, "qperf guest0 quit");
    in_guest(&mut ground.lab, 0, "reap qperf");
}
