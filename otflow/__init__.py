"""otflow: Wasserstein gradient flows and the mean-field theory of Transformers, executable.

    a measure, a field and a stepper go into `flow`; a trajectory comes out.

The public names stand in ``__init__.pyi``. They are loaded on first use, so that importing otflow is instant.
"""

from __future__ import annotations

from typing import Any

from lazy_loader import attach_stub

__version__ = "0.1.0"

_load, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _load(name)
    import difflib

    close = difflib.get_close_matches(name.lower(), {n.lower(): n for n in __all__}, n=1)
    hint = f"; did you mean {next(n for n in __all__ if n.lower() == close[0])!r}?" if close else ""
    raise AttributeError(f"module 'otflow' has no attribute {name!r}{hint}", name=None)
