#!/bin/sh
# The units are new. Nothing is started, stopped or enabled: services are the administrator's (/etc/nvfold/NAME.toml).
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
