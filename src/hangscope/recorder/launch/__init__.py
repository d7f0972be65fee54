"""Starting the job's command so that it runs as it would without hangscope, and passing its output on."""
