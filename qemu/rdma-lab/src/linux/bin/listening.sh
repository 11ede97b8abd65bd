#!/bin/sh
# listening NAME PORT: waits until the command `background NAME` started, or anybody, listens at a TCP port.
# listening NAME cm PROGRAM: waits until PROGRAM listens by RDMA-CM.
# listening NAME says TEXT: waits until the command has printed a line that begins with TEXT, and prints it.
if [ "$2" = says ]; then
    listens() { grep "^$3" "/tmp/$1.out"; }
elif [ "$2" = cm ]; then
    listens() { rdma resource show cm_id | grep -q "state LISTEN.* comm $3 "; }
else
    port=$(printf '%04X' "$2")
    listens() { grep -q ":$port [0:]* 0A" /proc/net/tcp /proc/net/tcp6; }
fi
until listens "$@"; do
    if [ -f "/tmp/$1.status" ]; then
        echo "$1 ended instead of listening:"
        cat "/tmp/$1.out"
        exit 1
    fi
    sleep 0.05
done
