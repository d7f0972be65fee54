"""With which ranks, tag and group a rank is in its calls of torch.distributed: Gloo records none of that."""
