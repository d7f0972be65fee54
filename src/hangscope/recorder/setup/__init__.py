"""Which variables a job needs for its torch and backend, and what is wrong with those that are set."""
