"""The experiments that `otflow reproduce` knows, in the order in which they run.

The registry holds words only, so that listing the experiments loads none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from otflow.experiments.base import Experiment


class Entry(NamedTuple):
    """Where an experiment lives, and what the list of experiments says about it."""

    module: str
    title: str
    source: str


REGISTRY: dict[str, Entry] = {
    "attention-flows": Entry(
        module="otflow.experiments.attention_flows",
        title="Six kinds of attention move a cloud of tokens",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322",
    ),
    "castin-fig1": Entry(
        module="otflow.experiments.castin_fig1",
        title="Covariances under attention that contracts",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 1",
    ),
    "castin-fig2": Entry(
        module="otflow.experiments.castin_fig2",
        title="Covariances under attention that explodes",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 2",
    ),
    "castin-l2": Entry(
        module="otflow.experiments.castin_l2",
        title="The same pictures under L2 attention",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
    ),
    "castin-multihead": Entry(
        module="otflow.experiments.castin_multihead",
        title="The same pictures with two heads",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
    ),
    "castin-sinkhorn": Entry(
        module="otflow.experiments.castin_sinkhorn",
        title="The same pictures under Sinkhorn attention",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
    ),
    "castin-fig3": Entry(
        module="otflow.experiments.castin_fig3",
        title="The rank of the limits, exactly and as the figure counts it",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 3 and appendix",
    ),
    "castin-errata": Entry(
        module="otflow.experiments.castin_errata",
        title="Errata: what is printed, what is true, and the computation that tells",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, with its poster and scripts",
    ),
    "gaussian-particles": Entry(
        module="otflow.experiments.gaussian_particles",
        title="Clouds sampled from a Gaussian follow its flow, until the tail that matters has no tokens",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, section 4",
    ),
    "gradient-flows": Entry(
        module="otflow.experiments.gradient_flows",
        title="Attention as a gradient flow: which energy, in which metric, and where there is none",
        source="Sander et al. 2022; Geshkovski et al. 2025; Castin et al. 2025, arXiv 2501.18322",
    ),
    "jko-oracles": Entry(
        module="otflow.experiments.jko_oracles",
        title="Minimising movements against their oracles: solver and scheme, scheme and equation",
        source="Jordan, Kinderlehrer, Otto 1998",
    ),
    "aggregation": Entry(
        module="otflow.experiments.aggregation",
        title="Particles that attract from afar and repel from near settle on a ring, a disc and an interval",
        source="Kolokolnikov et al. 2011; Fetecau, Huang, Kolokolnikov 2011; Jordan, Kinderlehrer, Otto 1998",
    ),
    "jko-ou-benchmark": Entry(
        module="otflow.experiments.jko_ou",
        title="Minimising movements of the Ornstein-Uhlenbeck process against a published benchmark",
        source="Mokrov, Korotin, Li, Genevay, Solomon, Burnaev 2021, arXiv 2106.00736",
    ),
    "porous-medium": Entry(
        module="otflow.experiments.porous_medium",
        title="Slow diffusion spreads at finite speed: Barenblatt's profile, and two bumps that meet",
        source="Otto 2001; Vázquez 2007",
    ),
    "crowd-motion": Entry(
        module="otflow.experiments.crowd_motion",
        title="A crowd that cannot be denser than a limit fills up the lowest places",
        source="Maury, Roudneff-Chupin, Santambrogio 2010",
    ),
    "stability": Entry(
        module="otflow.experiments.stability",
        title="Stability: how far two flows drift apart",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.1",
    ),
    "masked-stability": Entry(
        module="otflow.experiments.masked_stability",
        title="Masked attention is stable in a distance that keeps labels, for every order but one",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.4",
    ),
    "mean-field-limit": Entry(
        module="otflow.experiments.mean_field_limit",
        title="Clouds of n tokens converge to the flow of a law as fast as they do at the start",
        source="Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.1",
    ),
    "how-smooth": Entry(
        module="otflow.experiments.how_smooth",
        title="How smooth is attention? The root of n, where it ends, and bounds that know of both",
        source="Castin, Ablin, Peyré 2024, arXiv 2312.14820",
    ),
    "perspective": Entry(
        module="otflow.experiments.perspective",
        title="Transformers as interacting particles on the sphere: clusters, energies and phase transitions",
        source="Geshkovski, Letrouit, Polyanskiy, Rigollet 2025, arXiv 2312.10794",
    ),
    "metastability": Entry(
        module="otflow.experiments.metastability",
        title="Tokens wait, then merge in pairs: a staircase of the energy, with its times predicted",
        source="Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833",
    ),
    "clusters": Entry(
        module="otflow.experiments.clusters",
        title="The emergence of clusters: Boolean attention, polytopes, hyperplanes, and a slow decay",
        source="Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, arXiv 2305.05465",
    ),
    "perceptron": Entry(
        module="otflow.experiments.perceptron",
        title="A perceptron turns the uniform law of repelling tokens into a handful of atoms",
        source="Álvarez-López, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366",
    ),
    "kde-modes": Entry(
        module="otflow.experiments.kde_modes",
        title="Modes of a kernel density estimator: how many, where, and what they have to do with clusters",
        source="Geshkovski, Rigollet, Sun 2026, arXiv 2412.09080",
    ),
    "lost-in-the-middle": Entry(
        module="otflow.experiments.lost_in_the_middle",
        title="Lost in the middle: what the last token of a prompt still knows of the others",
        source="Duerinckx, Geshkovski, Rossi 2026, arXiv 2605.09213",
    ),
    "relu-flows": Entry(
        module="otflow.experiments.relu_flows",
        title="One ReLU neuron at a time permutes a picture and follows a diffeomorphism",
        source="Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606",
    ),
    "controllability": Entry(
        module="otflow.experiments.controllability",
        title="A Gaussian becomes another law, and relative entropy says how nearly",
        source="Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366",
    ),
    "interpolation": Entry(
        module="otflow.experiments.interpolation",
        title="One Transformer takes three overlapping clouds to three points, and to atoms",
        source="Geshkovski, Rigollet, Ruiz-Balet 2026, arXiv 2411.04551v3",
    ),
    "homogenized": Entry(
        module="otflow.experiments.homogenized",
        title="Very many random layers: an ODE, a common noise, and tokens that freeze or collapse",
        source="Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978",
    ),
}


def names() -> tuple[str, ...]:
    """The names of all experiments, in running order.

    >>> "attention-flows" in names()
    True
    """
    return tuple(REGISTRY)


def unknown(name: str) -> str:
    """What to tell somebody who asked for an experiment that does not exist."""
    from difflib import get_close_matches

    near = get_close_matches(name, REGISTRY, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown experiment {name!r}.{hint} The experiments are: {', '.join(REGISTRY)}."


def load(name: str) -> Experiment:
    """Import the experiment `name`: a module with a docstring and a function `run`."""
    from importlib import import_module

    if name not in REGISTRY:
        raise ValueError(unknown(name))
    return cast("Experiment", import_module(REGISTRY[name].module))
