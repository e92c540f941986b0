#!/usr/bin/env bash
# make check: what to run after each edit. Format, lints, and the unit tests of the crates that changed: in the work tree,
# and in commits that the upstream branch does not have. Everything else is `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}

changed_files() {
    local upstream
    upstream=$(git rev-parse --quiet --verify '@{upstream}' 2>/dev/null || git rev-parse HEAD)
    git diff --name-only "$(git merge-base "$upstream" HEAD)"
    git ls-files --others --exclude-standard
}

# The directory of a crate is its name.
crates=$(changed_files | sed -n 's|^crates/\([^/]*\)/.*|\1|p; s|^lab/.*|nvfold-lab|p; s|^tests/.*|nvfold-tests|p' | sort -u)

"$CARGO" fmt --all --check
"$CARGO" clippy --workspace --all-targets --quiet -- -D warnings
if [ -z "$crates" ]; then
    echo "check: no crate has changed, so no unit tests"
    exit
fi
for crate in $crates; do
    # nvfold-cli has no library, and the others no program.
    targets=(--lib)
    [ "$crate" != nvfold-cli ] || targets=(--bins)
    # Its tests test the functions of the papers, too.
    [ "$crate" != nvfold ] || targets+=(--features papers)
    echo "check: unit tests of $crate"
    "$CARGO" test --quiet -p "$crate" "${targets[@]}"
done
