"""The tools of the documentation: formulas out of plain text, and the checker of what was built."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def tool(name: str) -> ModuleType:
    """A module beside the configuration of the documentation, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


plain_formulas = tool("plain_formulas")
check_site = tool("check_site")


# --- formulas ------------------------------------------------------------------------------------------

TEX = {
    "F = 1/2 tr(K S)": r"F=\tfrac{1}{2}\operatorname{tr} (KS)",
    "S^(-1/2) A^T": r"S^{-1/2}A^{\top}",
    "int int U dmu dmu": r"\iint U\,d\mu \,d\mu",
    "dS/dt = V S": r"dS /dt =VS",
    "<Q x_i, K x_j> <= eps": r"\langle Qx_{i},\; Kx_{j}\rangle \le \varepsilon",
    "sum_{k<j} e^(-2t) / sqrt(n + 1)": r"\sum _{k<j}e^{-2t}/\sqrt{n+1}",
    "mu_{k+1} = R1 Ax.y": r"\mu _{k+1}=R_{1}Ax\cdot y",
    "t* = inf": r"t^{*}=\infty",
}


@pytest.mark.parametrize("text", TEX)
def test_a_plain_formula_becomes_tex_symbol_by_symbol(text: str) -> None:
    assert plain_formulas.tex(text) == TEX[text]


@pytest.mark.parametrize(
    ("line", "formulas"),
    {
        "x -> V(m + S A x) with covariance S.": ["x -> V(m + S A x)"],
        "a token with label s <= t, as in Castin et al.": ["s <= t"],
        "dS/dt = V S + S V^T, (*batch, d, d).": ["dS/dt = V S + S V^T"],
        "int U dmu / int V dmu (Kim 2021; no 1/2).": ["int U dmu / int V dmu"],
        "The same in O(n d^2), if A = K^T Q.": ["O(n d^2)", "A = K^T Q"],
    }.items(),
)
def test_formulas_are_found_among_words(line: str, formulas: list[str]) -> None:
    assert [piece for piece, is_formula in plain_formulas.marked(line) if is_formula] == formulas


@pytest.mark.parametrize(
    "line",
    [
        "Leading axes are a batch (*batch, n, d), and max_iter counts sweeps.",
        '``flow(mu, t1=1.0)`` and `x_i <= 2` are code, "t = 1" is a quotation.',
        "F = whatever it costs, in the sense of Ito.",
        "y = E[x | z (an open bracket",
        "A I is no formula, and neither is this a.",
    ],
)
def test_prose_and_code_are_no_formulas(line: str) -> None:
    assert [piece for piece, is_formula in plain_formulas.marked(line) if is_formula] == []


def test_cutting_a_line_loses_nothing() -> None:
    line = "F = 1/2 int x dmu, of `x_i`: it is <= eps in s^2 and (more, than that) _x_."
    assert "".join(piece for piece, _ in plain_formulas.marked(line)) == line


# --- the built site ------------------------------------------------------------------------------------

GOOD = """<!doctype html><html><head><link rel="stylesheet" href="style.css"><link rel="canonical"
href="https://example.org/"></head><body><p id="here">A formula <math><mi>x</mi></math>, code
<code>\\frac</code>,
<a href="#here">here</a>, <a href="other.html#there">there</a>, <a href="https://example.org">elsewhere</a>.
<pre>price $</pre><img src="picture.png"><script>let dollar = "$";</script></body></html>"""
FAULTS = {
    "raw TeX": "<p>the number \\(n\\)</p>",
    "raw TeX: ": "<p>a stray $ sign</p>",
    "loads from the network: https": '<script src="https://example.org/math.js"></script>',
    "loads from the network: //": '<img src="//example.org/a.png">',
    "loads from the network: http:": '<link rel="stylesheet" href="http://example.org/a.css">',
    "a style that loads": "<style>@font-face {src: url(https://example.org/a.woff)}</style>",
    "a script that loads": '<script type="module">import "https://example.org/a.js"</script>',
    "broken link": '<a href="nowhere.html">x</a>',
    "broken anchor: #": '<a href="#nowhere">x</a>',
    "broken anchor: other": '<a href="other.html#nowhere">x</a>',
    "a node that could not be built": '<span class="problematic">`x`</span>',
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "style.css").write_text("p {color: black}")
    (tmp_path / "picture.png").touch()
    (tmp_path / "other.html").write_text('<p id="there">x</p>')
    (tmp_path / "index.html").write_text(GOOD)
    return tmp_path


def test_a_good_page_has_no_faults(site: Path) -> None:
    assert check_site.check(site) == {}
    assert check_site.main(site) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_a_page_is_found(site: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "index.html").write_text(GOOD.replace("</body>", FAULTS[fault] + "</body>"))
    (found,) = check_site.check(site).values()
    assert len(found) == 1
    assert found[0].startswith(fault)
    assert check_site.main(site) == 1
    assert f"index.html: {fault}" in capsys.readouterr().out


def test_a_style_sheet_may_not_load_from_the_network_or_miss_a_font(site: Path) -> None:
    (site / "style.css").write_text("@import '//example.org/a.css'; p {src: url(missing.ttf)}")
    (found,) = check_site.check(site).values()
    assert found == ["loads from the network", "broken link: missing.ttf"]


def test_no_pages_are_no_success(tmp_path: Path) -> None:
    assert check_site.main(tmp_path) == 1
