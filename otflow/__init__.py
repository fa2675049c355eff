"""otflow: Wasserstein gradient flows and the mean-field theory of Transformers, executable.

    a measure, a field and a stepper go into `flow`; a trajectory comes out.

Names are loaded on first use, so that importing otflow is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {  # module -> its public names
    "base.tangent": "Tangent",
    "base.spaces": "Euclidean Sphere Torus Space",
    "measures": "Measure Particles Gaussian Grid Quantiles graded_levels richardson",
    "energies": (
        "Energy Potential Interaction SquaredScores SelfTransport L2Energy DensityBound Entropy "
        "PorousMedium QuadraticInteraction QuadraticPotential ExponentialInteraction SigmoidInteraction "
        "MMD SinkhornDivergence SquaredWasserstein"
    ),
    "metrics": (
        "Metric Wasserstein Twisted distance Partition TwistedGeodesic path_action twisted_wasserstein"
    ),
    "transport": (
        "AffineMap BilinearCost Cost EnergyKernel Engine EntropicPlan EntropicTransport GaussianKernel "
        "GeomLoss LaplaceKernel NewtonSinkhorn POT Plan PowerCost RelaxedConditional bures "
        "bures_barycentre bures_exp bures_geodesic bures_log bures_map bures_wasserstein "
        "conditional_wasserstein entropic_bures_wasserstein gaussian_sinkhorn_divergence mmd "
        "relaxed_conditional sinkhorn sinkhorn_divergence sliced_wasserstein solve wasserstein "
        "sequence_distance"
    ),
    "fields": (
        "Carry VelocityField SteepestDescent SoftmaxAttention L2Attention SinkhornAttention "
        "SigmoidAttention UnnormalisedAttention MultiHead Perceptron GaussianProjection Layers"
    ),
    "steppers": (
        "Stepper Step Euler Heun RK4 Dopri5 Lie Rosenbrock JKO Move jko_step ForwardBackward Extrapolated "
        "EntropicJKO"
    ),
    "dynamics.noise": "Noise CommonNoise IndependentNoise BrownianPath",
    "dynamics.flow": "flow",
    "dynamics.limit": "Limit limit",
    "dynamics.trajectory": "Trajectory",
    "base.errors": (
        "OtflowError InputError ConvergenceError DerivativeError FlowError NotFiniteError StepError "
        "UnknownBoundError"
    ),
    "dynamics.energy_balance": "EnergyBalance energy_balance balance_order",
    "stability": "coupled Coupled ladder Ladder adversary Adversary a_priori a_posteriori local_constant",
}
_MODULES = ("closed_forms", "nn", "observables", "papers", "plot", "stability")
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Adversary",
    "AffineMap",
    "BilinearCost",
    "BrownianPath",
    "Carry",
    "CommonNoise",
    "ConvergenceError",
    "Cost",
    "Coupled",
    "DensityBound",
    "DerivativeError",
    "Dopri5",
    "Energy",
    "EnergyBalance",
    "EnergyKernel",
    "Engine",
    "EntropicJKO",
    "EntropicPlan",
    "EntropicTransport",
    "Entropy",
    "Euclidean",
    "Euler",
    "ExponentialInteraction",
    "Extrapolated",
    "FlowError",
    "ForwardBackward",
    "Gaussian",
    "GaussianKernel",
    "GaussianProjection",
    "GeomLoss",
    "Grid",
    "Heun",
    "IndependentNoise",
    "InputError",
    "Interaction",
    "JKO",
    "L2Attention",
    "L2Energy",
    "Ladder",
    "LaplaceKernel",
    "Layers",
    "Lie",
    "Limit",
    "MMD",
    "Measure",
    "Metric",
    "Move",
    "MultiHead",
    "NewtonSinkhorn",
    "Noise",
    "NotFiniteError",
    "OtflowError",
    "POT",
    "Particles",
    "Partition",
    "Perceptron",
    "Plan",
    "PorousMedium",
    "Potential",
    "PowerCost",
    "QuadraticInteraction",
    "QuadraticPotential",
    "Quantiles",
    "RK4",
    "RelaxedConditional",
    "Rosenbrock",
    "SelfTransport",
    "SigmoidAttention",
    "SigmoidInteraction",
    "SinkhornAttention",
    "SinkhornDivergence",
    "SoftmaxAttention",
    "Space",
    "Sphere",
    "SquaredScores",
    "SquaredWasserstein",
    "SteepestDescent",
    "Step",
    "StepError",
    "Stepper",
    "Tangent",
    "Torus",
    "Trajectory",
    "Twisted",
    "TwistedGeodesic",
    "UnknownBoundError",
    "UnnormalisedAttention",
    "VelocityField",
    "Wasserstein",
    "__version__",
    "a_posteriori",
    "a_priori",
    "adversary",
    "balance_order",
    "bures",
    "bures_barycentre",
    "bures_exp",
    "bures_geodesic",
    "bures_log",
    "bures_map",
    "bures_wasserstein",
    "closed_forms",
    "conditional_wasserstein",
    "coupled",
    "distance",
    "energy_balance",
    "entropic_bures_wasserstein",
    "flow",
    "gaussian_sinkhorn_divergence",
    "graded_levels",
    "jko_step",
    "ladder",
    "limit",
    "local_constant",
    "mmd",
    "nn",
    "observables",
    "papers",
    "path_action",
    "plot",
    "relaxed_conditional",
    "richardson",
    "sequence_distance",
    "sinkhorn",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "solve",
    "stability",
    "twisted_wasserstein",
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
    import otflow.nn as nn
    import otflow.observables as observables
    import otflow.papers as papers
    import otflow.plot as plot
    import otflow.stability as stability
    from otflow.base.errors import (
        ConvergenceError,
        DerivativeError,
        FlowError,
        InputError,
        NotFiniteError,
        OtflowError,
        StepError,
        UnknownBoundError,
    )
    from otflow.base.spaces import Euclidean, Space, Sphere, Torus
    from otflow.base.tangent import Tangent
    from otflow.dynamics.energy_balance import EnergyBalance, balance_order, energy_balance
    from otflow.dynamics.flow import flow
    from otflow.dynamics.limit import Limit, limit
    from otflow.dynamics.noise import BrownianPath, CommonNoise, IndependentNoise, Noise
    from otflow.dynamics.trajectory import Trajectory
    from otflow.energies import (
        MMD,
        DensityBound,
        Energy,
        Entropy,
        ExponentialInteraction,
        Interaction,
        L2Energy,
        PorousMedium,
        Potential,
        QuadraticInteraction,
        QuadraticPotential,
        SelfTransport,
        SigmoidInteraction,
        SinkhornDivergence,
        SquaredScores,
        SquaredWasserstein,
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
    from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles, graded_levels, richardson
    from otflow.metrics import (
        Metric,
        Partition,
        Twisted,
        TwistedGeodesic,
        Wasserstein,
        distance,
        path_action,
        twisted_wasserstein,
    )
    from otflow.stability import (
        Adversary,
        Coupled,
        Ladder,
        a_posteriori,
        a_priori,
        adversary,
        coupled,
        ladder,
        local_constant,
    )
    from otflow.steppers import (
        JKO,
        RK4,
        Dopri5,
        EntropicJKO,
        Euler,
        Extrapolated,
        ForwardBackward,
        Heun,
        Lie,
        Move,
        Rosenbrock,
        Step,
        Stepper,
        jko_step,
    )
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
        sequence_distance,
        sinkhorn,
        sinkhorn_divergence,
        sliced_wasserstein,
        solve,
        wasserstein,
    )
