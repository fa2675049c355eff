"""Integrals over standard normal laws in up to three dimensions: rules, and meshes where these disagree."""
