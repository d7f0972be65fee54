"""Processes of this machine as the kernel shows them, whoever started them: state, threads, environment, rights.

The lowest room of the recorder: it knows nothing of ranks.
"""
