#!/usr/bin/env bash
# Puts everything that is installed into an empty folder, as `make install` and all packages have it.
#
#   scripts/stage.sh BUILT FOLDER PREFIX
#
# BUILT has what cargo has built: nvfold, and libnvfold_c.a and libnvfold_preload.a unless LIBRARIES=no. What
# distributions do otherwise is told by these variables:
#
#   LIBDIR=lib            folder of the C library below PREFIX: lib/x86_64-linux-gnu, lib64
#   SBINDIR=sbin          folder of the helper programs below PREFIX
#   ZSHDIR=share/zsh/site-functions
#   LICENSEDIR=share/doc/nvfold
#   DEBUG=beside          debug information in .debug/ beside each file, or `apart`: in lib/debug, by build-id, or `no`
#   LIBRARIES=yes         `no`: only what a static command needs; there is nothing to preload for it
set -euo pipefail
built=$1
folder=$2
prefix=$3
root=$(cd "$(dirname "$0")/.." && pwd)
LIBDIR=${LIBDIR:-lib}
SBINDIR=${SBINDIR:-sbin}
ZSHDIR=${ZSHDIR:-share/zsh/site-functions}
LICENSEDIR=${LICENSEDIR:-share/doc/nvfold}
DEBUG=${DEBUG:-beside}
LIBRARIES=${LIBRARIES:-yes}
into=$folder$prefix
# The libraries for C are written for this one.
[ "$(uname -m)" = x86_64 ] || LIBRARIES=no

mkdir -p "$into"
if [ -n "$(ls -A "$into")" ]; then
    echo "stage: $into is not empty" >&2
    exit 1
fi

# Installs FILE as a path below the prefix.
put() { # MODE FILE PATH
    install -D -m "$1" "$2" "$into/$3"
}

# Takes the debug information out of a file that is installed. DEBUG_FILE has it if it was taken out before.
split() { # PATH [DEBUG_FILE]
    local path=$into/$1 debug=${2:-} name build_id
    if [ -z "$debug" ] || [ ! -f "$debug" ]; then
        "$root/scripts/split-debug.sh" "$path"
        debug=$path.debug
    fi
    name=$(basename "$1").debug
    case $DEBUG in
        beside) install -D -m 644 "$debug" "$(dirname "$path")/.debug/$name" ;;
        apart)
            build_id=$(readelf -n "$path" | sed -n 's/.*Build ID: *//p')
            install -D -m 644 "$debug" "$into/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug"
            ;;
    esac
    rm -f "$path.debug"
    # Programs are run; libraries are not.
    case $path in
        *.so*) chmod 644 "$path" ;;
        *) chmod 755 "$path" ;;
    esac
}

command_and_helpers() {
    put 755 "$built/nvfold" bin/nvfold
    if readelf -S --wide "$built/nvfold" | grep '\.symtab' >/dev/null; then
        split bin/nvfold
    else
        split bin/nvfold "$built/nvfold.debug"
    fi
    mkdir -p "$into/$SBINDIR"
    local up name
    up=$([ "$SBINDIR" = bin ] || echo ../bin/)
    for name in {mount,umount,mount.fuse,umount.fuse,mkfs,fsck,fsck.fuse}.nvfold; do
        ln -s "${up}nvfold" "$into/$SBINDIR/$name"
    done
}

manual_and_completions() {
    local page
    "$built/nvfold" man --into "$into/share/man"
    for page in "$into"/share/man/man?/*; do
        gzip -9n "$page"
        chmod 644 "$page.gz"
    done
    mkdir -p "$into/share/bash-completion/completions" "$into/$ZSHDIR" "$into/share/fish/vendor_completions.d"
    "$built/nvfold" completions bash >"$into/share/bash-completion/completions/nvfold"
    "$built/nvfold" completions zsh >"$into/$ZSHDIR/_nvfold"
    "$built/nvfold" completions fish >"$into/share/fish/vendor_completions.d/nvfold.fish"
}

# packaging/systemd has the units of the system, and in user/ those of users; they name the command as /usr/bin/nvfold.
units() {
    local unit path
    [ -d "$root/packaging/systemd" ] || return 0
    (cd "$root/packaging/systemd" && find . -type f ! -name '*.md' | sort) | while read -r unit; do
        unit=${unit#./}
        case $unit in
            user/*) path=lib/systemd/$unit ;;
            *) path=lib/systemd/system/$unit ;;
        esac
        put 644 "$root/packaging/systemd/$unit" "$path"
        sed -i "s|/usr/bin/nvfold|$prefix/bin/nvfold|g" "$into/$path"
    done
}

libraries() {
    "$root/scripts/c-install.sh" "$built/libnvfold_c.a" "$prefix" "$folder" "$LIBDIR" >/dev/null
    # Half of it are names of functions and lines, which a program that is linked with it can do without.
    # The bitcode in it is for rustc alone, and three quarters of its size.
    objcopy --strip-debug --remove-section .llvmbc --remove-section .llvmcmd "$into/$LIBDIR/libnvfold.a"
    split "$LIBDIR/libnvfold.so.$("$root/scripts/version.sh")"
    "$root/scripts/preload-library.sh" "$built/libnvfold_preload.a" "$into/lib/nvfold"
    split lib/nvfold/libnvfold_preload.so
}

documents() {
    local file
    gzip -9nc "$root/CHANGELOG.md" >"$into/changelog.gz"
    put 644 "$into/changelog.gz" share/doc/nvfold/changelog.gz
    "$root/scripts/notices.sh" | gzip -9n >"$into/notices.gz"
    put 644 "$into/notices.gz" share/doc/nvfold/third-party-notices.txt.gz
    rm "$into/changelog.gz" "$into/notices.gz"
    for file in MIT APACHE; do
        put 644 "$root/LICENSE-$file" "$LICENSEDIR/LICENSE-$file"
    done
    for file in "$root"/packaging/examples/*; do
        [ ! -f "$file" ] || put 644 "$file" "share/doc/nvfold/examples/$(basename "$file")"
    done
    # For monitoring: a dashboard, and rules for alarms.
    for file in "$root"/packaging/{grafana,prometheus}/*; do
        [ ! -f "$file" ] || put 644 "$file" "share/doc/nvfold/${file#"$root/packaging/"}"
    done
}

command_and_helpers
manual_and_completions
units
[ "$LIBRARIES" = no ] || libraries
documents
