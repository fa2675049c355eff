"""The status of a computation: how it ended, for each member of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

STATUSES = (
    *("ok", "stopped", "blow_up", "max_iter", "stalled", "uncertified", "degenerate", "budget"),
    *("unstable", "invalid", "overflow"),
    "local",  # a success: a minimiser near which no better one was met, not proved to be the best of all
)
ARRIVED = ("ok", "local")  # what was asked for is there
HARMLESS = (*ARRIVED, "stopped", "blow_up")  # results, not failures


def code(status: str) -> int:
    """The number under which a status is kept in tensors."""
    return STATUSES.index(status)


def names(codes: Tensor) -> Any:
    """A string for one problem, an array of strings for a batch.

    >>> import torch
    >>> from otflow.base.status import names
    >>> names(torch.tensor(2)), names(torch.tensor([0, 7])).tolist()
    ('blow_up', ['ok', 'budget'])
    """
    table = np.array(STATUSES)[codes.cpu().numpy()]
    return str(table) if codes.ndim == 0 else table


def all_ok(status: Any) -> bool:
    """Whether one problem, or each of a batch, ended well.

    >>> import numpy as np
    >>> from otflow.base.status import all_ok
    >>> all_ok("ok"), all_ok(np.array(["ok", "local"])), all_ok(np.array(["ok", "stalled"]))
    (True, True, False)
    """
    return bool(np.all(arrived(status)))


def arrived(status: Any) -> Any:
    """Which members ended well, a numpy array of truth values: "ok", or "local" after JKO steps.

    >>> from otflow.base.status import arrived
    >>> arrived(["ok", "local", "stopped"]).tolist()
    [True, True, False]
    """
    return np.isin(np.asarray(status), ARRIVED)


def graded(failed: Tensor, local: Tensor | None) -> Tensor:
    """Status codes of what may have failed, and else may be no more than a local minimiser.

    >>> import torch
    >>> from otflow.base.status import graded, names
    >>> names(graded(torch.tensor([0, 0, 3]), torch.tensor([False, True, True]))).tolist()
    ['ok', 'local', 'max_iter']
    """
    return failed if local is None else merge(failed, code("local"), local)


def summary(status: Any) -> str:
    """The status of one problem, or how often each occurs in a batch.

    >>> import numpy as np
    >>> from otflow.base.status import summary
    >>> summary("ok"), summary(np.array(["ok", "blow_up", "ok"]))
    ('ok', 'ok x 2, blow_up x 1')
    """
    if np.ndim(status) == 0:
        return str(status)
    found, counts = np.unique(np.asarray(status), return_counts=True)
    table = dict(zip(found.tolist(), counts.tolist(), strict=True))
    known = [name for name in STATUSES if name in table]
    return ", ".join(f"{name} x {table[name]}" for name in [*known, *sorted(table.keys() - set(known))])


def brief(values: Tensor) -> str:
    """A number for one problem, the shape of the batch for several.

    >>> import torch
    >>> from otflow.base.status import brief
    >>> brief(torch.tensor(0.125)), brief(torch.zeros(2, 3))
    ('0.125', '(2, 3)')
    """
    return f"{values.item():.6g}" if values.ndim == 0 else f"{tuple(values.shape)}"


def merge(old: Tensor, new: Tensor | int, where: Tensor) -> Tensor:
    """``new`` where asked for and nothing was wrong yet."""
    return torch.where(where & (old == 0), torch.as_tensor(new, dtype=old.dtype, device=old.device), old)
