"""Exact optimal transport: solved, proved, and differentiated."""
