#!/usr/bin/env bash
# Runs what can run under Miri, which interprets the program and objects to undefined behaviour: data races, borrows that
# are broken, accesses out of bounds. Not all tests can: no file is mapped there, no signal raised, no assembly run
# (crates/pmem/src/host.rs and the portable twins stand in), and it is a thousand times slower. So: the unit tests of
# pmem, accesses of Region that meet in several threads, and a small file system used by several threads at once.
#
# First it shows that Miri would see the mistakes that were made once: three tests do them on purpose, and must fail.
#
# Uses any nightly toolchain with miri that is installed, else installs one, pinned by its date.
set -euo pipefail
cd "$(dirname "$0")/.."

PINNED=nightly-2026-05-20
LOGS=target/miri-logs
# Locks make pointers of numbers, which Miri can follow, and would warn of.
export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation"
unset RUSTUP_TOOLCHAIN

skip() { # why; with CI=true nothing may be skipped
    echo "miri: skipped: $1" >&2
    [ "${CI:-}" = true ] && exit 1
    exit 0
}

command -v rustup >/dev/null || skip "rustup, which brings nightly toolchains, is not there"
mkdir -p "$LOGS"

has_miri() { # toolchain
    cargo "+$1" miri --version >/dev/null 2>&1 && [ -d "$(rustc "+$1" --print sysroot)/lib/rustlib/src/rust/library" ]
}

toolchain=
for installed in "$PINNED" $(rustup toolchain list | awk '/^nightly/ { print $1 }'); do
    if rustup toolchain list | grep -q "^$installed" && has_miri "$installed"; then
        toolchain=$installed
        break
    fi
done
if [ -z "$toolchain" ]; then
    echo "miri: installing the toolchain $PINNED with miri and rust-src"
    if ! rustup toolchain install "$PINNED" --profile minimal --component miri,rust-src >"$LOGS/install.log" 2>&1; then
        cat "$LOGS/install.log" >&2
        skip "$PINNED could not be installed"
    fi
    toolchain=$PINNED
fi
echo "miri: $(cargo "+$toolchain" miri --version), toolchain $toolchain"

miri() { # log, arguments of cargo miri test
    local log=$LOGS/$1.log
    shift
    cargo "+$toolchain" miri test --quiet "$@" >"$log" 2>&1
}

# All is built before two runs share the processors.
miri build-pmem -p nvfold-pmem --lib --test all -- none_of_them
miri build-nvfold -p nvfold --features papers --test all -- none_of_them

must_object() { # test, what Miri says
    if miri "$1" -p nvfold-pmem --lib -- --ignored "shared::tests::$1" || ! grep -q "$2" "$LOGS/$1.log"; then
        cat "$LOGS/$1.log" >&2
        echo "miri: it did not object to $1" >&2
        exit 1
    fi
    printf 'miri: objects to %s:\n      %s\n' "$1" "$(grep -m1 -o 'Undefined Behavior: .*' "$LOGS/$1.log")"
}
must_object on_purpose_a_plain_copy_beside_a_store 'Undefined Behavior: Data race detected'
must_object on_purpose_a_byte_beside_its_word 'Undefined Behavior: Race condition detected'
must_object on_purpose_a_store_to_what_is_borrowed 'Undefined Behavior: trying to retag'

passed() { # log: how many tests passed; fails when none did
    awk '/^test result: ok/ { sum += $4 } END { print sum + 0; exit sum == 0 }' "$LOGS/$1.log"
}
objected() { # log
    cat "$LOGS/$1.log" >&2
    echo "miri: the run $1 failed" >&2
    exit 1
}

miri pmem -p nvfold-pmem --lib &
pmem=$!
(miri nvfold -p nvfold --features papers --test all -- threads::) &
nvfold=$!
wait "$pmem" || objected pmem
# Miri switches threads by a seed: several of them for what is short.
MIRIFLAGS="$MIRIFLAGS -Zmiri-many-seeds=0..4" miri region -p nvfold-pmem --test all -- threads:: || objected region
wait "$nvfold" || objected nvfold
for run in pmem region nvfold; do
    echo "miri: $run: $(passed "$run") tests, and nothing to object to"
done
