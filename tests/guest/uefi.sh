#!/bin/busybox sh
# uefi.sh: first process of a kernel that rdmaboot.efi has started. Uses the card that it came through, with Linux's driver: verbs to
# itself, IP over InfiniBand, RDS with the server. The kernel's command line has `client=` and `server=`, which the kernel passes on as
# variables.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec > /dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ip link set lo up
work() {
    hcas-up && modprobe ib_ipoib && modprobe rds_rdma || return
    ip address add "$client/24" dev ib0 && ip link set ib0 up || return
    for wait in $(seq 300); do
        [ "$(cat /sys/class/net/ib0/carrier 2> /dev/null)" = 1 ] && break
        sleep 0.1
    done
    rds ping "$client" "$server" 100 1
}
work
echo "@linux status=$? command line: $(cat /proc/cmdline)"
poweroff -f
