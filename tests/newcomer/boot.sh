#!/usr/bin/env bash
# Becomes PID 1 of a machine: systemd over the root of SCRATCH. usage, in new namespaces: boot.sh SCRATCH TREE
set -euo pipefail
scratch=$1
tree=$2
cd "$scratch/root"

mount --make-rprivate /
mount --bind "$scratch/root" "$scratch/root"
cd "$scratch/root"
mount -t proc proc proc
mount --rbind /sys sys
umount -R sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p shared
mount --bind "$scratch/shared" shared

# Devices of its own: what systemd makes in /dev must not be seen by the host.
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm dev/mqueue
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
    IFS=: read -r name major minor <<<"$node"
    mknod -m 666 "dev/$name" c "$major" "$minor"
done
# For automount units, where the kernel has them.
[ ! -c "/dev/autofs" ] || mknod -m 600 dev/autofs c 10 "$(stat -c %T /dev/autofs | sed 's/^/0x/' | xargs printf %d)"
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "dev/${number#*:}"; done

# A newcomer has no work tree, no services but those of systemd, and no file systems of the host.
[ -e etc/newcomer ] || {
    touch etc/newcomer
    rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires
    : >etc/fstab
    rm -f etc/machine-id
    systemd-id128 new >etc/machine-id
    echo newcomer >etc/hostname
}
[ ! -d ".$tree" ] || mount -t tmpfs -o size=4k,mode=755 tmpfs ".$tree"

mkdir -p old
pivot_root . old
umount -l /old
rmdir /old
# As systemd makes it, but not in a container.
mount --make-rshared /
# What is global to the kernel stays out, and there is no terminal.
mkdir -p /run/systemd/system
for unit in systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-modules-load.service systemd-sysctl.service \
    systemd-udevd.service systemd-udev-trigger.service systemd-journald-audit.socket systemd-networkd.service \
    getty.target console-getty.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-kernel-config.mount modprobe@.service systemd-timesyncd.service systemd-resolved.service systemd-logind.service \
    dbus.service dbus.socket; do
    ln -sf /dev/null "/run/systemd/system/$unit"
done
export container=unshare
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=0
