#!/usr/bin/env bash
# Scrapes the metrics of the service: through the mount, from a socket in its runtime directory, and from a port.
here=/shared
# shellcheck source=tests/newcomer/common.sh
. "$here/common.sh"

port=9617
scrape() { # port
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    cat <&3
    exec 3>&-
}

try sh -c 'nvfold metrics /srv/work | head -5'
has '^nvfold_' "$(nvfold metrics /srv/work)"
echo 'metrics = "unix:/run/nvfold/work/metrics"' >>/etc/nvfold/work.toml
systemctl reset-failed nvfold@work
try systemctl restart nvfold@work
[ -S /run/nvfold/work/metrics ] || fail "there is no socket"
sed -i "s|unix:/run/nvfold/work/metrics|127.0.0.1:$port|" /etc/nvfold/work.toml
mkdir -p /etc/systemd/system/nvfold@work.service.d
cp /usr/share/doc/nvfold/examples/metrics-port.conf /etc/systemd/system/nvfold@work.service.d/
try systemctl daemon-reload
try systemctl restart nvfold@work
has '^nvfold_' "$(scrape "$port")"
rm -r /etc/systemd/system/nvfold@work.service.d
sed -i '/^metrics/d' /etc/nvfold/work.toml
systemctl daemon-reload
try systemctl restart nvfold@work
