"""Minimising movements of densities on grids."""
