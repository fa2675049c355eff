"""Bounds on the distance of two flows: known beforehand, or computed along one of them."""
