"""Processes of this machine as the kernel shows them, whoever started them: state, threads, environment, rights.

Below the recorder and the sources, and with the standard library and `safeio` alone: it knows nothing of ranks. Also
how a program of ours is started beside a job (`isolated_python`, `programs`), and with whose rights a file is read that
a process names (`target_rights`).
"""
