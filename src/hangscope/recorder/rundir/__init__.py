"""The run's directory, which the agents of all nodes share: status files, each node's part, what others wrote."""
