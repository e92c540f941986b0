#!/usr/bin/env bash
# make results: all figures of all papers, what emulated devices charge, wear, reclamation, copies, and the cost of each
# operation, into docs/results/, from one commit. A run that was cut short goes on where it stopped when it is started
# again; results of other commits are removed first (git has them). Give it a machine with nothing else to do.
#
#   RESULTS_DIRTY=1   run although the work tree has changes that are not committed; results then name the commit with
#                     "-dirty" behind it, and a run is not resumed
#   RESULTS_ARGS      handed on to all papers, for example RESULTS_ARGS=--smoke
#   RESULTS_DIR       folder of the results (docs/results)
set -euo pipefail
cd "$(dirname "$0")/.."

LAB=$PWD/target/release/nvfold-lab
# What it measures, where something is mounted.
export NVFOLD_BIN=${NVFOLD_BIN:-$PWD/target/release/nvfold}
OUT=${RESULTS_DIR:-docs/results}
read -r -a extra <<<"${RESULTS_ARGS:-}"
resume=(--resume)

# What was made must be what the commit says; results themselves may differ.
NVFOLD_COMMIT=$(git rev-parse --short=12 HEAD)
changed=$(git status --porcelain -- . ':(exclude)docs/results')
if [ -n "$changed" ]; then
    if [ -z "${RESULTS_DIRTY:-}" ]; then
        printf 'results: the work tree has changes that are not committed (RESULTS_DIRTY=1 runs anyway):\n%s\n' \
            "$changed" >&2
        exit 1
    fi
    NVFOLD_COMMIT+=-dirty
    resume=()
fi
export NVFOLD_COMMIT

# Whether a result names this commit, as all of its JSON does.
is_of_this_commit() {
    grep -q "\"commit\": \"$NVFOLD_COMMIT\"" "$1"
}

scripts/need.sh valgrind=valgrind fio=fio fusermount3=fuse3 mke2fs=e2fsprogs
mkdir -p "$OUT"
find "$OUT" -name '*.json' | sort | while read -r file; do
    if ! is_of_this_commit "$file"; then
        echo "results: $file is of another commit: removed"
        rm -f "$file" "${file%.json}.svg"
    fi
done

paper() {
    local paper=$1 profiles=$2
    shift 2
    printf '\n== %s on %s\n' "$paper" "$profiles"
    "$LAB" paper "$paper" --profile "$profiles" --out "$OUT/$paper" "${resume[@]}" "$@" "${extra[@]}"
}
# The paper's own settings have three times the requests of the others, and what is the same on all of them.
paper nv-dedup nvdimm-8x,nvdimm-600
paper nv-dedup optane,native,pcm --requests 10000 \
    --figure 1,2,6,7,8,9,10,11,12,13,table-4,table-5,costs,skew
paper denova optane,native
paper deext pcm

# Programs under `nvfold run`: the library of this commit, and what the paper ran.
cargo build --release -p nvfold-preload
if [ "$(uname -m)" = x86_64 ]; then
    scripts/need.sh c++=g++ ffmpeg=ffmpeg wget=wget patch=patch diff=diffutils python3=python3 \
        tar=tar sed=sed vi=vim-tiny fusermount3=fuse3
    [ -f /usr/include/leveldb/db.h ] || scripts/need.sh leveldb-headers=libleveldb-dev
    scripts/preload-library.sh target/release/libnvfold_preload.a target/results-preload
    scripts/chunker-corpus.sh target/chunkers --kernels
    printf '\n== icid\n'
    NVFOLD_PRELOAD=$PWD/target/results-preload/libnvfold_preload.so \
        "$LAB" paper icid --out "$OUT/icid" "${resume[@]}" "${extra[@]}"
fi

# What makes one file, unless it is there from this commit.
table() {
    local what=$1
    shift
    printf '\n== %s\n' "$what"
    if [ "${#resume[@]}" -gt 0 ] && [ -f "$OUT/$what/$what.json" ] && is_of_this_commit "$OUT/$what/$what.json"; then
        echo "skipped, made from this commit already: $OUT/$what/$what.json"
    else
        "$LAB" "$what" --out "$OUT/$what" "$@" >/dev/null
    fi
}
table profiles
table cost
table wear --fulls 1000
table reclaim
table origins
table auto --repeats 3
printf '\nresults: %s is of %s; %d min %d s\n' "$OUT" "$NVFOLD_COMMIT" $((SECONDS / 60)) $((SECONDS % 60))
