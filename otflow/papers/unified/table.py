"""The table of a figure: of every panel how it is run, what is claimed of it and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import otflow as of
from otflow.papers.unified import draw
from otflow.papers.unified.parameters import Panel
from otflow.papers.unified.runs import Array, PanelRun, panel
from otflow.reproduce.claim import Claim, Result
from otflow.reproduce.frame import Frame


class PanelRow(NamedTuple):
    """One panel, which is one column of its figure: orbits above, what is measured below.

    Attributes:
        name: of the weights, in `parameters.panels`.
        words: which attention, and which weights.
        flow: from panel, relative tolerance and number of save times.
        claims: from the run, in the order of the page.
        draw: into the axes above and below.
        label: on the page; by default the first word of the name.
        check, own_time: length of the independent run, and whether in the clocks of its members.
        cone: draw the orbits in the cone, not in the disk.
    """

    name: str
    words: str
    flow: Callable[[Panel, float, int], of.Trajectory]
    claims: Callable[[PanelRun], Iterable[Claim]]
    draw: Callable[[PanelRun, Any, Any], None]
    label: str = ""
    check: float = 0.0
    own_time: bool = True
    cone: bool = False


def reproduce(
    frame: Frame,
    figure: str,
    rows: Sequence[PanelRow],
    data: Callable[[PanelRun], Mapping[str, Array]],
    *,
    keep: int = 7,
) -> Result:
    """Run the rows of a table, then state their claims, then draw them side by side.

    Args:
        figure: the name of its file.
        data: what is kept of a run.
        keep: a quick version has every ``keep``-th of the initial covariances.
    """
    rtol, saves = frame.size(quick=(1e-7, 24), full=(1e-9, 60))
    runs = []
    for i, row in enumerate(rows):
        frame.stage(0.8 * i / len(rows), f"panel {row.name}")
        p, label = panel(row.name, quick=frame.quick, keep=keep), row.label or row.name.split()[0]
        traj = row.flow(p, rtol, saves)
        runs.append(PanelRun(label, row.words, p, traj, saves, row.check, row.own_time))
    frame.stage(0.8, "claims")
    claims = [claim for row, found in zip(rows, runs, strict=True) for claim in row.claims(found)]
    frame.stage(0.9, "figure")
    fig, axes = draw.board(len(rows), cones=[k for k, row in enumerate(rows) if row.cone])
    kept: dict[str, Array] = {}
    for row, found, (above, below) in zip(rows, runs, axes.T, strict=True):
        row.draw(found, above, below)
        key = row.name.removeprefix("A Sinkhorn ").replace(" ", "_")  # the experiment says Sinkhorn already
        kept |= {f"{name}_{key}": array for name, array in data(found).items()}
    return Result(claims, {figure: fig}, kept)
