"""Everybody launched, and bytes do not arrive: the connection, the port or the GPU on which it stops."""
