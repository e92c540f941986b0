#!/usr/bin/env bash
# Moves the symbols and the debug information of a program into PROGRAM.debug beside it, where backtraces, gdb and perf look
# for them (also in .debug/ beside the program). What is left is as with `strip = true`.
#
#   scripts/split-debug.sh PROGRAM
set -euo pipefail
program=$1

objcopy --only-keep-debug "$program" "$program.debug"
# A new file: cargo goes on with its own, and whoever runs the old one keeps it.
objcopy --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.stripped"
mv "$program.stripped" "$program"
