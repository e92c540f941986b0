#!/usr/bin/env bash
# make writeback: what the kernel's writeback cache brings a mount. Each workload runs on two mounts in turn, one with
# -o writeback=on and one with -o writeback=off, and the table shows medians of both and the median of the ratios.
# "done" is when the program ends, "stored" when a sync after it has ended too.
# PASSES=5, WORKLOADS="append dd ..." (all of them), TREE=/usr/share/perl, REPO=. (a git repository), OPTIONS=policy=off.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
PASSES=${PASSES:-5}
WORKLOADS=${WORKLOADS:-append blocks large rewrite sqlite sqlite-wal leveldb pgbench cp git}
TREE=${TREE:-/usr/share/perl}
REPO=$(realpath "${REPO:-.}")
OPTIONS=${OPTIONS:-policy=inline}
WORK=$(mktemp -d /dev/shm/nvfold-writeback.XXXXXX)
POSTGRES=$(dirname "$(find /usr/lib/postgresql -name initdb 2>/dev/null | sort | tail -1)")

finish() {
    for how in on off; do
        "$NVFOLD" umount "$WORK/$how" >/dev/null 2>&1 || umount -l "$WORK/$how" 2>/dev/null || true
    done
    rm -rf "$WORK"
}
trap finish EXIT

for how in on off; do
    mkdir "$WORK/$how"
    "$NVFOLD" mount mem: "$WORK/$how" -o "size=3G,writeback=$how,$OPTIONS" >/dev/null
done
chmod 755 "$WORK"

append() { dd if=/dev/urandom of="$1/file" bs=100 count=100000 status=none; }
blocks() { dd if="$WORK/data" of="$1/file" bs=4k status=none; }
large() { dd if="$WORK/data" of="$1/file" bs=1M status=none; }
rewrite() { for _ in 1 2 3 4 5 6 7 8; do dd if="$WORK/data" of="$1/file" bs=8k count=1000 conv=notrunc status=none; done; }
sqlite() { sqlite_inserts "$1/db" DELETE; }
sqlite-wal() { sqlite_inserts "$1/db" WAL; }
sqlite_inserts() {
    {
        echo "PRAGMA journal_mode=$2; CREATE TABLE t (i INTEGER PRIMARY KEY, text TEXT);"
        for i in $(seq 2000); do echo "INSERT INTO t VALUES ($i, hex(randomblob(50)));"; done
    } | sqlite3 "$1" >/dev/null
}
leveldb() {
    /usr/bin/python3 - "$1/db" <<'PYTHON'
import plyvel, random, sys
random.seed(1)
db = plyvel.DB(sys.argv[1], create_if_missing=True)
for _ in range(100000):
    db.put(b"%016d" % random.randrange(10**9), random.randbytes(100))
db.close()
PYTHON
}
pgbench() {
    mkdir "$1/socket"
    chown -R postgres "$1"
    as_postgres "$POSTGRES/initdb" -D "$1/data" --no-sync
    as_postgres "$POSTGRES/pg_ctl" -D "$1/data" -w -o "-k $1/socket -c listen_addresses=''" start
    as_postgres "$POSTGRES/pgbench" -h "$1/socket" -i -s 3 postgres
    as_postgres "$POSTGRES/pgbench" -h "$1/socket" -c 4 -j 2 -t 500 postgres
    as_postgres "$POSTGRES/pg_ctl" -D "$1/data" -w -m fast stop
}
as_postgres() { (cd / && setpriv --reuid postgres --regid postgres --clear-groups "$@" >/dev/null 2>&1); }
cp_tree() { cp -a "$TREE" "$1/tree"; }
git_clone() { git clone -q --no-hardlinks --no-local "$REPO" "$1/clone" 2>/dev/null; }

now_us() { echo "${EPOCHREALTIME/./}"; }
# Microseconds until a workload is done, and until what it wrote is stored.
measure() { # HOW WORKLOAD
    local dir="$WORK/$1/$2" start end stored
    mkdir "$dir"
    start=$(now_us)
    case $2 in cp) cp_tree "$dir" ;; git) git_clone "$dir" ;; *) "$2" "$dir" ;; esac
    end=$(now_us)
    sync -f "$dir"
    stored=$(now_us)
    rm -rf "$dir"
    echo "$((end - start)) $((stored - start))"
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
column() { awk -v c="$2" '{ print $c }' "$1"; }

head -c 128M /dev/urandom >"$WORK/data"
printf '%-12s %12s %12s %22s %12s %12s %22s\n' workload "on, done" "off, done" "off/on, min..max" "on, stored" "off, stored" \
    "off/on, min..max"
for workload in $WORKLOADS; do
    rows="$WORK/rows"
    for pass in $(seq 0 "$PASSES"); do
        # The first pass warms up. Which goes first changes with each.
        if [ $((pass % 2)) = 0 ]; then
            on=$(measure on "$workload") && off=$(measure off "$workload")
        else
            off=$(measure off "$workload") && on=$(measure on "$workload")
        fi
        [ "$pass" = 0 ] && : >"$rows" || echo "$on $off"
    done >>"$rows"
    awk '{ print $3 / $1 }' "$rows" | sort -n >"$WORK/done"
    awk '{ print $4 / $2 }' "$rows" | sort -n >"$WORK/stored"
    spread() { awk '{ v[NR] = $1 } END { printf "%.2f (%.2f..%.2f)", v[int((NR + 1) / 2)], v[1], v[NR] }' "$1"; }
    ms() { awk -v c="$1" '{ print $c }' "$rows" | median | awk '{ printf "%.1f ms", $1 / 1000 }'; }
    printf '%-12s %12s %12s %22s %12s %12s %22s\n' "$workload" "$(ms 1)" "$(ms 3)" "$(spread "$WORK/done")" "$(ms 2)" \
        "$(ms 4)" "$(spread "$WORK/stored")"
done
