"""Minimising movements against their oracles (Jordan, Kinderlehrer, Otto 1998)."""
