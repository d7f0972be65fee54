"""Synthetic jobs of any size, layout, fault and format version, with their truth."""
