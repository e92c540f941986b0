#!/usr/bin/env bash
# Brings the packages for tests/newcomer.sh into target/newcomer: first.deb, and newer.deb of a later version.
# usage: packages.sh [FIRST.deb [NEWER.deb]]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=target/newcomer
mkdir -p "$out"
rm -rf "$out"/*.deb "$out/made"

if [ $# -eq 0 ]; then
    # Made by the script that makes all packages.
    NVFOLD_PACKAGES=$out/made scripts/packages.sh deb
    set -- "$out"/made/nvfold_*.deb
fi
cp "$1" "$out/first.deb"
if [ $# -ge 2 ]; then
    cp "$2" "$out/newer.deb"
    exit
fi
# The same package under a later version.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dpkg-deb -R "$out/first.deb" "$folder/tree"
sed -i 's/^Version: .*/&+newer/' "$folder/tree/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 -b "$folder/tree" "$out/newer.deb" >/dev/null
