"""Secrets and innocent strings, generated: what a bundle must not hold, and what must survive in it."""
