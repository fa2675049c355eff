"""The ground floor: errors, checks, linear algebra, spaces, kernels. Nothing here knows of measures."""
