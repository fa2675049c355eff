"""Links in blocks of code, from every public name to its page; the gallery makes its own."""

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from reference import FOLDER, spellings
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

SPAN = r'<span class="(?:n|nn|nc|nf|kn)">(\w+)</span>'
CHAIN = re.compile(rf'<span class="n">\w+</span>(?:<span class="o">\.</span>{SPAN})*')
NAME = re.compile(r">(\w+)<")
IMPORT = re.compile(r"^(?:>>> |\.\.\. )?from (otflow[\w.]*) import \(?([\w, \n]+)", re.MULTILINE)


def imported(code: str) -> dict[str, str]:
    """What a block imports from otflow: the name in the block -> the full name."""
    found = {}
    for origin, names in IMPORT.findall(code):
        for one in names.replace("\n", " ").split(","):
            name, _, alias = one.strip().partition(" as ")
            found[alias or name] = f"{origin}.{name}"
    return found


def target(chain: list[str], names: dict[str, str]) -> tuple[str, int] | None:
    """The page that a chain of names leads to, and how many of the names it takes."""
    root = "otflow" if chain[0] in {"of", "otflow"} else names.get(chain[0])
    if root is None:
        return None
    for length in range(len(chain), 0, -1):
        page = spellings().get(".".join([root, *chain[1:length]]))
        if page:
            return page, length
    return None


def linked(html: str, names: dict[str, str], urls: Callable[[str], str]) -> str:
    """Highlighted code with a link around each public name."""

    def link(found: re.Match[str]) -> str:
        aim = target(NAME.findall(re.sub(r'<span class="o">\.</span>', "", found[0])), names)
        if aim is None:
            return found[0]
        page, length = aim
        cut = list(re.finditer(r"</span>", found[0]))[2 * length - 2].end()
        return f'<a class="code-link" href="{urls(page)}">{found[0][:cut]}</a>{found[0][cut:]}'

    return CHAIN.sub(link, html)


class Linking(HTML5Translator):
    """The usual translator; blocks of code get their links on the way out."""

    def visit_literal_block(self, node: nodes.literal_block) -> None:
        self._with_links(node, super().visit_literal_block)

    def visit_doctest_block(self, node: nodes.doctest_block) -> None:
        self._with_links(node, super().visit_doctest_block)

    def _with_links(self, node: nodes.Element, visit: Callable[[Any], None]) -> None:
        try:
            visit(node)
        finally:  # the translator raises SkipNode where it has written the whole block
            here = self.builder.current_docname
            self.body[-1] = linked(
                self.body[-1],
                imported(node.astext()),
                lambda page: f"{self.builder.get_relative_uri(here, f'{FOLDER}/{page}')}#{page}",
            )


def setup(app: Sphinx) -> dict[str, bool]:
    app.set_translator("html", Linking)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
