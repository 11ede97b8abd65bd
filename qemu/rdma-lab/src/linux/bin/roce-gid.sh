#!/bin/sh
# roce-gid [DEVICE [4|6]]: prints the index of the first GID for RoCE v2 of an IPv4 address, or of a global IPv6 address.
device=${1:-$(ls /sys/class/infiniband | head -n 1)}
port=/sys/class/infiniband/$device/ports/1
case ${2:-4} in
    4) address=0000:0000:0000:0000:0000:ffff: ;;
    6) address=fd78: ;;
esac
for index in $(seq 0 31); do
    [ "$(cat "$port/gid_attrs/types/$index" 2> /dev/null)" = "RoCE v2" ] || continue
    case $(cat "$port/gids/$index") in
        $address*)
            echo "$index"
            exit 0
            ;;
    esac
done
exit 1
