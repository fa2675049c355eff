"""Clouds sampled from a Gaussian against its flow (Castin, Ablin, Carrillo, Peyré 2025)."""
