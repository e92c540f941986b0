#!/usr/bin/env python3
"""trees-picture.py TREES.json OUT.svg: draws what copies of trees hold after a build in each, for the README."""

import json
import sys

PLACES = [("tmpfs", "tmpfs, cp -a", "#8c959f"), ("xfs", "XFS, reflinks", "#54aeff"), ("nvfold", "nvfold, clone", "#0f766e")]
TREES = [("npm", "Node.js"), ("cargo", "Rust"), ("venv", "Python")]
LEFT, WIDE, BAR, GAP = 190, 420, 20, 14
TOP = 74
STYLE = """    .card { fill: #ffffff; stroke: #d0d7de } .title { font: 600 16px sans-serif; fill: #1f2328 }
    .sub { font: 13px sans-serif; fill: #59636e } .name { font: 13px sans-serif; fill: #1f2328 }
    .tree { font: 600 14px sans-serif; fill: #1f2328 } .figure { font: 600 13px sans-serif; fill: #1f2328 }"""


def text(x, y, kind, content, anchor="start"):
    return f'  <text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{content}</text>'


def main(source, out):
    rows = {(row["tree"], row["place"]): row for row in json.load(open(source))["rows"]}
    copies = {row["copies"] for row in rows.values()}.pop()
    most = max(rows[tree, place]["built_bytes"] for tree, _ in TREES for place, _, _ in PLACES)
    height = TOP + len(TREES) * (len(PLACES) * (BAR + 3) + GAP) + 4
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760" height="{height}" role="img"',
        f'     aria-label="What {copies} copies of three projects hold on tmpfs, XFS and nvfold">',
        f"  <style>\n{STYLE}\n  </style>",
        f'  <rect x="0.5" y="0.5" width="759" height="{height - 1}" rx="8" class="card"/>',
        text(24, 32, "title", f"{copies} copies of a project, and a build or test run in each"),
        text(24, 54, "sub", "what they hold afterwards, in MiB; measured by make trees"),
    ]
    y = TOP
    for tree, language in TREES:
        lines.append(text(24, y + BAR + 17, "tree", language))
        for place, name, colour in PLACES:
            mib = rows[tree, place]["built_bytes"] / (1 << 20)
            width = max(2, rows[tree, place]["built_bytes"] * WIDE / most)
            lines.append(text(LEFT - 10, y + 15, "name", name, "end"))
            lines.append(f'  <rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>')
            lines.append(text(LEFT + width + 8, y + 15, "figure", f"{mib:,.0f}"))
            y += BAR + 3
        y += GAP
    with open(out, "w") as file:
        file.write("\n".join(lines) + "\n</svg>\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
