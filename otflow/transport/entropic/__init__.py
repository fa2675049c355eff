"""Entropic optimal transport: one scaling problem, several engines, derivatives of its solution."""
