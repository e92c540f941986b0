#!/usr/bin/env bash
# PostgreSQL's `create database ... strategy file_copy` of a large template, with file_copy_method clone and copy: on a
# mount of nvfold, tmpfs, and XFS with reflinks; and a clone of the whole cluster while it runs. Each place in turn, ROUNDS
# times; prints the medians. After each command, the rows of the copy are counted.
#
#   NVFOLD_POSTGRESQL=DIR        programs of PostgreSQL 18 or later (`clone` is new in 18)
#   SCALE=68                     of pgbench: 68 is a template of 1 GiB
#   ROUNDS=5
#   NVFOLD_BIN=path              default: target/release/nvfold
#
# As root, with 20 GiB of free memory. Everything happens in a directory of its own in memory.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"

NVFOLD=$(realpath "${NVFOLD_BIN:-$PWD/target/release/nvfold}")
PG=${NVFOLD_POSTGRESQL:?names the directory with the programs of PostgreSQL 18}
SCALE=${SCALE:-68}
ROUNDS=${ROUNDS:-5}
PLACES="nvfold tmpfs xfs"
# PostgreSQL refuses to run as root.
USER_ID=65534
scripts/need.sh mkfs.xfs=xfsprogs fusermount3=fuse3 setpriv=util-linux python3=python3
WORK=$(mktemp -d /dev/shm/nvfold-database.XXXXXX)

as_user() { (cd / && setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups "$@"); }
finish() {
    for place in $PLACES; do
        as_user "$PG/pg_ctl" -D "$WORK/$place/data" -m immediate -w stop >/dev/null 2>&1 || true
    done
    "$NVFOLD" umount "$WORK/nvfold" >/dev/null 2>&1 || true
    for place in tmpfs xfs; do
        umount "$WORK/$place" 2>/dev/null || true
    done
    rm -rf "$WORK"
}
trap finish EXIT

sql() { # PLACE ARGUMENTS...
    local place=$1
    shift
    as_user "$PG/psql" -h "$WORK/$place/socket" -U postgres -X -q -A -t "$@"
}

start() { # PLACE
    mkdir "$WORK/$1/data" "$WORK/$1/socket"
    chown $USER_ID:$USER_ID "$WORK/$1/data" "$WORK/$1/socket"
    chmod 755 "$WORK" "$WORK/$1"
    as_user "$PG/initdb" -A trust -U postgres --locale=C -E UTF8 --no-sync -D "$WORK/$1/data" >/dev/null
    cat >>"$WORK/$1/data/postgresql.conf" <<-SETTINGS
		listen_addresses = ''
		shared_buffers = 256MB
		max_wal_size = 4GB
		checkpoint_timeout = 1h
		autovacuum = off
	SETTINGS
    as_user "$PG/pg_ctl" -w -D "$WORK/$1/data" -l "$WORK/$1/socket/log" -o "-k $WORK/$1/socket" start >/dev/null
    sql "$1" -c "create database template_db"
    as_user "$PG/pgbench" -h "$WORK/$1/socket" -U postgres -i -q -I dtGvp -s "$SCALE" template_db >/dev/null 2>&1
    sql "$1" -c checkpoint
}

timed() { # NAME COMMAND...
    local name=$1 before after
    shift
    before=$(date +%s%N)
    "$@" >/dev/null
    after=$(date +%s%N)
    echo "$name $(((after - before) / 1000))" >>"$WORK/times"
}

create_database() { # PLACE METHOD
    local rows
    sql "$1" -c checkpoint
    PGOPTIONS="-c file_copy_method=$2" timed "$1/$2" sql "$1" \
        -c "create database copy_db template template_db strategy file_copy"
    rows=$(sql "$1" -d copy_db -c "select count(*) from pgbench_accounts")
    [ "$rows" = $((SCALE * 100000)) ] || { echo "create-database: $1 has $rows rows" >&2; exit 1; }
    sql "$1" -c "drop database copy_db"
}

for place in $PLACES; do
    mkdir "$WORK/$place"
done
"$NVFOLD" mkfs --size 6G "$WORK/device" >/dev/null
"$NVFOLD" mount "$WORK/device" "$WORK/nvfold" -o policy=inline >/dev/null
mount -t tmpfs -o size=6G nvfold-database "$WORK/tmpfs"
truncate -s 6G "$WORK/xfs.image"
mkfs.xfs -q -m reflink=1 "$WORK/xfs.image"
mount -o loop "$WORK/xfs.image" "$WORK/xfs"
for place in $PLACES; do
    start "$place"
done
for _ in $(seq "$ROUNDS"); do
    for place in $PLACES; do
        create_database "$place" clone
        create_database "$place" copy
    done
    timed nvfold/cluster "$NVFOLD" clone "$WORK/nvfold/data" "$WORK/nvfold/whole"
    "$NVFOLD" remove "$WORK/nvfold/whole" >/dev/null
    timed tmpfs/cluster cp -a "$WORK/tmpfs/data" "$WORK/tmpfs/whole"
    timed xfs/cluster cp -a --reflink=always "$WORK/xfs/data" "$WORK/xfs/whole"
    rm -rf "$WORK/tmpfs/whole" "$WORK/xfs/whole"
done

"$PG/postgres" --version
python3 - "$WORK/times" <<'PYTHON'
import statistics
import sys

times = {}
for line in open(sys.argv[1]):
    name, microseconds = line.split()
    times.setdefault(name, []).append(int(microseconds) / 1000)
print("| | ms, median | from | to | to a copy on tmpfs |\n|---|---|---|---|---|")
for name, all_ms in times.items():
    beside = "tmpfs/cluster" if name.endswith("cluster") else "tmpfs/copy"
    ratio = statistics.median(all_ms) / statistics.median(times[beside])
    print(f"| {name} | {statistics.median(all_ms):.0f} | {min(all_ms):.0f} | {max(all_ms):.0f} | {ratio:.2f} |")
PYTHON
