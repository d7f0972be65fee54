"""The lines of source around those at which the ranks of a node were: what the code was is known while it runs."""
