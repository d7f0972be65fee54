"""NCCL's black box: what its transfers wait for, which a plugin of ours writes down in each process (native/)."""
