#!/usr/bin/env bash
# make bench: writes, reads and metadata, each beside the raw limit and other file systems, in one run each.
# Tables on the terminal; the same and bar charts in target/bench/. BENCH_ARGS is handed on, for example
# BENCH_ARGS="--repeats 9" make bench.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
OUT=target/bench

scripts/need.sh fusermount3=fuse3 mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs
mkdir -p "$OUT"
read -r -a extra <<<"${BENCH_ARGS:-}"
for what in write read meta; do
    printf '\n== %s\n' "$what"
    "$NVFOLD" bench "$what" "${extra[@]}" --plot "$OUT/$what.svg" | tee "$OUT/$what.txt"
done
echo
echo "bench: tables and charts are in $OUT"
