"""The truth about a run: what its fault came to, what else it is honest to say, and truth.json."""
