"""Which ranks wait for which: how far each one got, the wait-for graph, and how long each wait has lasted."""
