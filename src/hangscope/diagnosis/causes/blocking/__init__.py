"""Ranks that the others wait for: absent, dead, frozen, with a GPU that does not go on, or in a cycle of waits."""
