#!/usr/bin/env bash
# The part of tests/packages.sh that runs in a namespace with a root of its own: installs, uses, upgrades and removes
# the deb.
set -euo pipefail
step() { printf -- '-- %s\n' "$*"; }
fail() { echo "package-test: $*" >&2; exit 1; }
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
# dpkg may have been told to leave out documentation, as in images of containers.
rm -f /etc/dpkg/dpkg.cfg.d/docker /etc/dpkg/dpkg.cfg.d/excludes
cd /srv/packages
device=/srv/pool fold=/srv/fold

step "install version $BEFORE"
dpkg --install before/nvfold_*.deb before/libnvfold0_*.deb before/libnvfold-dev_*.deb >/srv/log 2>&1 || { cat /srv/log; exit 1; }
[ "$(dpkg-query -W -f '${Version}' nvfold)" = "$BEFORE-1" ] || fail "the version before is not installed"
nvfold --version
for helper in {mount,umount,mount.fuse,umount.fuse,mkfs,fsck,fsck.fuse}.nvfold; do
    [ -x "/sbin/$helper" ] || fail "/sbin/$helper is missing"
done
man --where nvfold nvfold-mount >/dev/null
[ "$(man --where 8 mount.nvfold | xargs -n1 basename)" = nvfold-mount.1.gz ] || man --where 8 mount.nvfold
man 8 mkfs.nvfold | grep 'nvfold-mkfs, mkfs.nvfold' >/dev/null || fail "man mkfs.nvfold shows another page"
bash -c '. /usr/share/bash-completion/completions/nvfold && complete -p nvfold' >/dev/null
[ -z "$(ls -A /etc/nvfold)" ] || fail "the package has put something into /etc/nvfold"

step "configure as an administrator does"
printf 'device = "%s"\nmountpoint = "%s"\n# mine\n' "$device" "$fold" >/etc/nvfold/pool.toml
chmod 600 /etc/nvfold/pool.toml
echo "$device $fold fuse.nvfold allow_other,noauto 0 0" >>/etc/fstab
configured() { cat /etc/nvfold/pool.toml; stat -c '%a %Y' /etc/nvfold/pool.toml; }
at_first=$(configured)

step "make a device, import $TREE, mount it by /etc/fstab"
mkfs.nvfold "$device" --size 1G
nvfold import "$device" "$TREE"
mkdir -p "$fold"
mount "$fold"
name=$(basename "$TREE")
diff -r --no-dereference "$TREE" "$fold/$name"

step "clone the tree"
nvfold clone "$fold/$name" "$fold/clone"
diff -r --no-dereference "$TREE" "$fold/clone"
server=$(pgrep -f "background-child.*$device")

step "upgrade to $VERSION beside the mount"
dpkg --install nvfold_*.deb libnvfold0_*.deb libnvfold-dev_*.deb nvfold-dbgsym_*.deb >/srv/log 2>&1 || { cat /srv/log; exit 1; }
[ "$(dpkg-query -W -f '${Version}' nvfold)" = "$VERSION-1" ] || fail "the upgrade did not happen"
[ "$(configured)" = "$at_first" ] || fail "the upgrade changed the configuration"
[ "$(pgrep -f "background-child.*$device")" = "$server" ] || fail "the upgrade ended the server of a mount"
echo after >"$fold/clone/after-the-upgrade"
nvfold df "$fold"
umount "$fold"
[ ! -e "/proc/$server" ] || fail "umount returned before the server was done"

step "check and export"
fsck.nvfold -n "$device"
nvfold export "$device" /srv/exported
diff -r --no-dereference "$TREE" "/srv/exported/$name"
[ "$(cat /srv/exported/clone/after-the-upgrade)" = after ] || fail "what was written after the upgrade is lost"

step "debug information is found by its build-id"
for file in /usr/bin/nvfold /usr/lib/nvfold/libnvfold_preload.so /usr/lib/x86_64-linux-gnu/libnvfold.so.0; do
    build_id=$(readelf -n "$file" | sed -n 's/.*Build ID: *//p')
    [ -e "/usr/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug" ] || fail "no debug information of $file"
    ! readelf -S --wide "$file" | grep '\.debug_info\|\.symtab' >/dev/null || fail "$file is not stripped"
done

step "a C program with the library, and a program under nvfold run"
# shellcheck disable=SC2046 # words
cc tour.c -o /srv/tour $(pkg-config --cflags --libs nvfold)
/srv/tour >/dev/null
# shellcheck disable=SC2046
cc tour.c -o /srv/tour-static $(pkg-config --cflags nvfold) -l:libnvfold.a -lgcc_s -lpthread -ldl -lrt -lm
/srv/tour-static >/dev/null
nvfold run --device "$device" -- cp /etc/fstab /nvfold/copied
nvfold run --device "$device" -- cat /nvfold/copied | diff - /etc/fstab

step "remove it beside a mount, which stays"
nvfold mount "$device" "$fold"
dpkg --remove libnvfold-dev libnvfold0 nvfold-dbgsym nvfold >/srv/log 2>&1 || { cat /srv/log; exit 1; }
grep -q "$fold" /srv/log || fail "the removal does not say that $fold is mounted"
[ ! -e /usr/bin/nvfold ] || fail "the command is still there"
diff -r --no-dereference "$TREE" "$fold/$name"
umount "$fold"
[ "$(configured)" = "$at_first" ] || fail "the removal changed the configuration"

step "purge it: what it has installed is gone, what the administrator made is not"
dpkg --purge libnvfold-dev libnvfold0 nvfold-dbgsym nvfold >/srv/log 2>&1 || { cat /srv/log; exit 1; }
left=$(find /usr /etc /var/lib/systemd -name '*nvfold*' ! -path /etc/nvfold ! -path '/usr/local/*' ! -path '/usr/src/*')
[ -z "$left" ] || fail "the purge leaves: $left"
[ "$(configured)" = "$at_first" ] || fail "the purge changed the configuration"
[ -s "$device" ] || fail "the purge took the device"
echo "-- done"
