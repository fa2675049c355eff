"""Docstrings, plain text for terminals, as reStructuredText: formulas, tables and code keep their look."""

import re
from collections.abc import Iterator

from plain_formulas import NotAFormula, marked, tex
from sphinx.application import Sphinx

SPECIAL = re.compile(r"(``.*?``|`.*?`)|([*|\\]|(?<=\w)_(?!\w))")
LABEL = re.compile(
    r"(\s*)(\*{0,2}\w+(?:, \*{0,2}\w+)*:)(\s.*)"
)  # of an argument, as in "mu, nu: two measures"
GAP = re.compile(r" {2,}")


def escape(line: str) -> str:
    """Keep stars, bars and underscores of formulas as they are, outside of backticks."""
    return SPECIAL.sub(lambda found: found[1] or "\\" + found[2], line)


def typeset(line: str) -> str:
    """A line of prose, with the formulas in it as TeX."""
    parts = list(marked(line))
    out = ""
    for number, (piece, formula) in enumerate(parts):
        if not formula:
            out += escape(piece)
            continue
        after = parts[number + 1][0][:1] if number + 1 < len(parts) else ""
        out += (
            ("\\ " if (out[-1:].isalnum() or out.endswith("`")) else "")
            + f":math:`{tex(piece)}`"
            + ("\\ " if after.isalnum() else "")
        )
    return out


def prose(line: str) -> str:
    """A line of prose; the label of an argument stays what it is."""
    label = LABEL.fullmatch(line)
    return label[1] + label[2] + typeset(label[3]) if label else typeset(line)


def formulas(lines: list[str]) -> list[str] | None:
    """Lines as displayed formulas, if every one of them is one."""
    try:
        found = [tex(line.strip().rstrip(".,:;")) for line in lines]
    except NotAFormula:
        return None
    body = found[0] if len(found) == 1 else r"\begin{gathered}" + r" \\ ".join(found) + r"\end{gathered}"
    return [".. math::", "", f"   {body}", ""]


def table(lines: list[str]) -> list[str] | None:
    """Lines as a table, if all have the same number of columns, two blanks apart."""
    rows = [GAP.split(line.strip()) for line in lines]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return None
    out = [".. list-table::", "   :widths: auto", ""]
    for row in rows:
        out += [f"   {'* -' if not number else '  -'} {cell(text)}" for number, text in enumerate(row)]
    return [*out, ""]


def cell(text: str) -> str:
    """A cell is a formula as a whole, or prose."""
    core = text.rstrip(".,;")
    try:
        return f":math:`{tex(core)}`" if re.search(r"[\^_=/ (]", core) else typeset(text)
    except NotAFormula:
        return typeset(text)


def block(lines: list[str]) -> list[str]:
    """An indented block: formulas, a table, or as it was typed."""
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())][:-4]
    found = (
        formulas(lines)
        or table(lines)
        or [".. code-block:: text", "", *("   " + one.strip() for one in lines), ""]
    )
    return [margin + line for line in found]


def as_typed(lines: list[str]) -> Iterator[str]:
    """Plain docstrings as reStructuredText: an indented block after a blank line is a formula or a table."""
    place, previous = 0, ""
    while place < len(lines):
        line = lines[place]
        if line.lstrip().startswith(">>>"):
            end = next((k for k in range(place, len(lines)) if not lines[k].strip()), len(lines))
            yield from lines[place:end]
        elif line.startswith("    ") and not previous.strip():
            end = next((k for k in range(place, len(lines)) if not lines[k].startswith("    ")), len(lines))
            yield from block(lines[place:end])
        else:
            end = place + 1
            yield prose(line)
        place, previous = end, lines[end - 1]


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring as reStructuredText."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    end = re.search(r"(?<=[\w)\]`'])[.:](?=\s+[A-Z])", paragraph)
    return typeset(paragraph[: end.start()] if end else paragraph.rstrip(".:"))


def translate(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    lines[:] = (
        [] if what == "data" else list(as_typed(lines))
    )  # plain values have the docstring of their type


def setup(app: Sphinx) -> dict[str, bool]:
    """Translate docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", translate, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
