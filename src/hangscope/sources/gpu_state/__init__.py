"""What nvidia-smi says of a node's GPUs: which there are, who uses them, their errors and temperatures."""
