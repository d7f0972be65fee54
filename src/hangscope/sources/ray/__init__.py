"""Ray: what a cluster knows of itself, and its processes on each node, read out of their memory."""
