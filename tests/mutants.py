"""Break central lines one at a time, and see that the tests notice: ``make mutants``.

Each mutant is one wrong line that somebody might write: a sign, a factor 2, a weight or a certificate left
out, labels in the other order, a status that is kinder than the truth. It is made in a copy of the project,
on which the tests named beside it run, and, should they not notice, all fast ones. A mutant that survives is
a hole in the tests.

    python -m tests.mutants [name ...]

That each line occurs once in its file is a test of its own, in tests/test_repository.py: a mutant of a line
that is gone would notice nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A line of otflow, what it becomes, and the tests that should notice first."""

    name: str
    file: str  # below otflow/
    line: str
    wrong: str
    tests: str  # below tests/, separated by blanks

    @property
    def path(self) -> Path:
        return Path("otflow") / self.file

    def applied(self, text: str) -> str:
        """The text of the file with the wrong line."""
        if text.count(self.line) != 1:
            raise ValueError(f"{self.name}: the line occurs {text.count(self.line)} times in {self.path}")
        return text.replace(self.line, self.wrong)


MUTANTS = (
    # fields
    Mutant(
        "softmax forgets the weights of tokens",
        "fields/attention.py",
        "return None if mu.uniform else mu.w.log()",
        "return None",
        "fields laws",
    ),
    Mutant(
        "L2 attention with half of the squares",
        "fields/attention.py",
        "bias, logw = -k.square().sum(-1), log_weights(mu)",
        "bias, logw = -k.square().sum(-1) / 2, log_weights(mu)",
        "fields/test_velocities.py",
    ),
    Mutant(
        "L2 attention on Gaussians without a factor 2",
        "fields/attention.py",
        "device=KR.device) + 2 * product(KR.mT, KR)",
        "device=KR.device) + product(KR.mT, KR)",
        "measures/test_gaussian_closures.py",
    ),
    Mutant(
        "sigmoid attention forgets the weights",
        "fields/attention.py",
        "values = apply(m.V, mu.x) * mu.w[..., None]",
        "values = apply(m.V, mu.x) / mu.n",
        "fields laws",
    ),
    Mutant(
        "tokens see the labels after their own",
        "base/kernels.py",
        "of_key[:, None, :] > of_query[:, rows, None]",
        "of_key[:, None, :] < of_query[:, rows, None]",
        "base/test_kernels.py fields",
    ),
    Mutant(
        "a layer too early at an edge",
        "fields/weights.py",
        "t.to(self._edges), right=True)",
        "t.to(self._edges), right=False)",
        "fields/test_weights.py dynamics/test_flow.py",
    ),
    Mutant(
        "the bias of a perceptron is left out on Gaussians",
        "fields/perceptron.py",
        "mean if b is None else mean + b",
        "mean",
        "measures/test_gaussian_closures.py fields",
    ),
    # energies and metrics
    Mutant(
        "interactions counted twice",
        "energies/interaction.py",
        "return 0.5 * (terms.abs() if absolute else terms).sum((-1, -2))",
        "return 1.0 * (terms.abs() if absolute else terms).sum((-1, -2))",
        "energies laws",
    ),
    Mutant(
        "the pressure of porous media",
        "energies/internal.py",
        "return self.m / (self.m - 1) * rho ** (self.m - 1)",
        "return 1 / (self.m - 1) * rho ** (self.m - 1)",
        "energies steppers/test_jko_grid.py laws",
    ),
    Mutant(
        "the twisted metric multiplies where it divides",
        "metrics/twisted.py",
        "u / a if inverse else u * a",
        "u * a if inverse else u / a",
        "metrics laws",
    ),
    # steppers
    Mutant(
        "Runge-Kutta stages at the wrong time",
        "steppers/explicit.py",
        "field.evaluate(stage_time(t, dt, c_i), here, done.carry)",
        "field.evaluate(stage_time(t, dt, 0.0 * c_i), here, done.carry)",
        "steppers/test_orders.py",
    ),
    Mutant(
        "weights of RK4",
        "steppers/explicit.py",
        "b = (1 / 6, 1 / 3, 1 / 3, 1 / 6)",
        "b = (1 / 6, 1 / 6, 1 / 2, 1 / 6)",
        "steppers/test_orders.py",
    ),
    Mutant(
        "the energy gap with the whole dissipation",
        "steppers/explicit.py",
        '"energy_gap": after.energy + power / 2 - before.energy',
        '"energy_gap": after.energy + power - before.energy',
        "dynamics/test_divergence.py",
    ),
    Mutant(
        "descents may give back all that they had won",
        "steppers/base.py",
        "LOST = 0.25",
        "LOST = 25.0",
        "dynamics/test_divergence.py",
    ),
    Mutant(
        "clocks of members are not asked for",
        "dynamics/flow.py",
        "if apart > MEMBERS * size:",
        "if apart > 1e6 * size:",
        "dynamics/test_flow.py",
    ),
    Mutant(
        "adaptive steps accepted with ten times the error",
        "steppers/adaptive.py",
        "(size <= 1.0) & moved.finite()",
        "(size <= 10.0) & moved.finite()",
        "steppers/test_dopri5.py",
    ),
    Mutant(
        "exponential steps move the mean the other way",
        "steppers/lie.py",
        "mu.mean + flow[..., :-1, -1]",
        "mu.mean - flow[..., :-1, -1]",
        "steppers/test_lie.py",
    ),
    Mutant(
        "the heat of a JKO step of Gaussians",
        "steppers/jko/gaussian.py",
        "h = tau * F.heat",
        "h = 2 * tau * F.heat",
        "steppers/test_jko.py",
    ),
    Mutant(
        "a JKO step that is not convex keeps its status",
        "steppers/jko/gaussian.py",
        'failed=torch.where(low > 0, 0, code("uncertified")).expand(mu.batch)',
        "failed=torch.where(low > 0, 0, 0).expand(mu.batch)",
        "steppers/test_jko.py corpus",
    ),
    Mutant(
        "JKO steps of twice the length",
        "steppers/jko/displacements.py",
        "pulled + self.cost(v).sum() / (2 * self.problem.tau)",
        "pulled + self.cost(v).sum() / (4 * self.problem.tau)",
        "steppers/test_jko.py",
    ),
    # transport
    Mutant(
        "Gaussians of different means are compared by their roots alone",
        "transport/bures/geometry.py",
        "return norm(torch.stack([shift, d], -1))",
        "return norm(torch.stack([0 * shift, d], -1))",
        "transport/test_bures.py",
    ),
    Mutant(
        "the slope of the Bures distance",
        "transport/bures/geometry.py",
        "factor = ratio(torch.full_like(w, 0.5), w)",
        "factor = ratio(torch.full_like(w, 1.0), w)",
        "transport/test_bures.py",
    ),
    Mutant(
        "plans on the line are called certified unseen",
        "transport/exact/line.py",
        'torch.where((value - bound).abs() <= TOL * value, 0, code("uncertified"))',
        "torch.where((value - bound).abs() <= TOL * value, 0, 0)",
        "transport corpus",
    ),
    Mutant(
        "Sinkhorn plans are trusted whatever their status",
        "transport/entropic/sinkhorn.py",
        "    if not status.all_ok(plan.status):\n        raise ConvergenceError(_complaint(plan), plan)",
        "    if False:\n        raise ConvergenceError(_complaint(plan), plan)",
        "transport/test_entropic.py corpus/test_entropic_corpus.py",
    ),
    Mutant(
        "costs that have no room are handed out",
        "transport/ranges.py",
        "return ~(inside | (exact.detach() == 0)",
        "return ~(inside | ~inside | (exact.detach() == 0)",
        "corpus/test_scale_corpus.py",
    ),
    Mutant(
        "the Sinkhorn divergence with one of its corrections",
        "transport/entropic/sinkhorn.py",
        "return across - (own + other_own) / 2",
        "return across - own",
        "transport/test_entropic.py",
    ),
    Mutant(
        "labels need not agree in conditional distances",
        "transport/exact/conditional.py",
        "            & (ours.label == theirs.label)\n",
        "",
        "transport/test_conditional.py",
    ),
    Mutant(
        "fibres weigh alike",
        "transport/exact/conditional.py",
        "unit, theta = units(top.detach()), (ours.mass + theirs.mass) / 2",
        "unit, theta = units(top.detach()), torch.full_like(ours.mass, 1 / len(ours.mass))",
        "transport/test_conditional.py",
    ),
    Mutant(
        "kernels between measures with the wrong sign",
        "transport/discrepancy.py",
        "square = ours[:, 0] - theirs[:, 0]",
        "square = ours[:, 0] + theirs[:, 0]",
        "transport",
    ),
    # dynamics, stability, statuses
    Mutant(
        "Brownian bridges twice as wide",
        "dynamics/noise.py",
        "spread = math.sqrt(2.0 ** (1 - level)) / 2",
        "spread = math.sqrt(2.0 ** (1 - level))",
        "dynamics/test_noise.py",
    ),
    Mutant(
        "a failing member takes the message of none",
        "base/status.py",
        "return torch.where(where & (old == 0),",
        "return torch.where(where,",
        "dynamics corpus steppers",
    ),
    Mutant(
        "failures are harmless",
        "base/status.py",
        'HARMLESS = (*ARRIVED, "stopped", "blow_up"',
        'HARMLESS = (*ARRIVED, "stopped", "unstable", "stalled", "blow_up"',
        "dynamics corpus",
    ),
    Mutant(
        "what blows up under a fixed step is asked no question",
        "dynamics/stepping.py",
        'codes = torch.where(gone, status.code("unstable"), failed)',
        'codes = torch.where(gone, status.code("blow_up"), failed)',
        "dynamics/test_divergence.py",
    ),
    Mutant(
        "transposes of flow maps without the weights of tokens",
        "stability/propagator.py",
        "lambda a, r: a * r.square())",
        "lambda a, r: a * r)",
        "stability/test_propagator.py",
    ),
    Mutant(
        "Lipschitz constants without what depends on the law",
        "stability/bounds/constants.py",
        "torch.logaddexp(torch.logaddexp(self.log_x, self.log_mu), averaged)",
        "torch.logaddexp(self.log_x, averaged)",
        "stability/test_constants.py",
    ),
    Mutant(
        "distances of runs that have ended",
        "stability/coupled.py",
        "return distances.masked_fill(late.to(distances.device), torch.nan)",
        "return distances",
        "stability/test_coupled.py",
    ),
)


def main(names: Sequence[str] = ()) -> int:
    """Try all mutants, or those whose names contain one of the words; the number of survivors."""
    chosen = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder) / "otflow")
        if wrong := _run(copy, sorted({test for mutant in chosen for test in _first(mutant)})):
            raise RuntimeError(f"{wrong} fails without any mutant")
        for mutant in chosen:
            began = time.monotonic()
            noticed = tried(mutant, copy)
            survivors += not noticed
            _say(f"{noticed or 'SURVIVED':60.60s} {time.monotonic() - began:5.0f} s   {mutant.name}")
    _say(f"{len(chosen)} mutants, {survivors} survived")
    return survivors


def copied(to: Path) -> Path:
    """The project without what git does not know, and without compiled files of lines that change."""
    listing = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in files.splitlines():
        if (ROOT / file).is_file():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, to / file)
    return to


def tried(mutant: Mutant, copy: Path) -> str:
    """The test that noticed, "" if none did."""
    file = copy / mutant.path
    right = file.read_text()
    file.write_text(mutant.applied(right))
    try:
        return _run(copy, _first(mutant)) or _run(copy, ())
    finally:
        file.write_text(right)


def _first(mutant: Mutant) -> list[str]:
    return [f"tests/{name}" for name in mutant.tests.split()]


def _run(copy: Path, tests: Sequence[str]) -> str:
    """The first test that fails, "" if none does; a run that ends otherwise is a mistake of ours."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if (done.returncode == 0) != (not failed):
        raise RuntimeError(done.stdout + done.stderr)
    return failed[0].split(" - ")[0].split(maxsplit=1)[1] if failed else ""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
