#!/bin/sh
# Makes small devices with a released version of nvfold. They are kept forever: every later version must mount them, and
# tests/tests/images.rs reads, checks, changes and grows each. Run it once for a version that changes the format, with the
# program of that version, and never make an image again that is there:
#
#   tests/images/make.sh PATH/TO/nvfold VERSION        (as root, with FUSE, attr and zstd)
#
# An image VERSION-NAME.zst has a manifest VERSION-NAME.manifest beside it: kind, permissions, bytes, SHA-256 of the
# content, and path, by tabs; then one line for each extended attribute. `crashed` images are of a server that was killed.
set -eu
nvfold=$1
version=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d /dev/shm/nvfold-images-XXXXXX)
trap 'umount -l "$work/mnt" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/mnt"

# Text that compresses, different for each seed.
text() { seq "$1" 7 "$(($1 + 7 * $2))"; }
# Bytes that do not, of a fixed sequence.
noise() { text "$1" 9000 | gzip -n9 | head -c "$2"; }

# `text` and `noise` are functions and files.
# shellcheck disable=SC2094
fill() {
    cd "$1"
    mkdir -p dir/inner empty many
    text 1 6000 > text; cp text copy; text 2 3000 > dir/other
    noise 3 20000 > noise
    cp noise dir/noise
    noise 3 12288 > part; text 4 500 >> part
    : > nothing; printf 'short' > dir/inner/short
    { head -c 8192 text; truncate -s 3M /dev/stdout; } > hole || true
    truncate -s 3M hole; text 5 2000 >> hole
    ln text dir/linked; ln -s ../text dir/symlink; mkfifo fifo
    chmod 640 copy; chmod 2750 dir/inner
    setfattr -n user.short -v value text
    setfattr -n user.long -v "$(text 6 400 | tr '\n' ' ')" dir
    i=0; while [ $i -lt 150 ]; do printf '%s' "$i" > "many/a name of some length $i"; i=$((i + 1)); done
    rm "many/a name of some length 7"
    i=0; while [ $i -lt 40 ]; do text $i 30 >> appended; i=$((i + 1)); done
    cd "$work"
}

# The tree as it is, in the order of the bytes of its paths. Snapshots are part of it.
manifest() {
    snapshots=$1/.nvfold/snapshots
    { find "$1" -mindepth 1; [ ! -d "$snapshots" ] || find "$snapshots" -mindepth 1; } | LC_ALL=C sort |
        while IFS= read -r path; do
            if [ -L "$path" ]; then kind="link"; sum=$(readlink -n "$path" | sha256sum)
            elif [ -d "$path" ]; then kind=dir; sum=-
            elif [ -f "$path" ]; then kind="file"; sum=$(sha256sum < "$path")
            else kind=fifo; sum=-; fi
            bytes=$(stat -c %s "$path"); [ $kind = dir ] && bytes=0
            printf '%s\t%s\t%s\t%s\t%s\n' "$kind" "$(stat -c %a "$path")" "$bytes" "${sum%% *}" "${path#"$1"/}"
        done
    printf 'xattr\tuser.short\tvalue\ttext\n'
}

# image NAME clean|crashed MKFS-OPTIONS MOUNT-OPTIONS [EXTRA]
image() {
    name=$version-$1-$2
    rm -f "$work/device"
    # shellcheck disable=SC2086
    "$nvfold" mkfs "$work/device" --size 16M --label "$1" --uuid 01234567-89ab-cdef-0123-456789abcdef $3 > /dev/null
    "$nvfold" mount --foreground "$work/device" "$work/mnt" -o "$4" > /dev/null &
    server=$!
    while ! mountpoint -q "$work/mnt"; do sleep 0.1; done
    fill "$work/mnt"
    case ${5:-} in
    trees)
        "$nvfold" snapshot create before "$work/mnt/dir" > /dev/null
        "$nvfold" clone "$work/mnt/dir" "$work/mnt/clone" > /dev/null
        "$nvfold" set limit=4M,inodes=100 "$work/mnt/clone" > /dev/null
        text 9 100 > "$work/mnt/clone/other"
        ;;
    esac
    sync
    manifest "$work/mnt" > "$here/$name.manifest"
    if [ "$2" = clean ]; then
        "$nvfold" umount "$work/mnt" > /dev/null
        wait $server
    else
        text 10 2000 > "$work/mnt/after"
        rm "$work/mnt/after"
        kill -9 $server
        wait $server || true
        umount -l "$work/mnt"
    fi
    zstd -q -19 --long=24 -f "$work/device" -o "$here/$name.zst"
}

image dram clean "" policy=inline
image dram crashed "" policy=nv-dedup
image pm clean "--index pm" policy=denova
image pm crashed "--index pm" policy=inline
image packed clean "" policy=deext
image packed crashed "" policy=inline,pack=on
image compressed clean "" policy=deext,compress=zstd
image compressed crashed "" policy=deext,compress=lz4
image trees clean "" policy=auto trees
image trees crashed "--index pm" policy=auto trees
ls -l "$here"
