#!/bin/busybox sh
# The first process of a Linux guest: sets the machine up, then runs the scripts that the host sends on the second serial
# line. The first is the kernel's console.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
set -a
. /etc/guest
set +a
ip link set lo up
if [ -n "$ADDRESS" ]; then
    modprobe virtio_pci
    modprobe virtio_net
    ip address add "$ADDRESS/24" dev eth0
    ip link set eth0 up
fi
# A line is a number and a script, in which \n stands for a line feed and \\ for a backslash. The script's output is
# followed by a line with the number and the script's status.
serve() {
    exec 3<> /dev/ttyS1
    stty -F /dev/ttyS1 raw -echo
    echo "@ready" >&3
    while read -r number script <&3; do
        if [ "$script" = "@off" ]; then
            sync
            poweroff -f
        fi
        printf '%b' "$script" > "/run/script.$number"
        sh "/run/script.$number" < /dev/null >&3 2>&1 3>&-
        printf '\n@end %s %s\n' "$number" $? >&3
        rm -f "/run/script.$number"
    done
    echo "the host's line is closed" > /dev/console
    poweroff -f
}
# Not in this process, to which all orphans fall: the end of one, in the middle of a line, makes the shell's `read` begin anew
# without what it had read.
serve &
wait
