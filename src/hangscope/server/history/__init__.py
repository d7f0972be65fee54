"""Machine or code? Suspicion of nodes, GPUs, ports, leaf switches and commits from incidents and from healthy jobs."""
