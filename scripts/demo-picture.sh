#!/usr/bin/env bash
# demo-picture.sh FIGURES OUT.svg: draws the host memory that the demo measured.
set -euo pipefail
figures=${1:?usage: demo-picture.sh FIGURES OUT.svg}
out=${2:?usage: demo-picture.sh FIGURES OUT.svg}
[ -s "$figures" ] || { echo "demo-picture: $figures is empty or missing; run \`make demo\`" >&2; exit 1; }

awk -F = '
    { value[$1] = $2 }
    function mb(key) { return value[key] / 1e6 }
    function px(megabytes) { return megabytes * wide / scale }
    function text(x, y, class, anchor, content) {
        printf "  <text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, content
    }
    function box(x, y, w, h, class) {
        printf "  <rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" class=\"%s\"/>\n", x, y, w < 2 ? 2 : w, h, class
    }
    # A bar with its name before it and its figure behind it.
    function bar(y, name, class, megabytes) {
        text(left - 12, y + 21, "name", "end", name)
        box(left, y, px(megabytes), 32, class)
        text(left + px(megabytes) + 10, y + 21, "figure", "start", sprintf("%.0f MB", megabytes))
    }
    # The same for a device and its process.
    function stacked(y, name, device, process, note) {
        text(left - 12, y + 21, "name", "end", name)
        box(left, y, px(device), 32, "device")
        box(left + px(device), y, px(process), 32, "process")
        text(left + px(device + process) + 10, y + 21, "figure", "start", sprintf("%.0f MB%s", device + process, note))
    }
    END {
        left = 190; wide = 400
        tmpfs = mb("tmpfs_bytes"); device = mb("device_bytes"); process = mb("process_bytes"); after = mb("after_rm_bytes")
        after_process = mb("after_rm_process_bytes")
        scale = tmpfs > device + process ? tmpfs : device + process
        print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 262\" width=\"760\" height=\"262\" role=\"img\""
        printf "     aria-label=\"Host memory: tmpfs %.0f MB, nvfold %.0f MB\">\n", tmpfs, device + process
        print "  <style>"
        print "    .card { fill: #ffffff; stroke: #d0d7de } .title { font: 600 16px sans-serif; fill: #1f2328 }"
        print "    .sub, .note { font: 13px sans-serif; fill: #59636e } .name { font: 14px sans-serif; fill: #1f2328 }"
        print "    .figure { font: 600 14px sans-serif; fill: #1f2328 }"
        print "    .tmpfs { fill: #8c959f } .device { fill: #0f766e } .process { fill: #f59e0b }"
        print "  </style>"
        print "  <rect x=\"0.5\" y=\"0.5\" width=\"759\" height=\"261\" rx=\"8\" class=\"card\"/>"
        text(24, 34, "title", "start", "Host memory for two copies of one tree")
        text(24, 55, "sub", "start", sprintf("%d files, %.0f MB a copy; measured by make demo", value["files"], mb("tree_bytes")))
        bar(76, "tmpfs", "tmpfs", tmpfs)
        stacked(120, "nvfold", device, process, sprintf(": %.0f %% less", 100 - 100 * (device + process) / tmpfs))
        stacked(164, "nvfold after rm -r", after, after_process, "")
        box(left, 218, 12, 12, "device");        text(left + 18, 229, "note", "start", sprintf("device %.0f MB", device))
        box(left + 130, 218, 12, 12, "process"); text(left + 148, 229, "note", "start", sprintf("process %.0f MB", process))
        text(left, 250, "note", "start", \
            sprintf("beside: kernel page cache of all files just read, %.0f MB, given up on demand", mb("cache_bytes")))
        print "</svg>"
    }
' "$figures" >"$out"
echo "demo-picture: wrote $out"
