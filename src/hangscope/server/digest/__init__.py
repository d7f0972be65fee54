"""Digesting: an accepted incident is diagnosed by a process of its own, then grouped with those like it."""
