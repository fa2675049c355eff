"""Check the built documentation: formulas rendered, nothing from the network, every link arrives.

    python docs/check_site.py docs/_build/html

prints what is wrong, page by page, and fails if anything is.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

VERBATIM = {"code", "pre", "script", "style", "math", "textarea"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
NOT_LOADED = {"canonical", "search", "index", "next", "prev", "author", "license"}  # links that fetch nothing
RAW = re.compile(r"\\[()\[\]]|\\(?:frac|int|sum|mathbb|mathcal|mathrm|lvert|begin|dot|mu|eps)\b|\$")
IN_STYLE = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(https?:)?//")
IN_SCRIPT = re.compile(r"\b(?:import|importScripts)\s*\(?\s*['\"](?:https?:)?//")


@dataclass
class Page(HTMLParser):
    """One page: its anchors, its links, and what is wrong with it by itself."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.path.read_text(encoding="utf-8"))
        self.close()

    def __hash__(self) -> int:
        return hash(self.path)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag not in VOID:
            self.opened.append(tag)
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if {"problematic", "system-message"} & set(values.get("class", "").split()):
            self.faults.append(f"a node that could not be built, <{tag} class={values['class']!r}>")
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if IN_STYLE.search(values.get("style", "")):
            self.faults.append(f"loads from the network: {values['style']}")
        for source in loaded(tag, values):
            self.links.append(source)
            if external(source):
                self.faults.append(f"loads from the network: {source}")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.opened.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.opened:
            while self.opened.pop() != tag:
                pass

    def handle_data(self, text: str) -> None:
        if "style" in self.opened and IN_STYLE.search(text):
            self.faults.append("a style that loads from the network")
        if "script" in self.opened and IN_SCRIPT.search(text):
            self.faults.append("a script that loads from the network")
        raw = RAW.search(text)
        if raw and not VERBATIM & set(self.opened):
            self.faults.append(
                f"raw TeX: {' '.join(text[max(raw.start() - 30, 0) : raw.end() + 30].split())!r}"
            )


def external(source: str) -> bool:
    return source.startswith("//") or urlsplit(source).scheme in {"http", "https"}


def loaded(tag: str, values: dict[str, str]) -> Iterator[str]:
    """What a browser fetches for an element, beside the page itself."""
    if LOADED.get(tag) in values:
        yield values[LOADED[tag]]
    if tag == "link" and not NOT_LOADED & set(values.get("rel", "").split()):
        yield values.get("href", "")
    for one in filter(None, values.get("srcset", "").split(",")):
        yield one.split()[0]


def broken(page: Page, site: dict[Path, Page]) -> Iterator[str]:
    """The links of a page that arrive nowhere."""
    for link in dict.fromkeys(page.links):
        parts = urlsplit(link)
        if parts.scheme or link.startswith("//"):
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if not target.is_file():
            yield f"broken link: {link}"
        elif parts.fragment and target in site and unquote(parts.fragment) not in site[target].anchors:
            yield f"broken anchor: {link}"


def styles(root: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(root.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if IN_STYLE.search(text):
            yield path, "loads from the network"
        for name in re.findall(r"url\(\s*['\"]?([^'\")]+)", text):
            if not urlsplit(name).scheme and not (path.parent / urlsplit(name).path).is_file():
                yield path, f"broken link: {name}"


def check(root: Path) -> dict[Path, list[str]]:
    """What is wrong, by file."""
    found: dict[Path, list[str]] = defaultdict(list)
    site = {path.resolve(): Page(path.resolve()) for path in sorted(root.rglob("*.html"))}
    for path, page in site.items():
        for fault in [*page.faults, *broken(page, site)]:
            found[path].append(fault)
    for path, fault in styles(root):
        found[path].append(fault)
    return dict(found)


def main(root: Path) -> int:
    found = check(root)
    for path, faults in found.items():
        for fault in faults:
            sys.stdout.write(f"{path.resolve().relative_to(root.resolve())}: {fault}\n")
    pages = len(list(root.rglob("*.html")))
    sys.stdout.write(f"{pages} pages, {sum(map(len, found.values()))} faults\n")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
