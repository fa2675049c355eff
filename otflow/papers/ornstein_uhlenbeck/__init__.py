"""Minimising movements of the Ornstein-Uhlenbeck process (Mokrov et al. 2021)."""
