#!/bin/sh
# The units are gone. A purge also takes what `systemctl enable` has made of them; /etc/nvfold/*.toml stays, and so the
# folder, for these are not files of the package.
set -e
if [ "$1" = purge ]; then
    rm -f /etc/systemd/system/*.wants/nvfold@*.service /etc/systemd/user/*.wants/nvfold@*.service
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
