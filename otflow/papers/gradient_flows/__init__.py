"""Attention as a gradient flow: which energy, in which metric, and where there is none."""
