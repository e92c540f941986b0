#!/usr/bin/env bash
# What small files take of the host's memory: files of 100 bytes, a node_modules tree and a Python virtual environment,
# each imported into a fresh device in memory, copied to one through a mount, and on a tmpfs. Prints for each where the
# bytes are, what a file and a directory take beyond their content, and how long the logs are.
#
#   scripts/small-files.sh [TREE...]     trees of the host instead; with $NVFOLD_BIN or target/release/nvfold
#   SMALL_FILES=100000                   files of 100 bytes to make (default: 1,000,000), 100 in a directory
#   SMALL_TREES="files npm venv"         which of the three; SMALL_WAYS="import copy": how they get there
#   NVFOLD_BEFORE=/path/to/nvfold        measures this command first, on the same trees
#
# Needs root (tmpfs, /proc/slabinfo), python3, npm with a registry. Times are not measured.
set -euo pipefail
cd "$(dirname "$0")/.."

NOW=${NVFOLD_BIN:-$PWD/target/release/nvfold}
NVFOLD=$NOW
FILES=${SMALL_FILES:-1000000}
WORK=$(mktemp -d /dev/shm/small-files.XXXXXX)
MOUNT=$WORK/mount
TMPFS=$WORK/tmpfs
DEVICE=$WORK/device
mkdir "$MOUNT" "$TMPFS"

cleanup() {
    if mountpoint -q "$MOUNT"; then "$NVFOLD" umount "$MOUNT"; fi
    if mountpoint -q "$TMPFS"; then umount "$TMPFS"; fi
    rm -rf "$WORK"
}
trap cleanup EXIT

make_files() { # directory
    python3 - "$1" "$FILES" <<'PYTHON'
import os, random, sys
random.seed(1)
for number in range(int(sys.argv[2])):
    folder = os.path.join(sys.argv[1], f"{number // 100:05}")
    if number % 100 == 0:
        os.makedirs(folder)
    with open(os.path.join(folder, f"{number % 100:02}.txt"), "wb") as file:
        file.write(random.randbytes(100))
PYTHON
}

make_npm() { # directory
    echo '{"name": "small-files", "version": "1.0.0", "private": true}' >"$1/package.json"
    (cd "$1" && npm install --no-audit --no-fund --ignore-scripts --loglevel=error --cache "$WORK/npm" \
        express@4.19.2 typescript@5.4.5 webpack@5.91.0 eslint@8.57.0 lodash@4.17.21 react@18.3.1 react-dom@18.3.1 \
        jest@29.7.0) >"$WORK/log"
    rm -rf "$WORK/npm"
}

make_venv() { # directory
    python3 -m venv --copies "$1/venv"
}

# Where the bytes of an unmounted device are: read from the device itself, as docs/media-format.md draws it.
describe() { # name, way
    python3 - "$DEVICE" "$TMPFS" "$1" "$2" "$("$NVFOLD" df "$DEVICE" --json)" <<'PYTHON'
import json, os, struct, sys
from collections import Counter
device, tree, name, way, df = sys.argv[1:]
df = json.loads(df)
df = df.get("file_systems", df.get("df", {}))[0]
SEGMENT, BLOCK, SLOT, LINE = 2 << 20, 4096, 512, 64
AREA = 8  # kind of a slot that is a log area
ENTRIES, PACKED = 4, 5  # kinds of segments: entries of packed chunks, and packed chunks
media = open(device, "rb")

def read(offset, length):
    return os.pread(media.fileno(), length, offset)

def allocated(start, end):
    """Bytes of the host in a range of the device."""
    total, at = 0, start
    while at < end:
        try:
            at = os.lseek(media.fileno(), at, os.SEEK_DATA)
        except OSError:
            return total
        hole = min(os.lseek(media.fileno(), at, os.SEEK_HOLE), end)
        total += max(hole - at, 0)
        at = hole
    return total

segment_table, chunk_table, data = struct.unpack_from("<QQQ", read(104, 24))
size = os.path.getsize(device)
kinds = [read(segment_table + 16 * segment, 1)[0] for segment in range(-(-size // SEGMENT))]


def allocated_in(wanted):
    return sum(allocated(s * SEGMENT, (s + 1) * SEGMENT) for s, kind in enumerate(kinds) if kind == wanted)

inode_bytes, entry_bytes = allocated_in(1), allocated_in(ENTRIES)

# Bytes of packed chunks that live: the table of their entries says which.
packed_chunks = packed_content = 0
for segment in (s for s, kind in enumerate(kinds) if kind == ENTRIES):
    for count, place in struct.iter_unpack("<8xI4xQ40x", read(segment * SEGMENT, SEGMENT)):
        if count:
            packed_chunks += 1
            packed_content += place >> 44

class Kind:
    def __init__(self):
        self.count = self.lines = self.areas = self.pages = self.without = self.longest = 0
        self.by_lines = Counter()

kinds_of_inodes = {1: Kind(), 2: Kind(), 0: Kind()}
for segment in (s for s, kind in enumerate(kinds) if kind == 1):
    slots = read(segment * SEGMENT, SEGMENT)
    for at in range(0, SEGMENT, SLOT):
        kind, in_use = slots[at + 48], slots[at + 49]
        if in_use != 0xA7 or kind == AREA:
            continue
        of = kinds_of_inodes.get(kind, kinds_of_inodes[0])
        commit, position, overflow = struct.unpack_from("<QQQ", slots, at)
        tail, slot, lines, parts = commit & ~63, segment * SEGMENT + at, 0, []
        while True:
            if position == slot + 192:
                end, following = slot + SLOT, overflow
            elif position % BLOCK == 0:
                end = position + BLOCK - LINE
                following = struct.unpack("<Q", read(end, 8))[0]
                parts.append("page")
            else:
                end = position + SLOT - LINE
                following = struct.unpack("<Q", read(position - LINE + 16, 8))[0]
                parts.append("area")
            if position <= tail <= end:
                lines += (tail - position) // LINE
                break
            lines += (end - position) // LINE
            position = following
        of.count += 1
        of.lines += lines
        of.areas += parts.count("area")
        of.pages += parts.count("page")
        of.without += not parts
        of.longest = max(of.longest, lines)
        of.by_lines["0" if lines == 0 else "1" if lines == 1 else "2-5" if lines <= 5 else "6-12" if lines <= 12
                    else "13-26" if lines <= 26 else "27-61" if lines <= 61 else "62-"] += 1

content = files = directories = 0
rounded = 0
seen = set()
for folder, subfolders, names in os.walk(tree):
    directories += 1
    for entry in names:
        about = os.lstat(os.path.join(folder, entry))
        if about.st_ino in seen:
            continue
        seen.add(about.st_ino)
        files += 1
        if not os.path.islink(os.path.join(folder, entry)):
            content += about.st_size
            rounded += -(-about.st_size // BLOCK) * BLOCK
space = os.statvfs(tree)
tmpfs_blocks = (space.f_blocks - space.f_bfree) * space.f_frsize
slabs = {line.split()[0]: int(line.split()[3]) for line in open("/proc/slabinfo").read().splitlines()[2:]}
tmpfs_inodes = (files + directories) * (slabs["shmem_inode_cache"] + slabs["dentry"])

host = allocated(0, size)
inodes = files + directories
of_file, of_directory = kinds_of_inodes[1], kinds_of_inodes[2]
pages = sum(kind.pages for kind in kinds_of_inodes.values())
stored = df["stored_bytes"]
parts = [
    ("content", content),
    ("data beyond it: ends of blocks, less what is shared", stored - content),
    ("packed segments: headers, ends, dead chunks", allocated_in(PACKED) - packed_content),
    ("table of packed entries", entry_bytes),
    ("inode table, log areas in it", inode_bytes),
    ("log pages", pages * BLOCK),
    ("chunk table", allocated(chunk_table, data)),
    ("segment table, journal, superblocks", allocated(0, chunk_table)),
]
parts.append(("all else (saved state, free blocks held)", host - sum(bytes for _, bytes in parts)))
beyond = host - content
print(f"\n{name}, {way}: {files:,} files, {directories:,} directories, {content / 2**20:.1f} MiB, "
      f"{packed_chunks:,} packed chunks")
for what, bytes in parts + [("host", host)]:
    print(f"  {what:<52} {bytes / 2**20:9.1f} MiB {bytes / inodes:8.0f} B an inode")
print(f"  {'tmpfs, blocks':<52} {tmpfs_blocks / 2**20:9.1f} MiB {tmpfs_blocks / inodes:8.0f} B an inode")
print(f"  {'tmpfs, with inodes and names in the kernel':<52} {(tmpfs_blocks + tmpfs_inodes) / 2**20:9.1f} MiB "
      f"{(tmpfs_blocks + tmpfs_inodes) / inodes:8.0f} B an inode")
of_directories = SLOT * (of_directory.count + of_directory.areas) + BLOCK * of_directory.pages
print(f"  beyond the content: {beyond / inodes:.0f} B an inode; {(beyond - of_directories) / files:.0f} B a file without the "
      f"slots and logs of directories; without what content takes in blocks {(host - stored) / inodes:.0f} B an inode")
for what, kind in ("file", of_file), ("directory", of_directory):
    if kind.count:
        bytes = SLOT + (kind.areas * SLOT + kind.pages * BLOCK) / kind.count
        print(f"  a {what}: slot and log {bytes:.0f} B; {kind.lines / kind.count:.1f} lines (at most {kind.longest}), "
              f"{kind.without} of {kind.count} in the slot alone, {kind.areas} areas, {kind.pages} pages")
        print("    lines: " + ", ".join(f"{lines}: {kind.by_lines[lines]}" for lines in
              ("0", "1", "2-5", "6-12", "13-26", "27-61", "62-") if kind.by_lines[lines]))
PYTHON
}

# A device with room for the tree.
fresh_device() {
    local blocks
    blocks=$(find "$TMPFS" -printf '%b\n' | awk '{ sum += int(($1 + 7) / 8) + 2 } END { print sum }')
    "$NVFOLD" mkfs "$DEVICE" --size "$(((blocks * 5 / 4 << 12) + (256 << 20)))" --force >"$WORK/log"
}

by_import() {
    "$NVFOLD" import "$DEVICE" "$TMPFS" >"$WORK/log"
}

by_copy() {
    "$NVFOLD" mount "$DEVICE" "$MOUNT" >"$WORK/log"
    cp -a "$TMPFS/." "$MOUNT"
    sync -f "$MOUNT"
    # Free blocks go back to the host within five seconds.
    sleep 6
    "$NVFOLD" umount "$MOUNT" >"$WORK/log"
}

measure() { # name, command that makes the tree...
    local name=$1
    shift
    mount -t tmpfs -o size=80%,nr_inodes=0 small-files "$TMPFS"
    "$@"
    for way in ${SMALL_WAYS:-import copy}; do
        for NVFOLD in ${NVFOLD_BEFORE:-} "$NOW"; do
            fresh_device
            "by_$way"
            "$NVFOLD" fsck "$DEVICE" >"$WORK/log"
            describe "$name" "$way$([ "$NVFOLD" = "$NOW" ] || echo ", before")"
            rm "$DEVICE"
        done
    done
    umount "$TMPFS"
}

if [ $# -gt 0 ]; then
    for tree in "$@"; do
        measure "$tree" cp -a "$tree/." "$TMPFS"
    done
    exit
fi
for tree in ${SMALL_TREES:-files npm venv}; do
    measure "$tree" "make_$tree" "$TMPFS"
done
