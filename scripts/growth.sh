#!/usr/bin/env bash
# What programs store under each policy, compared with policy off: at the end, and the host's memory at its worst moment.
# Prints a table.
#
#   scripts/growth.sh [POLICY...]        default: off inline icid icid+inline icid,origin_min=64
#   GROWTH_REPEATS=5                     passes; in each, all policies are measured one after another
#   GROWTH_PAIRS=1000000                 pairs of the smallest LevelDB; larger values have fewer pairs
#   NVFOLD_BIN=path                      default: target/release/nvfold
#
# The programs run under `nvfold run --device`: LevelDB without compression, filled and overwritten once; tar of a tree;
# GNU patch on a tree; ed, which changes a line of a large file and saves it, again and again; SQLite, which fills,
# updates, deletes and vacuums. rsync is not among them: it works in several processes. Installs a C++ compiler,
# libleveldb-dev, patch, ed and sqlite3.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
REPEATS=${GROWTH_REPEATS:-5}
PAIRS=${GROWTH_PAIRS:-1000000}
scripts/need.sh c++=g++ python3=python3 patch=patch sqlite3=sqlite3 tar=tar ed=ed time=time
[ -f /usr/include/leveldb/db.h ] || scripts/need.sh leveldb-headers=libleveldb-dev
if [ $# -gt 0 ]; then POLICIES=("$@"); else POLICIES=(off inline icid icid+inline "icid,origin_min=64"); fi

WORK=$(mktemp -d /dev/shm/nvfold-growth.XXXXXX)
trap 'rm -rf "$WORK"' EXIT
DEVICE=$WORK/device
c++ -O2 -o "$WORK/leveldb" lab/src/paper/icid/leveldb.cc -lleveldb

# A tree of real files, and a change of every C header in it.
mkdir "$WORK/tree"
cp -r /usr/include "$WORK/tree/a"
# patch refuses symbolic links.
find "$WORK/tree/a" -type l -delete
cp -r "$WORK/tree/a" "$WORK/tree/b"
find "$WORK/tree/b" -name '*.h' -exec sed -i '20s/$/ changed/' {} +
(cd "$WORK/tree" && diff -ruN a b >"$WORK/change.diff") || true
tar -C "$WORK/tree" -cf "$WORK/tree.tar" a
# Two hundred saves of a text of 4 MB.
find "$WORK/tree/a" -name '*.h' -exec cat {} + >"$WORK/headers"
head -c 4000000 "$WORK/headers" >"$WORK/text"
for ((save = 1; save <= 200; save++)); do printf '%ds/$/ /\nw\n' $((save * 300)); done >"$WORK/saves"
cat >"$WORK/work.sql" <<'SQL'
CREATE TABLE t (id INTEGER PRIMARY KEY, text BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
  INSERT INTO t SELECT i, randomblob(1500) FROM n;
UPDATE t SET text = randomblob(1500) WHERE id % 7 = 0;
DELETE FROM t WHERE id % 3 = 0;
VACUUM;
SQL

# Runs a program on the device, and samples what the host holds for it every 20 ms.
# measure PROGRAM POLICY COMMAND...
measure() {
    local program=$1 policy=$2 worst=0 now seconds
    shift 2
    /usr/bin/env time -f '%U %S' -o "$WORK/time" "$NVFOLD" run --device "$DEVICE" -o "policy=$policy" -- "$@" >"$WORK/out" &
    local pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        now=$(du -k "$DEVICE" | cut -f1)
        if [ "$now" -gt "$worst" ]; then worst=$now; fi
        sleep 0.02
    done
    wait "$pid"
    seconds=$(awk '{ print $1 + $2 }' "$WORK/time")
    printf '%s\t%s\t%s\t%s\t%s\n' "$program" "$policy" "$seconds" "$worst" \
        "$("$NVFOLD" stats --json "$DEVICE" | tr -d '\n')" >>"$WORK/figures"
}

# Makes an empty device, or one with a tree in it.
make_device() { # [COMMAND...]
    rm -f "$DEVICE"
    "$NVFOLD" mkfs -q --size 6G "$DEVICE"
    if [ $# -gt 0 ]; then "$NVFOLD" run --device "$DEVICE" -o policy=off -- "$@"; fi
}

for ((pass = 0; pass < REPEATS; pass++)); do
    for policy in "${POLICIES[@]}"; do
        for load in 100:1 1024:5 4096:17 16384:50; do
            bytes=${load%:*}
            make_device
            measure "LevelDB, values of $bytes bytes" "$policy" \
                "$WORK/leveldb" /nvfold/db $((PAIRS / ${load#*:})) "$bytes" 0 fillrandom,overwrite 0
        done
        make_device tar -C /nvfold -xf "$WORK/tree.tar"
        measure "tar of a tree of headers" "$policy" tar -C /nvfold -cf /nvfold/tree.tar a
        make_device tar -C /nvfold -xf "$WORK/tree.tar"
        measure "patch of each header" "$policy" patch -s -d /nvfold/a -p1 -i "$WORK/change.diff"
        make_device cp "$WORK/text" /nvfold/text
        measure "ed, 200 saves" "$policy" sh -c "exec ed -s /nvfold/text <'$WORK/saves'"
        make_device
        measure "SQLite" "$policy" sqlite3 /nvfold/db ".read $WORK/work.sql"
    done
done

python3 - "$WORK/figures" "$REPEATS" <<'PYTHON'
import json, statistics, sys
runs = {}
for line in open(sys.argv[1]):
    program, policy, seconds, worst, stats = line.rstrip("\n").split("\t")
    stats = json.loads(stats)["space"]
    run = {
        "logical": stats["logical_bytes"],
        "stored": stats["stored_bytes"] + stats["metadata_bytes"],
        "host": stats["device_allocated_bytes"],
        "worst": int(worst) * 1024,
        "seconds": float(seconds),
    }
    runs.setdefault(program, {}).setdefault(policy, []).append(run)
print("| program | policy | files hold, MB | stored and metadata, MB | to `off` | host at the end, to `off` | host at its "
      "worst, to `off` | processor time, to `off` |")
print("|---|---|---|---|---|---|---|---|")
for program, policies in runs.items():
    def median(policy, what):
        return statistics.median(run[what] for run in policies[policy])
    first = next(iter(policies))
    for policy in policies:
        ratio = lambda what: f"{median(policy, what) / median(first, what):.2f}"
        print(f"| {program} | `{policy}` | {median(policy, 'logical') / 1e6:.0f} | {median(policy, 'stored') / 1e6:.0f} | "
              f"{ratio('stored')} | {ratio('host')} | {ratio('worst')} | {ratio('seconds')} |")
PYTHON
