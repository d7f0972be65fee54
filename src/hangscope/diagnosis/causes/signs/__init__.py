"""What single sources say where no recording explains the hang: a line of a log, an answer of NCCL's RAS, stacks."""
