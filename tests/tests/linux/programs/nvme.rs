//! NVMe over RDMA: guest 0 has a memory disk, guest 1 writes and reads it, and both compare what is there.

use super::Ground;
use crate::guests::run as in_guest;
use std::time::Instant;

/// MiB that are written and compared.
const MIB: u32 = 24;
const BYTES: u32 = MIB << 20;

/// The target: a subsystem with one name space on a memory disk, at guest 0's address on InfiniBand.
const TARGET: &str = "modprobe nvmet_rdma && modprobe brd rd_nr=1 rd_size=65536 && mount -t configfs none /sys/kernel/config\n\
    cd /sys/kernel/config/nvmet || exit 1\n\
    mkdir subsystems/disk && echo 1 > subsystems/disk/attr_allow_any_host && mkdir subsystems/disk/namespaces/1 || exit 1\n\
    echo /dev/ram0 > subsystems/disk/namespaces/1/device_path && echo 1 > subsystems/disk/namespaces/1/enable || exit 1\n\
    mkdir ports/1 && cd ports/1 || exit 1\n\
    echo rdma > addr_trtype && echo ipv4 > addr_adrfam && echo 172.16.0.1 > addr_traddr && echo 4420 > addr_trsvcid || exit 1\n\
    ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk";

const TARGET_DOWN: &str = "cd /sys/kernel/config/nvmet && rm ports/1/subsystems/disk && rmdir ports/1 || exit 1\n\
    echo 0 > subsystems/disk/namespaces/1/enable && rmdir subsystems/disk/namespaces/1 subsystems/disk || exit 1\n\
    cd / && umount /sys/kernel/config && rmmod nvmet_rdma nvmet brd";

const CONNECT: &str = "modprobe nvme_rdma && mkdir -p /etc/nvme || exit 1\n\
    nvme connect -t rdma -a 172.16.0.1 -s 4420 -n disk --hostnqn nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555 \
    --hostid 11111111-2222-3333-4444-555555555555 -i 2 || exit 1\n\
    for wait in $(seq 300); do [ -b /dev/nvme0n1 ] && nvme list && exit 0; sleep 0.1; done; exit 1";

pub fn run(ground: &mut Ground) {
    let began = Instant::now();
    let lab = &mut ground.lab;
    in_guest(lab, 0, TARGET);
    println!("{}", in_guest(lab, 1, CONNECT).text());
    // Written past the cache, read back past it, and read where it is stored.
    let write = format!(
        "head -c {BYTES} /dev/urandom > /tmp/data && sha256sum < /tmp/data && \
         dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct conv=fsync 2> /dev/null"
    );
    let written = in_guest(lab, 1, &write).text();
    let here = in_guest(
        lab,
        1,
        &format!("dd if=/dev/nvme0n1 bs=64k iflag=direct count={} 2> /dev/null | sha256sum", MIB * 16),
    )
    .text();
    let there = in_guest(lab, 0, &format!("head -c {BYTES} /dev/ram0 | sha256sum")).text();
    // Small, and at odd places.
    let small = "for block in 3 1 7 1001 40000; do dd if=/tmp/data of=/dev/nvme0n1 bs=512 count=1 skip=$block seek=$block oflag=direct 2> /dev/null || exit 1; done\n\
         dd if=/dev/nvme0n1 bs=512 skip=1001 count=5 iflag=direct 2> /dev/null | sha256sum";
    in_guest(lab, 1, small);
    let again = in_guest(lab, 0, &format!("head -c {BYTES} /dev/ram0 | sha256sum")).text();
    in_guest(
        lab,
        1,
        "nvme disconnect -n disk && rmmod nvme_rdma nvme_fabrics nvme_core; rm /tmp/data; ! grep ^nvme_rdma /proc/modules",
    );
    in_guest(lab, 0, TARGET_DOWN);
    let good = [&here, &there, &again].iter().all(|hash| **hash == written) && !written.is_empty();
    ground.report(&format!("{MIB} MiB"), began.elapsed(), good, || {
        format!("written {written}, read {here}, stored {there}, stored again {again}")
    });
}
