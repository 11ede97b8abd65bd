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
[ "$2" = cm ] || exit 0
# Linux shows the state shortly before its CM knows the service: the program is ready once its threads wait. One that polls
# never does, so this ends after two seconds.
sleep 0.2
pids=$(rdma resource show cm_id | sed -n "s|.*state LISTEN.* pid \([0-9]*\) comm $3 .*|/proc/\1|p" | sort -u)
[ -n "$pids" ] || exit 0
for wait in $(seq 18); do
    cat $(printf '%s/task/*/status ' $pids) | grep -q '^State:.[RD]' || exit 0
    sleep 0.1
done
