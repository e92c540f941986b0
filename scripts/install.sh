#!/usr/bin/env bash
# Installs what `make build` and cargo have built, and remembers what that was. `make install` and `make uninstall` run
# it.
#
#   scripts/install.sh install PREFIX [DESTDIR]
#   scripts/install.sh uninstall PREFIX [DESTDIR]
set -euo pipefail
cd "$(dirname "$0")/.."
doing=$1
prefix=$2
destination=${3:-}
# Below the prefix: what was installed, a path a line.
list=share/doc/nvfold/installed-files
into=$destination$prefix

# Removes what an earlier installation has left, also files that this version no longer has.
uninstall() {
    local path folder
    while read -r path; do
        # Nothing above the prefix, whoever wrote the list.
        case /$path/ in */../*) continue ;; esac
        rm -f "$into/$path"
        # Folders that are empty now, but not those that every system has.
        folder=$(dirname "$path")
        case $folder in
            */nvfold | */nvfold/* | */nvfold@* | */.debug) rmdir -p --ignore-fail-on-non-empty "$into/$folder" 2>/dev/null || true ;;
        esac
    done <"$into/$list"
}

case $doing in
    install)
        staged=target/stage/install
        rm -rf "$staged"
        scripts/stage.sh target/release "$staged" "$prefix"
        mkdir -p "$(dirname "$staged$prefix/$list")"
        { (cd "$staged$prefix" && find . ! -type d) && echo "./$list"; } | sed 's|^\./||' | LC_ALL=C sort >"$staged.files"
        mv "$staged.files" "$staged$prefix/$list"
        [ ! -f "$into/$list" ] || uninstall
        mkdir -p "$into"
        # A program that runs keeps the file that it has.
        cp -R --no-dereference --preserve=mode,links,timestamps --remove-destination "$staged$prefix/." "$into/"
        [ -n "$destination" ] || ! command -v ldconfig >/dev/null || ldconfig 2>/dev/null || true
        echo "installed nvfold $(scripts/version.sh) into $into: $(wc -l <"$into/$list") files, $(du -sh "$staged$prefix" | cut -f1)"
        ;;
    uninstall)
        if [ ! -f "$into/$list" ]; then
            echo "uninstall: there is no $into/$list: nothing was installed there by \`make install\`" >&2
            exit 1
        fi
        uninstall
        echo "removed nvfold from $into; devices and /etc/nvfold are as they were"
        ;;
    *)
        echo "usage: install.sh install|uninstall PREFIX [DESTDIR]" >&2
        exit 2
        ;;
esac
