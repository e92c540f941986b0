#!/usr/bin/env bash
# fuzz.sh [TARGET...]: runs each fuzz target (all of fuzz/fuzz_targets without arguments) for FUZZ_SECONDS (1800) and
# prints executions, coverage and crashes; ends with an error when there was a crash. fuzz.sh --seeds writes the seed
# corpora anew. Nothing but Rust and a C++ compiler is assumed: cargo-fuzz goes to target/tools, and the pinned
# compiler is told to accept the flags that fuzzing needs. See fuzz/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_FUZZ_VERSION=0.13.2
TOOLS=target/tools
SECONDS_EACH=${FUZZ_SECONDS:-1800}
# none, or address (twice as slow; the only unsafe code is in crates/pmem).
SANITIZER=${FUZZ_SANITIZER:-none}
# An input takes milliseconds and no allocation of the core grows with a number that the media holds.
LIMITS=(-timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=802)

if [ "${1:-}" = --seeds ]; then
    rm -rf fuzz/corpus
    cargo run --quiet -p nvfold-tests --features seeds --example fuzz_seeds -- fuzz/corpus
    exit
fi

scripts/need.sh c++=g++
if [ "$("$TOOLS/bin/cargo-fuzz" --version 2>/dev/null)" != "cargo-fuzz $CARGO_FUZZ_VERSION" ]; then
    echo "fuzz: installing cargo-fuzz $CARGO_FUZZ_VERSION into $TOOLS/bin"
    cargo install --quiet "cargo-fuzz@$CARGO_FUZZ_VERSION" --locked --force --root "$TOOLS" --target-dir "$TOOLS/build"
fi
# Comparisons are not traced: scans of tables are nearly all comparisons, and fields get their values by name.
RUSTC_BOOTSTRAP=1 "$TOOLS/bin/cargo-fuzz" build --sanitizer "$SANITIZER" --no-trace-compares
BUILT=fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release

targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
    targets=(fuzz/fuzz_targets/*.rs)
fi
crashed=0
for target in "${targets[@]}"; do
    name=$(basename "$target" .rs)
    corpus=fuzz/target/corpus/$name artifacts=fuzz/artifacts/$name log=fuzz/target/$name.log
    mkdir -p "$corpus" "$artifacts"
    echo "fuzz: $name for $SECONDS_EACH seconds"
    status=0
    nice -n 19 "$BUILT/$name" "$corpus" "fuzz/corpus/$name" "${LIMITS[@]}" -max_total_time="$SECONDS_EACH" \
        -print_final_stats=1 -artifact_prefix="$artifacts/" >"$log" 2>&1 || status=$?
    awk -v name="$name" '
        /inline 8-bit counters\)/ && !points { for (i = 1; i < NF; i++) if ($i ~ /^\(/ && !points) points = substr($i, 2) }
        / cov: /                           { for (i = 1; i < NF; i++) if ($i == "cov:") covered = $(i + 1) }
        /number_of_executed_units/         { executed = $2 }
        /average_exec_per_sec/             { rate = $2 }
        END { printf "fuzz: %s: %d executions, %d/s, %d of %d code points covered\n",
                     name, executed, rate, covered, points }' "$log"
    if [ "$status" -ne 0 ]; then
        crashed=1
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        echo "fuzz: $name: CRASH; why: $log; again: $BUILT/$name ${input:-(no input was written)}"
    else
        echo "fuzz: $name: no crash"
    fi
done
exit "$crashed"
