#!/usr/bin/env bash
# For the scripts that run in the machine: prints what is done and what is seen.
set -euo pipefail

step() {
    printf '\n== %s\n' "$*"
}
# Runs a command, and shows it with its output.
try() {
    printf '$ %s\n' "$*"
    "$@" 2>&1 | sed 's/^/  /'
}
# Runs a command that must fail, and shows what it says.
try_not() {
    printf '$ %s\n' "$*"
    if "$@" >/tmp/said 2>&1; then
        sed 's/^/  /' /tmp/said
        fail "this had to fail: $*"
    fi
    sed 's/^/  /' /tmp/said
}
fail() {
    echo "newcomer: $*" >&2
    exit 1
}
# Fails unless a text has a pattern.
has() { # pattern text
    grep -Eq -- "$1" <<<"$2" || fail "expected \"$1\" in: $2"
}
is_clean() { # device
    has '"clean": *true' "$(nvfold info --json "$1")"
    nvfold fsck "$1" >/dev/null || fail "fsck $1"
}
# Waits until a command succeeds: the state of a unit changes after the event that changes it.
until_true() {
    for _ in $(seq 200); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "this has not become true: $*"
}
# Fails unless a tree is that which was copied to the mount.
same() { # tree
    diff -r --no-dereference /usr/lib/systemd "$1" || fail "$1 has changed"
}
