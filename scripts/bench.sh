#!/usr/bin/env bash
# make bench: writes, reads, metadata, clones and recovery, each beside what it is compared with, in one run each. Tables
# on the terminal and in target/bench/, with the tables of docs/benchmarks.md (`make bench-page`).
# BENCH_ARGS is handed on to write, read and meta, for example BENCH_ARGS="--repeats 9" make bench.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
OUT=target/bench
# Results name what they were made from; "-dirty" if that is no commit.
# shellcheck source=scripts/commit.sh
. scripts/commit.sh

scripts/need.sh fusermount3=fuse3 mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs
mkdir -p "$OUT"
read -r -a extra <<<"${BENCH_ARGS:-}"
for what in write read meta; do
    printf '\n== %s\n' "$what"
    "$NVFOLD" bench "$what" "${extra[@]}" --summary "$OUT/$what.md" | tee "$OUT/$what.txt"
done
for what in clone recovery; do
    printf '\n== %s\n' "$what"
    "$NVFOLD" bench "$what" | tee "$OUT/$what.txt"
    printf '```text\n%s\n```\n' "$(sed 's/[ \t]*$//' "$OUT/$what.txt")" >"$OUT/$what.md"
done
echo
echo "bench: tables of $NVFOLD_COMMIT are in $OUT"
