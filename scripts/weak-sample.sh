#!/usr/bin/env bash
# make weak-sample: what does a first look at an eighth of a block save (weak=sample), beside weak=xxh3?
#
#   trees      three trees of the host, imported with one thread: their median time, what is saved
#   versions   32 versions of a database of 4 KiB pages: each differs from the one before in a line of every fourth page
#   image      an ext4 image of a tree, and a copy of it in which a file was written
#   hostile    blocks of which no two are equal, and which differ in one line alone
#
#   TREES="/usr/lib/python3 ..."   the trees
#   PASSES=5                       passes of each function; they take turns
#   --page FILE                    write the table to a file too
#
# Needs root for a mount, and 6 GiB of memory. Everything lies in one directory in memory, which goes away at the end.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
TREES=${TREES:-/usr/lib/x86_64-linux-gnu /usr/share /usr/include}
PASSES=${PASSES:-5}
PAGE=
case ${1:-} in
'') ;;
--page) PAGE=${2:?weak-sample: --page needs the file to write} ;;
*) echo "weak-sample: unknown option $1; there is --page FILE" >&2; exit 2 ;;
esac
scripts/need.sh fusermount3=fuse3 mke2fs=e2fsprogs debugfs=e2fsprogs python3=python3
[ -x "$NVFOLD" ] || { echo "weak-sample: $NVFOLD is not there; run \`make weak-sample\`" >&2; exit 1; }

work=$(mktemp -d /dev/shm/nvfold-weak-sample.XXXXXX)
trap 'umount "$work/mnt" 2> /dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/mnt" "$work/versions" "$work/image" "$work/hostile"

python3 - "$work" <<'PYTHON'
import random, sys
work, random = sys.argv[1], random.Random(7)
pages = [bytearray(random.randbytes(4096)) for _ in range(1024)]
for version in range(32):
    for page in pages[version % 4::4]:
        line = random.randrange(64) * 64
        page[line:line + 64] = random.randbytes(64)
    with open(f"{work}/versions/{version}", "wb") as file:
        file.writelines(pages)
page = bytearray(random.randbytes(4096))
with open(f"{work}/hostile/blocks", "wb") as file:
    for block in range(32768):
        line = random.randrange(64) * 64
        file.write(page[:line] + block.to_bytes(64, "little") + page[line + 64:])
PYTHON
mke2fs -q -t ext4 -d "${TREES##* }" "$work/image/one" 512M
cp --sparse=never "$work/image/one" "$work/image/two"
debugfs -w -R "write $work/versions/0 /a-new-file" "$work/image/two" > "$work/debugfs.log" 2>&1

new_device() {
    truncate -s 3G "$work/device"
    chmod 600 "$work/device"
    "$NVFOLD" mkfs -q --force "$work/device"
}

# Prints the seconds of one import, and the bytes that it saved and added.
imported() {
    new_device
    "$NVFOLD" import --quiet --json --threads 1 -o "weak=$1" "$work/device" "${@:2}" | python3 -c '
import json, sys
done = json.load(sys.stdin)
print(done["seconds"], done["saved_bytes_added"], done["logical_bytes_added"])'
    rm "$work/device"
}

# Prints how many candidates differed from a block that was written.
differed() {
    new_device
    "$NVFOLD" mount -q "$work/device" "$work/mnt" -o "policy=inline,weak=$1"
    cp -r "${@:2}" "$work/mnt/"
    sync -f "$work/mnt"
    "$NVFOLD" stats --json "$work/mnt" | python3 -c '
import json, sys
def found(node, name):
    if isinstance(node, dict):
        return node[name] if name in node else next((x for x in (found(v, name) for v in node.values()) if x is not None), None)
print(found(json.load(sys.stdin), "weak_collisions"))'
    "$NVFOLD" umount -q "$work/mnt"
    rm "$work/device"
}

row() {
    local name=$1 pass function
    shift
    for ((pass = 0; pass <= PASSES; pass++)); do
        for function in xxh3 sample; do
            imported $function "$@" >> "$work/$name.$function"
        done
    done
    python3 - "$name" "$work/$name" "$(differed sample "$@")" <<'PYTHON'
import statistics, sys
name, path, differed = sys.argv[1:]
passes = {f: [l.split() for l in open(f"{path}.{f}")][1:] for f in ("xxh3", "sample")}
times = {f: [float(one[0]) for one in of] for f, of in passes.items()}
ratios = sorted(s / x for s, x in zip(times["sample"], times["xxh3"]))
saved = {f: int(of[0][1]) for f, of in passes.items()}
print(f"| {name} | {int(passes['xxh3'][0][2]) / 1e6:.1f} MB | {statistics.median(times['xxh3']):.2f} s"
      f" | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
      f" | {saved['xxh3'] / 1e6:.2f} MB | {saved['sample'] / 1e6:.2f} MB | {int(differed):,} |")
PYTHON
}

page() {
    echo '# A first look at a part of a block'
    echo
    echo "Made by \`make weak-sample\` at commit $(git describe --always --abbrev=12)."
    echo
    echo "Imports with one thread. *ratio*: the time of weak=sample by that of weak=xxh3, median of $PASSES paired passes, with"
    echo 'the least and the largest. *differed*: candidates that were compared and were not equal, with weak=sample, by a copy'
    echo 'to a mount.'
    echo
    echo '| data | bytes | xxh3 | ratio | saved, xxh3 | saved, sample | differed |'
    echo '|---|---|---|---|---|---|---|'
    local tree
    for tree in $TREES; do
        row "$(basename "$tree")" "$tree"
    done
    row versions "$work/versions"
    row image "$work/image"
    row hostile "$work/hostile"
}
if [ -n "$PAGE" ]; then page | tee "$work/page" && mv "$work/page" "$PAGE"; else page; fi
