#!/usr/bin/env bash
# make trees: twenty copies of real trees, a small edit and a build or test run in each, and their removal: on a mount
# of nvfold (nvfold clone, nvfold remove), tmpfs (cp -a), XFS (cp -a --reflink=always), btrfs (snapshots of a subvolume)
# and overlayfs (a mount over a tree on tmpfs). Prints the tables of docs/results/trees.md, and writes them with all
# numbers to target/bench/.
#
#   TREES="npm cargo venv"      which trees; scripts/trees/ has what they are made of, every package pinned
#   PLACES="nvfold tmpfs xfs btrfs overlayfs"
#   COPIES=20
#
# What a copy holds is counted where its file system keeps it: allocated bytes of the device or disk image, in memory;
# on tmpfs blocks, and what the kernel keeps for each inode and name; for nvfold the private memory of its process too.
# What the kernel could drop (its cache of pages, and of inodes other than those of tmpfs) does not count.
#
# As root, with the package registries of npm, cargo and pip, and 12 GiB of free memory. Everything happens in a
# directory of its own in memory and in a mount namespace of its own.
set -euo pipefail
if [ -z "${NVFOLD_UNSHARED:-}" ]; then
    NVFOLD_UNSHARED=1 exec unshare -m "$0" "$@"
fi
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
# The namespace has copies of all mounts. A copy would keep the server of a mount that is unmounted elsewhere.
{ findmnt -rno TARGET -t fuse.nvfold || true; } | while read -r mounted; do
    umount -i -l "$mounted"
done

NVFOLD=$(realpath "${NVFOLD_BIN:-$PWD/target/release/nvfold}")
TREES=${TREES:-npm cargo venv}
PLACES=${PLACES:-nvfold tmpfs xfs btrfs overlayfs}
COPIES=${COPIES:-20}
OUT=$PWD/target/bench
PARTS=$PWD/scripts/trees
WORK=$(mktemp -d /dev/shm/nvfold-trees.XXXXXX)
SOURCE=$WORK/source
unset CARGO_TARGET_DIR PYTHONDONTWRITEBYTECODE

finish() {
    local mounted
    awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | tac | while read -r mounted; do
        umount "$mounted" 2>/dev/null || umount -l "$mounted"
    done
    rm -rf "$WORK"
}
trap finish EXIT
fail() {
    echo "trees: $1" >&2
    exit 1
}

scripts/need.sh npm=npm python3=python3 mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs mount=mount fusermount3=fuse3
mkdir -p "$OUT" "$SOURCE"
LINES_OF=$OUT/trees.lines
mount -t tmpfs -o size=80%,nr_inodes=4m trees-source "$SOURCE"

# These are tried, so each command must say that it failed.
make_npm() {
    cp -r "$PARTS/npm" "$SOURCE/npm" &&
        (cd "$SOURCE/npm" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error --cache "$WORK/npm-cache") &&
        rm -rf "$WORK/npm-cache"
}
build_npm() { # COPY: the tests of what was edited
    (cd "$1" && node node_modules/jest/bin/jest.js --ci --cacheDirectory .jest)
}
edit_npm() { sed -i "s/exports.edition = .*/exports.edition = $2;/" "$1/src/app.js"; }

make_cargo() {
    cp -r "$PARTS/cargo" "$SOURCE/cargo" && mkdir "$SOURCE/cargo/.cargo" &&
        printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n' \
            >"$WORK/config.toml" &&
        (cd "$SOURCE/cargo" && cargo vendor --locked --quiet vendor) &&
        mv "$WORK/config.toml" "$SOURCE/cargo/.cargo/" && build_cargo "$SOURCE/cargo"
}
# What was edited, linked with dependencies that are built. Cargo builds vendored dependencies anew where they have
# another path, so each copy is built at one path, as in a container.
build_cargo() { # COPY
    local done=0
    mkdir -p "$WORK/at" && mount --bind "$1" "$WORK/at" || return 1
    (cd "$WORK/at" && cargo build --offline --locked --quiet && target/debug/trees) || done=1
    umount "$WORK/at" && return "$done"
}
edit_cargo() { sed -i "s/EDITION: u32 = .*/EDITION: u32 = $2;/" "$1/src/main.rs"; }

make_venv() {
    cp -r "$PARTS/venv" "$SOURCE/venv" && python3 -m venv --copies "$SOURCE/venv/.venv" &&
        (cd "$SOURCE/venv" &&
            .venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check -r requirements.txt)
}
build_venv() { # COPY: the tests of what was edited
    (cd "$1" && .venv/bin/python -m pytest -q test_app.py)
}
edit_venv() { sed -i "s/^EDITION = .*/EDITION = $2/" "$1/app.py"; }

# Mounts an empty file system of the place at $M, with room for $1 bytes of data and $2 inodes for each copy.
set_up() { # BYTES ENTRIES
    M=$WORK/$PLACE
    IMAGE=$WORK/$PLACE.img
    mkdir -p "$M"
    local bytes=$(($1 * 2 + ($1 / 4 + $2 * 4096) * COPIES + (1 << 30)))
    case $PLACE in
    nvfold)
        "$NVFOLD" mkfs "$IMAGE" --size "$(((bytes >> 21) << 21))" >/dev/null
        "$NVFOLD" mount "$IMAGE" "$M" >/dev/null
        ;;
    xfs | btrfs)
        truncate -s "$bytes" "$IMAGE"
        "mkfs.$PLACE" -q "$IMAGE" >/dev/null
        mount -t "$PLACE" -o loop "$IMAGE" "$M"
        ;;
    *) mount -t tmpfs -o "size=90%,nr_inodes=$(($2 * (COPIES + 2) * 2))" trees "$M" ;;
    esac
    local expected=$PLACE found
    case $PLACE in nvfold) expected=fuse.nvfold ;; overlayfs) expected=tmpfs ;; esac
    found=$(findmnt -n -o FSTYPE --mountpoint "$M")
    [ "$found" = "$expected" ] || fail "$M is on $found, not on $expected"
    if [ "$PLACE" = btrfs ]; then btrfs -q subvolume create "$M/tree"; else mkdir "$M/tree"; fi
}
take_down() {
    if [ "$PLACE" = nvfold ]; then "$NVFOLD" umount "$M" >/dev/null; else umount "$M"; fi
    if [ "$PLACE" = nvfold ]; then "$NVFOLD" fsck "$IMAGE" >/dev/null; fi
    rm -f "$IMAGE"
}

top() { if [ "$PLACE" = overlayfs ]; then echo "$M/copy$1/merged"; else echo "$M/copy$1"; fi; }
copy() { # NUMBER
    local to=$M/copy$1
    case $PLACE in
    nvfold) "$NVFOLD" clone "$M/tree" "$to" >/dev/null ;;
    tmpfs) cp -a "$M/tree" "$to" ;;
    xfs) cp -a --reflink=always "$M/tree" "$to" ;;
    btrfs) btrfs -q subvolume snapshot "$M/tree" "$to" ;;
    overlayfs)
        mkdir -p "$to/upper" "$to/work" "$to/merged"
        mount -t overlay overlay -o "lowerdir=$M/tree,upperdir=$to/upper,workdir=$to/work" "$to/merged"
        ;;
    esac
}
remove() { # NUMBER
    case $PLACE in
    nvfold) "$NVFOLD" remove "$M/copy$1" >/dev/null ;;
    btrfs) btrfs -q subvolume delete "$M/copy$1" ;;
    overlayfs) umount "$M/copy$1/merged" && rm -rf "$M/copy$1" ;;
    *) rm -rf "$M/copy$1" ;;
    esac
}

# Bytes that the file system holds, and those of the process that serves it, when background work is done.
held() {
    sync -f "$M"
    case $PLACE in
    nvfold)
        # Free blocks go back to the host within five seconds.
        sleep 6
        local pid
        pid=$("$NVFOLD" stats --json "$M" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
        echo "$(($(stat -c %b "$IMAGE") * 512)) $(awk '/^RssAnon:/ { print $2 * 1024 }' "/proc/$pid/status")"
        ;;
    xfs | btrfs)
        # A sync writes their logs. Their tables get into the image when they become read-only.
        mount -o remount,ro "$M" && mount -o remount,rw "$M"
        echo "$(($(stat -c %b "$IMAGE") * 512)) 0"
        ;;
    *)
        local inode_bytes
        inode_bytes=$(awk '$1 == "shmem_inode_cache" || $1 == "dentry" { sum += $4 } END { print sum }' /proc/slabinfo)
        stat -f -c '%b %f %S %c %d' "$M" | awk -v i="$inode_bytes" '{ printf "%.0f 0\n", ($1 - $2) * $3 + ($4 - $5) * i }'
        ;;
    esac
}

now_us() { echo "${EPOCHREALTIME/./}"; }
each() { # COMMAND: with the number of each copy; sets TOOK to the microseconds of all
    local start number
    start=$(now_us)
    for number in $(seq "$COPIES"); do "$1" "$number"; done
    TOOK=$(($(now_us) - start))
}
build() { # NUMBER
    local dir
    dir=$(top "$1")
    "edit_$TREE" "$dir" "$1"
    "build_$TREE" "$dir" >"$WORK/log" 2>&1 || fail "the build in $dir failed: $(cat "$WORK/log")"
}
same() { # NUMBER: a copy is the tree, also after others have changed
    diff -r --no-dereference "$M/tree" "$(top "$1")" >"$WORK/log" || fail "$(top "$1") is no copy of its tree"
}

measure() { # TREE in PLACE: a line of numbers
    local entries bytes before idle built after copies builds removes
    entries=$(find "$SOURCE/$TREE" | wc -l)
    bytes=$(du -s -B1 "$SOURCE/$TREE" | cut -f1)
    set_up "$bytes" "$entries"
    cp -a "$SOURCE/$TREE/." "$M/tree"
    before=$(held)
    each copy && copies=$TOOK
    same "$COPIES"
    idle=$(held)
    each build && builds=$TOOK
    diff -r --no-dereference "$SOURCE/$TREE" "$M/tree" >"$WORK/log" || fail "the builds changed the tree"
    built=$(held)
    each remove && removes=$TOOK
    after=$(held)
    echo "$TREE $PLACE $COPIES $entries $bytes $copies $idle $builds $built $removes $after $before"
    take_down
}

: >"$LINES_OF"
for TREE in $TREES; do
    echo "trees: making $TREE" >&2
    if ! "make_$TREE" >"$WORK/log" 2>&1 || ! "build_$TREE" "$SOURCE/$TREE" >"$WORK/log" 2>&1; then
        fail "$(cat "$WORK/log")"
    fi
    for PLACE in $PLACES; do
        echo "trees: $TREE on $PLACE" >&2
        measure >>"$LINES_OF"
    done
    rm -rf "${SOURCE:?}/$TREE"
done

COMMIT=$(git describe --always --abbrev=12 --exclude='*' --dirty)
python3 - "$LINES_OF" "$OUT/trees" "$COMMIT" <<'PYTHON'
import json, sys
lines, out, commit = sys.argv[1:]
names = ("tree place copies entries bytes copy_us idle_stored idle_process build_us built_stored built_process "
         "remove_us after_stored after_process before_stored before_process").split()
rows = []
for line in open(lines):
    row = dict(zip(names, line.split()))
    row = {name: value if name in ("tree", "place") else int(value) for name, value in row.items()}
    for when in "idle", "built", "after":
        row[when + "_bytes"] = sum(row[f"{when}_{of}"] - row[f"before_{of}"] for of in ("stored", "process"))
    rows.append(row)
mib = lambda number: f"{number / 2**20:,.1f}"
text = [f"Commit {commit}; {rows[0]['copies']} copies of each tree. In brackets: relative to `cp -a` on tmpfs.", ""]
for tree in dict.fromkeys(row["tree"] for row in rows):
    own = [row for row in rows if row["tree"] == tree]
    base = next((row for row in own if row["place"] == "tmpfs"), None)
    ratio = lambda row, of: f" ({row[of] / base[of]:.3f})" if base else ""
    text += [f"`{tree}`: {own[0]['entries']:,} entries, {mib(own[0]['bytes'])} MiB", "",
             "| | copies, s | idle, MiB | B an entry | builds, s | after them, MiB | remove, s | left, MiB |",
             "|---|---|---|---|---|---|---|---|"]
    for row in own:
        seconds = lambda of: f"{row[of] / 1e6:.2f}{ratio(row, of)}"
        each = row["idle_bytes"] / row["copies"] / row["entries"]
        text.append(f"| {row['place']} | {seconds('copy_us')} | {mib(row['idle_bytes'])}{ratio(row, 'idle_bytes')} | "
                    f"{each:,.0f} | {seconds('build_us')} | {mib(row['built_bytes'])}{ratio(row, 'built_bytes')} | "
                    f"{seconds('remove_us')} | {mib(row['after_bytes'])} |")
    text.append("")
open(out + ".md", "w").write("\n".join(text))
json.dump({"version": 1, "commit": commit, "rows": rows}, open(out + ".json", "w"), indent=2)
print("\n".join(text))
PYTHON
