#!/usr/bin/env bash
# Boots a systemd of its own over a throw-away copy of this machine's root. It sees neither the host's
# /tmp, /var/tmp and /run nor its processes, network or other mounts; everything it writes is in memory
# and gone with it.
#
#   boot.sh NAME MOUNTPOINT STAGE     NAME: of its cgroups; STAGE: a tree laid over the root
#
# It ends by `systemctl poweroff` inside, or with the process it was started by.
set -eu
name=$1 overlay=$2 stage=$3
export overlay stage

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    export hierarchies='' unified=/sys/fs/cgroup
    mkdir -p "/sys/fs/cgroup/$name"
    echo $$ >"/sys/fs/cgroup/$name/cgroup.procs"
else
    # Of version 1 every hierarchy there is: systemd writes into each, and not into the host's groups.
    export hierarchies='' unified=/sys/fs/cgroup/unified
    for place in /sys/fs/cgroup/*/; do
        place=${place%/} hierarchy=$(basename "$place")
        [ ! -L "$place" ] || continue
        mkdir -p "$place/$name"
        if [ "$hierarchy" = cpuset ]; then
            for file in cpuset.cpus cpuset.mems; do
                cat "$place/$file" >"$place/$name/$file"
            done
        fi
        echo $$ >"$place/$name/cgroup.procs"
        case $hierarchy in systemd | unified) ;; *) hierarchies="$hierarchies $hierarchy" ;; esac
    done
fi

# shellcheck disable=SC2016
exec unshare --mount --pid --fork --kill-child=KILL --cgroup --ipc --uts --net --propagation private \
    bash -euc '
mount -t tmpfs -o size=2g,mode=755 overlay "$overlay"
mkdir "$overlay/upper" "$overlay/work" "$overlay/root"
root=$overlay/root
mount -t overlay -o "lowerdir=/,upperdir=$overlay/upper,workdir=$overlay/work" overlay "$root"
# Debian empties /tmp at boot: these three are never the host'\''s.
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=1777 tmp "$root/var/tmp"
# Nor what root keeps at home: settings of pip, keys.
mount -t tmpfs -o mode=700 home "$root/root"
for place in run tmp var/tmp root; do
    mountpoint -q "$root/$place"
    [ -z "$(ls -A "$root/$place")" ]
done
cp -a "$stage/." "$root/"
chroot "$root" sh -c "getent passwd postgres || useradd --system postgres" >/dev/null
: >"$root/etc/machine-id"
: >"$root/etc/fstab"
ip link set lo up

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
if [ -n "$hierarchies" ]; then
    mount -t tmpfs -o mode=755 cgroup "$root/sys/fs/cgroup"
    for hierarchy in $hierarchies; do
        mkdir "$root/sys/fs/cgroup/$hierarchy"
        mount -t cgroup -o "$hierarchy" cgroup "$root/sys/fs/cgroup/$hierarchy"
    done
    mkdir "$root/sys/fs/cgroup/systemd" "$root$unified"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
fi
mount -t cgroup2 cgroup2 "$root$unified"

mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"

mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount -l /.old
# Units with credentials get mounts of their own from PID 1: they must spread.
mount --make-rshared /
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --show-status=false
'
