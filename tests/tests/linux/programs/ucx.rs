//! UCX's own measurements, by each of its transports over InfiniBand.

use super::Ground;
use crate::guests::At;
use rdma_lab::linux::Kernel;

/// Where its server listens.
pub const PORT: u16 = 13337;

/// What is measured over a transport, by UCX's name of it (of libibverbs, and of UCX's own driver for mlx5).
type Runs = &'static [(&'static str, &'static [&'static str])];
const RUNS: Runs = &[
    ("rc_v", &["tag_bw -s 1048576"]),
    // Remote writes and atomics are flushed by an indirect memory key (KSM) from UCX 1.18 on.
    (
        "rc_x",
        &[
            "tag_lat -s 1024",
            "ucp_get -s 65536",
            "stream_bw -s 65536",
            "ucp_put_bw -s 65536",
            "ucp_fadd -s 8",
            "ucp_cswap -s 8",
        ],
    ),
    ("ud_v", &["tag_lat -s 1024"]),
    ("ud_x", &["tag_bw -s 65536"]),
];
/// The rest of the full lengths.
const MORE: Runs = &[
    ("rc_v", &["tag_lat -s 1024", "ucp_put_lat -s 8"]),
    ("rc_x", &["tag_bw -s 1048576", "ucp_am_lat -s 64"]),
    ("ud_v", &["tag_bw -s 65536"]),
    ("ud_x", &["tag_lat -s 1024"]),
];

pub(super) fn run(ground: &mut Ground, kernel: Kernel, long: bool) {
    for line in lines(kernel, long) {
        ground.pair(At::Tcp(PORT), &line, &format!("{line} guest0"), |text| !text.contains("ERROR"));
    }
}

/// The commands of all measurements; a client's is followed by its server's name.
pub fn lines(kernel: Kernel, long: bool) -> Vec<String> {
    // The older program was built without MPI, and does not know the switch that leaves it out.
    let alone = if kernel == Kernel::V6_1 { "" } else { " -P 0" };
    let iterations = if long { 1000 } else { 20 };
    let more = if long { MORE } else { &[] };
    let runs = RUNS.iter().chain(more).flat_map(|(transport, measurements)| {
        measurements.iter().map(move |measurement| (transport, measurement))
    });
    runs.map(|(transport, measurement)| {
        format!(
            "env UCX_TLS={transport},self UCX_NET_DEVICES=mlx5_0:1 ucx_perftest{alone} -w 2 -n {iterations} -t {measurement}"
        )
    })
    .collect()
}
