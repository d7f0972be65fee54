"""Kubernetes: what its API server says of pods, and the events beside them."""
