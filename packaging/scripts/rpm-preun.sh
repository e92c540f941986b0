#!/bin/sh
# An upgrade touches no mount: each server goes on with the program that it has. rpm says how many versions will be
# left.
[ "$1" = 0 ] || exit 0
# Says which mounts go on: their servers have what they need in memory, so nothing is lost. Stopping them here would
# lose what is in `mem:`.
if mounts=$(findmnt -rno TARGET -t fuse.nvfold 2>/dev/null); then
    echo "nvfold: these mounts stay until they are unmounted:" >&2
    echo "$mounts" | sed "s/^/    /" >&2
fi
exit 0
