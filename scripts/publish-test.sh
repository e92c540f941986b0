#!/usr/bin/env bash
# make publish-test: packs the crates as for the registry, and compiles each from its pack, with the others from theirs. Sends nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf target/package
"${CARGO:-cargo}" publish --workspace --dry-run --locked "$@"
# What a reader there should have of each: cargo itself asks for less.
packs=$(find target/package -name "*-$(scripts/version.sh).crate" | sort)
for pack in $packs; do
    files=$(tar -tf "$pack")
    for file in README.md LICENSE-MIT LICENSE-APACHE; do
        if ! grep -q "/$file$" <<<"$files"; then
            echo "publish-test: $pack has no $file" >&2
            exit 1
        fi
    done
done
echo "publish-test: these can be published:"
for pack in $packs; do basename "$pack"; done | sort -u
