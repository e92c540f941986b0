#!/usr/bin/env python3
"""The two steps of scripts/book.sh around mdBook.

gather DIR  copies the pages of the book into DIR, each at its path from the top of the repository, with the files that
            they link to; and docs/SUMMARY.md to DIR/SUMMARY.md, with paths from there
check DIR   fails if a link or a picture of a built page leads nowhere, an anchor included
"""

import html.parser
import os
import re
import shutil
import sys
import urllib.parse

SUMMARY = "docs/SUMMARY.md"
# `](target)` of Markdown, and `src="target"` of pictures that HTML sizes.
LINK = re.compile(r'\]\(([^)\s]+)\)|src="([^"]+)"')


def links(text):
    """Returns the relative targets of the links in a page, without anchors, outside code blocks."""
    prose = "".join(text.split("```")[::2])
    found = (one or other for one, other in LINK.findall(prose))
    return [path for path in (target.split("#")[0] for target in found) if path and "://" not in path]


def copy(path, into):
    target = os.path.join(into, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(path, target)


def gather(into):
    summary = open(SUMMARY).read()
    pages = [os.path.normpath(os.path.join("docs", path)) for path in links(summary)]
    missing = [page for page in pages if not os.path.exists(page)]
    if missing:
        sys.exit(f"book: {SUMMARY} names pages that do not exist: {', '.join(missing)}")
    for page in pages:
        copy(page, into)
        folder = os.path.dirname(page)
        for path in (os.path.normpath(os.path.join(folder, path)) for path in links(open(page).read())):
            if path.endswith(".md"):
                if path not in pages:
                    sys.exit(f"book: {page} links to {path}, which {SUMMARY} does not have")
            elif os.path.isdir(path):
                sys.exit(f"book: {page} links to {path}, a directory, which a book has not")
            else:
                copy(path, into)
    moved = re.sub(r"\]\(([^)]+)\)", lambda link: f"]({os.path.normpath(os.path.join('docs', link[1]))})", summary)
    with open(os.path.join(into, "SUMMARY.md"), "w") as file:
        file.write(moved)


class Page(html.parser.HTMLParser):
    """The anchors of a built page, and the targets of its links and pictures."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.targets = set(), []
        self.feed(open(path).read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        wanted = {"a": "href", "img": "src"}.get(tag)
        if attributes.get(wanted):
            self.targets.append(attributes[wanted])


def check(book):
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(book) for name in names]
    pages = {path: Page(path) for path in paths if path.endswith(".html")}
    broken, count = [], 0
    for path, page in pages.items():
        # Its links are made for the address that was not found.
        if os.path.basename(path) == "404.html":
            continue
        for target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            count += 1
            beside = os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))
            to = os.path.normpath(beside) if url.path else path
            anchors = pages[to].anchors if to in pages else set()
            if not os.path.exists(to) or (url.fragment and urllib.parse.unquote(url.fragment) not in anchors):
                broken.append(f"{path}: {target}")
    if broken:
        sys.exit("book: links that lead nowhere:\n  " + "\n  ".join(sorted(set(broken))))
    print(f"book: {len(pages)} pages with {count} links, which all lead somewhere: {book}/index.html")


if __name__ == "__main__":
    {"gather": gather, "check": check}[sys.argv[1]](sys.argv[2])
