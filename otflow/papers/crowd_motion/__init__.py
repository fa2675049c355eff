"""Crowd motion under a bound on the density (Maury, Roudneff-Chupin, Santambrogio 2010)."""
