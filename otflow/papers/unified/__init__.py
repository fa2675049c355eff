"""A unified perspective on deep Transformers: Gaussian laws (Castin, Ablin, Carrillo, Peyré 2025)."""
