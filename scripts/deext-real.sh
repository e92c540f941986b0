#!/usr/bin/env bash
# make deext-real: real data under each policy.
#
#   saved       two versions of five Python packages and of a source tree, as files and as tar: what is saved, beside borg
#   compressed  the same by policy deext with compression, beside borg and restic with theirs
#   copies      a second copy written in requests of several sizes, also with a byte in front: what is stored anew
#   speed       import of a tree that compresses and of one that does not, and reading back: MB/s, ratios of paired passes
#
#   POLICIES="inline"   policies, the first one what the ratios are to
#   PARTS               parts to run (all)
#   PASSES=5            passes of speed, after one to warm up
#   --page FILE         write the tables to a file too
#
# Downloads about 130 MB with pip and cargo. Everything lies in one directory in memory, which goes away at the end.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

NVFOLD=${NVFOLD_BIN:-$PWD/target/release/nvfold}
TOOL=$PWD/target/release/examples/deext_real
POLICIES=${POLICIES:-inline}
PARTS=${PARTS:-saved compressed copies speed}
PASSES=${PASSES:-5}
PAGE=
case ${1:-} in
'') ;;
--page) PAGE=${2:?deext-real: --page needs the file to write} ;;
*) echo "deext-real: unknown option $1; there is --page FILE" >&2; exit 2 ;;
esac

# Two versions each: templates and translations, native code, descriptions in JSON, Python, locale data; C.
PACKAGES="django=5.0.3,5.0.4 numpy=1.26.3,1.26.4 botocore=1.34.50,1.34.60 sympy=1.11.1,1.12 babel=2.13.1,2.14.0"
SOURCE_TREE="openssl-src=300.3.1,300.3.2"
# Bytes of a tree that are written as one file in `copies`.
COPY_BYTES=$((32 << 20))
WANTED_MB=3000

scripts/need.sh fusermount3=fuse3 mountpoint=util-linux python3=python3 pip3=python3-pip borg=borgbackup restic=restic tar=tar shuf=coreutils
for program in "$NVFOLD" "$TOOL"; do
    [ -x "$program" ] || { echo "deext-real: $program is not there; run \`make deext-real\`" >&2; exit 1; }
done

# ---------------------------------------------------------------------------------------------- cleaning up

PLACE=/dev/shm
if [ "$(df --output=avail -BM $PLACE 2>/dev/null | tail -1 | tr -dc 0-9)" -lt "$WANTED_MB" ]; then
    PLACE=${TMPDIR:-/tmp}
    echo "deext-real: /dev/shm has less than $WANTED_MB MB: everything lies in $PLACE, on a disk" >&2
fi
WORK=$(mktemp -d "$PLACE/nvfold-deext.XXXXXX")
# The process group that does the work, once it has begun.
JOB=
cleanup() {
    local status=$?
    trap - EXIT
    [ -z "$JOB" ] || { kill -TERM -- "-$JOB" && wait "$JOB"; } 2>/dev/null || true
    if mountpoint -q "$WORK/mnt" 2>/dev/null; then
        "$NVFOLD" umount "$WORK/mnt" >/dev/null 2>&1 || fusermount3 -u -z "$WORK/mnt" || true
    fi
    rm -rf --one-file-system "$WORK"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$WORK/mnt" "$WORK/files" "$WORK/tar" "$WORK/packed"

# ------------------------------------------------------------------------------------------------- helpers

say() { echo "deext-real: $*" >&2; }
# A number in a JSON report: the first of that name.
field() { awk -F '[":, ]+' -v key="$1" '$2 == key { print $3; exit }'; }
bytes_in() { find "$@" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }'; }
allocated() { du -s --block-size=1 "$1" | cut -f1; }
saved() {
    awk -v all="$1" -v stored="$2" 'BEGIN { text = sprintf("%.1f %%", 100 - 100 * stored / all); sub(/^-0.0/, "0.0", text); print text }'
}
mb() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }
# Median of lines, and with the least and the greatest.
median() { sort -g | awk '{ v[NR] = $1 } END { printf "%.0f", v[int((NR + 1) / 2)] }'; }
spread() { sort -g | awk '{ v[NR] = $1 } END { printf "%.2f (%.2f..%.2f)", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
# A line of a table of Markdown from its cells.
row() { printf '|'; printf ' %s |' "$@"; printf '\n'; }
rule() { printf '|'; for _ in "$@"; do printf -- '---|'; done; printf '\n'; }
# A device with room for so many bytes three times over.
fresh_device() { # BYTES
    rm -f "$WORK/device"
    "$NVFOLD" mkfs "$WORK/device" --size "$(($1 * 3 / 1000000 + 128))M" >/dev/null
}

# --------------------------------------------------------------------------------------------------- data

wheel() { # NAME VERSION DIRECTORY
    local into=$WORK/packed/$1-$2
    # Of one platform, so that the bytes are the same everywhere.
    pip3 download -q --no-cache-dir --no-deps --disable-pip-version-check --only-binary=:all: --python-version 3.11 \
        --implementation cp --platform manylinux2014_x86_64 -d "$into" "$1==$2" >&2
    mkdir -p "$3"
    python3 -m zipfile -e "$into"/*.whl "$3"
}
crate() { # NAME VERSION DIRECTORY
    local project=$WORK/project
    mkdir -p "$project" "$(dirname "$3")"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "/dev/null"\n' >"$project/Cargo.toml"
    printf '[dependencies]\n%s = "=%s"\n' "$1" "$2" >>"$project/Cargo.toml"
    (cd "$project" && cargo vendor -q vendor >/dev/null)
    mv "$project/vendor/$1" "$3"
    rm -rf "$project"
}
# files/NAME/{old,new}: extracted; tar/NAME/{old,new}.tar: the same in one file each.
two_versions() { # FETCH NAME=OLD,NEW
    local name=${2%%=*} versions=${2#*=} version
    say "downloading $name ${versions/,/ and }"
    "$1" "$name" "${versions%,*}" "$WORK/files/$name/old"
    "$1" "$name" "${versions#*,}" "$WORK/files/$name/new"
    mkdir "$WORK/tar/$name"
    for version in old new; do
        tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$WORK/files/$name/$version" \
            -cf "$WORK/tar/$name/$version.tar" .
    done
}
download() {
    local package
    for package in $PACKAGES; do two_versions wheel "$package"; done
    two_versions crate "$SOURCE_TREE"
}

# -------------------------------------------------------------------------------------------------- saved

# Chunks of the size of ours; those that borg makes unless told otherwise are 2 MiB long on average.
SMALL_CHUNKS=buzhash,12,16,13,4095
BORG_CHUNKS=buzhash,19,23,21,4095

borg_stored() { # TREE CHUNKS COMPRESSION
    rm -rf "$WORK/repository"
    (
        export BORG_BASE_DIR=$WORK/borg BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
        borg init -e none "$WORK/repository" 2>/dev/null
        cd "$1"
        borg create --json --chunker-params "$2" --compression "$3" "$WORK/repository::both" . 2>/dev/null
    ) | field deduplicated_size
    rm -rf "$WORK/repository"
}
# Its pack files: data, and the trees of names.
restic_stored() { # TREE COMPRESSION
    rm -rf "$WORK/repository"
    (
        export RESTIC_PASSWORD=none RESTIC_REPOSITORY=$WORK/repository
        restic init --quiet
        cd "$1"
        restic backup --quiet --no-cache --compression "$2" .
    ) >&2
    bytes_in "$WORK/repository/data"
    rm -rf "$WORK/repository"
}
# Both numbers: stored by df, and what the device takes of the host.
nvfold_stored() { # OPTIONS TREE BYTES
    fresh_device "$3"
    "$NVFOLD" import "$WORK/device" "$2" -o "$1" >/dev/null
    echo "$("$NVFOLD" df "$WORK/device" --json | field stored_bytes) $(allocated "$WORK/device")"
}
part_saved() {
    local form name tree bytes stored host borg cells all
    echo "## Two versions of a package: saved"
    echo
    echo "Percentage of the bytes of both versions. *df*: by the stored data that \`nvfold df\` reports. *host*: by the space"
    echo "that the device takes on the host, with inodes, names and tables. borg: its deduplicated size with"
    echo "\`--chunker-params $SMALL_CHUNKS --compression none\`."
    echo
    cells=(package as bytes)
    for policy in $POLICIES; do cells+=("$policy, df" "$policy, host"); done
    row "${cells[@]}" borg && rule "${cells[@]}" borg
    for form in files tar; do
        declare -A sum=()
        all=0
        for tree in "$WORK/$form"/*; do
            name=${tree##*/}
            say "saved: $name as $form"
            bytes=$(bytes_in "$tree")
            all=$((all + bytes))
            cells=("$name" "$form" "$(mb "$bytes")")
            for policy in $POLICIES; do
                read -r stored host <<<"$(nvfold_stored "policy=$policy" "$tree" "$bytes")"
                cells+=("$(saved "$bytes" "$stored")" "$(saved "$bytes" "$host")")
                sum[$policy]=$((${sum[$policy]:-0} + stored)) sum[$policy,host]=$((${sum[$policy,host]:-0} + host))
            done
            borg=$(borg_stored "$tree" "$SMALL_CHUNKS" none)
            sum[,borg]=$((${sum[,borg]:-0} + borg))
            row "${cells[@]}" "$(saved "$bytes" "$borg")"
        done
        cells=("all" "$form" "$(mb "$all")")
        for policy in $POLICIES; do
            cells+=("$(saved "$all" "${sum[$policy]}")" "$(saved "$all" "${sum[$policy,host]}")")
        done
        row "${cells[@]}" "$(saved "$all" "${sum[,borg]}")"
        unset sum
    done
    rm -f "$WORK/device"
}

# --------------------------------------------------------------------------------------------- compressed

# Lines of the table: what is saved of each package and of all, for each number that a command prints of a tree.
compressed_rows() { # FORM "NAME;NAME" COMMAND OPTIONS...
    local form=$1 command=$3 tree bytes at cells numbers names
    IFS=';' read -r -a names <<<"$2"
    shift 3
    say "compressed: $form, ${names[0]}"
    for tree in "$WORK/$form"/*; do
        bytes=$(bytes_in "$tree")
        { echo "$bytes" && "$command" "$tree" "$bytes" "$@"; } | tr '\n' ' '
        echo
    done >"$WORK/numbers"
    awk '{ for (at = 1; at <= NF; at++) sum[at] += $at }
         END { for (at = 1; at <= NF; at++) printf "%.0f ", sum[at]; print "" }' "$WORK/numbers" >"$WORK/sums"
    for at in "${!names[@]}"; do
        cells=("${names[at]}")
        while read -r -a numbers; do cells+=("$(saved "${numbers[0]}" "${numbers[at + 1]}")"); done \
            < <(cat "$WORK/numbers" "$WORK/sums")
        row "${cells[@]}"
    done
}
# The third number: of the host, when what is dead in segments of packed chunks has been freed too.
by_nvfold() {
    nvfold_stored "policy=deext,compress=$3" "$1" "$2"
    "$NVFOLD" reclaim "$WORK/device" >/dev/null
    allocated "$WORK/device"
}
by_borg() { borg_stored "$1" "$3" "$4"; }
by_restic() { restic_stored "$1" "$3"; }

part_compressed() {
    local form tree cells level=3
    echo "## The same, compressed: saved"
    echo
    echo "Percentage of the bytes of both versions. deext runs with \`-o policy=deext,compress=zstd:$level\` ($level is the default"
    echo "level) or with \`compress=lz4\`. *reclaimed*: by the space on the host after \`nvfold reclaim\`. Host space"
    echo "differed by up to 6 % of a tree between two runs."
    echo "$(borg --version), by its deduplicated size: *small chunks* is \`--chunker-params $SMALL_CHUNKS\`, as"
    echo "above. *its own chunks* have a mean of 2 MiB; with lz4 they are its default."
    echo "$(restic version | cut -d ' ' -f 1,2), with zstd, by the size of its pack files; its chunks have a mean of 1 MiB."
    for form in files tar; do
        echo
        cells=("as $form")
        for tree in "$WORK/$form"/*; do cells+=("${tree##*/}"); done
        row "${cells[@]}" all && rule "${cells[@]}" all
        compressed_rows "$form" "deext, zstd, df;deext, zstd, host;deext, zstd, reclaimed" by_nvfold "zstd:$level"
        compressed_rows "$form" "borg, zstd, small chunks" by_borg "$SMALL_CHUNKS" "zstd,$level"
        compressed_rows "$form" "borg, zstd, its own chunks" by_borg "$BORG_CHUNKS" "zstd,$level"
        compressed_rows "$form" "restic, \`--compression auto\`" by_restic auto
        compressed_rows "$form" "restic, \`--compression max\`" by_restic max
        compressed_rows "$form" "deext, lz4, df;deext, lz4, host;deext, lz4, reclaimed" by_nvfold lz4
        compressed_rows "$form" "borg, lz4, small chunks" by_borg "$SMALL_CHUNKS" lz4
        compressed_rows "$form" "borg, lz4, its own chunks" by_borg "$BORG_CHUNKS" lz4
    done
    rm -f "$WORK/device"
}

# ------------------------------------------------------------------------------------------------- copies

mounted_copy() { # POLICY FILE HOW SIZE
    local before after size=$((COPY_BYTES * 4 / 1000000 + 64)) requests
    "$NVFOLD" mount mem: "$WORK/mnt" -o "size=${size}M,policy=$1" >/dev/null
    dd if="$WORK/data" of="$WORK/mnt/first" bs=1M status=none
    settle
    before=$(taken)
    case $3 in
    shuffled)
        requests=$((($(stat -c %s "$2") + $4 - 1) / $4))
        # Each request reaches the server by itself: the kernel's cache would put them in order.
        shuf -i "0-$((requests - 1))" --random-source="$WORK/data" | while read -r at; do
            dd if="$2" of="$WORK/mnt/second" bs="$4" skip="$at" seek="$at" count=1 conv=notrunc,fsync status=none
        done
        ;;
    *) dd if="$2" of="$WORK/mnt/second" bs="$4" status=none ;;
    esac
    settle
    cmp "$2" "$WORK/mnt/second"
    after=$(taken)
    "$NVFOLD" umount "$WORK/mnt" >/dev/null
    awk -v all="$(stat -c %s "$2")" '{ printf "%.2f %% (%.2f %%)", 100 * ($3 - $1) / all, 100 * ($4 - $2) / all }' \
        <<<"$before $after"
}
# Data stored on the mount, and bytes that it takes of the host.
taken() {
    "$NVFOLD" df "$WORK/mnt" --json >"$WORK/df"
    echo "$(field stored_bytes <"$WORK/df") $(field host_bytes <"$WORK/df")"
}
# Until what was written has arrived, and what is put off is done: a stream ends after a second without a write.
settle() {
    sync -f "$WORK/mnt"
    sleep 2
    "$NVFOLD" dedup --drain "$WORK/mnt" >/dev/null
}
part_copies() {
    local tree policy cells what how size file
    local ways=("512 B" "4 KiB" "1 MiB" "128 KiB, shuffled")
    local hows=(plain plain plain shuffled) sizes=(512 4096 1048576 131072)
    echo "## A second copy: stored anew, in % of it"
    echo
    echo "The first $((COPY_BYTES >> 20)) MiB of a tar file (text) or of packages as downloaded (compressed) are written as one file in"
    echo "requests of 1 MiB, then a second time as the row says. Rows are embedded, or through a mount with dd. In brackets:"
    echo "the same by the space that the device takes on the host, with logs and tables."
    echo
    cells=("data" "second copy" "front end")
    # shellcheck disable=SC2086
    row "${cells[@]}" $POLICIES && rule "${cells[@]}" $POLICIES
    for what in text compressed; do
        case $what in
        text) head -c "$COPY_BYTES" "$WORK/tar/django/new.tar" >"$WORK/data" ;;
        compressed) find "$WORK/packed" -type f | sort | xargs cat 2>/dev/null | head -c "$COPY_BYTES" >"$WORK/data" || true ;;
        esac
        { printf + && cat "$WORK/data"; } >"$WORK/shifted"
        say "copies: $what, embedded"
        for policy in $POLICIES; do "$TOOL" copies "$policy" "$WORK/data" >"$WORK/copies.$policy"; done
        cut -f1 "$WORK/copies.${POLICIES%% *}" | while read -r way; do
            cells=("$what" "$way" embedded)
            for policy in $POLICIES; do
                cells+=("$(awk -F '\t' -v way="$way" '$1 == way { print $2 " % (" $3 " %)" }' "$WORK/copies.$policy")")
            done
            row "${cells[@]}"
        done
        for file in data shifted; do
            for at in "${!ways[@]}"; do
                how=${hows[$at]} size=${sizes[$at]}
                cells=("$what" "${ways[$at]}$([ "$file" = data ] || echo ", a byte in front")" mounted)
                say "copies: ${cells[*]}"
                for policy in $POLICIES; do cells+=("$(mounted_copy "$policy" "$WORK/$file" "$how" "$size")"); done
                row "${cells[@]}"
            done
        done
    done
}

# -------------------------------------------------------------------------------------------------- speed

# MB/s of import, what it queued for later shared too, and of reading everything back.
import_and_read() { # POLICY TREE BYTES
    local report read
    fresh_device "$3"
    report=$("$NVFOLD" import "$WORK/device" "$2" --policy "$1" --json)
    read=$("$TOOL" read "$WORK/device")
    awk -v bytes="$3" -v copying="$(field seconds <<<"$report")" -v sharing="$(field sharing_seconds <<<"$report")" \
        -v read="${read#*$'\t'}" 'BEGIN { print bytes / 1e6 / (copying + sharing), bytes / 1e6 / read }'
}
part_speed() {
    local what tree bytes pass policy turn reference=${POLICIES%% *}
    local -a order
    echo "## Import, and reading back: MB/s"
    echo
    echo "Medians of $PASSES passes, each with all policies in turn. Ratios are to $reference in the same pass, with minimum and"
    echo "maximum. One thread reads through the library, 1 MiB at a time. compressible: both versions of openssl-src."
    echo "incompressible: the packages as downloaded."
    echo
    row data policy import "ratio" read "ratio" && rule 1 2 3 4 5 6
    for what in compressible incompressible; do
        case $what in compressible) tree=$WORK/files/openssl-src ;; *) tree=$WORK/packed ;; esac
        bytes=$(bytes_in "$tree")
        read -r -a order <<<"$POLICIES"
        rm -f "$WORK"/speed.*
        for pass in $(seq 0 "$PASSES"); do
            say "speed: $what, pass $pass of $PASSES"
            for policy in "${order[@]}"; do
                turn=$(import_and_read "$policy" "$tree" "$bytes")
                # The first pass warms up.
                [ "$pass" = 0 ] || echo "$turn" >>"$WORK/speed.$policy"
            done
            # Another one goes first in the next pass.
            order=("${order[@]:1}" "${order[0]}")
        done
        for policy in $POLICIES; do
            paste -d ' ' "$WORK/speed.$policy" "$WORK/speed.$reference" >"$WORK/paired"
            row "$what" "$policy" "$(cut -d ' ' -f1 "$WORK/paired" | median)" \
                "$(awk '{ print $1 / $3 }' "$WORK/paired" | spread)" "$(cut -d ' ' -f2 "$WORK/paired" | median)" \
                "$(awk '{ print $2 / $4 }' "$WORK/paired" | spread)"
        done
    done
    rm -f "$WORK/device"
}

# --------------------------------------------------------------------------------------------------- page

report() {
    local part
    echo "# Real data under each policy"
    echo
    echo "Made by \`POLICIES=\"$POLICIES\" make deext-real\` at commit $(git describe --always --abbrev=12 --exclude='*' --dirty)."
    echo "Packages: ${PACKAGES//=/ }; source tree: ${SOURCE_TREE/=/ }." | fold -s -w 118 | sed 's/ $//'
    for part in $PARTS; do
        echo
        "part_$part"
    done
}
# In a group of its own, so that whoever stops this script stops all of it at once.
set -m
{
    download
    report >"$WORK/page"
} &
JOB=$!
set +m
status=0
wait "$JOB" || status=$?
JOB=
[ ! -f "$WORK/page" ] || cat "$WORK/page"
if [ "$status" = 0 ] && [ -n "$PAGE" ]; then
    cp "$WORK/page" "$PAGE"
    say "wrote $PAGE"
fi
exit "$status"
