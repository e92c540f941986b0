#!/usr/bin/env bash
# Prints docs/benchmarks.md with the tables of the last `make bench`: what stands between a line
# <!-- target/bench/NAME.md --> and the next <!-- end --> is that file. `make bench-page` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."

awk '
    /^<!-- target\/bench\/.* -->$/ {
        print
        while ((got = (getline line < $2)) > 0) print line
        if (got < 0) { print "bench-page: there is no " $2 "; run make bench" >"/dev/stderr"; exit 1 }
        skip = 1
    }
    /^<!-- end -->$/ { skip = 0 }
    !skip
' docs/benchmarks.md
