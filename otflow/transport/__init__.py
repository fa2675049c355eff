"""Optimal transport: for now, the bistochastic scaling behind Sinkhorn attention."""
