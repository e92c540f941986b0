#!/usr/bin/env bash
# diagrams.sh [FILE.txt]: draws the diagrams of the docs from their text: docs/img/NAME.txt gives docs/img/NAME.svg.
# With a file: prints its SVG.
#
# A line of the text is one thing:
#   size WIDTH HEIGHT          title TEXT
#   box X Y WIDTH HEIGHT KIND TEXT | TEXT ...      kinds: plain, data, meta, new, old, bad; a line for each TEXT
#   arrow X1 Y1 X2 Y2 [TEXT]   note X Y TEXT       text X Y TEXT (centred)
set -euo pipefail
cd "$(dirname "$0")/.."

draw() { # FILE
    awk -v name="$1" '
        function safe(text) { gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text); gsub(/>/, "\\&gt;", text); return text }
        # The words from the nth on.
        function rest(n,    i, out) { for (i = n; i <= NF; i++) out = out (i > n ? " " : "") $i; return out }
        function put(x, y, class, anchor, text) {
            body = body sprintf("  <text x=\"%d\" y=\"%d\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, safe(text))
        }
        /^#/ || NF == 0 { next }
        $1 == "size" { wide = $2; high = $3; next }
        $1 == "title" { title = rest(2); put(24, 32, "title", "start", title); next }
        $1 == "box" {
            body = body sprintf("  <rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" class=\"%s\"/>\n", $2, $3, $4, $5, $6)
            lines = split(rest(7), part, " \\| ")
            for (i = 1; i <= lines; i++)
                put($2 + $4 / 2, $3 + $5 / 2 + 5 + (i - (lines + 1) / 2) * 17, i == 1 ? "name" : "sub", "middle", part[i])
            next
        }
        $1 == "arrow" {
            body = body sprintf("  <line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"arrow\" marker-end=\"url(#head)\"/>\n", $2, $3, $4, $5)
            if (NF > 5) put(($2 + $4) / 2, ($3 + $5) / 2 - 6, "sub", "middle", rest(6))
            next
        }
        $1 == "note" { put($2, $3, "sub", "start", rest(4)); next }
        $1 == "text" { put($2, $3, "sub", "middle", rest(4)); next }
        { print name ": line " NR ": unknown word " $1 >"/dev/stderr"; exit 1 }
        END {
            printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\"\n", wide, high, wide, high
            printf "     aria-label=\"%s\">\n", safe(title)
            print "  <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">"
            print "    <path d=\"M0 0 L8 4 L0 8 z\" fill=\"#59636e\"/></marker></defs>"
            print "  <style>"
            print "    .card { fill: #ffffff; stroke: #d0d7de } .title { font: 600 16px sans-serif; fill: #1f2328 }"
            print "    .name { font: 14px sans-serif; fill: #1f2328 } .sub { font: 12px sans-serif; fill: #59636e }"
            print "    .plain { fill: #f6f8fa; stroke: #8c959f } .data { fill: #ccebe6; stroke: #0f766e }"
            print "    .meta { fill: #fdecc8; stroke: #b7791f } .new { fill: #d8e7ff; stroke: #2563eb }"
            print "    .old { fill: #eaeef2; stroke: #8c959f; stroke-dasharray: 4 3 } .bad { fill: #ffd8d3; stroke: #cf222e }"
            print "    .arrow { stroke: #59636e; stroke-width: 1.5 }"
            print "  </style>"
            printf "  <rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\" class=\"card\"/>\n", wide - 1, high - 1
            printf "%s</svg>\n", body
        }
    ' "$1"
}

if [ $# -gt 0 ]; then
    draw "$1"
else
    for text in docs/img/*.txt; do draw "$text" >"${text%.txt}.svg"; done
fi
