#!/usr/bin/env bash
# make book: builds the pages of docs/ and of the top level into target/book, in the order of docs/SUMMARY.md, and checks
# every link and every picture of what was built. Fetches and compiles mdBook once, into target/tools.
set -euo pipefail
cd "$(dirname "$0")/.."

MDBOOK_VERSION=0.5.4
MDBOOK=${MDBOOK:-target/tools/bin/mdbook}
PAGES=target/book-pages
OUT=target/book

scripts/need.sh python3=python3
if [ "$("$MDBOOK" --version 2>/dev/null)" != "mdbook v$MDBOOK_VERSION" ]; then
    echo "book: compiling mdBook $MDBOOK_VERSION into target/tools, once (some minutes)"
    MDBOOK=target/tools/bin/mdbook
    # Without its server, and hardly optimised: that takes longer to compile than all builds of the book.
    "${CARGO:-cargo}" install mdbook --version "=$MDBOOK_VERSION" --locked --no-default-features --features search \
        --debug --root target/tools --target-dir target/tools/mdbook-build
    rm -rf target/tools/mdbook-build
fi

rm -rf "$PAGES" "$OUT"
# The pages keep their places beside one another, and so do the files of the repository that they link to.
scripts/book.py gather "$PAGES"
"$MDBOOK" build
scripts/book.py check "$OUT"
