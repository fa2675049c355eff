"""Configuration of the documentation; build it with `make docs`."""

import sys
import tomllib
from pathlib import Path

from sphinx_gallery.sorting import ExplicitOrder

sys.path.insert(0, str(Path(__file__).parent))

from mathml import font

from otflow import __version__

project = "otflow"
author = copyright = "the otflow authors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    # Our own, beside this file.
    "code_links",
    "docstrings",
    "front_page",
    "mathml",
    "reference",
]
exclude_patterns = ["_build"]
default_role = "code"
suppress_warnings = ["config.cache"]  # the gallery sorts with objects that Sphinx cannot store

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False

GALLERY = Path(__file__).parents[1] / "examples"
ORDER = tomllib.loads((GALLERY / "order.toml").read_text(encoding="utf-8"))


class Listed:
    """Sort the examples of one folder as order.toml lists them."""

    def __init__(self, folder: str) -> None:
        self.names = ORDER.get(Path(folder).name, [])

    def __call__(self, file: str) -> int:
        return self.names.index(Path(file).stem.removeprefix("plot_"))


# Every link to an object must arrive, but those of signatures to what has no page: types of other projects,
# whose pages need a network, and names for types inside a module.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!otflow).*"), ("py:class", r"otflow\.\w+\..+")]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "subsection_order": ExplicitOrder([f"../examples/{folder}" for folder in ORDER]),
    "within_subsection_order": Listed,
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("otflow",),
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "write_computation_times": False,  # a page that loads scripts from the network
    "abort_on_example_error": True,
}

html_theme = "furo"
html_title = f"otflow {release}"
html_math_renderer = "mathml"
html_static_path = ["_static", str(font())]
