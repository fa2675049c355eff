"""The status of a computation: how it ended, for each member of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

STATUSES = (
    *("ok", "stopped", "blow_up", "max_iter", "stalled", "uncertified", "degenerate", "budget"),
    *("unstable", "invalid", "overflow"),
)
HARMLESS = ("ok", "stopped", "blow_up")  # results, not failures


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
    >>> all_ok("ok"), all_ok(np.array(["ok", "stalled"]))
    (True, False)
    """
    return bool(np.all(np.asarray(status) == "ok"))


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
