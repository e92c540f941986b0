#!/usr/bin/env bash
# The second boot of tests/newcomer.sh: what was enabled is there again; upgrade, and remove.
here=/shared
# shellcheck source=tests/newcomer/common.sh
. "$here/common.sh"

step "After the reboot all is mounted again, in order"
until_true systemctl is-active user-of-work
try findmnt -N 1 --list -t fuse.nvfold
has 'fuse.nvfold' "$(findmnt --noheadings /srv/pool)"
try cat /srv/work/boots
[ "$(cat /srv/work/boots)" = "$(printf 'booted\nstopped\nbooted')" ] || fail "the order of boot and shutdown"
same /srv/work/second
try systemctl disable --now user-of-work

step "Upgrade: the configuration is kept, and so is what is mounted"
sed -i 's/^# .*//' /etc/nvfold/worktrees.toml
sum=$(cat /etc/nvfold/*.toml | md5sum)
server=$(systemctl show -P MainPID nvfold@work)
try dpkg -i /shared/newer.deb
[ "$sum" = "$(cat /etc/nvfold/*.toml | md5sum)" ] || fail "the configuration has changed"
[ "$server" = "$(systemctl show -P MainPID nvfold@work)" ] || fail "the upgrade has ended a mount in use"
same /srv/work/second
try systemctl restart nvfold@work
same /srv/work/second
try nvfold --version

step "Remove: the mounts end first, the configuration and the data stay"
try systemctl disable --now nvfold@work
try umount /srv/pool
try dpkg -r nvfold
hash -r
if [ -e /usr/bin/nvfold ] || [ -e /sbin/mount.nvfold ]; then fail "programs stay"; fi
try ls /etc/nvfold
if [ ! -s /shared/device ] || [ ! -s /var/lib/nvfold/pool ]; then fail "data was removed"; fi
[ -z "$(findmnt --list --noheadings -t fuse.nvfold)" ] || fail "a mount stays"
