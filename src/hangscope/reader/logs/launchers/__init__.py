"""What launchers and schedulers say about processes that ended."""
