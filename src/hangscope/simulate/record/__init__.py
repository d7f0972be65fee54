"""What is recorded: the records that operations make, each rank's ring at the moment of its dump, and that moment."""
