#!/bin/sh
# ethernet-up: brings the Ethernet interfaces of all HCAs up, with jumbo frames, and makes an RDMA device of the virtio-net
# device on their switch, if the guest has one. Interface N has the addresses 10.78.N.(GUEST + 1)/24 and
# fd78:N::(GUEST + 1)/64.
modprobe mlx5_ib || exit 1
if grep -q 0x1af4 /sys/bus/pci/devices/*/vendor; then
    modprobe virtio_pci && modprobe virtio_net || exit 1
fi
for netdev in $(grep -l ^52:54:00:01: /sys/class/net/*/address | cut -d/ -f5); do
    ip link set "$netdev" up || exit 1
    modprobe rdma_rxe && rdma link add rxe0 type rxe netdev "$netdev" || exit 1
done
# All are on one switch: an interface answers for its own addresses alone.
echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce
number=0
for device in /sys/class/infiniband/*; do
    [ "$(cat "$device/ports/1/link_layer" 2> /dev/null)" = Ethernet ] || continue
    for wait in $(seq 100); do
        netdev=$(cat "$device/ports/1/gid_attrs/ndevs/0" 2> /dev/null) && break
        sleep 0.1
    done
    echo 0 > "/proc/sys/net/ipv6/conf/$netdev/accept_dad"
    ip link set "$netdev" mtu 9000 && ip link set "$netdev" up || exit 1
    ip address add "10.78.$number.$((GUEST + 1))/24" dev "$netdev" || exit 1
    ip -6 address add "fd78:$number::$((GUEST + 1))/64" dev "$netdev" || exit 1
    for version in 4 6; do
        for wait in $(seq 100); do
            roce-gid "${device##*/}" $version > /dev/null && break
            sleep 0.1
        done
        roce-gid "${device##*/}" $version > /dev/null || {
            echo "${device##*/} has no GID of an IPv$version address"
            exit 1
        }
    done
    number=$((number + 1))
done
exit 0
