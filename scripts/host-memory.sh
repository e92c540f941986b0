#!/usr/bin/env bash
# What a mounted device holds of the host beside what it stores, five seconds after the last operation, for five
# histories: a copy; two concurrent copies and `dedup`; two concurrent copies under policy denova, drained; half of the
# files deleted; random overwrites. Prints a table; fails when a device holds more than 1.05 of what it stores + 8 MiB.
#
#   scripts/host-memory.sh [DIR]     copies DIR (default: made of 200 MiB of files), with $NVFOLD_BIN or target/release/nvfold
set -euo pipefail
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
WORK=$(mktemp -d /dev/shm/host-memory.XXXXXX)
MOUNT=$WORK/mount
FAILED=0
mkdir "$MOUNT"

cleanup() {
    mountpoint -q "$MOUNT" && "$NVFOLD" umount "$MOUNT"
    rm -rf "$WORK"
}
trap cleanup EXIT

make_tree() { # directory
    python3 - "$1" <<'PYTHON'
import os, random, sys
random.seed(1)
left = 200 << 20
for number in range(10 ** 6):
    length = min(random.randrange(1, (8 << 20) if random.randrange(8) == 0 else (256 << 10)), left)
    folder = os.path.join(sys.argv[1], str(number % 20))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, str(number)), "wb") as file:
        file.write(random.randbytes(length))
    left -= length
    if left == 0:
        break
PYTHON
}

overwrite() { # directory: as many random blocks as it has
    python3 - "$1" <<'PYTHON'
import os, random, sys
random.seed(2)
files = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[1]) for name in names]
files = [(name, os.path.getsize(name)) for name in files if os.path.getsize(name) >= 4096]
for _ in range(sum(size for _, size in files) // 4096):
    name, size = random.choice(files)
    with open(name, "r+b", buffering=0) as file:
        file.seek(random.randrange(size // 4096) * 4096)
        file.write(random.randbytes(4096))
PYTHON
    sync -f "$1"
}

two_copies() {
    cp -a "$TREE" "$MOUNT/one" &
    cp -a "$TREE" "$MOUNT/two" &
    wait
    sync -f "$MOUNT"
}

delete_half() {
    find "$1" -type f | sort | awk 'NR % 2 == 0' | tr '\n' '\0' | xargs -0 rm
}

history() { # name policy command...
    local name=$1 policy=$2
    shift 2
    "$NVFOLD" mkfs "$WORK/device" --size 2G --force >"$WORK/log"
    "$NVFOLD" mount "$WORK/device" "$MOUNT" -o "policy=$policy" >"$WORK/log"
    "$@" >"$WORK/log"
    sync -f "$MOUNT"
    sleep 5
    "$NVFOLD" stats "$MOUNT" --json | python3 -c '
import json, sys
space = json.load(sys.stdin)["space"]
held, stored = space["device_allocated_bytes"], space["stored_bytes"]
name, mib = sys.argv[1], 1 << 20
print(f"{name:<36} stored {stored / mib:7.1f} MiB   held {held / mib:7.1f} MiB   {held / stored:5.2f}")
sys.exit(held > stored * 1.05 + 8 * mib)' "$name" || FAILED=1
    "$NVFOLD" umount "$MOUNT" >"$WORK/log"
    "$NVFOLD" fsck "$WORK/device" >"$WORK/log"
    rm "$WORK/device"
}

TREE=${1:-$WORK/tree}
[ -d "$TREE" ] || make_tree "$TREE"

history "copy" inline cp -a "$TREE" "$MOUNT/one"
history "two concurrent copies, dedup" off bash -c "$(declare -f two_copies); TREE='$TREE' MOUNT='$MOUNT'; two_copies; '$NVFOLD' dedup '$MOUNT'"
history "denova: two concurrent copies, drain" denova bash -c "$(declare -f two_copies); TREE='$TREE' MOUNT='$MOUNT'; two_copies; '$NVFOLD' dedup --drain '$MOUNT'"
history "half of the files deleted" inline bash -c "$(declare -f delete_half); cp -a '$TREE' '$MOUNT/one'; delete_half '$MOUNT/one'"
history "random overwrites" inline bash -c "$(declare -f overwrite); cp -a '$TREE' '$MOUNT/one'; overwrite '$MOUNT/one'"
exit "$FAILED"
