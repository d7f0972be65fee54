"""The black boxes of running processes: what NCCL has been asked to do and what of it does not move.

Nothing is asked of the process: the files lie in shared memory, and whoever calls NCCL writes them. `live_box.py` reads
one file, `box_watch.py` keeps those of the node, `behind.py` compares the members of a communicator, and
`box_identity.py` says which rank a process is that torch.distributed does not know.
"""
