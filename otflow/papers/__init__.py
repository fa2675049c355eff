"""Papers, one room each: the model, its closed forms, what is claimed of it, and how it is drawn.

A room is loaded when it is asked for, `otflow.papers.metastability`. The table holds words only, so that
listing the experiments, `otflow reproduce`, loads none of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from otflow.reproduce.registry import Entry, Registry

__all__ = [
    "clusters",
    "homogenized",
    "interpolation",
    "kde_modes",
    "lost_in_the_middle",
    "metastability",
    "perceptron",
    "perspective",
    "relu_flows",
]

REGISTRY = Registry(
    {
        "attention-flows": Entry(
            "otflow.papers.attention_flows.reproduce",
            "Six kinds of attention move a cloud of tokens",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322",
        ),
        "castin-fig1": Entry(
            "otflow.papers.unified.figure1",
            "Covariances under attention that contracts",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 1",
        ),
        "castin-fig2": Entry(
            "otflow.papers.unified.figure2",
            "Covariances under attention that explodes",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 2",
        ),
        "castin-l2": Entry(
            "otflow.papers.unified.l2",
            "The same pictures under L2 attention",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
        ),
        "castin-multihead": Entry(
            "otflow.papers.unified.multihead",
            "The same pictures with two heads",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
        ),
        "castin-sinkhorn": Entry(
            "otflow.papers.unified.sinkhorn",
            "The same pictures under Sinkhorn attention",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, appendix",
        ),
        "castin-fig3": Entry(
            "otflow.papers.unified.figure3",
            "The rank of the limits, exactly and as the figure counts it",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Fig. 3 and appendix",
        ),
        "castin-errata": Entry(
            "otflow.papers.unified.errata",
            "Errata: what is printed, what is true, and the computation that tells",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, with its poster and scripts",
        ),
        "gaussian-particles": Entry(
            "otflow.papers.gaussian_particles.reproduce",
            "Clouds sampled from a Gaussian follow its flow, until the tail that matters has no tokens",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, section 4",
        ),
        "gradient-flows": Entry(
            "otflow.papers.gradient_flows.reproduce",
            "Attention as a gradient flow: which energy, in which metric, and where there is none",
            "Sander et al. 2022; Geshkovski et al. 2025; Castin et al. 2025, arXiv 2501.18322",
        ),
        "jko-oracles": Entry(
            "otflow.papers.jko.reproduce",
            "Minimising movements against their oracles: solver and scheme, scheme and equation",
            "Jordan, Kinderlehrer, Otto 1998",
        ),
        "aggregation": Entry(
            "otflow.papers.aggregation.reproduce",
            "Particles that attract from afar and repel from near settle on a ring, a disc and an interval",
            "Kolokolnikov et al. 2011; Fetecau, Huang, Kolokolnikov 2011; Jordan, Kinderlehrer, Otto 1998",
        ),
        "jko-ou-benchmark": Entry(
            "otflow.papers.ornstein_uhlenbeck.reproduce",
            "Minimising movements of the Ornstein-Uhlenbeck process against a published benchmark",
            "Mokrov, Korotin, Li, Genevay, Solomon, Burnaev 2021, arXiv 2106.00736",
        ),
        "porous-medium": Entry(
            "otflow.papers.porous_medium.reproduce",
            "Slow diffusion spreads at finite speed: Barenblatt's profile, and two bumps that meet",
            "Otto 2001; Vázquez 2007",
        ),
        "crowd-motion": Entry(
            "otflow.papers.crowd_motion.reproduce",
            "A crowd that cannot be denser than a limit fills up the lowest places",
            "Maury, Roudneff-Chupin, Santambrogio 2010",
        ),
        "stability": Entry(
            "otflow.papers.stability_estimate.reproduce",
            "Stability: how far two flows drift apart",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.1",
        ),
        "masked-stability": Entry(
            "otflow.papers.masked_stability.reproduce",
            "Masked attention is stable in a distance that keeps labels, for every order but one",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.4",
        ),
        "mean-field-limit": Entry(
            "otflow.papers.mean_field_limit.reproduce",
            "Clouds of n tokens converge to the flow of a law as fast as they do at the start",
            "Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.1",
        ),
        "how-smooth": Entry(
            "otflow.papers.how_smooth.reproduce",
            "How smooth is attention? The root of n, where it ends, and bounds that know of both",
            "Castin, Ablin, Peyré 2024, arXiv 2312.14820",
        ),
        "perspective": Entry(
            "otflow.papers.perspective.reproduce",
            "Transformers as interacting particles on the sphere: clusters, energies and phase transitions",
            "Geshkovski, Letrouit, Polyanskiy, Rigollet 2025, arXiv 2312.10794",
        ),
        "metastability": Entry(
            "otflow.papers.metastability.reproduce",
            "Tokens wait, then merge in pairs: a staircase of the energy, with its times predicted",
            "Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833",
        ),
        "clusters": Entry(
            "otflow.papers.clusters.reproduce",
            "The emergence of clusters: Boolean attention, polytopes, hyperplanes, and a slow decay",
            "Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, arXiv 2305.05465",
        ),
        "perceptron": Entry(
            "otflow.papers.perceptron.reproduce",
            "A perceptron turns the uniform law of repelling tokens into a handful of atoms",
            "Álvarez-López, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366",
        ),
        "kde-modes": Entry(
            "otflow.papers.kde_modes.reproduce",
            "Modes of a kernel density estimator: how many, where, and what they have to do with clusters",
            "Geshkovski, Rigollet, Sun 2026, arXiv 2412.09080",
        ),
        "lost-in-the-middle": Entry(
            "otflow.papers.lost_in_the_middle.reproduce",
            "Lost in the middle: what the last token of a prompt still knows of the others",
            "Duerinckx, Geshkovski, Rossi 2026, arXiv 2605.09213",
        ),
        "relu-flows": Entry(
            "otflow.papers.relu_flows.reproduce",
            "One ReLU neuron at a time permutes a picture and follows a diffeomorphism",
            "Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606",
        ),
        "controllability": Entry(
            "otflow.papers.relu_flows.controllability",
            "A Gaussian becomes another law, and relative entropy says how nearly",
            "Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366",
        ),
        "interpolation": Entry(
            "otflow.papers.interpolation.reproduce",
            "One Transformer takes three overlapping clouds to three points, and to atoms",
            "Geshkovski, Rigollet, Ruiz-Balet 2026, arXiv 2411.04551v3",
        ),
        "homogenized": Entry(
            "otflow.papers.homogenized.reproduce",
            "Very many random layers: an ODE, a common noise, and tokens that freeze or collapse",
            "Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978",
        ),
    }
)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        have = ", ".join(__all__)
        raise AttributeError(f"module 'otflow.papers' has no attribute {name!r}; it has {have}", name=None)
    return importlib.import_module(f"otflow.papers.{name}")
