#!/bin/sh
# hcas-up: loads what programs need and waits until the ports of all HCAs are active.
for module in mlx5_ib ib_uverbs ib_umad; do
    modprobe $module || exit 1
done
exec ports-active
