"""Slow diffusion: Barenblatt's profile, and two bumps that meet."""
