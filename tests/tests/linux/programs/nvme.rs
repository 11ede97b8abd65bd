//! NVMe over RDMA: one guest has a memory disk, another one writes and reads it, and both compare what is there.

use super::Ground;
use crate::guests::run as in_guest;
use rdma_lab::linux::Lab;
use std::time::Instant;

/// MiB that are written and compared on InfiniBand.
const MIB: u32 = 24;

/// The target: a subsystem with one name space on a memory disk, at address $A.
const TARGET: &str = "modprobe nvmet_rdma && modprobe brd rd_nr=1 rd_size=65536 && mount -t configfs none /sys/kernel/config\n\
    cd /sys/kernel/config/nvmet || exit 1\n\
    mkdir subsystems/disk && echo 1 > subsystems/disk/attr_allow_any_host && mkdir subsystems/disk/namespaces/1 || exit 1\n\
    echo /dev/ram0 > subsystems/disk/namespaces/1/device_path && echo 1 > subsystems/disk/namespaces/1/enable || exit 1\n\
    mkdir ports/1 && cd ports/1 || exit 1\n\
    echo rdma > addr_trtype && echo ipv4 > addr_adrfam && echo $A > addr_traddr && echo 4420 > addr_trsvcid || exit 1\n\
    ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk";

const TARGET_DOWN: &str = "cd /sys/kernel/config/nvmet && rm ports/1/subsystems/disk && rmdir ports/1 || exit 1\n\
    echo 0 > subsystems/disk/namespaces/1/enable && rmdir subsystems/disk/namespaces/1 subsystems/disk || exit 1\n\
    cd / && umount /sys/kernel/config && rmmod nvmet_rdma nvmet brd";

const CONNECT: &str = "modprobe nvme_rdma && mkdir -p /etc/nvme || exit 1\n\
    nvme connect -t rdma -a $A -s 4420 -n disk --hostnqn nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555 \
    --hostid 11111111-2222-3333-4444-555555555555 -i 2 || exit 1\n\
    for wait in $(seq 300); do [ -b /dev/nvme0n1 ] && nvme list && exit 0; sleep 0.1; done; exit 1";

pub(super) fn run(ground: &mut Ground) {
    let began = Instant::now();
    let moved = exchange(&mut ground.lab, [0, 1], "172.16.0.1", MIB);
    ground.report(&format!("{MIB} MiB"), began.elapsed(), moved.is_ok(), || moved.unwrap_err());
}

/// The first guest is the target, at `address`, the second the initiator. Fails with the hashes if data differs.
pub fn exchange(
    lab: &mut Lab,
    [target, initiator]: [usize; 2],
    address: &str,
    mib: u32,
) -> Result<(), String> {
    let bytes = mib << 20;
    in_guest(lab, target, &format!("A={address}\n{TARGET}"));
    println!("{}", in_guest(lab, initiator, &format!("A={address}\n{CONNECT}")).text());
    // Written past the cache, read back past it, and read where it is stored.
    let write = format!(
        "head -c {bytes} /dev/urandom > /tmp/data && sha256sum < /tmp/data && \
         dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct conv=fsync 2> /dev/null"
    );
    let written = in_guest(lab, initiator, &write).text();
    let read = format!("dd if=/dev/nvme0n1 bs=64k iflag=direct count={} 2> /dev/null | sha256sum", mib * 16);
    let here = in_guest(lab, initiator, &read).text();
    let stored = format!("head -c {bytes} /dev/ram0 | sha256sum");
    let there = in_guest(lab, target, &stored).text();
    // Small, and at odd places.
    let small = "for block in 3 1 7 1001 40000; do dd if=/tmp/data of=/dev/nvme0n1 bs=512 count=1 skip=$block seek=$block oflag=direct 2> /dev/null || exit 1; done\n\
         dd if=/dev/nvme0n1 bs=512 skip=1001 count=5 iflag=direct 2> /dev/null | sha256sum";
    in_guest(lab, initiator, small);
    let again = in_guest(lab, target, &stored).text();
    in_guest(
        lab,
        initiator,
        "nvme disconnect -n disk && rmmod nvme_rdma nvme_fabrics nvme_core; rm /tmp/data; ! grep ^nvme_rdma /proc/modules",
    );
    in_guest(lab, target, TARGET_DOWN);
    if [&here, &there, &again].iter().all(|hash| **hash == written) && !written.is_empty() {
        Ok(())
    } else {
        Err(format!("written {written}, read {here}, stored {there}, stored again {again}"))
    }
}
