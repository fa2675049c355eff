"""Stability of masked attention in a distance that keeps labels (Castin et al. 2025, Theorem 3.4)."""
