#!/bin/sh
# pacman calls this when the package is removed, not when it is upgraded.
# Says which mounts go on: their servers have what they need in memory, so nothing is lost. Stopping them here would
# lose what is in `mem:`.
if mounts=$(findmnt -rno TARGET -t fuse.nvfold 2>/dev/null); then
    echo "nvfold: these mounts stay until they are unmounted:" >&2
    echo "$mounts" | sed "s/^/    /" >&2
fi
