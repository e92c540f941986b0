#!/usr/bin/env bash
# Makes libnvfold.so of the static library that cargo builds: with its name for the loader (libnvfold.so.0), and with the
# symbols of crates/nvfold-c/symbols.txt, in their versions, and no others.
#
#   scripts/c-library.sh libnvfold_c.a DIRECTORY
#
# Not cargo itself: rustc hands the linker a list of symbols of its own for a shared library, without versions, and a linker
# takes no second list beside one without versions.
set -euo pipefail
archive=$1
directory=$2
root=$(cd "$(dirname "$0")/.." && pwd)
symbols=$root/crates/nvfold-c/symbols.txt
version=$("$root/scripts/version.sh")

mkdir -p "$directory"
script=$directory/libnvfold.map
awk -F '@@' '
    /^[A-Za-z_]/ { if (!($2 in names)) order[++versions] = $2; names[$2] = names[$2] "    " $1 ";\n" }
    END {
        for (at = 1; at <= versions; at++) {
            # A version follows the one before it.
            printf "%s {\n  global:\n%s%s} %s;\n", order[at], names[order[at]], at == 1 ? "  local: *;\n" : "", order[at - 1]
        }
    }' "$symbols" >"$script"
wanted=$(sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)@@.*/-Wl,-u,\1/p' "$symbols")

library=$directory/libnvfold.so.$version
# Not to be unloaded: it has a handler for SIGBUS. The system libraries are those that `rustc --print native-static-libs` names.
# shellcheck disable=SC2086 # a word for each symbol
"${CC:-cc}" -shared -o "$library.new" -Wl,-soname,libnvfold.so.0 "-Wl,--version-script=$script" $wanted \
    -Wl,--gc-sections -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro -Wl,-z,now "$archive" -lgcc_s -lpthread -ldl -lrt -lm -lc
# A program that has the old one mapped keeps it.
mv "$library.new" "$library"
ln -sf "libnvfold.so.$version" "$directory/libnvfold.so.0"
ln -sf libnvfold.so.0 "$directory/libnvfold.so"
