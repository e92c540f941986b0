#!/usr/bin/env bash
# LevelDB on mounts of nvfold compared with LevelDB on tmpfs: random puts over the same keys twice, then random gets of
# which each is compared. Prints the median rates, and their ratio to tmpfs.
#
#   scripts/leveldb.sh [OPTIONS...]      mount options to compare; default: "" policy=off policy=inline
#   LEVELDB_PAIRS=1000000                pairs of 16 bytes of key and 100 bytes of value
#   LEVELDB_REPEATS=5                    passes; in each pass all places are measured one after another
#   NVFOLD_BIN=path                      default: target/release/nvfold
#
# LevelDB compresses (Snappy). Needs root (tmpfs); installs a C++ compiler and libleveldb-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
PAIRS=${LEVELDB_PAIRS:-1000000}
REPEATS=${LEVELDB_REPEATS:-5}
scripts/need.sh c++=g++ mountpoint=util-linux python3=python3 fusermount3=fuse3
[ -f /usr/include/leveldb/db.h ] || scripts/need.sh leveldb-headers=libleveldb-dev

if [ $# -gt 0 ]; then MOUNTS=("$@"); else MOUNTS=("" policy=off policy=inline); fi
WORK=$(mktemp -d /dev/shm/nvfold-leveldb.XXXXXX)
PLACE=$WORK/place
mkdir "$PLACE"

cleanup() {
    if mountpoint -q "$PLACE"; then umount "$PLACE"; fi
    rm -rf "$WORK"
}
trap cleanup EXIT

c++ -O2 -o "$WORK/leveldb" lab/src/paper/icid/leveldb.cc -lleveldb

measure() { # name
    "$WORK/leveldb" "$PLACE/db" "$PAIRS" 100 1 fillrandom,overwrite "$PAIRS" | sed "s|^|$1\t|" >>"$WORK/figures"
}

for ((pass = 0; pass <= REPEATS; pass++)); do
    mount -t tmpfs -o size=4G nvfold-leveldb "$PLACE"
    measure tmpfs
    umount "$PLACE"
    for options in "${MOUNTS[@]}"; do
        "$NVFOLD" mount mem: "$PLACE" -o "size=4G${options:+,$options}" >"$WORK/log"
        measure "nvfold ${options:-by default}"
        "$NVFOLD" umount "$PLACE" >"$WORK/log"
    done
    # The first pass warms up.
    if [ "$pass" = 0 ]; then rm "$WORK/figures"; fi
done

python3 - "$WORK/figures" "$PAIRS" <<'PYTHON'
import statistics, sys
pairs = int(sys.argv[2])
seconds = {}
for line in open(sys.argv[1]):
    place, figure = line.rstrip("\n").split("\t")
    name, value = figure.split()
    if name in ("fill_seconds", "read_seconds"):
        seconds.setdefault(place, {}).setdefault(name, []).append(float(value))
print(f"{'':34} {'puts/s':>9} {'ratio':>6} {'gets/s':>9} {'ratio':>6}")
for place, times in seconds.items():
    row = f"{place:34}"
    for name in ("fill_seconds", "read_seconds"):
        here = statistics.median(times[name])
        row += f" {pairs / here:9.0f} {statistics.median(seconds['tmpfs'][name]) / here:6.2f}"
    print(row)
PYTHON
