#!/bin/bash
# One node of a Pacemaker cluster: the init process of its own mount, process, host name and network namespaces.
# $1: the node's name; $2: its folder, which holds what a node has on its own disk; $3: where corosync and Pacemaker lie unpacked, if
# they are not installed here. Ends, with all that it has started, when it is killed. What it mounts nobody else sees, and nothing is
# written outside of its folder.
set -eu
hostname "$1"
# Lay folders over one of the machine's, the first on top.
over() {
    local layers="" folder
    for folder in "${@:2}"; do
        [[ ! -d $folder ]] || layers+="$folder:"
    done
    mount -t overlay -o "lowerdir=$layers$1" overlay "$1"
}
for place in sbin lib share; do
    over "/usr/$place" "$2/usr/$place" "$3/usr/$place" "$3/$place"
done
over /etc "$2/etc"
for place in lib log; do
    over "/var/$place" "$2/points/$place"
done
for place in var/lib/corosync var/lib/pacemaker var/log/corosync var/log/pacemaker mnt; do
    mount --bind "$2/$place" "/$place"
done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/resource-agents /run/crm /run/corosync /run/lock
chown hacluster:haclient /run/crm
corosync -f >/var/log/corosync/out 2>&1 &
for _ in $(seq 200); do
    timeout 2 corosync-cmapctl -q totem.version >/dev/null 2>&1 && break
    sleep 0.05
done
exec pacemakerd -f >/var/log/pacemaker/out 2>&1
