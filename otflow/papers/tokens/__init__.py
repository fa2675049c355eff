"""Tokens on circles and spheres, which several papers share."""
