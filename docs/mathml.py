"""Formulas of the documentation as MathML, made at build time: a reader needs neither network nor script."""

import re
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

SIZED = re.compile(r"<(msup|msub|msubsup)>(<mo minsize[^>]*>[^<]*</mo>)")  # \\Big) with a script
CONVERTER = LatexToMathML(fancy_error=False)
LOGGER = logging.getLogger(__name__)


def font() -> Path:
    """A font with the tables that tall brackets, roots and fractions need; few systems bring one along."""
    return Path(str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"))


def mathml(tex: str, *, block: bool) -> str:
    """A formula of TeX as a MathML element; raises `LatexError` where it is none."""
    found = str(CONVERTER.convert_with_local_state(tex.strip(), displaystyle=block))
    return SIZED.sub(r"<\1><mrow>\2</mrow>", found)  # browsers give a bracket its size in a row only


def converted(node: nodes.Element, *, block: bool) -> str:
    """The MathML of a node; a formula that cannot be read is a warning, hence fails the build."""
    try:
        return mathml(node.astext(), block=block)
    except LatexError as error:
        LOGGER.warning("formula %r: %s", node.astext(), error, location=node)
        return ""


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(converted(node, block=False))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math-block">{converted(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.add_css_file("site.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
