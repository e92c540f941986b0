#!/usr/bin/env bash
# The version of nvfold, which stands in Cargo.toml and nowhere else.
#
#   scripts/version.sh           prints it
#   scripts/version.sh 0.2.0     writes it: into Cargo.toml, the lock files and CHANGELOG.md (see docs/release.md)
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
if [ $# -eq 0 ]; then
    echo "$version"
    exit
fi
new=$1
if ! [[ $new =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
    echo "version: $new is not of the form 1.2.3 or 1.2.3-rc.1 (Semantic Versioning)" >&2
    exit 2
fi
# The second place is the dependencies of the workspace on itself, which need one to be published.
sed -i "/^\[workspace.package\]/,/^version/s/^version = \".*\"$/version = \"$new\"/
    s/^\(.* path = \"crates\/.*version = \)\"[^\"]*\"\(.*\)$/\1\"$new\"\2/" Cargo.toml
sed -i "s/^## Unreleased$/## [$new]/; s/^## \[Unreleased\]$/## [$new]/" CHANGELOG.md
cargo update --workspace --quiet
cargo update --workspace --quiet --manifest-path fuzz/Cargo.toml
echo "version: $version is now $new"
