from .energy_balance import EnergyBalance, balance_order
from .limit import Limit
from .noise import BrownianPath, CommonNoise, IndependentNoise, Noise
from .trajectory import Trajectory

__all__ = [
    "BrownianPath",
    "CommonNoise",
    "EnergyBalance",
    "IndependentNoise",
    "Limit",
    "Noise",
    "Trajectory",
    "balance_order",
]
