//! perftest: bandwidth and latency by each transport and operation.

use super::Ground;
use crate::guests::At;

/// Where the programs exchange addresses, without RDMA-CM.
const PORT: u16 = 18515;

/// By TCP: each operation that a transport has, then what else the programs offer.
const BY_TCP: [&str; 27] = [
    "ib_send_bw -c RC",
    "ib_send_bw -c UC",
    "ib_send_bw -c UD -s 2048",
    "ib_send_bw -c XRC",
    "ib_send_lat -c RC",
    "ib_send_lat -c UC",
    "ib_send_lat -c UD -s 2048",
    "ib_send_lat -c XRC",
    "ib_write_bw -c RC",
    "ib_write_bw -c UC",
    "ib_write_bw -c XRC",
    "ib_write_lat -c RC",
    "ib_write_lat -c UC",
    "ib_write_lat -c XRC",
    "ib_read_bw -c RC",
    "ib_read_bw -c XRC",
    "ib_read_lat -c RC",
    "ib_read_lat -c XRC",
    "ib_atomic_bw -A FETCH_AND_ADD",
    "ib_atomic_bw -A CMP_AND_SWAP -c XRC",
    "ib_atomic_lat -A CMP_AND_SWAP",
    // Completions by events, many queue pairs, shared receive queues, data in the requests, chains.
    "ib_send_bw -e",
    "ib_write_bw -q 8",
    "ib_send_bw --use-srq -q 2",
    "ib_send_bw -I 64 -s 64",
    "ib_write_bw -l 5",
    "ib_write_bw -d mlx5_0 -i 1 -m 512 -s 65536",
];

/// By RDMA-CM, which also carries the addresses.
const BY_CM: [&str; 4] = ["ib_send_bw -R", "ib_write_lat -R", "ib_read_bw -R", "ib_send_bw -R -c UD -s 2048"];

/// All sizes, 2 bytes to 8 MiB, of which the last ones take a while; and those of the full lengths.
const ALL_SIZES: [&str; 2] = ["ib_send_bw -a", "ib_write_bw -a -b"];
const MORE_SIZES: [&str; 4] = ["ib_read_bw -a", "ib_write_lat -a", "ib_read_lat -a", "ib_send_bw -a -c UC"];

pub(super) fn run(ground: &mut Ground, long: bool) {
    for (at, line) in lines(if long { 500 } else { 10 }, long) {
        let to = if matches!(at, At::Cm) { "172.16.0.1" } else { "guest0" };
        ground.pair(at, &line, &format!("{line} {to}"), has_result);
    }
}

/// The line that the result follows is there only where all iterations have been made.
pub fn has_result(text: &str) -> bool {
    text.contains("#bytes") || text.contains("local address")
}

/// The commands of all measurements; a client's is followed by its server's name or address.
pub fn lines(iterations: u32, long: bool) -> Vec<(At, String)> {
    let line = |at, program: &str, iterations| (at, format!("{program} -F -n {iterations}"));
    let more = if long { &MORE_SIZES[..] } else { &[] };
    let by_tcp = BY_TCP.iter().map(|program| line(At::Tcp(PORT), program, iterations));
    let sizes = ALL_SIZES.iter().chain(more).map(|program| line(At::Tcp(PORT), program, 5));
    let by_cm = BY_CM.iter().map(|program| line(At::Cm, program, iterations));
    by_tcp.chain(sizes).chain(by_cm).collect()
}
