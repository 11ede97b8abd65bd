#!/bin/sh
# background NAME COMMAND...: starts a command whose output and status `reap NAME` shows.
name=$1
shift
rm -f "/tmp/$name.out" "/tmp/$name.status"
: > "/tmp/$name.out"
(
    "$@" > "/tmp/$name.out" 2>&1 &
    echo $! > "/tmp/$name.pid"
    wait $!
    echo $? > "/tmp/$name.end"
    mv "/tmp/$name.end" "/tmp/$name.status"
) < /dev/null > /dev/null 2>&1 &
