#!/bin/sh
# await GUEST WORD: waits until the guest of that name has told the word.
[ $# = 2 ] || {
    echo "usage: await GUEST WORD, as in: await guest0 ready"
    exit 2
}
for wait in $(seq 6000); do
    wget -q -O /dev/null "http://$1:8077/$2" 2> /dev/null && exit 0
    sleep 0.1
done
echo "$1 does not tell $2"
exit 1
