"""What lies on disk: every rank's dump in the format of its version, the ranks' logs, NCCL's logs and the roster."""
