"""otflow: Wasserstein gradient flows and the mean-field theory of Transformers, executable.

    a measure, a field and a stepper go into `flow`; a trajectory comes out.

Names are loaded on first use, so that importing otflow is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "tangent": ("Tangent",),
    "spaces": ("Euclidean", "Sphere", "Torus", "Space"),
    "measures": ("Measure", "Particles", "Gaussian", "Grid"),
    "energies": ("Energy", "Potential", "Interaction", "SquaredScores", "SelfTransport", "L2Energy"),
    "metrics": ("Metric", "Wasserstein", "Twisted", "distance"),
    "transport": (
        "AffineMap",
        "BilinearCost",
        "Cost",
        "EnergyKernel",
        "Engine",
        "EntropicPlan",
        "EntropicTransport",
        "GaussianKernel",
        "GeomLoss",
        "LaplaceKernel",
        "NewtonSinkhorn",
        "POT",
        "Plan",
        "PowerCost",
        "RelaxedConditional",
        "bures",
        "bures_barycentre",
        "bures_exp",
        "bures_geodesic",
        "bures_log",
        "bures_map",
        "bures_wasserstein",
        "conditional_wasserstein",
        "entropic_bures_wasserstein",
        "gaussian_sinkhorn_divergence",
        "mmd",
        "relaxed_conditional",
        "sinkhorn",
        "sinkhorn_divergence",
        "sliced_wasserstein",
        "solve",
        "wasserstein",
    ),
    "fields": (
        "Carry",
        "VelocityField",
        "SteepestDescent",
        "SoftmaxAttention",
        "L2Attention",
        "SinkhornAttention",
        "SigmoidAttention",
        "UnnormalisedAttention",
        "MultiHead",
        "Perceptron",
        "GaussianProjection",
        "Layers",
    ),
    "steppers": ("Stepper", "Step", "Euler", "Heun", "RK4", "Dopri5", "Lie", "Rosenbrock"),
    "noise": ("Noise", "CommonNoise", "IndependentNoise", "BrownianPath"),
    "driver": ("flow",),
    "limits": ("Limit", "limit"),
    "trajectory": ("Trajectory",),
    "errors": (
        "OtflowError",
        "InputError",
        "ConvergenceError",
        "DerivativeError",
        "FlowError",
        "NotFiniteError",
        "StepError",
    ),
}
_MODULES = ("closed_forms", "observables", "plot")
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AffineMap",
    "BilinearCost",
    "BrownianPath",
    "Carry",
    "CommonNoise",
    "ConvergenceError",
    "Cost",
    "DerivativeError",
    "Dopri5",
    "Energy",
    "EnergyKernel",
    "Engine",
    "EntropicPlan",
    "EntropicTransport",
    "Euclidean",
    "Euler",
    "FlowError",
    "Gaussian",
    "GaussianKernel",
    "GaussianProjection",
    "GeomLoss",
    "Grid",
    "Heun",
    "IndependentNoise",
    "InputError",
    "Interaction",
    "L2Attention",
    "L2Energy",
    "LaplaceKernel",
    "Layers",
    "Lie",
    "Limit",
    "Measure",
    "Metric",
    "MultiHead",
    "NewtonSinkhorn",
    "Noise",
    "NotFiniteError",
    "OtflowError",
    "POT",
    "Particles",
    "Perceptron",
    "Plan",
    "Potential",
    "PowerCost",
    "RK4",
    "RelaxedConditional",
    "Rosenbrock",
    "SelfTransport",
    "SigmoidAttention",
    "SinkhornAttention",
    "SoftmaxAttention",
    "Space",
    "Sphere",
    "SquaredScores",
    "SteepestDescent",
    "Step",
    "StepError",
    "Stepper",
    "Tangent",
    "Torus",
    "Trajectory",
    "Twisted",
    "UnnormalisedAttention",
    "VelocityField",
    "Wasserstein",
    "__version__",
    "bures",
    "bures_barycentre",
    "bures_exp",
    "bures_geodesic",
    "bures_log",
    "bures_map",
    "bures_wasserstein",
    "closed_forms",
    "conditional_wasserstein",
    "distance",
    "entropic_bures_wasserstein",
    "flow",
    "gaussian_sinkhorn_divergence",
    "limit",
    "mmd",
    "observables",
    "plot",
    "relaxed_conditional",
    "sinkhorn",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "solve",
    "wasserstein",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"otflow.{name}")
    if name not in _WHERE:
        import difflib

        close = difflib.get_close_matches(name.lower(), {n.lower(): n for n in __all__}, n=1)
        hint = f"; did you mean {next(n for n in __all__ if n.lower() == close[0])!r}?" if close else ""
        raise AttributeError(f"module 'otflow' has no attribute {name!r}{hint}", name=None)
    value = getattr(importlib.import_module(f"otflow.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    import otflow.closed_forms as closed_forms
    import otflow.observables as observables
    import otflow.plot as plot
    from otflow.driver import flow
    from otflow.energies import Energy, Interaction, L2Energy, Potential, SelfTransport, SquaredScores
    from otflow.errors import (
        ConvergenceError,
        DerivativeError,
        FlowError,
        InputError,
        NotFiniteError,
        OtflowError,
        StepError,
    )
    from otflow.fields import (
        Carry,
        GaussianProjection,
        L2Attention,
        Layers,
        MultiHead,
        Perceptron,
        SigmoidAttention,
        SinkhornAttention,
        SoftmaxAttention,
        SteepestDescent,
        UnnormalisedAttention,
        VelocityField,
    )
    from otflow.limits import Limit, limit
    from otflow.measures import Gaussian, Grid, Measure, Particles
    from otflow.metrics import Metric, Twisted, Wasserstein, distance
    from otflow.noise import BrownianPath, CommonNoise, IndependentNoise, Noise
    from otflow.spaces import Euclidean, Space, Sphere, Torus
    from otflow.steppers import RK4, Dopri5, Euler, Heun, Lie, Rosenbrock, Step, Stepper
    from otflow.tangent import Tangent
    from otflow.trajectory import Trajectory
    from otflow.transport import (
        POT,
        AffineMap,
        BilinearCost,
        Cost,
        EnergyKernel,
        Engine,
        EntropicPlan,
        EntropicTransport,
        GaussianKernel,
        GeomLoss,
        LaplaceKernel,
        NewtonSinkhorn,
        Plan,
        PowerCost,
        RelaxedConditional,
        bures,
        bures_barycentre,
        bures_exp,
        bures_geodesic,
        bures_log,
        bures_map,
        bures_wasserstein,
        conditional_wasserstein,
        entropic_bures_wasserstein,
        gaussian_sinkhorn_divergence,
        mmd,
        relaxed_conditional,
        sinkhorn,
        sinkhorn_divergence,
        sliced_wasserstein,
        solve,
        wasserstein,
    )
