#!/bin/sh
# hcas-up: loads what programs need, waits until the ports of all HCAs are active, Ethernet interfaces with their addresses,
# and uses each HCA once, to itself: kernels from 6.10 on make what the registration of memory needs at its first use, and keep
# it.
for module in mlx5_ib ib_uverbs ib_umad; do
    modprobe $module || exit 1
done
ethernet-up && ports-active || exit 1
for device in /sys/class/infiniband/mlx5_*; do
    [ -e "$device" ] || break
    device=${device##*/}
    gid=$(roce-gid "$device") && gid="-g $gid"
    background first timeout 60 ibv_rc_pingpong -d "$device" $gid -n 1
    listening first 18515 || exit 1
    timeout 60 ibv_rc_pingpong -d "$device" $gid -n 1 127.0.0.1 > /tmp/second.out 2>&1 || {
        cat /tmp/second.out
        exit 1
    }
    reap first > /dev/null || exit 1
done
