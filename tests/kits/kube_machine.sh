#!/bin/bash
# Pid 1 of one machine of tests/kits/kube_cluster.py, inside its own namespaces: LAB NAME KUBELET
# It makes the machine's own /tmp, /run, /sys and /var/lib, waits for its network, and runs containerd and the kubelet.
LAB=$1 NAME=$2 KUBELET=$3
HERE=$LAB/machines/$NAME
hostname "$NAME"
while [ ! -e "$HERE/network" ]; do sleep 0.02; done

keep=/mnt
mount -t tmpfs none "$keep"
mkdir "$keep/lab" "$keep/cgroup"
mount --bind "$LAB" "$keep/lab"
mount --rbind /sys/fs/cgroup "$keep/cgroup"
mount -t sysfs sysfs /sys # or /sys/class/net is the host's
mount --rbind "$keep/cgroup" /sys/fs/cgroup
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=755 none /run
mkdir -p "$LAB"
mount --bind "$keep/lab" "$LAB"
mount --bind "$HERE/lib" /var/lib
mount --bind "$HERE/log" /var/log
umount -l "$keep"
cd / || exit 1
if [ "$NAME" != login ]; then
    echo 1 >/proc/sys/net/ipv4/ip_forward
    containerd -c "$HERE/containerd.toml" >"$HERE/containerd.log" 2>&1 &
    until ctr -n k8s.io images ls >/dev/null 2>&1; do sleep 0.1; done
    for image in "$LAB"/images/*.tar; do ctr -n k8s.io images import "$image" >>"$HERE/images.log" 2>&1; done
    "$KUBELET" --kubeconfig="$LAB/admin.conf" --config="$HERE/kubelet.json" --hostname-override="$NAME" \
        --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
        --node-ip="$(cat "$HERE/network")" --v=2 >"$HERE/kubelet.log" 2>&1 &
fi
while :; do # reaps what is left behind, and lives on when a daemon is killed
    wait
    sleep 1
done
