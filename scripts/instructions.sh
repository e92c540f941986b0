#!/usr/bin/env bash
# Counts the instructions of the benchmarks in lab/benches/instructions.rs and prints them beside their
# bounds: what is committed in instructions.txt, plus 2 %. Fails when a count is above its bound, and when a slowdown of
# 5 %, put in on purpose, is not above every bound. With --write: writes what was counted to instructions.txt instead.
#
# It builds the development profile, of which the tests have compiled nearly everything: nvfold itself is optimised
# there, with overflow checks and debug assertions.
set -euo pipefail
cd "$(dirname "$0")/.."

TABLE=lab/benches/instructions.txt
LOG=target/instructions.log
CALLS=$(sed -n 's/^const CALLS: usize = \([0-9]*\);/\1/p' lab/benches/instructions.rs)
export PATH="$PWD/target/tools/bin:$PATH"
export GUNGRAUN_COLOR=never

bench() { # prints "name count" for each benchmark; fails as gungraun does
    local status=0
    "${CARGO:-cargo}" bench --quiet --workspace --profile dev --bench instructions -- --parallel=auto \
        >"$LOG" 2>&1 || status=$?
    # A benchmark begins with "instructions::hot::calls name:...", its count with "  Instructions:  count|...".
    awk '/^[a-z].*::/ { sub(/:.*/, "", $2); name = $2 }
         $1 == "Instructions:" { sub(/\|.*/, "", $2); print name, $2 }' "$LOG"
    return "$status"
}

report() { # counts
    awk -v calls="$CALLS" '
        /^#/ { next }
        FNR == NR { committed[$1] = $2; next }
        FNR == 1 { printf "%-24s %12s %14s %14s %9s\n", "benchmark", "a call", "counted", "bound", "changed" }
        {
            by = ($2 / committed[$1] - 1) * 100
            bound = int(committed[$1] * 1.02)
            verdict = $2 > bound ? "  ABOVE ITS BOUND" : by <= -2 ? "  note: better; commit it (--write)" : ""
            printf "%-24s %12.1f %14d %14d %8.2f%%%s\n", $1, $2 / calls, $2, bound, by, verdict
        }' "$TABLE" "$1"
}

# Every benchmark of the table was counted, or the program did not run.
all_counted() { # counts
    diff <(grep -v '^#' "$TABLE" | cut -d' ' -f1 | sort) <(cut -d' ' -f1 "$1" | sort) >/dev/null && return
    cat "$LOG" >&2
    echo "instructions: not every benchmark of $TABLE was counted" >&2
    exit 1
}

counts=$(mktemp)
trap 'rm -f "$counts"' EXIT

status=0
bench >"$counts" || status=$?
all_counted "$counts"
if [ "${1:-}" = --write ]; then
    { grep '^#' "$TABLE"; cat "$counts"; } >"$LOG.table" && mv "$LOG.table" "$TABLE"
    report "$counts"
    exit
fi
report "$counts"
if [ "$status" -ne 0 ]; then
    echo "instructions: a benchmark failed; what it said is in $LOG. If more instructions are meant: $0 --write" >&2
    exit 1
fi

echo
echo "The same with a slowdown of 5 %, which has to be found:"
status=0
NVFOLD_SEEDED_SLOWDOWN=1 bench >"$counts" || status=$?
all_counted "$counts"
report "$counts"
found=$(report "$counts" | grep -c 'ABOVE ITS BOUND' || true)
if [ "$status" -eq 0 ] || [ "$found" -ne "$(wc -l <"$counts")" ]; then
    echo "instructions: a slowdown of 5 % was not found everywhere" >&2
    exit 1
fi
