//! An HCA that is taken away while programs write through it: its own program and its peer's get errors, both kernels stay calm, the HCA holds
//! nothing, and comes back.

use super::Ground;
use crate::guests::{census, run as in_guest};

const REMOVE: &str = "readlink -f /sys/class/infiniband/mlx5_0/device > /tmp/device\n\
    echo 1 > $(cat /tmp/device)/remove && [ ! -e /sys/class/infiniband/mlx5_0 ]";

const COME_BACK: &str = "echo 1 > /sys/bus/pci/rescan && ports-active";

/// Bytes that a port has sent, by its own counter.
const SENT: &str = "cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data";

pub fn run(ground: &mut Ground) {
    let lab = &mut ground.lab;
    // Both write, so that both have something to lose.
    let program = "timeout -s KILL 60 ib_write_bw -F -b -D 20 -f 1";
    in_guest(lab, 0, &format!("background server {program} && listening server 18515"));
    in_guest(lab, 1, &format!("background client {program} guest0"));
    let moving =
        format!("before=$({SENT}); until [ $({SENT}) -gt $((before + 1000000)) ]; do sleep 0.1; done");
    in_guest(lab, 0, &moving);
    in_guest(lab, 1, REMOVE);
    let [of_removed, of_peer] = [(1, "client"), (0, "server")].map(|(guest, name)| {
        let answer = in_guest(lab, guest, &format!("reap {name} && exit 1; exit 0"));
        answer.text()
    });
    assert!(
        of_peer.contains("Completion with error") && of_peer.contains("syndrom 0x81"),
        "the peer's requests run out of retries:\n{of_peer}\nand the removed one's:\n{of_removed}"
    );
    let left = census(lab)[1];
    assert_eq!(left.total(), 0, "left over in the HCA that was removed: {left}");
    in_guest(lab, 1, COME_BACK);
    let line = "ib_write_bw -F -n 100";
    ground
        .pair(crate::guests::At::Tcp(18515), line, &format!("{line} guest0"), |text| text.contains("#bytes"));
}
