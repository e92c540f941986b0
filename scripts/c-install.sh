#!/usr/bin/env bash
# Installs the C library: shared and static, headers, and what pkg-config reads.
#
#   scripts/c-install.sh libnvfold_c.a PREFIX [DESTDIR [LIBDIR]]
#
# LIBDIR is the folder of libraries below PREFIX: lib, or what a distribution has instead of it.
set -euo pipefail
archive=$1
prefix=$2
root=$(cd "$(dirname "$0")/.." && pwd)
into=${3:-}$prefix
libdir=${4:-lib}
version=$("$root/scripts/version.sh")

mkdir -p "$into/$libdir/pkgconfig" "$into/include"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$root/scripts/c-library.sh" "$archive" "$made"
install -m 755 "$made/libnvfold.so.$version" "$into/$libdir/"
ln -sf "libnvfold.so.$version" "$into/$libdir/libnvfold.so.0"
ln -sf libnvfold.so.0 "$into/$libdir/libnvfold.so"
install -m 644 "$archive" "$into/$libdir/libnvfold.a"
install -m 644 "$root/crates/nvfold-c/include/nvfold.h" "$root/crates/nvfold-c/include/icid.h" "$into/include/"
cat >"$into/$libdir/pkgconfig/nvfold.pc" <<END
prefix=$prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: nvfold
Description: A deduplicating file system for persistent memory, inside a program
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lnvfold
Libs.private: -lgcc_s -lpthread -ldl -lrt -lm
END
echo "installed nvfold $version: $into/$libdir/libnvfold.so.0, $into/include/nvfold.h and icid.h, $into/$libdir/pkgconfig/nvfold.pc"
