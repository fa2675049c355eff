"""A page for every public object, and tables of them: both made from ``__all__``, so that none is forgotten.

In a page of the documentation

    .. public:: otflow.measures

is a table of what the package `otflow.measures` makes public, and `.. public:: otflow` one of what no other
part lists. Full names of single objects may follow each other instead. Code in prose, `Particles` or
`of.plot.disk(mu)`, is linked to the page of what it names.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docstrings import first_sentence, typeset
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

FOLDER = "reference"
LOGGER = logging.getLogger(__name__)
MODULES = ["otflow.reproduce.claim", "otflow.reproduce.frame"]  # parts that make their classes public
# What people build on when they write parts of their own.
EXTENSIONS = ["otflow.base.parameters.Parametric"]
PUBLIC = re.compile(r"\.\. public::((?:\s+otflow[\w.]*)+)")
STRANGERS = (
    "object, ABC, Module, tuple, Exception, BaseException, ValueError, RuntimeError, Generic, Protocol"
)


def defined(module: ModuleType) -> list[str]:
    """The public functions and classes that a module itself defines, in their order."""
    own = [
        (name, one)
        for name, one in vars(module).items()
        if not name.startswith("_") and getattr(one, "__module__", None) == module.__name__
    ]
    return [name for name, one in own if inspect.isclass(one) or inspect.isfunction(one)]


def names(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", None) or defined(module))


@cache
def parts() -> dict[str, list[str]]:
    """Public module -> the full names of its objects, for otflow and all that it lists, at every depth."""
    found: dict[str, list[str]] = {}
    waiting = ["otflow", *MODULES]
    while waiting:
        module = importlib.import_module(waiting.pop(0))
        inner = {name: getattr(module, name) for name in names(module) if not name.startswith("__")}
        waiting += [one.__name__ for one in inner.values() if isinstance(one, ModuleType)]
        found[module.__name__] = [
            f"{module.__name__}.{name}" for name, one in inner.items() if not isinstance(one, ModuleType)
        ]
    return found


def locate(name: str) -> object:
    """The object of a full name."""
    module, _, inner = name.rpartition(".")
    return getattr(importlib.import_module(module), inner)


@cache
def pages() -> dict[str, str]:
    """Every full public name -> the shortest one of the same object, which is the name of its page."""
    everything = [name for found in parts().values() for name in found] + EXTENSIONS
    short: dict[int, str] = {}
    for name in sorted(everything, key=lambda name: (name.count("."), name)):
        short.setdefault(id(locate(name)), name)
    return {name: short[id(locate(name))] for name in everything}


@cache
def spellings() -> dict[str, str]:
    """What prose may call an object -> its page: with and without `of.`, many by their own name alone."""
    found: dict[str, str] = {}
    for name, page in pages().items():
        inner = name.removeprefix("otflow.")
        found |= {name: page, inner: page, f"of.{inner}": page}
        one = locate(name)
        home = f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', '')}"
        found.setdefault(home, page)
        own = name.rpartition(".")[2]
        if inspect.isclass(one) or "_" in own:  # no word of prose
            found.setdefault(own, page)
    return found


def kind(one: object) -> str:
    if inspect.isclass(one):
        return "class"
    return "function" if inspect.isroutine(one) else "data"


def stub(name: str) -> str:
    """The source of the page of one object."""
    one = locate(name)
    directive = {"class": "autoclass", "function": "autofunction", "data": "autodata"}[kind(one)]
    title = name.rpartition(".")[2].replace("_", r"\_")
    lines = [":orphan:", "", f":doc:`API </api>` · {name.rpartition('.')[0]}", ""]
    lines += [title, "=" * len(title), "", f".. {directive}:: {name}"]
    if kind(one) == "class":
        lines += ["   :members:", f"   :inherited-members: {STRANGERS}"]
    if kind(one) == "data" and not isinstance(one, str | tuple):
        lines += ["   :no-value:"]
    if kind(one) != "data":
        lines += ["", f".. minigallery:: {name}", "   :add-heading: In the gallery", "   :heading-level: -"]
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    """Write a page for every public object, leave those alone that would not change, remove the others."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    wanted = {folder / f"{name}.rst": stub(name) for name in set(pages().values())}
    for path in set(folder.glob("*.rst")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# --- tables --------------------------------------------------------------------------------------------


def members(part: str) -> list[str]:
    """What the table of a part shows: all that it lists, and names of otflow that have their home in it."""
    if part not in parts():
        return [part]
    if part == "otflow":
        return [name for name in parts()["otflow"] if not any(name in members(one) for one in inner_parts())]
    own = [pages()[name] for name in parts()[part]]
    return own + [name for name in orphans() if home(name).startswith(f"{part}.") and name not in own]


def inner_parts() -> list[str]:
    return [part for part in parts() if part != "otflow"]


@cache
def orphans() -> list[str]:
    """Names of otflow that no other part lists."""
    listed = {pages()[name] for part in inner_parts() for name in parts()[part]}
    return [name for name in parts()["otflow"] if name not in listed]


def home(name: str) -> str:
    """The module that defines an object; that of its part for plain values."""
    one = locate(name)
    own = getattr(one, "__module__", "") if kind(one) != "data" else ""
    return own if own.startswith("otflow") else name.rpartition(".")[0]


def groups(part: str) -> dict[str, list[str]]:
    """Title -> names: a small part is one group, a large one has a group for each module or folder in it."""
    found: dict[str, list[str]] = {}
    chosen = members(part)
    if len(chosen) <= 16 or part == "otflow":
        return {"": chosen}
    for name in chosen:
        module = ".".join(home(name).split(".")[: part.count(".") + 2])
        found.setdefault(module, []).append(name)
    return {title(module): group for module, group in found.items()}


def title(module: str) -> str:
    """The first sentence of a module without what it adds after a colon, or after a comma."""
    text = (sys.modules[module].__doc__ or module).partition("\n")[0].rstrip(".")
    return text.partition(":")[0]


def table(chosen: Iterable[str]) -> Iterator[str]:
    yield from (".. list-table::", "   :class: public", "   :widths: auto", "")
    for name in chosen:
        page = pages()[name]
        shown = name.removeprefix("otflow.").rpartition(".")[2]
        yield f"   * - :doc:`{shown} </{FOLDER}/{page}>`"
        one = locate(name)
        yield f"     - {first_sentence(inspect.getdoc(one) or '') if kind(one) != 'data' else ''}"
    yield ""


class Public(Directive):
    """A table of public objects, and their pages below this place in the table of contents."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        plain: list[str] = []
        for part in self.arguments[0].split():
            for heading, chosen in groups(part).items():
                plain += chosen if not heading else []
                lines += [f".. rubric:: {typeset(heading)}", "", *table(chosen)] if heading else []
        lines = [*(table(plain) if plain else []), *lines]
        found = nodes.container()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, found)
        return found.children


# --- links ---------------------------------------------------------------------------------------------

CODE = re.compile(r"([A-Za-z_][\w.]*)(\(.*\))?")


def page_of(text: str) -> str | None:
    """The page of what a piece of code names: `Particles`, `of.Particles(x)`, `plot.disk(traj)`."""
    found = CODE.fullmatch(text.replace("\n", " "))
    return spellings().get(found[1]) if found else None


def link_code(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link code in prose to the page of what it names, but in titles, in links, and on that page itself."""
    for node in list(doctree.findall(nodes.literal)):
        page = page_of(node.astext())
        if page is None or docname == f"{FOLDER}/{page}" or closed(node):
            continue
        target = f"{FOLDER}/{page}"
        link = make_refnode(app.builder, docname, target, page, nodes.literal(), page)
        link[0] = node.deepcopy()
        node.replace_self(link)


def closed(node: nodes.Node | None) -> bool:
    """Whether a node stands where no link may start."""
    while node is not None:
        if isinstance(node, nodes.title | nodes.reference | addnodes.desc_signature):
            return True
        node = node.parent
    return False


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """Links to an object by any of its names, such as the one of the module that defines it."""
    page = spellings().get(node["reftarget"]) or spellings().get(node["reftarget"].removeprefix("~"))
    if page is None:
        return None
    return make_refnode(app.builder, node["refdoc"], f"{FOLDER}/{page}", page, content, page)


BACK = re.compile(rf'({FOLDER}/([\w.]+\.)?(\w+)\.html)#[\w.]*?\.\3((?:\.\w+)*)"')


def mend_back_links(
    _app: Sphinx, name: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """From a listing of source to the page: viewcode knows one name for a module, where ours has several."""
    if name.startswith("_modules/"):
        context["body"] = BACK.sub(r'\1#\2\3\4"', context["body"])


def check_complete(app: Sphinx) -> None:
    """Every page must be in a table."""
    text = (Path(app.srcdir) / "api.md").read_text(encoding="utf-8")
    shown = {name for found in PUBLIC.findall(text) for part in found.split() for name in members(part)}
    for name in sorted(set(pages().values()) - {pages()[name] for name in shown}):
        LOGGER.warning("%s is public, and no table of docs/api.md has it", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public", Public)
    app.connect("builder-inited", write, priority=400)
    app.connect("missing-reference", resolve)
    app.connect("doctree-resolved", link_code)
    app.connect("builder-inited", check_complete)
    app.connect("html-page-context", mend_back_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
