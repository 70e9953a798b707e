#!/bin/bash
# One node of a Pacemaker cluster: the init process of its own mount, process, host name and network namespaces.
# $1: the node's name; $2: its folder, which holds what a node has on its own disk. Ends, with all that it has started, when it is killed.
set -eu
hostname "$1"
for place in etc/corosync var/lib/corosync var/lib/pacemaker var/log/corosync var/log/pacemaker mnt; do
    mkdir -p "/$place"
    mount --bind "$2/$place" "/$place"
done
mount -t tmpfs tmpfs /dev/shm
mount -t overlay -o "lowerdir=$2/sbin:/usr/sbin" overlay /usr/sbin
mount -t overlay -o "lowerdir=$2/resource.d:/usr/lib/ocf/resource.d" overlay /usr/lib/ocf/resource.d
mount -t tmpfs tmpfs /run
mkdir -p /run/resource-agents /run/crm /run/corosync /run/lock
chown hacluster:haclient /run/crm 2>/dev/null || true
corosync -f >/var/log/corosync/out 2>&1 &
for _ in $(seq 200); do
    timeout 2 corosync-cmapctl -q totem.version >/dev/null 2>&1 && break
    sleep 0.05
done
exec pacemakerd -f >/var/log/pacemaker/out 2>&1
