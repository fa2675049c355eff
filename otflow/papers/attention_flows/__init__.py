"""Six kinds of attention move a cloud of tokens (Castin, Ablin, Carrillo, Peyré 2025)."""
