"""How smooth is attention? (Castin, Ablin, Peyré 2024)"""
