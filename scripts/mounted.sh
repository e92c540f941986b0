#!/usr/bin/env bash
# make mounted: what programs meet on a mount, one line a case, with the command given and with others beside it:
#   scripts/mounted.sh BEFORE AFTER     two builds of nvfold side by side, as in docs/results/mounted.md
# As root. Everything happens in a directory of its own in memory and in a mount namespace of its own.
set -euo pipefail
if [ -z "${NVFOLD_UNSHARED:-}" ]; then
    NVFOLD_UNSHARED=1 exec unshare -m "$0" "$@"
fi
cd "$(dirname "$0")/.."

if [ $# = 0 ]; then set -- "${NVFOLD_BIN:-$PWD/target/release/nvfold}"; fi
WORK=$(mktemp -d /dev/shm/nvfold-mounted.XXXXXX)
SBIN=$(readlink -f /sbin)
PATH="$PATH:/usr/sbin:/sbin"
for name in handles direct_writes; do cc -O1 -pthread -o "$WORK/$name" "tests/programs/$name.c"; done

finish() {
    if mountpoint -q "$WORK/m"; then umount -l "$WORK/m"; fi
    rm -rf "$WORK"
}
trap finish EXIT
mkdir "$WORK/m" "$WORK/none"
M=$WORK/m

# A fresh device of 256 MiB, mounted with options.
fresh() {
    rm -f "$WORK/device"
    "$NVFOLD" mkfs "$WORK/device" --size 256M >/dev/null
    "$NVFOLD" mount "$WORK/device" "$M" -o "$1" >/dev/null
}
leave() { "$NVFOLD" umount "$M" >/dev/null 2>&1 || umount -l "$M"; }

full() { # OPTIONS
    fresh "$1" || { echo "no such option"; return; }
    local start=$EPOCHREALTIME seconds size stored
    timeout 60 dd if=/dev/urandom of="$M/big" bs=1M 2>"$WORK/dd" >/dev/null || true
    seconds=$(echo "$EPOCHREALTIME $start" | awk '{ printf "%.1f", $1 - $2 }')
    size=$(stat -c %s "$M/big")
    stored=$(($(stat -c %b "$M/big") * 512))
    case $(cat "$WORK/dd") in *"error writing"*) echo -n "ENOSPC at write" ;; *) echo -n "no error at write" ;; esac
    echo ", ${seconds} s, size $((size >> 20)) MiB, stored $((stored >> 20)) MiB"
    leave
}
random_mkfs() { # OPTIONS
    head -c 64M /dev/urandom >"$WORK/random"
    if "$NVFOLD" mkfs "$WORK/random" --size 64M >/dev/null 2>&1; then echo "formatted"; else echo "refused"; fi
    rm "$WORK/random"
}
remount() {
    fresh rw
    mount -t tmpfs none "$SBIN"
    ln -s "$NVFOLD" "$SBIN/mount.fuse.nvfold"
    if mount -o remount,ro "$M" 2>/dev/null && ! touch "$M/x" 2>/dev/null &&
        mount -o remount,rw "$M" 2>/dev/null && touch "$M/x"; then echo "works"; else echo "fails"; fi
    umount "$SBIN"
    leave
}
helpers() {
    fresh rw && leave
    ln -sf "$NVFOLD" "$WORK/mount.fuse.nvfold" && ln -sf "$NVFOLD" "$WORK/umount.fuse.nvfold"
    local said
    said=$("$WORK/mount.fuse.nvfold" "$WORK/device" "$M" -o rw && "$WORK/umount.fuse.nvfold" "$M")
    if [ -z "$said" ]; then echo "silent"; else echo "$(wc -l <<<"$said") lines on stdout"; fi
}
handle() { # WHAT HAPPENS TO THE FILE
    fresh rw
    mkdir "$M/d" && echo tea >"$M/d/file"
    local handle opened
    handle=$("$WORK/handles" make "$M/d/file" 2>/dev/null) || { echo "no handle"; leave; return; }
    case $1 in
    cached) ;;
    dropped) echo 2 >/proc/sys/vm/drop_caches ;;
    moved) mv "$M/d/file" "$M/other" && mv "$M/d" "$M/e" && echo 2 >/proc/sys/vm/drop_caches ;;
    removed) rm "$M/d/file" ;;
    remounted) leave && "$NVFOLD" mount "$WORK/device" "$M" >/dev/null ;;
    esac
    opened=$("$WORK/handles" open "$M" "$handle" 2>&1) || true
    echo "${opened##*: }"
    leave
}
direct() { # aio|threads
    fresh rw
    local stale=0
    for run in 1 2 3 4 5; do "$WORK/direct_writes" "$M/$run" 300 "$1" >/dev/null || stale=$((stale + 1)); done
    echo "$stale of 5 runs stale"
    leave
}
read_only() {
    fresh rw
    mkdir "$M/dir" && mknod "$M/null" c 1 3 && cp "$(command -v ls)" "$M/ls"
    mount -i -o remount,ro "$M"
    local exists new
    exists=$(mkdir "$M/dir" 2>&1 || true) && new=$(mkdir "$M/new" 2>&1 || true)
    echo -n "mkdir: ${exists##*: }, ${new##*: }; "
    if echo tea >"$M/null"; then echo -n "device written, "; else echo -n "device refused, "; fi
    if "$M/ls" "$M" >/dev/null; then echo "program runs"; else echo "program fails"; fi
    leave
}
vanishing() {
    fresh policy=off
    head -c 64M /dev/urandom >"$M/large"
    local failed=0 wait
    for wait in 0.01 0.02 0.03 0.05 0.08; do
        for file in $(seq 300); do echo "$file" >"$M/small $file"; done
        "$NVFOLD" undedup "$M" >/dev/null
        "$NVFOLD" dedup "$M" >/dev/null 2>&1 &
        sleep "$wait" && rm "$M"/small*
        wait $! || failed=$((failed + 1))
    done
    echo "$failed of 5 runs fail"
    leave
}

row() { # NAME FUNCTION ARGUMENT
    echo -n "| $1 |"
    for NVFOLD in "${BINARIES[@]}"; do echo -n " $("$2" "${3:-}" 2>"$WORK/stderr" || echo "failed: $(tail -1 "$WORK/stderr")") |"; done
    echo
}
BINARIES=()
for binary in "$@"; do BINARIES+=("$(realpath "$binary")"); done
echo "| case |$(printf ' %s |' "$@")"
echo "|---|$(printf -- '---|%.0s' "$@")"
row "dd to a full mount" full rw
row "the same, writeback=off" full writeback=off
row "mkfs of a file of random bytes" random_mkfs
row "mount -o remount,ro and rw by mount(8)" remount
row "mount.fuse.nvfold, umount.fuse.nvfold" helpers
row "handle of a file" handle cached
row "... that the kernel has dropped" handle dropped
row "... that was moved, and dropped" handle moved
row "... that was removed" handle removed
row "... after a new mount" handle remounted
row "buffered read after direct writes, AIO" direct aio
row "buffered read after direct writes, threads" direct threads
row "on a mount that is read-only now" read_only
row "dedup while files go away" vanishing
