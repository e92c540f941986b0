#!/usr/bin/env bash
# The first boot of tests/newcomer.sh: from the package to a service.
here=/shared
# shellcheck source=tests/newcomer/common.sh
. "$here/common.sh"
# Each name of a program below that of the package would be found first.
hash -r

step "Install the package"
[ ! -e /usr/bin/nvfold ] || fail "nvfold was here before its package"
try dpkg -i /shared/first.deb
try nvfold --version
[ -z "$(ls -A /etc/nvfold)" ] || fail "/etc/nvfold is not empty"
for helper in mount.nvfold umount.nvfold mount.fuse.nvfold umount.fuse.nvfold mkfs.nvfold fsck.nvfold; do
    [ -x "/sbin/$helper" ] || fail "/sbin/$helper is missing"
done

step "Make a device, and mount it by mount(8): as type nvfold, and as type fuse.nvfold"
mkdir -p /var/lib/nvfold /srv/pool
try mkfs.nvfold /var/lib/nvfold/pool --size 256M
for type in nvfold fuse.nvfold; do
    try mount -t "$type" /var/lib/nvfold/pool /srv/pool
    try findmnt --noheadings /srv/pool
    echo "by $type" >"/srv/pool/by-$type"
    try umount /srv/pool
    is_clean /var/lib/nvfold/pool
done

step "Mount it by /etc/fstab, with what systemd makes of it"
cat >>/etc/fstab <<'LINES'
/var/lib/nvfold/pool   /srv/pool      nvfold  nofail,x-systemd.requires-mounts-for=/var/lib/nvfold   0 0
mem:                   /srv/scratch   nvfold  size=256M,noauto,x-systemd.automount                   0 0
LINES
try systemctl daemon-reload
try systemctl start srv-pool.mount
has 'fuse.nvfold' "$(findmnt --noheadings /srv/pool)"
try cat /srv/pool/by-nvfold
try systemctl start srv-scratch.automount
echo "mounted by its first use" >/srv/scratch/file
has 'fuse.nvfold' "$(findmnt --noheadings /srv/scratch)"
try systemctl stop srv-scratch.mount
try systemctl stop srv-scratch.automount
try mount /srv/pool -o remount,ro
try_not touch /srv/pool/file
try systemctl stop srv-pool.mount
is_clean /var/lib/nvfold/pool

step "Or by a mount unit of its own"
mkdir -p /srv/unit
sed 's|/srv/pool|/srv/unit|' /usr/share/doc/nvfold/examples/srv-pool.mount >/etc/systemd/system/srv-unit.mount
try systemd-analyze verify /etc/systemd/system/srv-unit.mount
try systemctl daemon-reload
try systemctl start srv-unit.mount
try cat /srv/unit/by-nvfold
try systemctl stop srv-unit.mount
is_clean /var/lib/nvfold/pool

step "Describe a service, and start it"
cat >/etc/nvfold/work.toml <<'TOML'
device = "/shared/device"
mountpoint = "/srv/work"
options = ["compress=zstd", "share=all"]
TOML
try nvfold mkfs /shared/device --size 512M
try nvfold serve work --step check
try systemctl enable --now nvfold@work
try systemctl status --no-pager nvfold@work
has 'Status: "Serving /shared/device .512 MiB, level .*, policy .*. on /srv/work, read-write"' \
    "$(systemctl status --no-pager nvfold@work)"
try findmnt -N 1 /srv/work

step "The server has no rights, and the mount is outside its sandbox"
server=$(systemctl show -P MainPID nvfold@work)
try grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$server/status"
has 'CapEff:.0000000000000000' "$(cat "/proc/$server/status")"
[ "$(readlink "/proc/$server/ns/mnt")" != "$(readlink /proc/1/ns/mnt)" ] || fail "it has no namespace of its own"
has '^1$' "$(findmnt -N 1 --noheadings --list -t fuse.nvfold -o TARGET | grep -c '^/srv/work$')"
# The manager keeps no copy: with one, a killed server would leave its users waiting.
has '^0$' "$(find /proc/1/fd -lname /dev/fuse | wc -l)"
try systemd-analyze verify --man=no nvfold@work.service
try systemd-analyze security --no-pager --offline=true --threshold=15 /lib/systemd/system/nvfold@.service

step "Copy, clone, snapshot"
cp -a /usr/lib/systemd /srv/work/tree
try nvfold clone /srv/work/tree /srv/work/second
same /srv/work/second
try nvfold snapshot create copied /srv/work/tree
echo changed >/srv/work/tree/changed
same /srv/work/.nvfold/snapshots/copied
try nvfold snapshot list /srv/work
try nvfold df /srv/work
runuser -u nobody -- ls /srv/work >/dev/null
try_not runuser -u nobody -- touch /srv/work/file

step "Reload: read-only and back"
sed -i 's/"share=all"/"share=all", "ro"/' /etc/nvfold/work.toml
try systemctl reload nvfold@work
try_not touch /srv/work/file
sed -i 's/, "ro"//' /etc/nvfold/work.toml
try systemctl reload nvfold@work
touch /srv/work/file

step "A mistake in the file: the journal says where"
cp /etc/nvfold/work.toml /etc/nvfold/wrong.toml
echo 'option = "ro"' >>/etc/nvfold/wrong.toml
try_not systemctl start nvfold@wrong
try journalctl --no-pager -o cat -u nvfold@wrong
has 'wrong.toml, line 4, key option: unknown field' "$(journalctl --no-pager -o cat -u nvfold@wrong)"
has '^failed$' "$(systemctl is-active nvfold@wrong || true)"
systemctl reset-failed nvfold@wrong
printf 'device = "/shared/none"\nmountpoint = "/srv/none"\n' >/etc/nvfold/none.toml
try_not systemctl start nvfold@none
has 'nvfold mkfs' "$(journalctl --no-pager -o cat -u nvfold@none)"
findmnt /srv/none && fail "the mount of a service that failed stays"
systemctl reset-failed nvfold@none

step "The server is killed: the service starts again, and recovers the device"
sync /srv/work/file
nvfold sync /srv/work
exec 9>/srv/work/open
kill -KILL "$server"
until_true test -e /srv/work/tree/changed
[ "$(systemctl show -P MainPID nvfold@work)" != "$server" ] || fail "it was not started again"
has '^1$' "$(findmnt -N 1 --noheadings --list -t fuse.nvfold -o TARGET | grep -c '^/srv/work$')"
same /srv/work/second
exec 9>&- || true
try journalctl --no-pager -o cat -n 8 -u nvfold@work

step "Stop under load, within 30 seconds; the device is clean"
mkdir /srv/work/load
for writer in 1 2 3; do
    # They end when the folder is gone.
    sh -c 'while cat /usr/lib/systemd/systemd* >/srv/work/load/$0; do :; done' "$writer" 2>/dev/null &
done
sh -c 'exec >/srv/work/held; while echo line; do :; done' 2>/dev/null &
sleep 2
before=$SECONDS
try systemctl stop nvfold@work
took=$((SECONDS - before))
# shellcheck disable=SC2046
kill $(jobs -p) 2>/dev/null || true
wait
echo "  stopped in $took s"
[ "$took" -le 30 ] || fail "it took $took s to stop"
has '^inactive$' "$(systemctl is-active nvfold@work || true)"
findmnt /srv/work && fail "the mount stays"
is_clean /shared/device
try systemctl start nvfold@work
same /srv/work/second
echo "unmounted by hand" >/srv/work/file
try umount /srv/work
is_inactive() {
    [ "$(systemctl is-active nvfold@work)" = inactive ]
}
until_true is_inactive
is_clean /shared/device
try systemctl start nvfold@work

step "The mount point is changed in the file: the old mount goes"
# All the starts of this test within a minute are many.
systemctl reset-failed nvfold@work
sed -i 's|/srv/work|/srv/moved|' /etc/nvfold/work.toml
try systemctl restart nvfold@work
findmnt /srv/work && fail "the old mount stays"
same /srv/moved/second
sed -i 's|/srv/moved|/srv/work|' /etc/nvfold/work.toml
try systemctl restart nvfold@work

step "A folder in memory for worktrees, by a drop-in"
cp /usr/share/doc/nvfold/examples/worktrees.toml /etc/nvfold/
sed -i 's/8G/256M/' /etc/nvfold/worktrees.toml
mkdir -p /etc/systemd/system/nvfold@worktrees.service.d
cp /usr/share/doc/nvfold/examples/worktrees.conf /etc/systemd/system/nvfold@worktrees.service.d/
try systemctl daemon-reload
try systemctl start nvfold@worktrees
try runuser -u nobody -- cp -r /usr/share/doc/dpkg /srv/worktrees/mine
try runuser -u nobody -- nvfold clone /srv/worktrees/mine /srv/worktrees/yours
server=$(systemctl show -P MainPID nvfold@worktrees)
try cat "/proc/$server/oom_score_adj"
try systemctl stop nvfold@worktrees
findmnt /srv/worktrees && fail "the mount stays"

step "Mount points and devices in places that the sandbox hides"
cat >/etc/nvfold/hidden.toml <<'TOML'
device = "/run/user/device"
mountpoint = "/tmp/hidden"
options = ["ro"]
TOML
try nvfold mkfs /run/user/device --size 16M
try systemctl start nvfold@hidden
has 'fuse.nvfold.*ro' "$(findmnt -N 1 --noheadings /tmp/hidden)"
sed -i 's/"ro"/"rw"/' /etc/nvfold/hidden.toml
try systemctl restart nvfold@hidden
echo data >/tmp/hidden/file
try systemctl stop nvfold@hidden
is_clean /run/user/device

step "Without root: a service of a user"
bash "$here/user.sh"

if nvfold metrics --help >/dev/null 2>&1; then
    step "Scrape metrics"
    bash "$here/metrics.sh"
fi

step "Services that use a mount start after it, and end before it"
cat >/etc/systemd/system/user-of-work.service <<'UNIT'
[Unit]
Requires=nvfold@work.service
After=nvfold@work.service
RequiresMountsFor=/srv/work
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo booted >>/srv/work/boots'
ExecStop=/bin/sh -c 'sleep 1; echo stopped >>/srv/work/boots && touch /shared/written-at-shutdown'
[Install]
WantedBy=multi-user.target
UNIT
try systemctl daemon-reload
try systemctl enable --now user-of-work.service
