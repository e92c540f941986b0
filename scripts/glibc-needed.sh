#!/usr/bin/env bash
# Prints the oldest version of glibc with which programs and libraries run: the newest version of a symbol that they ask
# for. Symbols that may be missing (weak) do not count.
#
#   scripts/glibc-needed.sh FILE...
set -euo pipefail

# Lines such as `0x0010:   Name: GLIBC_2.34  Flags: none  Version: 12`.
needed=$(readelf --version-info --wide "$@" | grep -v 'Flags: WEAK' | sed -n 's/.*Name: GLIBC_\([0-9][0-9.]*\) .*/\1/p' |
    sort -Vu | tail -1)
if [ -z "$needed" ]; then
    echo "glibc-needed: $* ask for no symbol of glibc; are they linked statically?" >&2
    exit 1
fi
echo "$needed"
