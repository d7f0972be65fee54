"""One file a source of evidence that the agent can save from a live node."""
