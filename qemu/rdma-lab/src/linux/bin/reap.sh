#!/bin/sh
# reap NAME: waits for the command that `background NAME` started, shows its output and ends with its status.
while [ ! -f "/tmp/$1.status" ]; do
    sleep 0.05
done
cat "/tmp/$1.out"
exit "$(cat "/tmp/$1.status")"
