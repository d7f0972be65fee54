"""What is said of a job in which nothing hangs: a rank slows it down, all is well, or nobody can tell."""
