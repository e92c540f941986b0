#!/usr/bin/env bash
# make demo: two copies of a real tree on a device in memory, and what they cost.
#
#   1 choose a tree      2 format a device     3 import it twice      4 mount, unmount, mount again, compare
#   5 host memory beside a tmpfs with the same two copies             6 delete all, see the memory returned
#
# NVFOLD_DEMO_TREE=DIR takes that tree instead. Figures are left in target/demo/figures.
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
OUT=target/demo
MIN_FILES=20000
MIN_MB=300
MAX_MB=2000

scripts/need.sh fusermount3=fuse3 diff=diffutils mountpoint=util-linux awk=mawk
[ -x "$NVFOLD" ] || { echo "demo: $NVFOLD is not there; run \`make build\`" >&2; exit 1; }

# ---------------------------------------------------------------------------------------------- cleaning up

SCRATCH=
cleanup() {
    local status=$?
    trap - EXIT
    if [ -n "$SCRATCH" ]; then
        if mountpoint -q "$SCRATCH/mnt" 2>/dev/null; then
            "$NVFOLD" umount "$SCRATCH/mnt" >/dev/null 2>&1 || fusermount3 -u -z "$SCRATCH/mnt" || true
        fi
        rm -rf --one-file-system "$SCRATCH"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ------------------------------------------------------------------------------------------------- helpers

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
mb() { awk -v bytes="$1" 'BEGIN { printf "%.0f MB", bytes / 1e6 }'; }
row() { printf '  %-46s %10s   %s\n' "$1" "$2" "${3:-}"; }
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }
rate() { awk -v bytes="$1" -v seconds="$2" 'BEGIN { printf "%.0f MB/s", bytes / 1e6 / (seconds > 0.1 ? seconds : 0.1) }'; }
files_in() { find "$1" -xdev -type f 2>/dev/null | wc -l; }
bytes_in() { find "$1" -xdev -type f -printf '%s\n' 2>/dev/null | awk '{ sum += $1 } END { printf "%.0f", sum }'; }
allocated() { du -s --block-size=1 "$1" | cut -f1; }
kib_of() { awk -v key="$1:" '$1 == key { printf "%.0f", $2 * 1024 }' "$2"; }
# A number in a JSON report.
field() { awk -F '[":, ]+' -v key="$1" '$2 == key { print $3; exit }'; }
figure() { echo "$1=$2" >>"$OUT/figures"; }

# ------------------------------------------------------------------------------------------------ the tree

# The smallest candidate with enough files and bytes: real files that every Linux machine has.
choose_tree() {
    local candidate best='' best_bytes=0 files bytes
    for candidate in /usr/share /usr/lib /usr/local /opt /usr "$HOME"; do
        [ -d "$candidate" ] || continue
        files=$(files_in "$candidate")
        bytes=$(bytes_in "$candidate")
        if [ "$files" -ge "$MIN_FILES" ] && [ "$bytes" -ge $((MIN_MB * 1000000)) ] &&
            [ "$bytes" -le $((MAX_MB * 1000000)) ] && { [ -z "$best" ] || [ "$bytes" -lt "$best_bytes" ]; }; then
            best=$candidate best_bytes=$bytes
            # Good enough: looking further costs more than it gains.
            [ "$bytes" -le 800000000 ] && break
        fi
    done
    echo "$best"
}

step "1  A real tree of this machine"
TREE=${NVFOLD_DEMO_TREE:-$(choose_tree)}
if [ -z "$TREE" ]; then
    echo "demo: no tree here has $MIN_FILES files and $MIN_MB to $MAX_MB MB; name one: NVFOLD_DEMO_TREE=DIR make demo" >&2
    exit 1
fi
FILES=$(files_in "$TREE")
BYTES=$(bytes_in "$TREE")
row "$TREE" "$(mb "$BYTES")" "$FILES files"

# Memory for the device and for the tmpfs copies; a disk does when /dev/shm is small, and the demo says so.
WANTED=$((BYTES * 4))
SHM=/dev/shm
if [ "$(df --output=avail -B1 $SHM 2>/dev/null | tail -1 || echo 0)" -lt "$WANTED" ]; then
    SHM=${TMPDIR:-/tmp}
    echo "  /dev/shm has less than $(mb "$WANTED"): the device lies in $SHM, on a disk"
fi
SCRATCH=$(mktemp -d "$SHM/nvfold-demo.XXXXXX")
mkdir "$SCRATCH/mnt" "$SCRATCH/tmpfs"
DEVICE=$SCRATCH/device
mkdir -p "$OUT"
: >"$OUT/figures"
figure files "$FILES"
figure tree_bytes "$BYTES"

# -------------------------------------------------------------------------------------------------- import

step "2  A device in memory"
SIZE_MB=$((BYTES * 3 / 1000000 + 256))
started=$(now)
"$NVFOLD" mkfs "$DEVICE" --size "${SIZE_MB}M" | sed 's/^/  /'
row "made in" "$(since "$started") s" "host memory taken: $(mb "$(allocated "$DEVICE")")"

step "3  The tree, twice"
# A bar where somebody watches, lines where a log is kept.
PROGRESS=always
import() {
    local started seconds
    started=$(now)
    "$NVFOLD" import "$DEVICE" "$TREE" --to "$1" --one-file-system --progress "$PROGRESS" | sed 's/^/  /'
    seconds=$(since "$started")
    row "$1" "$(rate "$BYTES" "$seconds")" "in $seconds s; the device takes $(mb "$(allocated "$DEVICE")")"
    figure "import_seconds_${1#/}" "$seconds"
}
stored() { "$NVFOLD" df "$DEVICE" --json | field stored_bytes; }
import /a
FIRST=$(allocated "$DEVICE") FIRST_STORED=$(stored)
import /b
BOTH=$(allocated "$DEVICE") BOTH_STORED=$(stored)
figure device_bytes_first "$FIRST"
figure device_bytes_both "$BOTH"
figure stored_bytes_first "$FIRST_STORED"
figure stored_bytes_both "$BOTH_STORED"
echo
"$NVFOLD" df "$DEVICE" | sed 's/^/  /'

# ------------------------------------------------------------------------------------------ mount and compare

step "4  Mounted, unmounted, mounted again; every file compared"
"$NVFOLD" mount "$DEVICE" "$SCRATCH/mnt" | sed 's/^/  /'
"$NVFOLD" umount "$SCRATCH/mnt" | sed 's/^/  /'
"$NVFOLD" fsck "$DEVICE" | sed 's/^/  fsck: /'
started=$(now)
"$NVFOLD" mount "$DEVICE" "$SCRATCH/mnt" >/dev/null
row "mounted again" "$(since "$started") s"
PID=$("$NVFOLD" stats "$SCRATCH/mnt" --json | field pid)
IDLE_CACHE=$(($(kib_of Cached /proc/meminfo) - $(kib_of Shmem /proc/meminfo)))
for copy in a b; do
    started=$(now)
    diff -r --no-dereference "$TREE" "$SCRATCH/mnt/$copy"
    seconds=$(since "$started")
    row "$copy: $FILES files compared, all equal" "$(rate "$BYTES" "$seconds")" "in $seconds s"
    figure "compare_seconds_$copy" "$seconds"
done

# ---------------------------------------------------------------------------------------------------- memory

step "5  Host memory for the two copies"
# The process also maps the device; those pages are the device's and are counted there.
process_memory() { echo $(($(kib_of RssAnon "/proc/$PID/status") + $(kib_of RssFile "/proc/$PID/status"))); }
PROCESS=$(process_memory)
CACHE=$(($(kib_of Cached /proc/meminfo) - $(kib_of Shmem /proc/meminfo) - IDLE_CACHE))
[ "$CACHE" -ge 0 ] || CACHE=0
DEVICE_NOW=$(allocated "$DEVICE")
cp -a "$TREE" "$SCRATCH/tmpfs/a"
cp -a "$TREE" "$SCRATCH/tmpfs/b"
TMPFS=$(allocated "$SCRATCH/tmpfs")
rm -rf --one-file-system "$SCRATCH/tmpfs"
row "tmpfs with the same two copies" "$(mb "$TMPFS")"
row "nvfold: device" "$(mb "$DEVICE_NOW")" "$(awk -v a="$DEVICE_NOW" -v b="$TMPFS" 'BEGIN { printf "%.0f %% less", 100 - 100 * a / b }')"
row "nvfold: process (index, inodes, program)" "$(mb "$PROCESS")"
row "kernel: page cache of what diff just read" "$(mb "$CACHE")" "given up when memory is wanted"
figure tmpfs_bytes "$TMPFS"
figure device_bytes "$DEVICE_NOW"
figure process_bytes "$PROCESS"
figure cache_bytes "$CACHE"

step "6  Everything deleted"
started=$(now)
rm -rf "$SCRATCH/mnt/a" "$SCRATCH/mnt/b"
row "rm -r of both copies" "$(since "$started") s"
# The mount returns freed memory every few seconds.
for _ in $(seq 20); do
    [ "$(allocated "$DEVICE")" -gt $((DEVICE_NOW / 20)) ] || break
    sleep 0.5
done
EMPTY=$(allocated "$DEVICE")
row "device, mounted and empty" "$(mb "$EMPTY")" "$(since "$started") s after the rm began"
EMPTY_PROCESS=$(process_memory)
row "process" "$(mb "$EMPTY_PROCESS")"
figure after_rm_bytes "$EMPTY"
figure after_rm_process_bytes "$EMPTY_PROCESS"
"$NVFOLD" umount "$SCRATCH/mnt" >/dev/null
AFTER=$(allocated "$DEVICE")
row "device, unmounted" "$(mb "$AFTER")"
"$NVFOLD" fsck "$DEVICE" | sed 's/^/  fsck: /'

# --------------------------------------------------------------------------------------------------- verdict

# What the second copy cost beside the first; what the tree itself repeats is saved in both and not counted.
percent_saved() { awk -v first="$1" -v both="$2" 'BEGIN { printf "%.1f", 100 - 50 * both / first }'; }
SAVED=$(percent_saved "$FIRST_STORED" "$BOTH_STORED")
SAVED_HOST=$(percent_saved "$FIRST" "$BOTH")
figure saved_percent "$SAVED"
figure saved_host_percent "$SAVED_HOST"
step "Saved beyond what the tree itself repeats: $SAVED % of the data, $SAVED_HOST % of the host memory"
echo "  The second copy stored $(mb $((BOTH_STORED - FIRST_STORED))) of data and took $(mb $((BOTH - FIRST))) of memory: its inodes and names."
if awk -v saved="$SAVED" 'BEGIN { exit !(saved < 45) }'; then
    echo "demo: a second copy should save about half" >&2
    exit 1
fi
if [ "$AFTER" -gt $((DEVICE_NOW / 10)) ]; then
    echo "demo: the memory was not given back" >&2
    exit 1
fi
