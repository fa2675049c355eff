"""How far two flows drift apart (Castin et al. 2025, Theorem 3.1)."""
