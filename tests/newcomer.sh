#!/usr/bin/env bash
# What a newcomer does with the package alone, in a machine of its own: install, make a device, mount it by fstab, by a mount
# unit and by the service, copy, clone, snapshot, scrape metrics, kill a server, stop under load, reboot, upgrade, remove.
#
# usage: tests/newcomer.sh [PACKAGE.deb [NEWER.deb]]      without arguments the packages are made first
#
# The machine is a real systemd as PID 1 in namespaces, over an overlay of this root: nothing of the host is written, and
# the work tree is hidden from it. It is booted twice. Needs root and /dev/fuse; installs systemd and fuse3 if they are
# missing. Fails at the first error, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ] || [ ! -c /dev/fuse ]; then
    echo "newcomer: skipped: it needs root and /dev/fuse"
    [ "${CI:-}" != true ] || exit 1
    exit 0
fi
if [ "${NEWCOMER_INSIDE:-}" != yes ]; then
    scripts/need.sh systemctl=systemd unshare=util-linux nsenter=util-linux fusermount3=fuse3 useradd=passwd \
        setpriv=util-linux dpkg-deb=dpkg
    tests/newcomer/packages.sh "$@"
    # All mounts below are of this process and its children, and end with them.
    NEWCOMER_INSIDE=yes exec unshare --mount --propagation private "$0" "$@"
fi

tree=$PWD
scratch=$(mktemp -d "${TMPDIR:-/tmp}/newcomer.XXXXXX")
group=
machine=
clean_up() {
    status=$?
    trap '' INT TERM
    [ -z "$machine" ] || kill -KILL "$machine" 2>/dev/null || true
    { wait; } 2>/dev/null || true
    umount -l "$scratch" 2>/dev/null || true
    rmdir "$scratch" 2>/dev/null || true
    if [ -n "$group" ]; then
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    fi
    exit "$status"
}
trap clean_up EXIT

# The root of the machine, which outlives a reboot.
mount -t tmpfs -o size=2g,mode=755 tmpfs "$scratch"
mkdir -p "$scratch"/{upper,work,root,shared}
cp target/newcomer/*.deb "$scratch/shared"
cp -r tests/newcomer/. docs/operating "$scratch/shared"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"

# A control group of its own, where the host has the second version.
unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
if [ -n "$unified" ] && mkdir "$unified/newcomer-$$" 2>/dev/null; then
    group=$unified/newcomer-$$
fi

boot() {
    (
        [ -z "$group" ] || echo "$BASHPID" >"$group/cgroup.procs"
        exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child=KILL \
            tests/newcomer/boot.sh "$scratch" "$tree" >"$scratch/console" 2>&1
    ) &
    machine=$!
    for _ in $(seq 300); do
        init=$(pgrep -P "$machine" -x systemd || true)
        # systemctl waits until the boot is over.
        if [ -n "$init" ] && inside systemctl is-system-running >/dev/null 2>&1; then
            return
        fi
        case $(inside systemctl is-system-running 2>/dev/null || true) in
            degraded) inside systemctl --failed --no-pager; echo "newcomer: a unit has failed"; return 1 ;;
        esac
        sleep 0.1
    done
    cat "$scratch/console"
    echo "newcomer: the machine does not boot" >&2
    return 1
}

inside() {
    nsenter -t "$init" -a -- "$@"
}

run_steps() { # script
    inside env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TERM=dumb \
        SYSTEMD_PAGER=cat timeout --kill-after=5 300 bash /shared/"$1" || {
        inside journalctl --no-pager -b -n 25 || true
        echo "newcomer: $1 has failed" >&2
        return 1
    }
}

# What the page of the service says is what is run here.
# shellcheck disable=SC2016
sed -n '/^```sh$/,/^```$/{/^```/d;p}' docs/operating/service.md | while read -r command; do
    grep -qF -- "$command" tests/newcomer/*.sh ||
        { echo "newcomer: no step runs what docs/operating/service.md says: $command" >&2; exit 1; }
done

SECONDS=0
boot
run_steps first.sh
echo "== Power off: the services that use a mount end first, and the devices are left clean"
inside systemctl poweroff --no-wall >/dev/null 2>&1 || true
wait "$machine" || true
machine=
dpkg-deb -x "$scratch/shared/first.deb" "$scratch/package"
for device in "$scratch/shared/device" "$scratch/upper/var/lib/nvfold/pool"; do
    "$scratch/package/usr/bin/nvfold" info --json "$device" | grep '"clean": *true' >/dev/null ||
        { echo "newcomer: $device is not clean" >&2; exit 1; }
done
[ -e "$scratch/shared/written-at-shutdown" ] || { echo "newcomer: the mount was gone too early" >&2; exit 1; }

boot
run_steps second.sh
kill -KILL "$machine"
{ wait "$machine"; } 2>/dev/null || true
machine=
echo "newcomer: all steps passed in $SECONDS s"
