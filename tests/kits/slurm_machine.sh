#!/bin/bash
# Pid 1 of one machine of tests/kits/slurm_cluster.py, inside its own namespaces: LAB NAME [BLOCKED PATH]...
# It makes the machine's own /tmp, /dev/shm, /sys and /etc, waits for its network, and runs Slurm's daemons.
LAB=$1 NAME=$2
shift 2
hostname "$NAME"
while [ ! -e "$LAB/run/$NAME.network" ]; do sleep 0.02; done

keep=/mnt
mount -t tmpfs none "$keep"
mkdir "$keep/lab" "$keep/cgroup"
mount --bind "$LAB" "$keep/lab"
mount --rbind /sys/fs/cgroup "$keep/cgroup"
number=0
for pair in "$@"; do # what users must reach below a folder that they cannot enter (a Python below /root)
    mkdir "$keep/$((number += 1))"
    mount --bind "${pair#*:}" "$keep/$number"
done
mount -t sysfs sysfs /sys # or /sys/class/net is the host's
mount --rbind "$keep/cgroup" /sys/fs/cgroup
number=0
covered=
for pair in "$@"; do
    case " $covered " in *" ${pair%%:*} "*) ;; *) mount -t tmpfs -o mode=755 none "${pair%%:*}"; covered="$covered ${pair%%:*}" ;; esac
    mkdir -p "${pair#*:}"
    mount --bind "$keep/$((number += 1))" "${pair#*:}"
done
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o mode=755 none /run
mount -t tmpfs -o mode=755 none /var/log
mkdir -p "$LAB"
mount --bind "$keep/lab" "$LAB"
# a copy: single files cannot be mounted over, a useradd on this machine would take the mount away
mount --bind "$LAB/run/etc" /etc
umount -l "$keep"
cd / || exit 1
if [ "$NAME" = login ]; then
    munge=$LAB/run/munge
    munged --force --key-file="$munge/key" --socket="$munge/socket" --pid-file="$munge/pid" --log-file="$munge/log" \
        --seed-file="$munge/seed"
    slurmctld -D -f /etc/slurm/slurm.conf &
else
    slurmd -D -N "$NAME" -f /etc/slurm/slurm.conf &
fi
while :; do # reaps what is left behind, and lives on when the daemon is killed
    wait
    sleep 1
done
