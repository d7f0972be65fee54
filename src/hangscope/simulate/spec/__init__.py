"""What to simulate: every choice of a job in one value, the layout of its ranks, and choices drawn from a seed."""
