#!/usr/bin/env bash
# What an ordinary user does without root: a service manager of his own, fusermount3, and what a user may not do.
here=/shared
# shellcheck source=tests/newcomer/common.sh
. "$here/common.sh"

useradd --create-home newcomer
user=$(id -u newcomer)
home=$(getent passwd newcomer | cut -d: -f6)
install -d -o newcomer -m 700 "/run/user/$user"
cat >/etc/systemd/system/user-manager.service <<UNIT
[Service]
User=newcomer
Type=notify
Environment=XDG_RUNTIME_DIR=/run/user/$user
ExecStart=/lib/systemd/systemd --user
Delegate=yes
KillMode=mixed
UNIT
try systemctl daemon-reload
try systemctl start user-manager
# Not so while a dead mount is there.
answers() {
    case $(stat "$1" 2>&1) in *'not connected'*) return 1 ;; esac
}
as_user() {
    runuser -u newcomer -- env -C "$home" HOME="$home" "XDG_RUNTIME_DIR=/run/user/$user" "$@"
}

as_user mkdir -p .config/nvfold
as_user cp /usr/share/doc/nvfold/examples/user.toml .config/nvfold/scratch.toml
sed -i 's/2G/256M/' "$home/.config/nvfold/scratch.toml"
try as_user nvfold serve scratch --step check
try as_user systemctl --user enable --now nvfold@scratch
try as_user systemctl --user status --no-pager nvfold@scratch
as_user cp -r /usr/share/doc/dpkg scratch/tree
try as_user nvfold clone scratch/tree scratch/second
try findmnt -N 1 "$home/scratch"
echo "Nobody else may use it, not even root:"
try_not ls "$home/scratch"
echo "With allow_other others may, if /etc/fuse.conf has user_allow_other:"
echo 'options = ["allow_other"]' >>"$home/.config/nvfold/scratch.toml"
sed -i '/^user_allow_other/d' /etc/fuse.conf
try_not as_user systemctl --user restart nvfold@scratch
echo user_allow_other >>/etc/fuse.conf
as_user systemctl --user reset-failed nvfold@scratch
try as_user systemctl --user start nvfold@scratch
as_user cp -r /usr/share/doc/dpkg scratch/tree
try ls "$home/scratch"
sed -i '/^user_allow_other/d' /etc/fuse.conf

echo "A server that is killed leaves no dead mount point:"
kill -KILL "$(as_user systemctl --user show -P MainPID nvfold@scratch)"
sleep 0.5
until_true answers "$home/scratch"
as_user systemctl --user stop nvfold@scratch
findmnt "$home/scratch" && fail "the mount stays"
echo "The directory must be the user's own:"
cat >"$home/.config/nvfold/foreign.toml" <<'TOML'
device = "mem:"
size = "16M"
mountpoint = "/srv"
TOML
try_not as_user systemctl --user start nvfold@foreign
try systemctl stop user-manager
