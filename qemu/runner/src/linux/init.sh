#!/bin/busybox sh
# The first process of the Linux guest: runs the script that the host handed over (-fw_cfg name=opt/run),
# says its status on the console and powers the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ip link set lo up
modprobe qemu_fw_cfg
script=/sys/firmware/qemu_fw_cfg/by_name/opt/run/raw
if [ -r $script ]; then
    cat $script > /tmp/run
    echo "@begin"
    sh /tmp/run < /dev/null 2>&1
    echo "@status $?"
else
    echo "no script came with the guest (-fw_cfg name=opt/run,file=...)"
    echo "@status 127"
fi
poweroff -f
