#!/bin/sh
# listening NAME PORT: waits until the command `background NAME` started, or anybody, listens at a TCP port.
port=$(printf '%04X' "$2")
until grep -q ":$port [0:]* 0A" /proc/net/tcp /proc/net/tcp6; do
    if [ -f "/tmp/$1.status" ]; then
        echo "$1 ended instead of listening:"
        cat "/tmp/$1.out"
        exit 1
    fi
    sleep 0.05
done
