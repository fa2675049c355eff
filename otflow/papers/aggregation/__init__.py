"""Aggregation: particles that attract from afar and repel from near."""
