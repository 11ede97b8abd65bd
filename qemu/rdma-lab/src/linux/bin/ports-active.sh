#!/bin/sh
# ports-active: waits until the ports of all HCAs that the machine has are active.
count=$(cat /sys/bus/pci/devices/*/vendor | grep -c 0x15b3)
for wait in $(seq 600); do
    [ "$(cat /sys/class/infiniband/mlx5_*/ports/1/state 2> /dev/null | grep -c ACTIVE)" = "$count" ] && exit 0
    sleep 0.1
done
echo "not all of $count ports are active: $(cat /sys/class/infiniband/*/ports/1/state)"
exit 1
