"""What the evidence can say: which dumps count, who lives, where threads are. Nothing here accuses."""
