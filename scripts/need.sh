#!/usr/bin/env bash
# need.sh COMMAND=PACKAGE...: makes sure that each command is there, by installing the Debian package that
# brings it. Says what it installs; quick and silent when nothing is missing. Works as root, or with sudo.
set -euo pipefail

missing=()
for pair in "$@"; do
    # Some programs live in sbin, which a user's PATH may not hold.
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "need: there is no apt-get here; install these yourself: ${missing[*]}" >&2
    exit 1
fi
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
echo "need: installing Debian packages: ${missing[*]}"
as_root apt-get update -qq
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
