#!/bin/sh
# tell WORD: lets other guests' `await` go on; by a web server, which knows nothing else.
mkdir -p /run/told
: > "/run/told/$1"
[ -f /run/told.pid ] || {
    httpd -f -p 8077 -h /run/told &
    echo $! > /run/told.pid
}
