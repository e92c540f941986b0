#!/usr/bin/env bash
# Prints the licences of the crates that the command and the libraries contain: a list, then each text once.
#
#   scripts/notices.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Lines such as `libc v0.2.180 MIT OR Apache-2.0`. The crates of the workspace have a path in parentheses.
crates=$(cargo tree --locked -p nvfold-cli -p nvfold-c -p nvfold-preload -e normal,build --prefix none --no-dedupe \
    --format '{p} {l}' | grep -v -e ' (/' -e '^$' | sed 's/ (proc-macro)//' | LC_ALL=C sort -u)
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src

echo 'nvfold contains these crates, each under the licence named (its texts follow):'
echo
awk '{ name = $1; version = substr($2, 2); $1 = $2 = ""; printf "%s %s:%s\n", name, version, $0 }' <<<"$crates"

texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT
while read -r name version _; do
    for folder in "$sources"/*/"$name-${version#v}"; do
        # Programs of others that a crate brings as source, zstd for example, lie in a folder of it.
        for file in "$folder"/{LICEN[CS]E,COPYING,NOTICE,UNLICENSE}* "$folder"/*/{LICEN[CS]E,COPYING}; do
            [ -f "$file" ] || continue
            sum=$(tr -d '\r' <"$file" | sha256sum | cut -c1-16)
            [ -e "$texts/$sum" ] || tr -d '\r' <"$file" >"$texts/$sum"
            echo "$name $version" >>"$texts/$sum.crates"
        done
    done
done <<<"$crates"
for crates in "$texts"/*.crates; do
    printf '\n%s\n' "------------------------------------------------------------------------------"
    sort -u "$crates" | awk '{ printf "%s%s", (NR > 1 ? ", " : ""), $1 }' | fold -s -w 78
    printf '\n\n'
    cat "${crates%.crates}"
done
