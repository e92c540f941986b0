#!/usr/bin/env bash
# make publish-test: packs the crates as for crates.io, and compiles each from its pack, with the others from theirs. Sends nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

"${CARGO:-cargo}" publish --workspace --dry-run --locked "$@"
# What a reader of crates.io should have of each: cargo itself asks for less.
for pack in target/package/*-"$(scripts/version.sh)".crate; do
    for file in README.md LICENSE-MIT LICENSE-APACHE; do
        if ! tar -tf "$pack" | grep -q "/$file$"; then
            echo "publish-test: $pack has no $file" >&2
            exit 1
        fi
    done
done
echo "publish-test: $(find target/package -maxdepth 1 -name '*.crate' | wc -l) crates can be published"
