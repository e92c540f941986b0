#!/usr/bin/env bash
# Installs the C library: shared and static, headers, and what pkg-config reads.
#
#   scripts/c-install.sh libnvfold_c.a PREFIX [DESTDIR]
set -euo pipefail
archive=$1
prefix=$2
root=$(cd "$(dirname "$0")/.." && pwd)
into=${3:-}$prefix
version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

mkdir -p "$into/lib/pkgconfig" "$into/include"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$root/scripts/c-library.sh" "$archive" "$made"
install -m 755 "$made/libnvfold.so.$version" "$into/lib/"
ln -sf "libnvfold.so.$version" "$into/lib/libnvfold.so.0"
ln -sf libnvfold.so.0 "$into/lib/libnvfold.so"
install -m 644 "$archive" "$into/lib/libnvfold.a"
install -m 644 "$root/crates/nvfold-c/include/nvfold.h" "$root/crates/nvfold-c/include/icid.h" "$into/include/"
cat >"$into/lib/pkgconfig/nvfold.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: nvfold
Description: A deduplicating file system for persistent memory, inside a program
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lnvfold
Libs.private: -lgcc_s -lpthread -ldl -lrt -lm
END
echo "installed nvfold $version: $into/lib/libnvfold.so.0, $into/include/nvfold.h and icid.h, $into/lib/pkgconfig/nvfold.pc"
