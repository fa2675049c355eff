"""Clouds of n tokens against the flow of a law (Castin et al. 2025, Theorem 3.1)."""
