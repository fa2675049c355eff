"""Optimal transport between Gaussians, in closed form."""
