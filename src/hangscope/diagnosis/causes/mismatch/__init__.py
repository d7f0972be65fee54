"""Ranks that called something else than their group: operation, order, size, type, split, peer or root."""
